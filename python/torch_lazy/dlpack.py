"""DLPack for lazy tensors, which have no address of their own: it goes through the real tensor."""

from typing import Any

import torch

from torch_lazy import _C


def to_dlpack(tensor: torch.Tensor) -> Any:
    """Runs what `tensor` needs and returns a DLPack capsule over its memory on the real device.

    Nothing is copied. The consumer sees the value of this moment: torch-lazy does not know what is
    written through the capsule, so treat it as read-only, or write only while nothing is recorded
    for the tensor.
    """
    _require_lazy(tensor)
    return torch.utils.dlpack.to_dlpack(_C.to_real(tensor.detach()))


def from_dlpack(source: Any) -> torch.Tensor:
    """A lazy tensor over the memory of `source`: a DLPack capsule or an object with `__dlpack__`.

    The memory must be on the device that does the work (`torch.lazy.real_device()`). Nothing is
    copied; the producer must not write to the memory afterwards.
    """
    real = torch.from_dlpack(source)
    expected = torch.device(_C.real_device())
    if real.device.type != expected.type:
        raise BufferError(
            f"from_dlpack: the data is on {real.device}, and lazy tensors live on {expected}; "
            f"use torch.from_dlpack(...).to('lazy'), which copies"
        )
    return _C.from_real(real)


def _require_lazy(tensor: torch.Tensor) -> None:
    if tensor.device.type != "lazy":
        raise TypeError(f"expected a tensor on the device lazy, got one on {tensor.device}")
