"""What a recorded call ran: Python functions, whose code names what they read, and C functions.

While a call is recorded, the calls of this thread are observed (src/python/observe.cpp). The code
of the functions that ran names the globals, attributes and modules that they may have read: these
are what a replay has to check (reach.py). A C function shows nothing: one that is not known to
depend on its arguments alone keeps the call from being replayed.
"""

import builtins
import dis
import functools
import sys
import types
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

from torch_lazy import _C

_GLOBALS = {"LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL", "STORE_NAME"}
_ATTRIBUTES = {
    "LOAD_ATTR",
    "LOAD_METHOD",
    "LOAD_SUPER_ATTR",
    "STORE_ATTR",
    "DELETE_ATTR",
    "IMPORT_FROM",
}


# ---- Code ----------------------------------------------------------------------------------------


class CodeFacts(NamedTuple):
    """What code names."""

    globals: tuple[str, ...]
    attributes: frozenset[str]
    """Also strings, which getattr may be given."""
    imports: tuple[str, ...]
    """Modules that it imports, and strings that may be names of modules."""
    any_attribute: bool
    """It may read attributes whose names it does not have."""
    any_global: bool
    """It may read all globals of its module."""


@functools.lru_cache(maxsize=8192)
def code_facts(code: types.CodeType) -> CodeFacts:
    global_names: dict[str, None] = {}
    attributes: set[str] = set()
    imports: dict[str, None] = {}
    instructions = list(dis.get_instructions(code))
    for instruction in instructions:
        if instruction.opname in _GLOBALS:
            global_names[instruction.argval] = None
        elif instruction.opname in _ATTRIBUTES:
            attributes.add(instruction.argval)
        elif instruction.opname == "IMPORT_NAME":
            imports[instruction.argval] = None
    for constant in code.co_consts:
        for text in constant if isinstance(constant, (tuple, frozenset)) else (constant,):
            if isinstance(text, str) and len(text) < 200:
                imports[text] = None
                attributes.update(part for part in text.split(".") if part.isidentifier())
    dynamic = (
        bool({"__dict__", "__slots__"} & attributes)
        or bool({"vars", "dir"} & set(global_names))
        or ("getattr" in global_names and not _getattr_is_constant(instructions))
    )
    return CodeFacts(
        tuple(global_names),
        frozenset(attributes),
        tuple(imports),
        any_attribute=dynamic,
        any_global=not {"globals", "locals", "eval", "exec"}.isdisjoint(global_names),
    )


def _getattr_is_constant(instructions: list[dis.Instruction]) -> bool:
    """Whether each call of getattr in straight code has a constant as its second argument."""
    stack: list[Any] = []  # what is known of the operands: the function, a constant, or None
    for instruction in instructions:
        name = instruction.opname
        if name == "LOAD_GLOBAL" and instruction.argval == "getattr":
            effect = dis.stack_effect(instruction.opcode, instruction.arg)
            stack += [None] * (effect - 1) + ["getattr"]
            if effect == 2 and sys.version_info >= (3, 13):
                stack[-2:] = ["getattr", None]  # the function, then NULL
            continue
        if name == "LOAD_CONST":
            stack.append(("constant", instruction.argval))
            continue
        if name == "PRECALL":
            continue  # of Python 3.11: CALL follows
        if name in ("CALL", "CALL_FUNCTION"):
            arguments = instruction.arg or 0
            head, tail = stack[: len(stack) - arguments], stack[len(stack) - arguments :]
            if "getattr" in head[-2:]:
                second = tail[1] if len(tail) > 1 else None
                if not (isinstance(second, tuple) and isinstance(second[1], str)):
                    return False
            stack = [*head[: -2 if name == "CALL" else -1], None]
            continue
        if name.startswith("CALL") and "getattr" in stack:
            return False
        try:
            effect = dis.stack_effect(instruction.opcode, instruction.arg, jump=False)
        except ValueError:
            return False
        if effect < 0:
            del stack[effect:]
        else:
            stack += [None] * effect
        if stack and name not in ("NOP", "RESUME", "CACHE", "KW_NAMES", "EXTENDED_ARG"):
            stack[-1] = None
    return True


# ---- Whose code it is ----------------------------------------------------------------------------


def is_library(module_name: Any) -> bool:
    """Whether a module is PyTorch's, numpy's, this package's or Python's own.

    Their code is known to keep no state that changes results, besides what reach.py looks at.
    """
    if not isinstance(module_name, str):
        return False
    root = module_name.partition(".")[0]
    if root in ("torch", "torch_lazy", "numpy", "pybind11_builtins"):
        return True
    return root in sys.stdlib_module_names and root not in ("__main__", "antigravity", "this")


_COPIES_OBJECTS = {"copy", "dataclasses", "pickle", "copyreg", "json", "pprint", "reprlib"}
"""Modules of Python's that read all attributes of what they are given."""


class Observed:
    """What ran in one call, or in several."""

    def __init__(self) -> None:
        self.functions: dict[tuple[int, int], tuple[types.CodeType, dict[str, Any]]] = {}
        self.codes: set[types.CodeType] = set()
        self.names: set[str] = set()
        """Attributes that may have been read."""
        self.any_attribute = False
        self.warns = False
        self.obstacle = ""

    def add(self, functions: Iterable[tuple[types.CodeType, dict[str, Any]]]) -> None:
        for code, module_globals in functions:
            if code.co_name == "<module>":
                continue  # an import, which is made once
            self.functions.setdefault((id(code), id(module_globals)), (code, module_globals))
            if code in self.codes:
                continue
            self.codes.add(code)
            facts = code_facts(code)
            self.names |= facts.attributes
            name = module_globals.get("__name__")
            if not is_library(name):
                self.any_attribute |= facts.any_attribute
                self._look_for_names(code, facts)
            elif name.partition(".")[0] in _COPIES_OBJECTS:
                self.any_attribute = True

    def _look_for_names(self, code: types.CodeType, facts: CodeFacts) -> None:
        """Attributes of PyTorch's objects that are no objects of the program."""
        for name, what in _UNSEEN_ATTRIBUTES.items():
            if name in facts.attributes and name in code.co_names:
                where = f"{code.co_filename}:{code.co_firstlineno}"
                self.obstacle = self.obstacle or (
                    f"{code.co_name} reads {what} ({where}), which a replay cannot check"
                )


_UNSEEN_ATTRIBUTES = {
    "_version": "a tensor's count of writes",
    "_cdata": "an address",
    "backends": "settings of torch.backends",
    "current_thread": "the calling thread",
    "get_ident": "the calling thread",
    "get_native_id": "the calling thread",
}


def merged(calls: Iterable[Observed]) -> Observed | None:
    """What ran in any of several calls; None: there were none."""
    all_of_them = None
    for call in calls:
        all_of_them = all_of_them or Observed()
        all_of_them.add(call.functions.values())
        all_of_them.warns |= call.warns
    return all_of_them


# ---- C functions ---------------------------------------------------------------------------------

_OUTSIDE = {
    "time",
    "random",
    "_random",
    "posix",
    "nt",
    "_io",
    "io",
    "select",
    "socket",
    "_socket",
    "_ssl",
    "secrets",
    "_uuid",
    "_posixsubprocess",
    "mmap",
    "_ctypes",
    "ctypes",
    "_sqlite3",
    "sqlite3",
    "resource",
    "fcntl",
    "termios",
    "_queue",
    "_multiprocessing",
    "numpy.random",
}
"""Modules whose C functions depend on, or change, what is outside of the program's objects."""

_OUTSIDE_FUNCTIONS = {
    ("builtins", "print"),
    ("builtins", "input"),
    ("builtins", "open"),
    ("builtins", "breakpoint"),
    ("_thread", "start_new_thread"),
    ("_thread", "start_joinable_thread"),
    ("datetime", "now"),
    ("datetime", "today"),
    ("datetime", "utcnow"),
}

_HARMLESS = {"getpid", "fspath", "get_ident"}
"""Functions of those modules that say the same in every call."""

_FROM_THE_PROGRAM = {
    ("builtins", "eval"): "code that is made at run time",
    ("builtins", "exec"): "code that is made at run time",
    ("torch._C", "get_num_threads"): "the number of threads",
    ("torch._C", "get_num_interop_threads"): "the number of threads",
    ("torch._C", "data_ptr"): "an address",
    ("torch._C", "untyped_storage"): "a tensor's memory",
    ("torch", "get_num_threads"): "the number of threads",
}
"""Functions that PyTorch's and Python's own code may call, but the program may not."""

_PURE = {
    "builtins",
    "math",
    "cmath",
    "_operator",
    "operator",
    "itertools",
    "_functools",
    "functools",
    "_collections",
    "collections",
    "_abc",
    "abc",
    "_weakref",
    "weakref",
    "_weakrefset",
    "_typing",
    "typing",
    "_bisect",
    "_heapq",
    "_sre",
    "re",
    "_struct",
    "_json",
    "_warnings",
    "_statistics",
    "_string",
    "_codecs",
    "binascii",
    "zlib",
    "_hashlib",
    "_md5",
    "_sha1",
    "_sha2",
    "_sha256",
    "_sha512",
    "array",
    "unicodedata",
    "decimal",
    "_decimal",
    "fractions",
    "datetime",
    "_datetime",
    "enum",
    "types",
    "dataclasses",
    "_opcode",
    "sys",
    "numpy",
    "torch",
    "torch_lazy",
}
"""Modules whose other C functions depend on their arguments and on the program's objects alone."""


def c_obstacle(calls: Iterable[tuple[str, Any, Any, str]]) -> str:
    """The first C function that keeps a call from being replayed, and why; empty: none does."""
    for name, owner, caller, line in calls:
        module = _module_of(name, owner)
        if name in _HARMLESS:
            continue
        root = module.partition(".")[0]
        at = f" ({line.strip()})" if line else ""
        if (module, name) in _OUTSIDE_FUNCTIONS or _is_in(module, _OUTSIDE):
            return (
                f"it calls {_said(module, name)}{at}, which a replay would leave out; do that "
                f"outside of the function, and pass what it gives as an argument"
            )
        if (module, name) in _FROM_THE_PROGRAM and not is_library(caller):
            return f"it uses {_FROM_THE_PROGRAM[module, name]}{at}, which a replay cannot check"
        if owner is torch._C.Generator:
            return f"it reads or sets a generator's state{at}; do that outside of the function"
        if root not in _PURE and not is_library(caller):
            return (
                f"it calls {_said(module, name)}{at}, a C function that may depend on something "
                f"that a replay cannot check"
            )
    return ""


def _is_in(module: str, names: set[str]) -> bool:
    return module in names or any(module.startswith(name + ".") for name in names)


def _said(module: str, name: str) -> str:
    return name if module in ("", "builtins") else f"{module}.{name}"


def _module_of(name: str, owner: Any) -> str:
    """The module that defines a C function."""
    if isinstance(owner, str):
        return owner
    if isinstance(owner, types.ModuleType):
        return owner.__name__
    if isinstance(owner, type):
        for base in owner.__mro__:
            if name in vars(base):
                return base.__module__ or ""
        return type(owner).__module__ if hasattr(type(owner), name) else owner.__module__ or ""
    return ""


# ---- State of the process ------------------------------------------------------------------------


def process_state() -> dict[str, Any]:
    """What PyTorch does by settings that are no objects of the program."""
    return {
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "default dtype": torch.get_default_dtype(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "matmul precision": torch.get_float32_matmul_precision(),
        "attention kernels": (
            torch.backends.cuda.flash_sdp_enabled(),
            torch.backends.cuda.mem_efficient_sdp_enabled(),
            torch.backends.cuda.math_sdp_enabled(),
        ),
        "use of oneDNN": torch._C._get_mkldnn_enabled(),
        "number of threads": torch.get_num_threads(),
        "torch function modes": torch._C._len_torch_function_stack(),
        "dispatch modes": torch._C._len_torch_dispatch_stack(),
    }


def changed_state(before: dict[str, Any]) -> str:
    """An obstacle: a setting that the call has left changed; empty: none."""
    for name, value in process_state().items():
        if value != before[name]:
            return f"it changes PyTorch's {name}; do that outside of the function"
    return ""


class Observer:
    """Observes the calls of this thread in a with statement."""

    def __init__(self) -> None:
        self._observer = _C.CallObserver()

    def __enter__(self) -> "Observer":
        self._before = process_state()
        self._observer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._observer.stop()
        self._changed = changed_state(self._before)

    def result(self) -> Observed:
        """What ran; with an obstacle if it cannot be replayed."""
        observed = Observed()
        observed.add(self._observer.functions)
        calls = self._observer.c_functions
        observed.warns = any(name == "warn" for name, *_ in calls)
        observed.obstacle = c_obstacle(calls) or self._changed or observed.obstacle
        return observed

    @property
    def host_reads(self) -> list[tuple[torch.Tensor, str, str]]:
        return self._observer.host_reads


BUILTINS = vars(builtins)
