"""What the objects of a program hold, kept so that it can be put back bit by bit."""

import collections
import functools
import random
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

_PLAIN = (int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
_LIBRARIES = frozenset(sys.stdlib_module_names) | {"torch", "torch_lazy", "numpy", "builtins"}
_CONTAINERS = (dict, list, set, collections.deque, bytearray)
_MISSING = object()


class ProgramState:
    """The state that some objects lead to, as it was when this was made.

    Kept are tensors and their gradients, containers, attributes, closures, the globals and class
    attributes that functions on the way name, and generators of random numbers. Iterators, files
    and what libraries keep for themselves are not.
    """

    def __init__(self, *roots: Any) -> None:
        self.gradients: dict[int, torch.Tensor | None] = {}
        """Of tensors, by id: those that they had."""
        self.kept: dict[int, torch.Tensor] = {}
        """Copies of tensors, by id."""
        self._tensors: list[_TensorState] = []
        self._undo: list[Callable[[], None]] = []
        self._seen: dict[int, Any] = {}
        self._keep_global_generators()
        waiting = list(roots)
        while waiting:
            waiting.extend(self._enter(waiting.pop()))

    def restore(self) -> None:
        """Puts everything back, all of it even if a part fails; then raises the first failure."""
        failure: BaseException | None = None
        for undo in (*self._undo, *(tensor.restore for tensor in self._tensors)):
            try:
                undo()
            except BaseException as error:
                failure = failure or error
        if failure is not None:
            raise failure

    # ---- Walking ---------------------------------------------------------------------------------

    def _enter(self, item: Any) -> list[Any]:
        """Keeps what one object holds; returns what it leads to."""
        if isinstance(item, _PLAIN) or id(item) in self._seen:
            return []
        self._seen[id(item)] = item
        if isinstance(item, torch.Tensor):
            return self._keep_tensor(item)
        if isinstance(item, torch.Generator):
            state = item.get_state()
            self._undo.append(lambda: item.set_state(state))
            return []
        if isinstance(item, types.FunctionType):
            return self._keep_function(item)
        if isinstance(item, types.MethodType):
            return [item.__func__, item.__self__]
        if isinstance(item, functools.partial):
            return [item.func, item.args, item.keywords]
        if isinstance(item, type):
            return self._keep_class(item)
        if isinstance(item, (tuple, frozenset)):
            return list(item)
        if isinstance(item, np.ndarray):
            self._keep_array(item)
            return []
        inside = self._keep_container(item) if isinstance(item, _CONTAINERS) else []
        return inside + self._keep_attributes(item)

    def _keep_tensor(self, tensor: torch.Tensor) -> list[Any]:
        if tensor.layout != torch.strided or tensor.device.type == "meta":
            return []
        state = _TensorState(tensor)
        self._tensors.append(state)
        self.kept[id(tensor)] = state.value
        self.gradients[id(tensor)] = state.gradient
        return [state.gradient, getattr(tensor, "__dict__", None)]

    def _keep_array(self, array: np.ndarray) -> None:
        copy = array.copy()

        def undo() -> None:
            if array.flags.writeable:
                np.copyto(array, copy)

        self._undo.append(undo)

    def _keep_container(self, item: Any) -> list[Any]:
        if isinstance(item, dict):
            items = list(item.items())
            self._undo.append(functools.partial(_refill_dict, item, items))
            return [part for pair in items for part in pair]
        inside = list(item)
        self._undo.append(functools.partial(_refill, item, inside))
        return inside

    def _keep_attributes(self, item: Any) -> list[Any]:
        cls = type(item)
        if isinstance(item, random.Random):
            state = item.getstate()
            self._undo.append(lambda: item.setstate(state))
            return []
        if isinstance(item, np.random.Generator):
            bits = item.bit_generator
            state = bits.state
            self._undo.append(lambda: setattr(bits, "state", state))
            return []
        if _library(cls) not in ("", "torch"):
            # Locks, loggers and caches keep their state; functions inside them are the user's.
            return [getattr(item, "__wrapped__", None)]
        inside = [getattr(item, "__dict__", None), cls]
        for name in {name for base in cls.__mro__ for name in _slots(base)}:
            value = getattr(item, name, _MISSING)
            self._undo.append(functools.partial(_set_attribute, item, name, value))
            inside.append(value)
        return inside

    def _keep_class(self, cls: type) -> list[Any]:
        if _library(cls):
            return []
        inside = [*cls.__bases__]
        attributes = _class_attributes(cls)
        for value in attributes.values():
            if isinstance(value, (staticmethod, classmethod)):
                inside.append(value.__func__)
            elif isinstance(value, property):
                inside += [value.fget, value.fset]
            else:
                inside.append(value)
        self._undo.append(functools.partial(_set_class_attributes, cls, attributes))
        return inside

    def _keep_function(self, function: types.FunctionType) -> list[Any]:
        if _library(function):
            return []
        inside: list[Any] = [function.__defaults__, function.__kwdefaults__, function.__dict__]
        for cell in function.__closure__ or ():
            try:
                value = cell.cell_contents
            except ValueError:
                value = _MISSING
            self._undo.append(functools.partial(_set_cell, cell, value))
            inside.append(value)
        names = _names(function.__code__)
        spaces = [function.__globals__]
        while spaces:
            space = spaces.pop()
            for name in names:
                value = space.get(name, _MISSING)
                if value is _MISSING and space is not function.__globals__:
                    continue
                if isinstance(value, types.ModuleType):
                    if not _library_name(value.__name__) and id(value) not in self._seen:
                        self._seen[id(value)] = value
                        spaces.append(vars(value))
                    continue
                self._undo.append(functools.partial(_set_item, space, name, value))
                inside.append(value)
        return inside

    def _keep_global_generators(self) -> None:
        torch_state, python_state = torch.get_rng_state(), random.getstate()
        numpy_state = np.random.get_state()
        self._undo.append(lambda: torch.set_rng_state(torch_state))
        self._undo.append(lambda: random.setstate(python_state))
        self._undo.append(lambda: np.random.set_state(numpy_state))


class _TensorState:
    """A tensor's memory, content, gradient and whether it wants one."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.inference = tensor.is_inference()
        with torch.inference_mode(self.inference), torch.no_grad():
            self.alias = tensor.detach()
            self.value = self.alias.clone()
        self.gradient = tensor.grad if tensor.is_leaf or tensor.retains_grad else None
        self.requires_grad = tensor.requires_grad
        self.version = 0 if self.inference else tensor._version
        # Elements that share memory cannot be written one by one, by the program neither.
        self.writable = torch._debug_has_internal_overlap(self.alias) != 1

    def restore(self) -> None:
        tensor = self.tensor
        with torch.inference_mode(self.inference), torch.no_grad():
            if not _same_memory(tensor, self.alias):
                tensor.data = self.alias
            if self.writable:
                self.alias.copy_(self.value)
        if tensor.is_leaf and tensor.requires_grad != self.requires_grad:
            tensor.requires_grad_(self.requires_grad)
        if (tensor.is_leaf or tensor.retains_grad) and tensor.grad is not self.gradient:
            tensor.grad = self.gradient
        if not self.inference:
            # What autograd saved before is what is there again.
            torch._C._autograd._unsafe_set_version_counter((tensor,), (self.version,))


def _same_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    return (
        a.untyped_storage()._cdata == b.untyped_storage()._cdata
        and a.storage_offset() == b.storage_offset()
        and a.shape == b.shape
        and a.stride() == b.stride()
        and a.dtype == b.dtype
    )


# ---- Putting back: only what is another one, so that nobody who watches for changes sees one -----


def _refill_dict(items: dict[Any, Any], before: list[tuple[Any, Any]]) -> None:
    now = list(items.items())
    if len(now) == len(before) and all(
        a is c and b is d for (a, b), (c, d) in zip(now, before, strict=True)
    ):
        return
    items.clear()
    for key, value in before:
        items[key] = value


def _refill(items: Any, before: list[Any]) -> None:
    now = list(items)
    if len(now) == len(before) and all(a is b for a, b in zip(now, before, strict=True)):
        return
    items.clear()
    (items.update if isinstance(items, set) else items.extend)(before)


def _set_attribute(item: Any, name: str, value: Any) -> None:
    if getattr(item, name, _MISSING) is value:
        return
    if value is _MISSING:
        delattr(item, name)
    else:
        object.__setattr__(item, name, value)


def _class_attributes(cls: type) -> dict[str, Any]:
    fixed = (types.MemberDescriptorType, types.GetSetDescriptorType)
    return {
        name: value
        for name, value in vars(cls).items()
        if (not name.startswith("__") or name == "__call__") and not isinstance(value, fixed)
    }


def _set_class_attributes(cls: type, before: dict[str, Any]) -> None:
    now = _class_attributes(cls)
    for name in now.keys() - before.keys():
        delattr(cls, name)
    for name, value in before.items():
        if now.get(name, _MISSING) is not value:
            setattr(cls, name, value)


def _set_item(items: dict[str, Any], name: str, value: Any) -> None:
    if items.get(name, _MISSING) is value:
        return
    if value is _MISSING:
        del items[name]
    else:
        items[name] = value


def _set_cell(cell: types.CellType, value: Any) -> None:
    try:
        if cell.cell_contents is value:
            return
    except ValueError:
        if value is _MISSING:
            return
    if value is _MISSING:
        del cell.cell_contents
    else:
        cell.cell_contents = value


# ---- What belongs to whom ------------------------------------------------------------------------


def _library(item: Any) -> str:
    """The library that a class or function is of; empty: the user's own."""
    return _library_name(getattr(item, "__module__", None) or "")


def _library_name(module: str) -> str:
    top = module.partition(".")[0]
    return top if top in _LIBRARIES else ""


def _slots(cls: type) -> tuple[str, ...]:
    slots = vars(cls).get("__slots__", ())
    slots = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(
        f"_{cls.__name__.lstrip('_')}{name}"
        if name.startswith("__") and not name.endswith("__")
        else name
        for name in slots
        if name not in ("__dict__", "__weakref__")
    )


@functools.lru_cache(maxsize=1024)
def _names(code: types.CodeType) -> tuple[str, ...]:
    """The names that code and the functions inside it may look up or set."""
    names = list(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names += _names(constant)
    return tuple(dict.fromkeys(names))
