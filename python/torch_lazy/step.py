"""When recorded work runs: at the end of a step, or when it is asked for. Reading many at once."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from torch_lazy import _C
from torch_lazy.closure import run_step_closures


def mark_step(device: str = "", wait: bool = False) -> None:
    """Runs everything that is recorded for `device` ("" means the default one) and ends a step.

    Then the step's closures run (add_step_closure); if running fails they stay for the next step.

    A program need not call it: an optimizer's step() does (setting TORCH_LAZY_STEP_ON_OPTIMIZER),
    and reading a value runs what the value needs.

    Args:
        device: like "lazy" or "lazy:1".
        wait: whether to return only when the results are there.
    """
    if _C.is_recording():
        return  # a recorded function is one step, which ends with it
    _C._lazy._mark_step(device, [], wait=wait)
    run_step_closures()


def sync(tensors: torch.Tensor | Iterable[torch.Tensor] | None = None, wait: bool = True) -> None:
    """Runs what the given tensors need; without tensors, everything that is recorded.

    Tensors of other devices are ignored.
    """
    if tensors is None:
        if _C.is_recording():
            return
        _C.sync_all(wait)
        return
    if isinstance(tensors, torch.Tensor):
        tensors = [tensors]
    _C.sync_tensors([t for t in tensors if t.device.type == "lazy"], wait)


def sync_multi(tensors: Sequence[torch.Tensor], devices: Sequence[str]) -> None:
    """Runs what the given tensors need, as one computation, which is kept by its hash.

    Tensors of other devices are ignored; all others are on one device. `devices` has no effect.
    """
    _C._lazy._sync_multi(tensors, devices)


def wait_device_ops(devices: Sequence[str] | None = None) -> None:
    """Returns when nothing runs any more. It starts nothing; all devices are waited for."""
    _C._lazy._wait_device_ops(devices=devices or [])


def get_tensor_id(tensor: torch.Tensor) -> int:
    """A number for the tensor's buffer, never used again; tensors that share memory share it."""
    return _C._lazy._get_tensor_id(tensor)


def to_cpu(tensors: Any, devices: Sequence[str] | None = None) -> Any:
    """The same tree (lists, tuples, dicts) with CPU tensors, computed together."""
    sync_multi(tree_leaves(tensors), devices or ["lazy"])
    return tree_map(lambda tensor: tensor.to("cpu"), tensors)


def save(tensors: Any, *args: Any, **kwargs: Any) -> None:
    """torch.save of the tree as CPU tensors: the file loads without torch-lazy, and on the CPU."""
    torch.save(to_cpu(tensors), *args, **kwargs)
