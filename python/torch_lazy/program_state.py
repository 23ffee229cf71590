"""What the objects of a program hold, kept so that it can be put back bit by bit."""

import array
import collections
import ctypes
import functools
import logging
import os
import queue
import random
import sys
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from torch_lazy.observe import code_facts
from torch_lazy.put_back import (
    MISSING,
    class_attributes,
    is_module,
    plain_class,
    refill,
    refill_dict,
    set_attribute,
    set_cell,
    set_class,
    set_class_attributes,
    set_item,
    set_slot,
    slot_value,
    wake,
)
from torch_lazy.tensor_state import TensorState
from torch_lazy.torch_settings import global_hooks, set_setting, settings

_PLAIN = {int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device, torch.Size}
_PLAIN.update(weakref.ProxyTypes)
_LIBRARIES = frozenset(sys.stdlib_module_names) | {"torch", "torch_lazy", "numpy", "builtins"}
_CONTAINERS = (dict, list, set, collections.deque, bytearray)
_VIEWS = (types.MappingProxyType, *(type(view) for view in ({}.keys(), {}.values(), {}.items())))
_BUFFERS = (array.array, ctypes._SimpleCData.__mro__[1])
_NOT_ENTERED = (types.ModuleType, types.CodeType, types.FrameType, types.TracebackType)
_NOT_ENTERED += (logging.Logger, logging.Handler, np.random.SeedSequence)

_NOT_PUT_BACK = {"threading", "_thread", "concurrent", "asyncio", "multiprocessing", "subprocess"}
_NOT_PUT_BACK |= {"logging", "io", "_io", "socket", "ssl", "selectors", "sqlite3", "tempfile"}
_NOT_PUT_BACK |= {"importlib", "_frozen_importlib", "_frozen_importlib_external", "torch_lazy"}
"""Modules of locks, threads, files and the like: what others rely on while the function is saved,
or what goes on outside of the program."""

_ATTEMPTS = 16
"""So often a part is put back that a signal interrupts."""


class ProgramState:
    """The state that some objects lead to, as it was when this was made.

    Kept are tensors, their gradients and hooks, containers, attributes, closures, the globals and
    class attributes that functions on the way name, generators of random numbers, PyTorch's
    settings and the environment. Iterators, files, locks, threads and what C functions keep for
    themselves are not (docs/compile.md).
    """

    def __init__(self, *roots: Any) -> None:
        self.gradients: dict[int, torch.Tensor | None] = {}
        """Of tensors, by id: those that they had."""
        self.kept: dict[int, torch.Tensor] = {}
        """Copies of tensors, by id."""
        self._tensors: list[TensorState] = []
        self._undo: collections.deque[Callable[[], None]] = collections.deque()
        self._last: list[Callable[[], None]] = []
        self._seen: dict[int, Any] = {}
        self._named: set[tuple[int, str]] = set()
        self._keep_settings()
        self._keep_global_generators()
        waiting = [*roots, *global_hooks()]
        while waiting:
            waiting.extend(self._enter(waiting.pop()))
        self._undo.appendleft(self._spare_histories)
        self._undo.extend(self._last)

    def check(self) -> None:
        """Raises an error if something has changed that cannot be put back."""
        for tensor in self._tensors:
            if tensor.lost:
                raise RuntimeError(
                    "torch_lazy.save_graph: the function writes something that requires gradients "
                    "into a view of a tensor that it has from outside, which cannot be undone; "
                    "write into the tensor itself, or under torch.no_grad()"
                )

    def restore(self) -> None:
        """Puts everything back, all of it even if a part fails; then raises the first failure.

        To put something back twice does no harm: a part that a signal interrupted is repeated, and
        so may this be.
        """
        failure: BaseException | None = None
        attempts = 0
        while self._undo:
            try:
                while self._undo:
                    self._undo[0]()
                    self._undo.popleft()
                    attempts = 0
            except BaseException as error:
                failure = failure or error
                attempts += 1
                if attempts == _ATTEMPTS:
                    self._undo.popleft()
                    attempts = 0
        if failure is not None:
            raise failure

    def _spare_histories(self) -> None:
        """A view that cannot get rid of its history needs that of its base."""
        bases = {id(tensor.tensor._base) for tensor in self._tensors if tensor.lost}
        for tensor in self._tensors:
            tensor.keeps_history = id(tensor.tensor) in bases

    # ---- Walking ---------------------------------------------------------------------------------

    def _enter(self, item: Any) -> list[Any]:
        """Keeps what one object holds; returns what it leads to."""
        if type(item) in _PLAIN or id(item) in self._seen:
            return []
        self._seen[id(item)] = item
        if isinstance(item, torch.Tensor):
            return self._keep_tensor(item)
        if isinstance(item, type):
            return self._keep_class(item)
        if _not_entered(item):
            ours = _library(type(item)) == "torch_lazy"
            # Functions that were compiled, and the tensors of those that were loaded.
            names = ("__wrapped__", "state", "_state") if ours else ("__wrapped__",)
            return [getattr(item, name, None) for name in names]
        inside = self._keep_state(item)
        if isinstance(item, types.FunctionType):
            return inside + self._keep_function(item)
        if isinstance(item, _CONTAINERS):
            inside += self._keep_container(item)
        elif isinstance(item, _BUFFERS):
            self._keep_buffer(item)
        elif isinstance(item, np.ndarray):
            inside += self._keep_array(item)
        return inside + _leads_to(item) + self._keep_attributes(item)

    def _keep_state(self, item: Any) -> list[Any]:
        """Keeps what an object returns as its state."""
        if isinstance(item, torch.Generator):
            self._keep_value(item.get_state, item.set_state)
        elif isinstance(item, random.Random) and not isinstance(item, random.SystemRandom):
            self._keep_value(item.getstate, item.setstate)
        elif isinstance(item, np.random.RandomState):
            self._keep_value(item.get_state, item.set_state)
        elif isinstance(item, np.random.BitGenerator):
            self._keep_value(lambda: item.state, functools.partial(setattr, item, "state"))
        elif isinstance(item, np.random.Generator):
            return [item.bit_generator]
        return []

    def _keep_value(self, get: Callable[[], Any], put: Callable[[Any], Any]) -> None:
        self._undo.append(functools.partial(put, get()))

    def _keep_tensor(self, tensor: torch.Tensor) -> list[Any]:
        self._undo.append(functools.partial(set_class, tensor, type(tensor)))
        state = TensorState(tensor)
        self._tensors.append(state)
        self._undo.append(state.restore)
        if state.value is not None:
            self.kept[id(tensor)] = state.value
            self.gradients[id(tensor)] = state.gradient
        inside = [state.gradient, *state.hooks.values(), getattr(tensor, "__dict__", None)]
        return [*inside, None if state.inference else tensor._base]

    def _keep_array(self, array: np.ndarray) -> list[Any]:
        copy, shape, writeable = array.copy(), array.shape, array.flags.writeable

        def undo() -> None:
            if array.shape != shape:
                if array.size == copy.size:
                    array.shape = shape
                else:
                    array.resize(shape, refcheck=False)
            if writeable and not array.flags.writeable:
                array.flags.writeable = True
            if array.flags.writeable:
                np.copyto(array, copy)
                array.flags.writeable = writeable

        self._undo.append(undo)
        return list(copy.flat) if copy.dtype.hasobject else []

    def _keep_buffer(self, item: Any) -> None:
        if isinstance(item, array.array):
            copy = item[:]

            def undo() -> None:
                if item.tobytes() != copy.tobytes():
                    item[:] = copy

        else:
            address, size = ctypes.addressof(item), ctypes.sizeof(item)
            before = ctypes.string_at(address, size)

            def undo() -> None:
                ctypes.memmove(address, before, size)

        self._undo.append(undo)

    def _keep_container(self, item: Any) -> list[Any]:
        if isinstance(item, dict):
            items = list(plain_class(item).items(item))
            self._undo.append(functools.partial(refill_dict, item, items))
            return [part for pair in items for part in pair]
        inside = list(plain_class(item).__iter__(item))
        self._undo.append(functools.partial(refill, item, inside))
        return inside

    def _keep_attributes(self, item: Any) -> list[Any]:
        cls = type(item)
        inside: list[Any] = [cls]
        if isinstance(item, queue.Queue):
            self._last.append(functools.partial(wake, item))
        try:
            attributes = item.__dict__
        except Exception:  # it has none, or the program makes it
            attributes = None
        if type(attributes) is dict:
            self._undo.append(functools.partial(set_class, item, cls))
            self._undo.append(functools.partial(set_attribute, item, "__dict__", attributes))
            inside.append(attributes)
        if isinstance(item, collections.defaultdict):
            factory = item.default_factory
            self._undo.append(functools.partial(set_attribute, item, "default_factory", factory))
            inside.append(factory)
        for slot in _slots(cls):
            value = slot_value(item, slot)
            self._undo.append(functools.partial(set_slot, item, slot, value))
            inside.append(value)
        return inside

    def _keep_class(self, cls: type) -> list[Any]:
        if _library(cls):
            return []
        inside = [*cls.__bases__, type(cls)]
        attributes = class_attributes(cls)
        for value in attributes.values():
            if isinstance(value, (staticmethod, classmethod)):
                inside.append(value.__func__)
            elif isinstance(value, property):
                inside += [value.fget, value.fset, value.fdel]
            else:
                inside.append(value)
        self._undo.append(functools.partial(set_class_attributes, cls, attributes))
        return inside

    def _keep_function(self, function: types.FunctionType) -> list[Any]:
        inside: list[Any] = [function.__dict__]
        for name in ("__code__", "__defaults__", "__kwdefaults__"):
            value = getattr(function, name)
            self._undo.append(functools.partial(set_attribute, function, name, value))
            inside.append(value)
        for cell in function.__closure__ or ():
            try:
                value = cell.cell_contents
            except ValueError:
                value = MISSING
            self._undo.append(functools.partial(set_cell, cell, value))
            inside.append(value)
        if _library(function):
            return inside
        return inside + self._keep_names(function)

    def _keep_names(self, function: types.FunctionType) -> list[Any]:
        """Keeps what a function's names are in its module and in those that it leads to."""
        inside: list[Any] = []
        names, imports = _names(function.__code__), _imports(function)
        spaces = [function.__globals__, *map(vars, imports)]
        if _any_global(function.__code__):
            inside += self._keep_space(function.__globals__)
        entered = set(map(id, spaces))
        while spaces:
            space = spaces.pop()
            for name in names:
                value = space.get(name, MISSING)
                if is_module(value):
                    if not _library_name(value.__name__) and id(vars(value)) not in entered:
                        entered.add(id(vars(value)))
                        spaces.append(vars(value))
                else:
                    inside.append(value)
                if (id(space), name) not in self._named:
                    self._named.add((id(space), name))
                    self._undo.append(functools.partial(set_item, space, name, value))
        return inside

    def _keep_space(self, space: dict[str, Any]) -> list[Any]:
        before = dict(space)

        def undo() -> None:
            for name in list(space.keys() | before.keys()):
                set_item(space, name, before.get(name, MISSING))

        self._undo.append(undo)
        return [value for value in before.values() if not is_module(value)]

    # ---- What is no object -----------------------------------------------------------------------

    def _keep_settings(self) -> None:
        for get, put in settings():
            self._undo.append(functools.partial(set_setting, get, put, get()))
        environment = dict(os.environ)

        def undo() -> None:
            for name in os.environ.keys() - environment.keys():
                del os.environ[name]
            for name, value in environment.items():
                if os.environ.get(name) != value:
                    os.environ[name] = value

        self._undo.append(undo)

    def _keep_global_generators(self) -> None:
        self._keep_value(torch.get_rng_state, torch.set_rng_state)
        self._keep_value(random.getstate, random.setstate)
        self._keep_value(np.random.get_state, np.random.set_state)


def _not_entered(item: Any) -> bool:
    if isinstance(item, _NOT_ENTERED):
        return True
    if isinstance(item, (types.FunctionType, threading.local, torch.Generator)):
        return False
    if isinstance(item, torch.utils.data.dataloader._BaseDataLoaderIter):
        return True  # its workers do not go back
    return any(_library(base) in _NOT_PUT_BACK for base in type(item).__mro__)


def _leads_to(item: Any) -> list[Any]:
    """What an object refers to other than by attributes or as a container."""
    if isinstance(item, types.MethodType):
        return [item.__func__, item.__self__]
    if isinstance(item, (types.BuiltinMethodType, types.MethodWrapperType)):
        return [item.__self__]
    if isinstance(item, functools.partial):
        return [item.func, item.args, item.keywords]
    if isinstance(item, functools._lru_cache_wrapper):
        return [item.__wrapped__]
    if isinstance(item, (tuple, frozenset)):
        return list(plain_class(item).__iter__(item))
    if isinstance(item, weakref.ReferenceType):
        return [item()]  # it stays alive, and in the container that refers to it
    if isinstance(item, memoryview):
        return [item.obj]
    if isinstance(item, types.MappingProxyType):
        return [*item.keys(), *item.values()]
    if isinstance(item, _VIEWS):
        return list(item)
    return []


# ---- What belongs to whom ------------------------------------------------------------------------


def _library(item: Any) -> str:
    """The library that a class or function is of; empty: the user's own."""
    module = getattr(item, "__module__", None)
    return _library_name(module) if isinstance(module, str) else ""  # a metaclass may have another


def _library_name(module: str) -> str:
    top = module.partition(".")[0]
    return top if top in _LIBRARIES else ""


def _slots(cls: type) -> list[types.MemberDescriptorType]:
    return [
        slot
        for base in cls.__mro__
        if "__slots__" in vars(base)
        for slot in vars(base).values()
        if isinstance(slot, types.MemberDescriptorType)
    ]


def _nested(code: types.CodeType) -> list[types.CodeType]:
    """The code of functions inside of a function."""
    return [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]


@functools.lru_cache(maxsize=1024)
def _names(code: types.CodeType) -> tuple[str, ...]:
    """The names that code and the functions inside it may look up or set, as names or texts."""
    names = [*code.co_names]
    names += [text for text in code.co_consts if isinstance(text, str) and text.isidentifier()]
    for inner in _nested(code):
        names += _names(inner)
    return tuple(dict.fromkeys(names))


def _any_global(code: types.CodeType) -> bool:
    """Whether it may use globals whose names it does not have."""
    return code_facts(code).any_global or any(map(_any_global, _nested(code)))


def _imports(function: types.FunctionType) -> list[types.ModuleType]:
    """The user's modules that a function imports."""
    package = function.__globals__.get("__package__") or ""
    found = {}
    for name in _names(function.__code__):
        for full in (name, f"{package}.{name}"):
            module = sys.modules.get(full)
            if isinstance(module, types.ModuleType) and not _library_name(full):
                found[full] = module
    return list(found.values())
