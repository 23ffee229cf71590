"""Plain tensors that a recorded call computes with: what it makes of them would not change."""

import functools
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from torch_lazy import _C


@functools.cache
def load_modes() -> None:
    """Has PyTorch import what dispatch modes need, outside of what is observed."""
    with HostReads({}, ()):
        torch.empty(0)


class HostReads(TorchDispatchMode):
    """Sees whether a call reads plain tensors that it has not made itself.

    Copies to the device lazy are followed where the recorder knows the tensor: a replay makes them
    again.
    """

    supports_higher_order_operators = True

    def __init__(self, names: Mapping[int, str], known: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.obstacle = ""
        self._names = names
        self._known = {_storage_of(tensor) for tensor in known}
        self._made: dict[int, Any] = {}
        """Storages that the call has made, by address; held, so that none takes its place."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Otherwise torch.compile does not compile a function that is called meanwhile, ever."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if isinstance(func, HigherOrderOperator):
            return func(*args, **kwargs)  # made of operators, which are looked at
        arguments = [leaf for leaf in tree_leaves((args, kwargs)) if _is_host(leaf)]
        if func is _LIFT:
            self._note_made(arguments)  # torch.tensor: made of Python's numbers
        result = func(*args, **kwargs)
        results = tree_leaves(result)
        given = (*args, *kwargs.values())
        if any(torch._C.Generator in type(value).__mro__ for value in given) and any(
            map(_is_host, results)
        ):
            self.obstacle = self.obstacle or (
                f"{func} draws from a generator ({_C.source_line().strip()}); draw on the device "
                f"lazy, or outside of the function"
            )
        if arguments and not self.obstacle:
            moves = _only_moves(func, results)
            for tensor in arguments:
                if not self._is_made(tensor) and not (moves and _storage_of(tensor) in self._known):
                    verb = "moves" if moves else "computes with"
                    self._say(f"{func} {verb}", tensor, _C.source_line().strip())
                    break
        if not func.is_view:
            self._note_made(leaf for leaf in results if _is_host(leaf))
        return result

    def without_operator(self, reads: Iterable[tuple[torch.Tensor, str, str]]) -> str:
        """An obstacle: memory that was read by a method such as tolist; empty: none."""
        for tensor, method, line in reads:
            if not self.obstacle and _is_host(tensor) and not self._is_made(tensor):
                self._say(f"{method} reads", tensor, line.strip())
        return self.obstacle

    def _say(self, what: str, tensor: torch.Tensor, line: str) -> None:
        name = self._names.get(id(tensor), "a tensor")
        self.obstacle = (
            f"{what} {name}, which is on the {tensor.device.type} and was not made by the "
            f"call ({line}); move it to the device lazy first"
        )

    def _note_made(self, tensors: Iterable[torch.Tensor]) -> None:
        for tensor in tensors:
            held = tensor.untyped_storage() if tensor.layout == torch.strided else tensor
            self._made[_storage_of(tensor)] = held

    def _is_made(self, tensor: torch.Tensor) -> bool:
        return _storage_of(tensor) in self._made


def _storage_of(tensor: torch.Tensor) -> int:
    """What tensors with the same memory have in common."""
    if tensor.layout != torch.strided:
        return id(tensor)
    return int(tensor.untyped_storage()._cdata)


_LIFT = torch.ops.aten.lift_fresh.default
_MOVES = {torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default}


def _is_host(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type not in ("lazy", "meta")


def _only_moves(func: Any, results: list[Any]) -> bool:
    """Whether an operator makes views, or copies to the device lazy: such data is followed."""
    if func in _MOVES:
        return all(not _is_host(result) for result in results)
    return func.is_view or func is _LIFT or func in _ALIASES


_ALIASES = {torch.ops.aten.detach.default, torch.ops.aten.alias.default}
