"""What a recorded call ran: Python functions, whose code names what they read, and C functions.

While a call is recorded, the calls of this thread are observed (src/python/observe.cpp). The code
of the functions that ran names the globals, attributes and modules that they may have read: these
are what a replay has to check (reach.py). A C function shows nothing: one that is not known to
depend on its arguments alone keeps the call from being replayed.
"""

import builtins
import dis
import functools
import re
import sys
import sysconfig
import types
from collections.abc import Container, Iterable
from typing import Any, NamedTuple

import torch
import torch.utils.checkpoint

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
_BY_NAME = {"getattr", "hasattr", "setattr", "delattr"}
"""Builtins that take the name of an attribute as their second argument."""

_ALL_ATTRIBUTES = {"vars", "dir"}

_READS_BY_NAME = {
    "__dict__",
    "__slots__",
    "__getattribute__",
    "__setattr__",
    "__delattr__",
    "__reduce_ex__",
    "attrgetter",
    "getattr_static",
    "getmembers",
    *_BY_NAME,
}
"""Attributes through which others can be read whose names the code does not have."""

_FIELD = re.compile(r"\{[^{}]*[.\[]")
"""In a text for `str.format`: an attribute or an item of what is formatted."""


# ---- Code ----------------------------------------------------------------------------------------


class CodeFacts(NamedTuple):
    """What code names."""

    globals: tuple[str, ...]
    attributes: frozenset[str]
    """Also strings, which getattr may be given."""
    imports: tuple[tuple[str, int], ...]
    """Modules that it imports, with the level of relative ones, and strings that may be names of
    modules."""
    values: frozenset[str]
    """Globals and attributes that it does not only call."""
    any_attribute: bool
    """It may read attributes whose names it does not have."""
    any_global: bool
    """It may read all globals of its module."""
    compares_types: bool
    """It may compare `type(x)`."""


@functools.lru_cache(maxsize=8192)
def code_facts(code: types.CodeType) -> CodeFacts:
    global_names: dict[str, None] = {}
    attributes: set[str] = set()
    values: set[str] = set()
    imports: dict[tuple[str, int], None] = {}
    texts: set[str] = set()
    instructions = list(dis.get_instructions(code))
    unpacks_objects = False
    for i, instruction in enumerate(instructions):
        name = instruction.argval
        if instruction.opname in _GLOBALS:
            global_names[name] = None
            if not _is_called(instructions, i):
                values.add(name)
        elif instruction.opname in _ATTRIBUTES:
            attributes.add(name)
            if not _is_called(instructions, i):
                values.add(name)
        elif instruction.opname == "IMPORT_NAME":
            imports[name, _level_of(instructions, i)] = None
        elif instruction.opname == "MATCH_CLASS":
            unpacks_objects |= bool(instruction.arg)
    for constant in code.co_consts:
        for text in constant if isinstance(constant, (tuple, frozenset)) else (constant,):
            if isinstance(text, str) and len(text) < 200:
                imports[text, 0] = None
                texts.add(text)
                attributes.add(text)
                attributes.update(text.split("."))
    formats = bool({"format", "format_map", "vformat"} & attributes) and (
        any(map(_FIELD.search, texts)) or not any("{" in text for text in texts)
    )
    named = set(global_names)
    if _BY_NAME & named:
        values |= texts
    dynamic = (
        unpacks_objects
        or formats
        or bool(_READS_BY_NAME & attributes & set(code.co_names))
        or bool((_READS_BY_NAME - _BY_NAME) & named)
        or bool(_ALL_ATTRIBUTES & named)
        or bool(_BY_NAME & values)
        or (bool(_BY_NAME & named) and not _names_are_constant(instructions))
    )
    return CodeFacts(
        tuple(global_names),
        frozenset(attributes),
        tuple(imports),
        frozenset(values),
        any_attribute=dynamic,
        any_global=not {"globals", "locals", "eval", "exec"}.isdisjoint(named),
        compares_types="type" in named
        and any(i.opname in ("IS_OP", "COMPARE_OP", "CONTAINS_OP") for i in instructions),
    )


def _is_called(instructions: list[dis.Instruction], i: int) -> bool:
    """Whether what is loaded there is called and nothing else."""
    instruction = instructions[i]
    name = instruction.opname
    if name == "LOAD_METHOD":
        return True
    if name == "LOAD_GLOBAL" and sys.version_info >= (3, 11):
        return bool((instruction.arg or 0) & 1)  # with the NULL that a call wants
    if name in ("LOAD_ATTR", "LOAD_SUPER_ATTR") and sys.version_info >= (3, 12):
        return bool((instruction.arg or 0) & 1)
    return name in ("STORE_GLOBAL", "DELETE_GLOBAL", "STORE_NAME", "STORE_ATTR", "DELETE_ATTR")


def _level_of(instructions: list[dis.Instruction], i: int) -> int:
    """How relative an import is: the constant before the names that are imported."""
    before = instructions[i - 2].argval if i >= 2 else 0
    return before if isinstance(before, int) else 0


_JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))


def _names_are_constant(instructions: list[dis.Instruction]) -> bool:
    """Whether each call of getattr and its like in straight code has a constant as its second
    argument."""
    stack: list[Any] = []  # what is known of the operands: the function, a constant, or None
    for instruction in instructions:
        name = instruction.opname
        if "getattr" in stack and (instruction.is_jump_target or instruction.opcode in _JUMPS):
            return False
        if name == "LOAD_GLOBAL" and instruction.argval in _BY_NAME:
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
            if "getattr" in tail:
                return False
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


@functools.lru_cache(maxsize=4096)
def is_library(module_name: Any) -> bool:
    """Whether a module is PyTorch's, numpy's, this package's or Python's own.

    Their code is known to keep no state that changes results, besides what reach.py looks at.
    """
    if not isinstance(module_name, str):
        return False
    root = module_name.partition(".")[0]
    if root in _LIBRARIES:
        return True
    if root not in sys.stdlib_module_names or root in ("__main__", "antigravity", "this"):
        return False
    file = getattr(sys.modules.get(root), "__file__", None)
    return file is None or (
        file.startswith(_STANDARD_LIBRARY) and "-packages" not in file[len(_STANDARD_LIBRARY[0]) :]
    )


_LIBRARIES = {
    *("torch", "torch_lazy", "numpy", "pybind11_builtins"),
    *("typing_extensions", "sympy", "mpmath", "networkx", "jinja2", "filelock", "fsspec"),
}
"""PyTorch's and what it needs."""

_STANDARD_LIBRARY = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib"))

_LOOKS_AT_OBJECTS = {
    "copy",
    "dataclasses",
    "pickle",
    "copyreg",
    "json",
    "pprint",
    "reprlib",
    "argparse",
    "inspect",
    "string",
    "types",
    "typing",
    "unittest",
    "operator",
    "torch.nn.modules.container",
}
"""Modules of Python's and PyTorch's that may read all attributes of what they are given."""


class Observed:
    """What ran in one call, or in several."""

    def __init__(self) -> None:
        self.functions: dict[tuple[int, int], tuple[types.CodeType, dict[str, Any]]] = {}
        self.codes: set[types.CodeType] = set()
        self.names: set[str] = set()
        """Attributes that may have been read."""
        self.program_names: set[str] = set()
        """Those of them that the program's own code names."""
        self.any_attribute = False
        self.program_reads_any = False
        """The program's own code may read attributes whose names it does not have."""
        self.warns = False
        self.restores_generator = False
        """Checkpoints do, so that what is computed again draws the same numbers."""
        self.obstacle = ""

    def add(self, functions: Iterable[tuple[types.CodeType, dict[str, Any]]]) -> None:
        for code, module_globals in functions:
            name = module_globals.get("__name__")
            if code.co_name == "<module>":
                continue  # an import, which is made once
            self.functions.setdefault((id(code), id(module_globals)), (code, module_globals))
            if code in self.codes:
                continue
            self.codes.add(code)
            facts = code_facts(code)
            self.names |= facts.attributes
            if not is_library(name):
                self.program_names |= facts.attributes
                self.any_attribute |= facts.any_attribute
                self.program_reads_any |= facts.any_attribute
                self._look_for_names(code, facts)
            else:
                if _is_in(name, _LOOKS_AT_OBJECTS):
                    self.any_attribute |= facts.any_attribute
                what = _UNSEEN_FUNCTIONS.get((name, code.co_name))
                if what:
                    self._say(code, what)

    def _look_for_names(self, code: types.CodeType, facts: CodeFacts) -> None:
        """What PyTorch and Python keep in no object of the program."""
        by_text = not _READS_BY_NAME.isdisjoint(code.co_names)
        for name in facts.attributes if by_text else code.co_names:
            if name in UNSEEN_NAMES:
                self._say(code, f"reads {UNSEEN_NAMES[name]}")

    def _say(self, code: types.CodeType, what: str) -> None:
        self.obstacle = self.obstacle or (
            f"{code.co_name} {what} ({code.co_filename}:{code.co_firstlineno}), which a replay "
            f"cannot check"
        )


UNSEEN_NAMES = {
    "_version": "a tensor's count of writes",
    "_base": "the tensor that another is a view of",
    "grad_fn": "the graph of autograd",
    "next_functions": "the graph of autograd",
    "retains_grad": "whether a tensor keeps its gradient",
    "_backward_hooks": "a tensor's hooks",
    "_post_accumulate_grad_hooks": "a tensor's hooks",
    "get_type_hints": "annotations",
    "currentframe": "the frames that called it",
    "walk_stack": "the frames that called it",
    "extract_stack": "the frames that called it",
    "format_stack": "the frames that called it",
    "__globals__": "the globals of a function",
    "f_back": "the frames that called it",
    "exc_info": "the exception that is being handled",
    "getsignal": "the handlers of signals",
    "active_count": "the threads of the process",
    "geterr": "numpy's settings",
    "get_printoptions": "settings of printing",
    "_cdata": "an address",
    "backends": "settings of torch.backends",
    "__subclasses__": "the subclasses of a class",
    "current_thread": "the calling thread",
    "get_ident": "the calling thread",
    "get_native_id": "the calling thread",
    "main_thread": "the threads of the process",
    "seterr": "numpy's settings",
    "seterrcall": "numpy's settings",
    "set_printoptions": "settings of printing",
}
"""Attributes and functions that the program's own code may not name."""

_UNSEEN_FUNCTIONS = {
    ("logging", "getLogger"): "looks up a logger by its name; do that outside of the function",
    ("importlib", "import_module"): "imports a module by a name that is computed",
    ("torch._tensor", "__dlpack__"): "hands on a tensor's memory",
    ("torch._dynamo.eval_frame", "compile_wrapper"): "calls a function of torch.compile",
    ("threading", "enumerate"): "reads the threads of the process",
    ("threading", "active_count"): "reads the threads of the process",
    ("threading", "main_thread"): "reads the threads of the process",
    ("multiprocessing.process", "current_process"): "reads the calling process",
}
"""Functions of Python's own that give objects that nothing leads to."""


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
    "_locale",
    "_signal",
    "pwd",
    "grp",
    "syslog",
    "numpy.random",
}
"""Modules whose C functions depend on, or change, what is outside of the program's objects."""

_OUTSIDE_FUNCTIONS = {
    ("builtins", "print"),
    ("builtins", "input"),
    ("builtins", "open"),
    ("builtins", "breakpoint"),
    ("sys", "displayhook"),
    ("sys", "excepthook"),
    ("sys", "setprofile"),
    ("sys", "settrace"),
    ("sys", "setrecursionlimit"),
    ("sys", "setswitchinterval"),
    ("sys", "set_int_max_str_digits"),
    ("_thread", "start_new_thread"),
    ("_thread", "start_joinable_thread"),
    ("datetime", "now"),
    ("datetime", "today"),
    ("datetime", "utcnow"),
}

_OUTSIDE_NAMES = {("numpy", "fromfile"), ("numpy", "from_dlpack"), ("torch", "from_file")}
"""The same, by the package they are in."""

_HARMLESS = {"getpid", "fspath"}
"""Functions of those modules that say the same in every call."""

_FROM_THE_PROGRAM = {
    ("builtins", "eval"): "code that is made at run time",
    ("builtins", "exec"): "code that is made at run time",
    ("builtins", "__import__"): "a module whose name is computed",
    ("builtins", "id"): "the identity of an object",
    ("_thread", "get_ident"): "the calling thread",
    ("_thread", "get_native_id"): "the calling thread",
    ("_weakref", "getweakrefcount"): "a count of references",
    ("_weakref", "getweakrefs"): "references to an object",
    ("sys", "exception"): "the exception that is being handled",
    ("torch._C", "get_num_threads"): "the number of threads",
    ("torch._C", "get_num_interop_threads"): "the number of threads",
    ("torch._C", "data_ptr"): "an address",
    ("torch._C", "untyped_storage"): "a tensor's memory",
    ("torch", "get_num_threads"): "the number of threads",
    ("sys", "getrefcount"): "a count of references",
    ("sys", "getsizeof"): "the size of an object",
    ("sys", "getrecursionlimit"): "the limit of recursion",
    ("sys", "get_int_max_str_digits"): "a setting of Python",
    ("datetime", "fromtimestamp"): "the time zone of the process",
    ("datetime", "timestamp"): "the time zone of the process",
    ("datetime", "astimezone"): "the time zone of the process",
    ("sys", "getswitchinterval"): "a setting of Python",
    ("sys", "gettrace"): "whether the program is traced",
    ("sys", "getprofile"): "whether the program is profiled",
    ("sys", "_getframe"): "the frame that it is called from",
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


def c_obstacle(calls: Iterable[tuple[str, Any, Any, str]], restores: bool = False) -> str:
    """The first C function that keeps a call from being replayed, and why; empty: none does.

    `restores`: states of generators are read and set only to have them as they were.
    """
    for name, owner, caller, line in calls:
        module = _module_of(name, owner)
        if name in _HARMLESS:
            continue
        root = module.partition(".")[0]
        at = f" ({line.strip()})" if line else ""
        if (
            (module, name) in _OUTSIDE_FUNCTIONS
            or (root, name) in _OUTSIDE_NAMES
            or _is_in(module, _OUTSIDE)
        ):
            return (
                f"it calls {_said(module, name)}{at}, which a replay would leave out; do that "
                f"outside of the function, and pass what it gives as an argument"
            )
        if (module, name) in _FROM_THE_PROGRAM and not is_library(caller):
            return f"it uses {_FROM_THE_PROGRAM[module, name]}{at}, which a replay cannot check"
        harmless = name in _CHECKS_OF_TYPES or (restores and name in _STATE_OF_GENERATOR)
        if owner is torch._C.Generator and not harmless:
            return f"it reads or sets a generator's state{at}; do that outside of the function"
        if root not in _PURE and not is_library(caller):
            return (
                f"it calls {_said(module, name)}{at}, a C function that may depend on something "
                f"that a replay cannot check"
            )
    return ""


_STATE_OF_GENERATOR = {"get_state", "set_state"}
_CHECKS_OF_TYPES = {"__instancecheck__", "__subclasscheck__"}

_USES_OF_GENERATORS = {
    "manual_seed",
    "seed",
    "initial_seed",
    "get_rng_state",
    "set_rng_state",
    "fork_rng",
    "default_generator",
    "Generator",
}


def handed_on(function: Any) -> str:
    """Why a C function may not be given to others, which may call it unseen; empty: it may."""
    owner = function.__self__
    if not isinstance(owner, (types.ModuleType, type)):
        owner = type(owner)
    reason = c_obstacle([(function.__name__, owner, "", "")])
    return reason and f"it hands on {function.__name__}, which others may call unseen"


def is_outside(kind: type) -> bool:
    """Whether objects of a class of C depend on what is outside of the program (a file)."""
    return _is_in(kind.__module__, _OUTSIDE)


def reads_by_name(function: Any) -> bool:
    """Whether a C function takes names of attributes."""
    return function.__name__ in (_BY_NAME | _ALL_ATTRIBUTES) and function.__self__ is builtins


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
        observed.restores_generator = _CHECKPOINT in {
            code.co_filename for code in observed.codes
        } and _USES_OF_GENERATORS.isdisjoint(observed.program_names)
        observed.obstacle = (
            c_obstacle(calls, observed.restores_generator) or self._changed or observed.obstacle
        )
        return observed

    def hash_obstacle(self, arguments: Iterable[torch.Tensor], known: Container[int]) -> str:
        """An obstacle: a dict or set was asked for a tensor of which it is not compared in every
        call whether it is the same one; empty: none."""
        others = {id(tensor) for tensor in arguments if id(tensor) not in known}
        for number, module, line in self._observer.hashed:
            if number in others and not is_library(module):
                return (
                    f"it looks for an argument among the keys of a dict or set "
                    f"({line.strip()}), which depends on which tensor it is"
                )
        return ""

    @property
    def host_reads(self) -> list[tuple[torch.Tensor, str, str]]:
        return self._observer.host_reads


_CHECKPOINT = torch.utils.checkpoint.__file__

BUILTINS = vars(builtins)
