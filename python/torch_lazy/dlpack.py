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


def packing(to_dlpack: Any) -> Any:
    """torch.to_dlpack, for lazy tensors too."""

    def pack(tensor: torch.Tensor) -> Any:
        return to_dlpack(_C.to_real(tensor.detach()) if tensor.device.type == "lazy" else tensor)

    return pack


def exporting(dlpack: Any) -> Any:
    """Tensor.__dlpack__, for lazy tensors too."""

    def export(self: torch.Tensor, **kwargs: Any) -> Any:
        if self.device.type != "lazy":
            return dlpack(self, **kwargs)
        if self.requires_grad:
            raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
        return dlpack(_C.to_real(self), **kwargs)

    return export


def exporting_device(dlpack_device: Any) -> Any:
    """Tensor.__dlpack_device__, for lazy tensors too."""

    def device(self: torch.Tensor) -> Any:
        if self.device.type != "lazy":
            return dlpack_device(self)
        return torch.empty(0, device=_C.real_device()).__dlpack_device__()

    return device


def _require_lazy(tensor: torch.Tensor) -> None:
    if tensor.device.type != "lazy":
        raise TypeError(f"expected a tensor on the device lazy, got one on {tensor.device}")
