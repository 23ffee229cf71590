"""When recorded work runs: at the end of a step, or when it is asked for."""

from collections.abc import Iterable, Sequence

import torch

from torch_lazy import _C


def mark_step(device: str = "", wait: bool = False) -> None:
    """Runs everything that is recorded for `device` ("" means the only one) and ends a step.

    A program need not call it: an optimizer's step() does (setting TORCH_LAZY_STEP_ON_OPTIMIZER),
    and reading a value runs what the value needs.
    """
    _C.mark_step(device, wait)


def sync(tensors: torch.Tensor | Iterable[torch.Tensor] | None = None, wait: bool = True) -> None:
    """Runs what the given tensors need; without tensors, everything that is recorded.

    Tensors of other devices are ignored.
    """
    if tensors is None:
        _C.sync_all(wait)
        return
    if isinstance(tensors, torch.Tensor):
        tensors = [tensors]
    _C.sync_tensors([t for t in tensors if t.device.type == "lazy"], wait)


def wait_device_ops(devices: Sequence[str] | None = None) -> None:
    """Returns when nothing runs any more. It starts nothing; all devices are waited for."""
    _C.wait_device_ops()
