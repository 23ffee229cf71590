"""Which code may read a float as it is, without asking its methods.

A learning rate that is followed is a float whose methods tell who looks at it (rates.py). Types
and functions written in C may read it directly. Those known to ask methods stand here; code that
names any other, or formats a text with `%`, is taken to read each rate that it has in its hands.
"""

import builtins
import dis
import functools
import types
from collections.abc import Iterator
from typing import Any

import torch

from torch_lazy.observe import is_library
from torch_lazy.reach import dict_of, is_c_type

_ASK_METHODS = {
    "builtins",
    "torch",
    "torch_lazy",
    "_collections",
    "collections",
    "_operator",
    "operator",
    "itertools",
    "_functools",
    "functools",
    "_abc",
    "_weakref",
    "_weakrefset",
    "_thread",
    "_contextvars",
    "contextvars",
    "_warnings",
    "_typing",
    "typing",
    "types",
    "sys",
    "gc",
    "re",
    "_sre",
}
"""Modules whose C functions and types take numbers by their methods, or take none."""

_READ_ALL_THE_SAME = {"mod", "imod"}
"""Of these, what formats texts."""

_HAND_ON = {"contextlib", "functools", "_weakrefset", "weakref", "abc", "typing", "enum"}
"""Modules of Python's whose own code only hands on what it is given."""

_TORCH = torch.__file__.rpartition("/")[0] + "/"
_OWN = __file__.rpartition("/")[0] + "/"


def is_ours(code: types.CodeType) -> bool:
    """Whether code is PyTorch's or this package's: what it makes of rates is known."""
    return code.co_filename.startswith((_TORCH, _OWN))


def reads_floats(function: Any) -> bool:
    """Whether a C function may take floats as they are."""
    owner = getattr(function, "__self__", None)
    if isinstance(owner, types.ModuleType):
        module = owner.__name__
    elif owner is None:
        module = getattr(function, "__module__", None) or _module_of(function)
    else:
        module = _module_of(owner if isinstance(owner, type) else type(owner))
    root = module.partition(".")[0] if isinstance(module, str) else ""
    return root not in _ASK_METHODS or getattr(function, "__name__", "") in _READ_ALL_THE_SAME


def reader_in(code: types.CodeType, frame: types.FrameType) -> str:
    """What code may read a rate with that no call of a C function shows; empty: with nothing."""
    if is_ours(code):
        return ""
    name = frame.f_globals.get("__name__")
    if is_library(name):
        return "" if name.partition(".")[0] in _HAND_ON else name
    if "type" in code.co_names:
        return "type()"
    for value in _named_by(code, frame):
        what = _said_reader(value)
        if what:
            return what
    return "a text" if _formats(code) else ""


def _named_by(code: types.CodeType, frame: types.FrameType) -> Iterator[Any]:
    """Globals, arguments, and the attributes of these that the code names. Nothing is called."""
    names = frozenset(code.co_names)
    known = [frame.f_globals.get(name, getattr(builtins, name, None)) for name in names]
    for value in (*known, *frame.f_locals.values()):
        yield value
        if isinstance(value, types.ModuleType):
            if value.__name__.partition(".")[0] == "torch":
                continue
            holders = [vars(value)]
        else:
            kinds = value.__mro__ if isinstance(value, type) else type(value).__mro__
            holders = [vars(kind) for kind in kinds if not is_c_type(kind)]
            own = dict_of(value)
            holders += [own] if isinstance(own, dict) else []
        for holder in holders:
            yield from (holder[name] for name in names & holder.keys())


def _said_reader(value: Any) -> str:
    """A type, a function or another callable of C that may read floats; empty: it is none."""
    while type(value) is functools.partial:
        value = value.func
    if isinstance(value, types.ModuleType):
        reads = value.__name__.partition(".")[0] in ("numpy", "scipy")
    elif isinstance(value, (types.BuiltinFunctionType, types.MethodDescriptorType)):
        reads = reads_floats(value)
    elif isinstance(value, (types.WrapperDescriptorType, types.MethodWrapperType)):
        reads = True
    elif isinstance(value, type):
        reads = any(map(_is_reading_type, value.__mro__))
    else:
        reads = callable(value) and _is_reading_type(type(value))
    return getattr(value, "__qualname__", None) or type(value).__qualname__ if reads else ""


@functools.lru_cache(maxsize=4096)
def _is_reading_type(kind: type) -> bool:
    root = _module_of(kind).partition(".")[0]
    return is_c_type(kind) and root not in _ASK_METHODS


def _module_of(kind: Any) -> str:
    module = getattr(kind, "__module__", None)
    if not isinstance(module, str):
        owner = getattr(kind, "__objclass__", None)
        module = getattr(owner, "__module__", None)
    return module if isinstance(module, str) else ""


def _formats(code: types.CodeType) -> bool:
    """Whether `%` may have a text on its left, with something else than a number on its right."""
    before = None
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("CACHE", "EXTENDED_ARG"):
            continue
        modulo = instruction.argrepr in ("%", "%=") or instruction.opname in (
            "BINARY_MODULO",
            "INPLACE_MODULO",
        )
        number = (
            before is not None
            and before.opname == "LOAD_CONST"
            and isinstance(before.argval, (int, float))
        )
        if modulo and not number:
            return True
        before = instruction
    return False
