"""What a call can reach besides its arguments: tensors, and the objects that hold them.

A recorded call depends on them. Where each was found is guarded: an item of a dict or list, an
attribute, a cell of a closure, a class, a function. All guards are checked before every replay
(src/python/guards.h). Of an object's attributes those count that the code that ran names
(observe.py). What can neither be entered nor compared keeps the call from being replayed.
"""

import abc
import collections
import decimal
import functools
import gc
import logging
import operator
import sys
import types
import warnings
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
import torch.distributed.distributed_c10d
from torch.optim import Optimizer

from torch_lazy import _C
from torch_lazy.observe import (
    BUILTINS,
    UNSEEN_NAMES,
    CodeFacts,
    Observed,
    code_facts,
    handed_on,
    is_library,
    is_outside,
    reads_by_name,
)

_Mode = _C.GuardMode
_Kind = _C.GuardKind

_WITHOUT_STATE = (
    types.CodeType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
    types.GenericAlias,
    type(collections.namedtuple("Pair", "a b").a),
    torch.Generator,  # its state changes through C functions only, which are observed
    torch.dtype,
    torch.layout,
    torch.memory_format,
    np.ufunc,
    type(np.sum),
    type(torch.ops.aten.add.default),
    type(torch.ops.aten.add),
    type(torch.ops.aten),
    type(torch.ops),
)
"""Compared by identity and not entered."""

WRAPPERS: set[type] = set()
"""Classes of callables whose state is their `function`'s."""

_DATA = ("argparse", "types", "unittest.mock", "dataclasses")
"""Modules of Python's whose objects hold what the program puts there."""

_LOCKS = ("_thread.lock", "_thread.RLock")
_BASES = (
    object,
    dict,
    list,
    tuple,
    set,
    frozenset,
    collections.deque,
    collections.OrderedDict,
    collections.defaultdict,
    types.SimpleNamespace,
    int,
    float,
    str,
    bytes,
    complex,
)
"""C types that Python classes may inherit from and still show all their state."""

_MODULE_PARTS = ("_parameters", "_buffers", "_modules")
_MODULE_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)
_FUNCTION_PARTS = {"__closure__", "__defaults__", "__kwdefaults__", "__wrapped__", "signature"}
"""Attributes through which a program may look into functions that do not run."""
_CLASS_OWN = {"__dict__", "__weakref__", "_abc_impl", "__doc__", "__annotations__", "__slots__"}
_CLASS_METADATA = {
    "__dataclass_fields__",
    "__dataclass_params__",
    "__match_args__",
    "__orig_bases__",
    "__parameters__",
    "__abstractmethods__",
    "__attrs_attrs__",
}
"""Attributes of classes that describe them and that nobody changes: compared, not entered."""
_MEMORY = {"__array_interface__", "__array_struct__", "__cuda_array_interface__"}
"""Attributes that give memory away by its address."""
_CODE = (type, types.FunctionType, types.ModuleType)
_SIMPLE = frozenset((int, float, complex, bool, str, bytes, type(None)))
_CONTAINERS = frozenset((list, dict, set, collections.deque, collections.OrderedDict))
_HEAP_TYPE = 1 << 9
_IMMUTABLE_TYPE = 1 << 8
_MOST_OBJECTS = 50_000
_MOST_GUESSED = 10_000
"""Objects that are looked at before anything is known of what runs: code leads nearly anywhere."""
_MOST_BYTES = 4096
"""Of memory that is compared in every call."""

_DEPENDS_ON_DECIMALS = "depends on the context of decimal numbers"

_Item = tuple[Any, Any, Any]


class _Named:
    """Items of a module's dict that code names."""

    def __init__(self, items: dict[str, Any], module: str) -> None:
        self.items = items
        self.module = module
        self.checked: dict[str, _Item] = {}
        self.watched: set[str] = set()
        """Names that it does not have."""
        self.whole = False
        """Code may name any of them."""


_Guard = tuple[Any, Any, list[_Item], int, Any]


class Reach:
    """One walk over what a function refers to.

    With `observed`, over what the functions that ran name. Without, before anything is known of the
    function, over all it can see to find tensors that it may use.
    """

    def __init__(
        self, function: Callable[..., Any], args: Any, kwargs: Any, observed: Observed | None
    ) -> None:
        self.tensors: dict[int, torch.Tensor] = {}
        self.hosts: dict[int, torch.Tensor] = {}
        self.names: dict[int, str] = {}
        """Of tensors, by id."""
        self.guards: list[_Guard] = []
        self.numbers: list[tuple[str, dict[str, Any]]] = []
        """Learning rates in the order of the guards' numbers: path, and the group they are of."""
        self.optimizers: list[Optimizer] = []
        self.hook = ""
        """A hook of Python's that would run."""
        self.opaque = ""
        """Something that no check can see a change of."""
        self.too_much = False
        self._observed = observed
        self._everything = observed is None or observed.any_attribute
        self._start()
        while not self._look(function, args, kwargs):
            observed.any_attribute = self._everything = True
            self._start()
        self._index = {(guard[0], id(guard[1])): guard for guard in self.guards}

    def _start(self) -> None:
        for found in (self.tensors, self.hosts, self.names, self.guards, self.numbers):
            found.clear()
        self.optimizers.clear()
        self.hook = self.opaque = ""
        self._seen: dict[int, Any] = {}
        self._partly: set[int] = set()
        """Dicts of attributes of which some count so far: `vars(x)` is all of them."""
        self._paths: dict[tuple[Any, int], str] = {}
        self._named: dict[int, _Named] = {}
        self._expanded: set[tuple[int, int]] = set()
        self._references: list[tuple[str, int, str]] = []
        """Objects that weak references lead to, which are not kept alive: addresses and classes."""
        self._names_rates = self._compares_types = False
        """Of the program's code."""
        self._in_library = False
        self._of_library: set[tuple[Any, int]] = set()
        """Guards of what PyTorch and Python themselves keep."""
        self._found_codes: set[types.CodeType] = set()
        """Of the functions that something led to."""
        self._uses_numpy = False
        self._reads_by_name = False
        """Something was met that reads attributes by names that the code does not have."""

    def _look(self, function: Callable[..., Any], args: Any, kwargs: Any) -> bool:
        """Walks from the function and its arguments. False: all attributes are to be looked at."""
        observed = self._observed
        self._class_own = _CLASS_OWN
        self._class_names = None
        if observed is not None:  # annotations count where the program reads them
            self._class_own = _CLASS_OWN - observed.program_names
            self._class_names = observed.names - self._class_own
        name = getattr(function, "__name__", type(function).__name__)
        arguments = [("argument", item) for item in _C.call_objects(args, kwargs)]
        tensors = [(kind.__name__, kind) for kind in (torch.Tensor, torch.nn.Parameter)]
        self._walk([(name, function), *arguments, *tensors])
        if observed is not None and not self.too_much:
            for code, module_globals in list(observed.functions.values()):
                self._in_library = is_library(module_globals.get("__name__"))
                self._walk(self._enter_code(code, module_globals))
        self._in_library = False
        if observed is not None and observed.warns:
            self._name(vars(warnings), "warnings", "filters", warnings.filters)
            self._walk([("warnings.filters", warnings.filters)])
        builtin_names = self._named.get(id(BUILTINS))
        if observed is not None and builtin_names and "isinstance" in builtin_names.checked:
            token = (None, abc.get_cache_token(), _Mode.equal)
            self._guard(_Kind.answer, abc.get_cache_token, [token], "abstract classes")
        if observed is not None and self._uses_numpy:
            errors = (None, _numpys_errors(), _Mode.equal)
            self._guard(_Kind.answer, _numpys_errors, [errors], "numpy.geterr()")
        for named in self._named.values():
            self._in_library = is_library(named.module) or named.module == "builtins"
            if named.whole and observed is not None:
                checked = [self._item(key, value) for key, value in named.items.items()]
                self._guard(_Kind.dict, named.items, checked, named.module, size=len(checked))
            else:
                checked = list(named.checked.values())
                self._guard(_Kind.dict, named.items, checked, named.module, watched=named.watched)
        if observed is not None and not self.opaque and not self.too_much:
            self._look_for_unfound(observed)
        for path, target, kind in self._references:
            if observed is not None and target not in self._seen:
                self.opaque = self.opaque or (
                    f"{path} refers weakly to a {kind} that nothing else leads to"
                )
        return self._everything or not self._reads_by_name

    def _look_for_unfound(self, observed: Observed) -> None:
        """Functions of the program that ran and that nothing led to: somebody has registered them
        where no check looks, and may register others."""
        found = with_inner_code(self._found_codes)
        for code, module_globals in observed.functions.values():
            if not (
                code in found
                or is_library(module_globals.get("__name__"))
                or code.co_name == "__del__"  # of objects that die meanwhile
            ):
                self.opaque = (
                    f"it runs {code.co_name} ({code.co_filename}:{code.co_firstlineno}) by way of "
                    f"a table that nothing leads to"
                )
                return

    @property
    def asks_for_types(self) -> bool:
        """Whether the program may ask what type a learning rate has."""
        return self._names_rates and self._compares_types

    # ---- The walk --------------------------------------------------------------------------------

    def _walk(self, stack: list[tuple[str, Any]]) -> None:
        optimizers = []  # last: parameters are named by their modules
        code: collections.deque[tuple[str, Any]] = collections.deque()
        while stack or optimizers or code:
            if stack:
                path, item = stack.pop()
            elif optimizers:
                path, item = optimizers.pop(0)
            elif len(self._seen) < _MOST_GUESSED:
                path, item = code.popleft()
            else:
                return
            if _is(item, Optimizer) and stack:
                optimizers.append((path, item))
                continue
            inside = self._enter(path, item)
            if self._observed is None:  # what objects hold is nearer than what code names
                code.extend(part for part in inside if _is(part[1], _CODE))
                inside = [part for part in inside if not _is(part[1], _CODE)]
            stack.extend(inside)
            if len(self._seen) > _MOST_OBJECTS:
                self.too_much = True
                return

    def _enter(self, path: str, item: Any) -> list[tuple[str, Any]]:
        """Looks at one object; returns what is inside it."""
        if type(item) in _SIMPLE or (id(item) in self._seen and id(item) not in self._partly):
            return []
        self._seen[id(item)] = item
        self._partly.discard(id(item))
        try:
            return self._look_into(path, item)
        except Exception as error:
            self.opaque = self.opaque or (
                f"{path} is a {type(item).__name__} that cannot be looked into ({error!r:.80})"
            )
            return []

    def _look_into(self, path: str, item: Any) -> list[tuple[str, Any]]:
        kind = type(item)
        if _is(item, torch.Tensor):
            return self._enter_tensor(path, item)
        if _is(item, type):
            return self._enter_class(path, item)
        if _is(item, types.ModuleType):
            return self._enter_module_object(path, item)
        if _is(item, _WITHOUT_STATE):
            return []
        if _is(item, types.FunctionType):
            return self._enter_function(path, item)
        if _is(item, (types.BuiltinFunctionType, types.MethodWrapperType)):
            return self._enter_c_function(path, item)
        if _is(item, types.MappingProxyType):
            return [(path, mapping) for mapping in gc.get_referents(item)]
        if _is(item, types.MethodType):
            return [(path, item.__func__), (f"{path}.__self__", item.__self__)]
        if _is(item, slice):
            return [(path, part) for part in (item.start, item.stop, item.step)]
        if _is(item, (np.ndarray, bytearray)) or kind.__module__ == "array":
            return self._enter_memory(path, item)
        if _is(item, logging.Logger):
            return self._enter_logger(path, item)
        if _is(item, torch.jit.ScriptModule):
            return self._opaque(path, item)
        if _is(item, decimal.Decimal):
            return self._opaque(path, item)
        if _is(item, Optimizer):
            return self._enter_optimizer(path, item)
        if _is(item, torch.nn.Module):
            return self._enter_module(path, item)
        inside = self._enter_wrapper(path, item)
        if inside is None:
            return self._enter_object(path, item)
        attributes = dict_of(item)
        if _is(attributes, dict):
            inside += self._enter_attributes(path, attributes, library=kind in WRAPPERS)
        if kind.__flags__ & _HEAP_TYPE and not is_c_type(kind):
            inside.append((f"{path}'s class", kind))
        return inside

    def _enter_wrapper(self, path: str, item: Any) -> list[tuple[str, Any]] | None:
        """What is called, or referred to, through something else; None: it is something else."""
        if type(item) in WRAPPERS:
            return [(path, item.function)]
        if _is(item, functools.partial):
            parts = (None, (item.func, item.args, item.keywords), _Mode.same)
            self._guard(_Kind.partial, item, [parts], path)
            if _is(item.func, types.BuiltinFunctionType):
                self.opaque = self.opaque or handed_on(item.func)
            return [(path, item.func), (path, item.args), (path, item.keywords)]
        if _is(item, (operator.attrgetter, operator.itemgetter, operator.methodcaller)):
            parts = item.__reduce__()[1]
            if not _is(item, operator.itemgetter) and self._observed is not None:
                self._reads_by_name = True
                for name in (name for text in map(str, parts) for name in text.split(".")):
                    if name in UNSEEN_NAMES:
                        self.opaque = self.opaque or f"{path} reads {UNSEEN_NAMES[name]}"
            return [(path, part) for part in parts]
        if _is(item, (staticmethod, classmethod)):
            return [(path, item.__func__)]
        if _is(item, property):
            return [(path, part) for part in (item.fget, item.fset, item.fdel) if part]
        if _is(item, functools._lru_cache_wrapper):
            return self._enter_cache(path, item)
        if _is(item, weakref.ReferenceType):
            target = item()
            self._guard(_Kind.reference, item, [(None, id(target), _Mode.equal)], path)
            if target is not None:
                self._references.append((path, id(target), type(target).__name__))
            return []
        return None

    def _enter_cache(self, path: str, function: Any) -> list[tuple[str, Any]]:
        """What a function with lru_cache has computed counts, not what it would compute now."""
        inside = [(path, function.__wrapped__)]
        if is_library(function.__wrapped__.__module__):
            return inside
        contents = _C.contents_of(function)
        self._guard(_Kind.cached, function, [(None, contents, _Mode.same)], path)
        for item in contents:
            if not _is(item, (dict, type)) and item is not function.__wrapped__:
                inside.append((f"what {path} returned", item))
            elif type(item) is dict and item is not dict_of(function):
                links = any(type(link).__name__ == "_lru_list_elem" for link in item.values())
                if not links:
                    inside.append((f"what {path} returned", item))
        return inside

    def _enter_c_function(self, path: str, function: Any) -> list[tuple[str, Any]]:
        owner = function.__self__
        if _is(function, types.BuiltinFunctionType) and self._observed is not None:
            self._reads_by_name |= reads_by_name(function)
            if not self._in_library:
                self.opaque = self.opaque or handed_on(function)
        return [] if _is(owner, (types.ModuleType, type(None))) else [(path, owner)]

    def _guard(
        self,
        kind: Any,
        item: Any,
        checked: list[_Item],
        path: str,
        size: int = -1,
        watched: set[str] | None = None,
    ) -> None:
        self.guards.append((kind, item, checked, size, watched))
        self._paths[kind, id(item)] = path
        if self._in_library:
            self._of_library.add((kind, id(item)))

    def _item(self, key: Any, value: Any) -> _Item:
        return (key, value, _Mode.equal if _C.has_value(value) else _Mode.same)

    def _reads(self, name: Any) -> bool:
        """Whether the code that ran may have read an attribute of this name."""
        return self._everything or name in self._observed.names

    def _ran(self, value: Any) -> bool:
        """Whether it is a method that ran; C code calls some by names that no code has."""
        if _is(value, (staticmethod, classmethod)):
            value = value.__func__
        elif _is(value, property):
            return any(map(self._ran, (value.fget, value.fset, value.fdel)))
        return _is(value, types.FunctionType) and value.__code__ in self._observed.codes

    def _programs_read(self, name: Any) -> bool:
        """Whether the program's own code that ran may have read an attribute of this name."""
        return self._observed is not None and name in self._observed.program_names

    # ---- Tensors ---------------------------------------------------------------------------------

    def _enter_tensor(self, path: str, tensor: torch.Tensor) -> list[tuple[str, Any]]:
        self.names[id(tensor)] = path
        if tensor.device.type == "lazy":
            self.tensors[id(tensor)] = tensor
        elif tensor.layout == torch.strided and not tensor.is_nested:
            self.hosts[id(tensor)] = tensor
        inside = self._enter_attributes(path, vars(tensor))
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            inside.append((path, type(tensor)))
        self._guard_instance(path, tensor, vars(tensor))
        for hooks in (tensor._backward_hooks, post_hooks(tensor)):
            if hooks:
                self.hook = self.hook or f"a hook of {path}"
            if hooks is not None:
                inside.append((f"{path}'s hooks", hooks))
        return inside

    # ---- Containers ------------------------------------------------------------------------------

    def _enter_dict(self, path: str, items: dict[Any, Any], form: str) -> list[tuple[str, Any]]:
        """All items, in their order."""
        inside = []
        checked = []
        base = collections.OrderedDict if _is(items, collections.OrderedDict) else dict
        for key, value in list(base.items(items)):  # not by a method of a subclass
            if _is(key, torch.Tensor):
                name = f"{path}[{self.names.get(id(key), 'a tensor')}]"
            else:
                name = form.format(path, key)
                inside.append((f"a key of {path}", key))
            checked.append(self._item(key, value))
            inside.append((name, value))
        self._guard(_Kind.dict, items, checked, path, size=len(checked))
        return inside

    def _enter_sequence(
        self, path: str, kind: Any, base: type, items: Iterable[Any]
    ) -> list[tuple[str, Any]]:
        """`base`: the class whose way to iterate is taken, not a subclass's."""
        inside = [(f"{path}[{i}]", value) for i, value in enumerate(base.__iter__(items))]
        checked = [self._item(i, value) for i, (_, value) in enumerate(inside)]
        self._guard(kind, items, checked, path, size=len(checked))
        return inside

    def _enter_memory(self, path: str, item: Any) -> list[tuple[str, Any]]:
        is_array = _is(item, np.ndarray)
        self._uses_numpy |= is_array
        size = item.nbytes if is_array else len(item)
        if size > _MOST_BYTES or (
            is_array and (item.dtype.hasobject or type(item) is not np.ndarray)
        ):
            return self._opaque(path, item)
        content = _C.memory_of(item)
        if content is None:
            return self._opaque(path, item)
        self._guard(_Kind.memory, item, [(None, content, _Mode.equal)], path)
        return []

    def _opaque(self, path: str, item: Any) -> list[tuple[str, Any]]:
        kind = type(item)
        name = (
            kind.__qualname__
            if kind.__module__ == "builtins"
            else (f"{kind.__module__}.{kind.__qualname__}")
        )
        self.opaque = self.opaque or f"{path} is a {name}"
        return []

    # ---- Objects ---------------------------------------------------------------------------------

    def _enter_object(self, path: str, item: Any) -> list[tuple[str, Any]]:
        if _C.has_value(item):
            return []
        inside = []
        kind = type(item)
        if _is(item, dict):
            inside += self._enter_dict(path, item, "{}[{!r}]")
        elif _is(item, list):
            inside += self._enter_sequence(path, _Kind.list, list, item)
        elif _is(item, (set, frozenset)):
            base = set if _is(item, set) else frozenset
            inside += self._enter_sequence(path, _Kind.sequence, base, item)
        elif _is(item, collections.deque):
            if kind.__iter__ is not collections.deque.__iter__:
                return self._opaque(path, item)
            inside += self._enter_sequence(path, _Kind.sequence, collections.deque, item)
        elif _is(item, tuple):
            inside += [(f"{path}[{i}]", value) for i, value in enumerate(tuple.__iter__(item))]
        elif _c_base(kind) not in _BASES:
            locks = f"{kind.__module__}.{kind.__qualname__}" in _LOCKS
            return [] if locks else self._opaque(path, item)
        elif is_c_type(kind) and kind is not types.SimpleNamespace:
            return [] if kind is object else self._opaque(path, item)
        if _is(item, collections.defaultdict):
            made = ("default_factory", item.default_factory, _Mode.same)
            self._guard(_Kind.slots, item, [made], path)
            inside.append((path, item.default_factory))
        if kind.__flags__ & _HEAP_TYPE:
            inside.append((f"{path}'s class", kind))
        attributes = dict_of(item)
        if _is(attributes, dict):
            if not _MEMORY.isdisjoint(attributes):
                return self._opaque(path, item)
            own = is_library(kind.__module__) and kind.__module__ not in _DATA
            whole = kind is types.SimpleNamespace  # compared as one
            inside += self._enter_attributes(path, attributes, library=own, whole=whole)
        if kind.__flags__ & _HEAP_TYPE or _is(attributes, dict):
            self._guard_instance(path, item, attributes)
        inside += self._enter_slots(path, item)
        return inside

    def _guard_instance(self, path: str, item: Any, attributes: Any) -> None:
        """That it keeps its class and, if it has one, its dict."""
        parts = [("__class__", type(item), _Mode.same), ("__dict__", attributes, _Mode.same)]
        self._guard(_Kind.instance, item, parts, path)

    def _enter_attributes(
        self,
        path: str,
        attributes: dict[str, Any],
        always: Iterable[str] = (),
        library: bool = False,
        whole: bool = False,
    ) -> list[tuple[str, Any]]:
        """Those that the code names, and `always`; all where the `whole` counts. `library`: of an
        object of PyTorch's or Python's own, which their code reads by names that it has."""
        if id(attributes) in self._seen:
            return []  # shared by several objects, or entered as a dict
        self._seen[id(attributes)] = attributes
        hidden = library and self._observed and not self._observed.program_reads_any
        everything = whole or (self._everything and not hidden)
        if not everything:
            self._partly.add(id(attributes))
        read = [
            (name, value)
            for name, value in attributes.items()
            if everything or name in always or name in self._observed.names
        ]
        checked = [self._item(name, value) for name, value in read]
        self._guard(
            _Kind.dict,
            attributes,
            checked,
            path,
            size=len(attributes) if everything else -1,
            watched=None if everything else self._observed.names,
        )
        return [(f"{path}.{name}", value) for name, value in read]

    def _enter_logger(self, path: str, logger: logging.Logger) -> list[tuple[str, Any]]:
        """Whether messages pass it; what handlers do with them is observed."""
        says = functools.partial(_logging_of, logger)
        self._guard(_Kind.answer, says, [(None, says(), _Mode.equal)], path)
        attributes = vars(logger)
        read = [(n, value) for n, value in attributes.items() if self._programs_read(n)]
        self._guard(_Kind.dict, attributes, [self._item(n, value) for n, value in read], path)
        return [(f"{path}'s class", type(logger)), *((f"{path}.{n}", value) for n, value in read)]

    def _enter_slots(self, path: str, item: Any) -> list[tuple[str, Any]]:
        inside = []
        checked: list[_Item] = []
        for name, slot in slots_of(type(item)):
            if not self._reads(name):
                continue
            try:
                value = slot.__get__(item)
            except AttributeError:
                checked.append((name, None, _Mode.absent))
                continue
            checked.append(self._item(name, value))
            inside.append((f"{path}.{name}", value))
        if checked:
            self._guard(_Kind.slots, item, checked, path)
        return inside

    def _enter_module(self, path: str, module: torch.nn.Module) -> list[tuple[str, Any]]:
        attributes = vars(module)
        parts = {name: attributes[name] for name in (*_MODULE_PARTS, *_MODULE_HOOKS)}
        for part in parts.values():
            self._seen[id(part)] = part
        self._guard_instance(path, module, attributes)
        inside = self._enter_attributes(path, attributes, always=parts)
        for name in _MODULE_PARTS:
            inside += self._enter_dict(path, parts[name], "{}.{}")
        for name in _MODULE_HOOKS:
            if parts[name]:
                self.hook = self.hook or f"a hook of the module {path}"
            inside += self._enter_dict(f"{path}.{name}", parts[name], "{}[{}]")
        inside += self._enter_slots(path, module)
        inside.append((f"{path}'s class", type(module)))
        return inside

    def _enter_optimizer(self, path: str, optimizer: Optimizer) -> list[tuple[str, Any]]:
        self.optimizers.append(optimizer)
        attributes = vars(optimizer)
        groups, state = optimizer.param_groups, optimizer.state
        self._seen[id(groups)] = groups
        self._seen[id(state)] = state
        self._guard_instance(path, optimizer, attributes)
        inside = [(f"{path}.param_groups", group["params"]) for group in groups]
        inside += self._enter_attributes(path, attributes, always=("state", "param_groups"))
        for name in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
            if attributes.get(name):
                self.hook = self.hook or f"a step hook of {path}"
        self._enter_sequence(f"{path}.param_groups", _Kind.list, list, groups)
        for i, group in enumerate(groups):
            self._seen[id(group)] = group
            checked = []
            for key, value in group.items():
                name = f"{path}.param_groups[{i}][{key!r}]"
                if key == "lr" and type(value) is float:
                    checked.append((key, value, _Mode.number))
                    self.numbers.append((name, group))
                elif key == "betas" and _is(value, tuple):
                    checked.append((key, value, _Mode.equal))
                else:
                    checked.append(self._item(key, value))
                    inside.append((name, value))
            self._guard(_Kind.dict, group, checked, f"{path}.param_groups[{i}]", size=len(group))
        for parameter in (p for group in groups for p in group["params"]):
            self.names.setdefault(id(parameter), "parameter")
        inside += self._enter_dict(f"{path}.state", state, "{}[{!r}]")
        inside.append((f"{path}'s class", type(optimizer)))
        return inside

    # ---- Functions, classes, modules -------------------------------------------------------------

    def _enter_function(self, path: str, function: types.FunctionType) -> list[tuple[str, Any]]:
        self._found_codes.add(function.__code__)
        library = is_library(function.__globals__.get("__name__")) and is_library(
            function.__module__
        )
        if library and self._observed is None:
            return []
        ran = (
            self._observed is None
            or function.__code__ in self._observed.codes
            or not _FUNCTION_PARTS.isdisjoint(self._observed.program_names)
        )
        if library and not ran:
            if any(map(self._programs_read, function.__dict__)):
                return self._enter_attributes(path, function.__dict__, library=True)
            return []
        parts = (None, _C.function_parts(function), _Mode.same)
        self._guard(_Kind.function, function, [parts], path)
        inside = self._enter_descriptions(path, function)
        if not ran:
            return inside + self._enter_attributes(path, function.__dict__)
        code = function.__code__
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            try:
                value = cell.cell_contents
            except ValueError:
                self._guard(_Kind.cell, cell, [(None, None, _Mode.absent)], f"{path}'s {name}")
                continue
            if library and not _is_handed_in(value):
                continue
            self._guard(_Kind.cell, cell, [self._item(None, value)], f"{path}'s {name}")
            inside.append((name, value))
        if self._observed is None:
            inside += self._enter_code(code, function.__globals__)
        for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            inside.append((f"{path}'s default", value))
        if function.__kwdefaults__:
            inside.append((f"{path}'s defaults", function.__kwdefaults__))
        inside += self._enter_attributes(path, function.__dict__, library=library)
        if library:
            self._of_library.add((_Kind.dict, id(function.__dict__)))
        return inside

    def _enter_descriptions(self, path: str, function: types.FunctionType) -> list[tuple[str, Any]]:
        """What describes a function, where the program reads that."""
        for name in filter(self._programs_read, ("__doc__", "__module__")):
            read = functools.partial(object.__getattribute__, function, name)
            self._guard(_Kind.answer, read, [(None, read(), _Mode.equal)], f"{path}.{name}")
        if self._programs_read("__annotations__"):
            return [(f"{path}.__annotations__", function.__annotations__)]
        return []

    def _enter_code(
        self, code: types.CodeType, module_globals: dict[str, Any]
    ) -> list[tuple[str, Any]]:
        """What a function's code names among globals, and in the modules that it names."""
        if (id(code), id(module_globals)) in self._expanded:
            return []
        self._expanded.add((id(code), id(module_globals)))
        facts = code_facts(code)
        module = module_globals.get("__name__", "")
        library = is_library(module) and module != "os"
        inside: list[tuple[str, Any]] = []
        names = facts.globals
        builtin_names = _builtins_of(module_globals)
        if not library:
            self._names_rates |= not {"lr", "param_groups"}.isdisjoint(facts.attributes)
            self._compares_types |= facts.compares_types
        if facts.any_global and not library:
            names = (*names, *(n for n in list(module_globals) if not n.startswith("__")))
            self._named_of(module_globals, str(module)).whole = True
        for name in names:
            if name in module_globals:
                value = module_globals[name]
                self._name(module_globals, str(module), name, value)
                inside += self._enter_named(name, value, library, facts)
                if not library and name in facts.values:
                    self._hand_on(value)
            else:
                self._name(module_globals, str(module), name)
                if name in builtin_names:
                    value = builtin_names[name]
                    self._name(builtin_names, "builtins", name, value)
                    if not library and name in facts.values:
                        self._hand_on(value)
                    if not library and (_is_programs(value) or _is(value, types.FunctionType)):
                        inside.append((name, value))
        for name, level in facts.imports:
            is_import = name in code.co_names  # else a text that may be a module's name
            inside += self._enter_import(name, level, is_import, module_globals, library, facts)
        if self._observed is None:
            for constant in code.co_consts:
                if _is(constant, types.CodeType):
                    inside += self._enter_code(constant, module_globals)
        return inside

    def _enter_import(
        self,
        name: str,
        level: int,
        is_import: bool,
        module_globals: dict[str, Any],
        library: bool,
        facts: CodeFacts,
    ) -> list[tuple[str, Any]]:
        """Modules that code imports when it runs, from those that are there."""
        if level:
            package = module_globals.get("__package__") or ""
            parts = package.split(".")
            name = ".".join([*parts[: len(parts) - level + 1], name]).rstrip(".")
        inside = []
        for each in (name, name.partition(".")[0]):
            imported = sys.modules.get(each)
            if imported is None:
                if is_import and not library:
                    self._name(sys.modules, "sys.modules", each)
            else:
                self._name(sys.modules, "sys.modules", each, imported)
                inside += self._enter_named(each, imported, library, facts)
        return inside

    def _hand_on(self, value: Any) -> None:
        """A global that the program does not only call: others may call it unseen."""
        if _is(value, types.BuiltinFunctionType) and self._observed is not None:
            self.opaque = self.opaque or handed_on(value)

    def _name(
        self, items: dict[str, Any], module: str, name: str, value: Any = _C.GuardMode.absent
    ) -> None:
        """Guards an item of a module's dict; without a value, that it is not there."""
        named = self._named_of(items, module)
        if value is _C.GuardMode.absent:
            named.watched.add(name)
        else:
            named.checked[name] = self._item(name, value)

    def _named_of(self, items: dict[str, Any], module: str) -> _Named:
        return self._named.setdefault(id(items), _Named(items, module))

    def _enter_module_object(self, path: str, module: types.ModuleType) -> list[tuple[str, Any]]:
        """A module that an object or an argument leads to."""
        if self._observed is None or (self._in_library and is_library(module.__name__)):
            return []
        return self._enter_named(path, module, library=False, facts=None)

    def _enter_named(
        self, name: str, value: Any, library: bool, facts: CodeFacts | None
    ) -> list[tuple[str, Any]]:
        """A global that code of the program, or of a library, names."""
        if not _is(value, types.ModuleType):
            if _is(value, types.BuiltinFunctionType) and not _is_bound(value):
                renamed = name != value.__name__ and self._observed is not None
                self._reads_by_name |= renamed and reads_by_name(value)
                return []  # calls of it are seen
            if not library or _is_table(name, value):
                return [(name, value)]
            # The classes of PyTorch and Python count, not what they keep in globals.
            counts = _is(value, (type, types.FunctionType)) or _is_pythons(value)
            counts = counts or type(value) is _World
            return [(name, value)] if counts else []
        inside: list[tuple[str, Any]] = []
        pending = [value]
        seen: set[int] = set()
        while pending:
            module = pending.pop()
            if id(module) not in seen:
                seen.add(id(module))
                inside += self._enter_module_names(module, library, facts, pending)
        return inside

    def _enter_module_names(
        self,
        module: types.ModuleType,
        library: bool,
        facts: CodeFacts | None,
        pending: list[types.ModuleType],
    ) -> list[tuple[str, Any]]:
        """A module of the program's counts with all that the program names, one of PyTorch's or
        Python's own with what the code names that led to it."""
        items = vars(module)
        entered = not library and not is_library(module.__name__)
        names: Iterable[str] = ()
        if facts is not None:
            names = facts.attributes
        elif self._observed is not None:
            names = self._observed.program_names & items.keys()
        if entered:
            if facts is not None and facts.any_attribute:
                names = [name for name in items if name[:2] != "__"]
            elif self._observed is not None:
                names = self._observed.program_names
            if self._everything:
                self._named_of(items, module.__name__).whole = True
            names = {*names, "__getattr__"}
        elif not library:
            if facts is not None and facts.any_attribute:
                self._named_of(items, module.__name__).whole = True
            self._look_at_settings(module, names)
        inside = []
        for name in names:
            if name not in items:
                if entered:
                    self._name(items, module.__name__, name)
                continue
            found = items[name]
            self._name(items, module.__name__, name, found)
            path = f"{module.__name__}.{name}"
            if _is(found, types.ModuleType):
                pending.append(found)
            elif (
                entered
                or _is(found, (type, types.FunctionType))
                or _is_bound(found)
                or path in ("os.environ", "os.environb")
                or (not library and _is_programs(found) and found is not sys.modules)
            ):
                inside.append((path, found))
                if not library and _is(found, type) and is_c_type(found) and is_outside(found):
                    self._opaque(path, found)
            elif not library and facts is not None and name in facts.values:
                self._hand_on(found)
        if entered:
            self._guard_instance(module.__name__, module, items)
            inside.append((module.__name__, type(module)))
        return inside

    def _look_at_settings(self, module: types.ModuleType, names: Iterable[str]) -> None:
        self._uses_numpy |= module is np
        if module is decimal:
            self.opaque = self.opaque or f"decimal {_DEPENDS_ON_DECIMALS}"
        if module is sys and "modules" in names:
            self.opaque = self.opaque or "sys.modules is a dict of all modules"
        if type(module).__module__ == "torch.utils._config_module":
            self.opaque = self.opaque or f"{module.__name__} are settings of PyTorch"
        if module.__name__.startswith("torch.backends."):
            self.opaque = self.opaque or f"{module.__name__} are settings of PyTorch"

    def _enter_class(self, path: str, item: type) -> list[tuple[str, Any]]:
        if issubclass(item, decimal.Decimal) and not self._in_library:
            self.opaque = self.opaque or f"{path} {_DEPENDS_ON_DECIMALS}"
        if not item.__flags__ & _HEAP_TYPE or item is torch.utils.hooks.RemovableHandle:
            return []
        library = _is_library_class(item)
        if library and self._observed is None:
            return []
        found: dict[str, tuple[Any, bool]] = {}
        hidden: set[str] = set()  # by what a class before it in the order of look-ups has
        for base in item.__mro__:
            own = _is_library_class(base)
            for name, value in list(vars(base).items()):
                if name in hidden or name in self._class_own:
                    continue
                hidden.add(name)
                if own and self._observed is None:
                    continue
                named = self._observed is None or name in self._observed.names
                if named or (
                    not own and (self._everything or name[:2] == "__" or self._ran(value))
                ):
                    found[name] = (value, own)
        compares_all = self._everything and self._observed is not None
        version = _C.type_version(item) if library or compares_all else 0
        checked = [self._item(name, value) for name, (value, _) in found.items()]
        if version:
            self._guard(_Kind.type, item, [] if library else checked, path, size=version)
        else:
            self._guard(_Kind.type, item, checked, path, watched=self._class_names)
        inside = [
            (f"{path}.{name}", value)
            for name, (value, own) in found.items()
            if (not own and (name not in _CLASS_METADATA or self._reads("metadata")))
            or _is(value, types.FunctionType)
            or (own and self._programs_read(name) and _is_programs(value))
        ]
        metaclass = type(item)
        if metaclass is not type:
            inside.append((f"{path}'s class", metaclass))
        inside += [(f"{path}'s base", base) for base in item.__bases__]
        return inside

    def path_of(self, guard: int) -> str:
        kind, item, *_ = self.guards[guard]
        return self._paths[kind, id(item)]

    def what_is_gone(self, guard: int) -> str:
        """What a guard no longer finds."""
        kind, container, items, *_ = self.guards[guard]
        path = self.path_of(guard)
        if kind in (_Kind.dict, _Kind.list):
            found = container if kind == _Kind.dict else dict(enumerate(container))
            for item in items:
                if item[2] == _Mode.same and dict.get(found, item[0]) is not item[1]:
                    return _said_change(path, kind, item, item)
        return f"what {path} holds is replaced"

    def has_seen(self, item: Any) -> bool:
        return id(item) in self._seen

    # ---- Comparing -------------------------------------------------------------------------------

    def rates(self) -> list[float]:
        """The learning rates as they are now."""
        return [group["lr"] for _, group in self.numbers]

    def changed_since(self, before: "Reach") -> str:
        """An obstacle: what the call has changed, or used without its being seen before."""
        for key, (_, _, checked, size, _) in self._index.items():
            path = self._paths[key]
            earlier = before._index.get(key)
            if earlier is None:
                continue
            _, _, checked_before, size_before, _ = earlier
            known = {_key(item): item for item in checked_before}
            for item in checked:
                old = known.get(_key(item))
                if old is None:
                    if size_before >= 0:
                        return f"it adds {item[0]!r} to {path}"
                    continue
                if not _same(old, item):
                    return _said_change(path, key[0], old, item)
            if size >= 0 and size_before >= 0 and size != size_before:
                what = "attributes" if key[0] == _Kind.type else "the number of items"
                return f"it changes {what} of {path}"
        return ""

    def is_covered_by(self, before: "Reach") -> bool:
        """Whether all that it guards was seen in a walk before the call."""
        return all(
            key in before._index
            or key in self._of_library
            or key[0] in (_Kind.type, _Kind.function, _Kind.cached, _Kind.answer)
            for key in self._index
        ) and all(key in before.tensors for key in self.tensors)

    def same_guards(self, other: "Reach") -> str:
        """Where two walks found other objects or values; empty: nowhere."""
        for key, guard in self._index.items():
            earlier = other._index.get(key)
            if earlier is None:
                continue
            known = {_key(item): item for item in earlier[2]}
            for item in guard[2]:
                old = known.get(_key(item))
                if old is not None and not _same(old, item):
                    return _said_change(self._paths[key], key[0], old, item)
            if guard[3] >= 0 and earlier[3] >= 0 and guard[3] != earlier[3]:
                what = "an attribute" if key[0] == _Kind.type else "the number of items"
                return f"{what} of {self._paths[key]} changes"
        return ""


def post_hooks(tensor: torch.Tensor) -> Any:
    """The hooks that run after a gradient was accumulated, if there are any."""
    return getattr(tensor, "_post_accumulate_grad_hooks", None)


def _is(item: Any, kinds: Any) -> bool:
    """isinstance, but an object's own idea of its class is not asked for: that may run code."""
    return issubclass(type(item), kinds)


def _key(item: _Item) -> Any:
    key = item[0]
    return key if _is(key, (str, int, type(None))) else id(key)


def _same(a: _Item, b: _Item) -> bool:
    _, x, mode = a
    _, y, other_mode = b
    if x is y:
        return True
    if mode != other_mode:
        return False
    return (
        mode == _Mode.number
        or (mode == _Mode.equal and _C.same_value(x, y))
        or (_is(x, tuple) and _is(y, tuple) and _C.same_value(x, y))
    )


def _said_change(path: str, kind: Any, old: _Item, new: _Item) -> str:
    key = old[0]
    if key is None:
        where = path
    elif kind in (_Kind.list, _Kind.sequence):
        where = f"{path}[{key}]"
    elif _is(key, str):
        where = f"{path}.{key}"
    else:
        where = f"an item of {path}"
    if new[2] == _Mode.equal or old[2] == _Mode.equal:
        return f"{where} changes from {old[1]!r:.60} to {new[1]!r:.60}"
    return f"{where} is replaced"


def dict_of(item: Any) -> Any:
    """An object's attributes, without code of its class; None: it has none."""
    try:
        return object.__getattribute__(item, "__dict__")
    except AttributeError:
        return None


def _is_programs(value: Any) -> bool:
    """Whether something that is found in a module or class of a library is the program's: it put
    it there, or may change what is in it."""
    if type(value) in _CONTAINERS:
        return True
    if _is(value, (types.SimpleNamespace, functools.partial, logging.Logger)):
        return True
    if _is(value, (torch.Tensor, torch.nn.Module, Optimizer)):
        return True
    return not _is(value, (type, types.ModuleType)) and not is_library(type(value).__module__)


def with_inner_code(codes: Iterable[types.CodeType]) -> set[types.CodeType]:
    """With that of the functions and classes that are made in it."""
    found: set[types.CodeType] = set()
    pending = list(codes)
    while pending:
        code = pending.pop()
        if code not in found:
            found.add(code)
            pending += [inner for inner in code.co_consts if _is(inner, types.CodeType)]
    return found


def _builtins_of(module_globals: dict[str, Any]) -> dict[str, Any]:
    """Where functions with these globals find what their module does not have."""
    found = module_globals.get("__builtins__", BUILTINS)
    return vars(found) if _is(found, types.ModuleType) else found


def _logging_of(logger: logging.Logger) -> tuple[Any, ...]:
    return logger.getEffectiveLevel(), logger.disabled, logger.manager.disable


def _numpys_errors() -> tuple[str, ...]:
    """What numpy does about overflows, divisions by zero and the like."""
    return tuple(np.geterr().values())


def _is_bound(value: Any) -> bool:
    """Whether it is a method of an object: a module may hold one of an object of its own."""
    if not _is(value, (types.BuiltinMethodType, types.MethodType)):
        return False
    return not _is(value.__self__, (types.ModuleType, type, type(None)))


def _is_handed_in(value: Any) -> bool:
    """Whether the closure of a function of PyTorch's or Python's has something of the program's:
    what a decorator was given."""
    if _is(value, (types.FunctionType, dict, list, set, collections.deque)):
        return True
    if _is(value, (type, types.ModuleType, types.BuiltinFunctionType)) or _C.has_value(value):
        return False
    return callable(value)


def _is_pythons(value: Any) -> bool:
    """Whether it is an object of the standard library's that keeps what programs set (json's
    encoder, loggers)."""
    kind = type(value)
    module = kind.__module__.partition(".")[0]
    return (
        module in sys.stdlib_module_names
        and module not in ("threading", "weakref", "os", "contextvars")
        and kind.__flags__ & _HEAP_TYPE != 0
        and not is_c_type(kind)
        and not callable(value)
        and not _is(value, Exception)
    )


_World = type(getattr(torch.distributed.distributed_c10d, "_world", None))
"""Of the object that holds the process groups of torch.distributed."""


def _is_table(name: str, value: Any) -> bool:
    """Tables that libraries keep in globals, and that programs may add to: hooks for all modules
    and optimizers, how objects of a class are copied and what they consist of."""
    if not _is(value, dict):
        return False
    name = name.lower()
    return any(part in name for part in ("hook", "dispatch", "registry", "supported_nodes"))


@functools.lru_cache(maxsize=4096)
def _is_library_class(kind: type) -> bool:
    """Whether a class is PyTorch's or Python's own, and not one that they make for the program."""
    if not is_library(kind.__module__):
        return False
    owner = vars(sys.modules.get(kind.__module__, types)).get(kind.__qualname__.partition(".")[0])
    return owner is not None or is_c_type(kind)


def _c_base(kind: type) -> type:
    """The first class written in C that a class inherits from."""
    for base in kind.__mro__:
        if is_c_type(base):
            return base
    return object


@functools.lru_cache(maxsize=4096)
def is_c_type(kind: type) -> bool:
    """Whether a class is written in C."""
    if not kind.__flags__ & _HEAP_TYPE or kind.__flags__ & _IMMUTABLE_TYPE:
        return True
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    if module is None or kind.__module__ == "__main__":
        return False
    return (file is None and kind.__module__ in sys.builtin_module_names) or (
        file is not None and file.endswith((".so", ".pyd"))
    )


@functools.lru_cache(maxsize=4096)
def slots_of(kind: type) -> tuple[tuple[str, Any], ...]:
    return tuple(
        (name, value)
        for base in kind.__mro__
        if base.__flags__ & _HEAP_TYPE
        for name, value in vars(base).items()
        if _is(value, types.MemberDescriptorType)
    )


def reach_of(
    function: Callable[..., Any], args: Any, kwargs: Any, observed: Observed | None = None
) -> Reach:
    """What a call of the function can reach besides the tensors among its arguments."""
    return Reach(function, args, kwargs, observed)
