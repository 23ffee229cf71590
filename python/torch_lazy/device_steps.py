"""Optimizers that count their steps on the device while a function is recorded.

An optimizer of PyTorch counts in plain tensors and computes with Python numbers, unless it is
`capturable`. A replay can only count in tensors on the device. The optimizer stays what the user
made: `capturable` is set for the time of a call, and `state_dict()` has the counts where an
optimizer that was never compiled has them.
"""

import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.optim import ASGD, Optimizer

_COUNTS = ("step", "mu_product")
"""Scalars that optimizers keep on the CPU unless they are capturable."""

_hooked: "weakref.WeakSet[Optimizer]" = weakref.WeakSet()

_set_for_calls: list[dict[str, Any]] = []
"""Groups whose `capturable` is not the user's at present."""


class StepsOnDevice:
    """While entered, the optimizers count on the device."""

    def __init__(self, optimizers: Iterable[Optimizer]) -> None:
        self._optimizers = list(optimizers)
        self._set: list[dict[str, Any]] = []

    def __enter__(self) -> None:
        for optimizer in self._optimizers:
            keep_steps_on_device(optimizer)
            for group in _counting_groups(optimizer):
                if not group["capturable"] and not group.get("fused") and _may_be_capturable(group):
                    self._set.append(group)
                    _set_for_calls.append(group)
                    group["capturable"] = True

    def __exit__(self, *error: Any) -> None:
        for group in self._set:
            group["capturable"] = False
            _set_for_calls[:] = [other for other in _set_for_calls if other is not group]
        self._set = []


def _may_be_capturable(group: dict[str, Any]) -> bool:
    """Capturable: where the user's choice makes the optimizer refuse a tensor as rate, it does."""
    return not (group.get("foreach") and isinstance(group.get("lr"), torch.Tensor))


def keep_steps_on_device(optimizer: Optimizer) -> None:
    """Moves the counts that exist to the device."""
    for group in _counting_groups(optimizer):
        if optimizer not in _hooked:
            _hooked.add(optimizer)
            optimizer.register_state_dict_post_hook(_with_plain_counts)
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {}) if _is_lazy(parameter) else {}
            for name in _COUNTS:
                count = state.get(name)
                if isinstance(count, torch.Tensor) and not _is_lazy(count):
                    state[name] = count.to(parameter.device)


def has_steps_on_device(optimizer: Optimizer) -> bool:
    return optimizer in _hooked


def _counting_groups(optimizer: Optimizer) -> Iterator[dict[str, Any]]:
    for group in optimizer.param_groups:
        if "capturable" in group and group["params"] and all(map(_is_lazy, group["params"])):
            yield group


def _with_plain_counts(optimizer: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
    """The optimizer's state as it is without compile."""
    groups = [
        {**kept, "capturable": False} if any(own is other for other in _set_for_calls) else kept
        for own, kept in zip(optimizer.param_groups, state_dict["param_groups"], strict=True)
    ]
    if isinstance(optimizer, ASGD):  # counts on the device of its parameters in any case
        return {**state_dict, "param_groups": groups}
    state = dict(state_dict["state"])
    for group in groups:
        if group.get("capturable", True) or group.get("fused"):
            continue
        for index in group["params"]:
            kept = state.get(index, {})
            counts = {name: kept[name].cpu() for name in _COUNTS if _is_lazy(kept.get(name))}
            if counts:
                state[index] = {**kept, **counts}
    return {**state_dict, "state": state, "param_groups": groups}


def _is_lazy(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "lazy"
