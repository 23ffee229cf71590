"""What a function can reach besides its arguments: tensors, and the objects that hold them.

A recorded call depends on them. Where each was found is a slot (an item of a dict or list, a cell
of a closure), which is checked before every replay.
"""

import functools
import types
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch.optim import Optimizer

OBJECT, VALUE, NUMBER = 0, 1, 2
"""How an item is compared: the same object, an equal value, a number that replays follow."""

_PLAIN = (int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
_NOT_ENTERED = (types.ModuleType, type, types.BuiltinFunctionType, torch.Generator)
_MODULE_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)
_MOST_OBJECTS = 50_000


class Reach:
    """One walk over what `roots` refer to."""

    def __init__(self, roots: Iterable[tuple[str, Any]]) -> None:
        self.tensors: dict[int, torch.Tensor] = {}
        self.hosts: dict[int, torch.Tensor] = {}
        self.names: dict[int, str] = {}
        """Of tensors, by id."""
        self.guards: list[tuple[Any, list[tuple[Any, Any, int]], int]] = []
        self.values: dict[str, Any] = {}
        """Plain values by the path that leads to them."""
        self.numbers: list[tuple[str, dict[str, Any]]] = []
        """Learning rates in the order of the guards' numbers: path, and the group they are of."""
        self.optimizers: list[Optimizer] = []
        self.hook = ""
        """A hook of Python's that would run."""
        self.opaque = ""
        """Something that no check can see a change of."""
        self.too_much = False
        self._seen: dict[int, Any] = {}
        stack = list(roots)
        optimizers = []  # last: parameters are named by their modules
        while stack or optimizers:
            path, item = stack.pop() if stack else optimizers.pop(0)
            if isinstance(item, Optimizer) and stack:
                optimizers.append((path, item))
                continue
            stack.extend(self._enter(path, item))
            if len(self._seen) > _MOST_OBJECTS:
                self.too_much = True
                return

    def _enter(self, path: str, item: Any) -> list[tuple[str, Any]]:
        """Looks at one object; returns what is inside it."""
        if isinstance(item, _PLAIN) or id(item) in self._seen:
            return []
        if isinstance(item, _NOT_ENTERED):
            return []
        self._seen[id(item)] = item
        if isinstance(item, torch.Tensor):
            self._add_tensor(path, item)
            return []
        if isinstance(item, Optimizer):
            return self._enter_optimizer(path, item)
        if isinstance(item, torch.nn.Module):
            return self._enter_module(path, item)
        if isinstance(item, types.FunctionType):
            return self._enter_function(path, item)
        if isinstance(item, types.MethodType):
            return [(path, item.__func__), (f"{path}.__self__", item.__self__)]
        if isinstance(item, functools.partial):
            return [(path, item.func), (path, item.args), (path, item.keywords)]
        if isinstance(item, dict):
            return self._enter_dict(path, item, "{}[{!r}]")
        if isinstance(item, list):
            return self._enter_list(path, item)
        if isinstance(item, tuple):
            return [(f"{path}[{i}]", value) for i, value in enumerate(item)]
        return self._enter_object(path, item)

    def _add_tensor(self, path: str, tensor: torch.Tensor) -> None:
        self.names[id(tensor)] = path
        if tensor.device.type == "lazy":
            self.tensors[id(tensor)] = tensor
        elif tensor.layout == torch.strided and tensor.device.type != "meta":
            self.hosts[id(tensor)] = tensor
        if tensor._backward_hooks or getattr(tensor, "_post_accumulate_grad_hooks", None):
            self.hook = self.hook or f"a hook of {path}"

    def _item(self, path: str, key: Any, value: Any) -> tuple[Any, Any, int]:
        if isinstance(value, _PLAIN):
            self.values[path] = value
            return (key, value, VALUE)
        return (key, value, OBJECT)

    def _enter_dict(self, path: str, items: dict[Any, Any], form: str) -> list[tuple[str, Any]]:
        inside = []
        checked = []
        for key, value in items.items():
            if isinstance(key, torch.Tensor):
                name = f"{path}[{self.names.get(id(key), 'a tensor')}]"
            else:
                name = form.format(path, key)
            checked.append(self._item(name, key, value))
            inside.append((name, value))
        self.guards.append((items, checked, len(items)))
        return inside

    def _enter_list(self, path: str, items: list[Any]) -> list[tuple[str, Any]]:
        inside = [(f"{path}[{i}]", value) for i, value in enumerate(items)]
        checked = [self._item(name, i, value) for i, (name, value) in enumerate(inside)]
        self.guards.append((items, checked, len(items)))
        return inside

    def _enter_object(self, path: str, item: Any) -> list[tuple[str, Any]]:
        attributes = getattr(item, "__dict__", None)
        if not isinstance(attributes, dict):
            if isinstance(item, (np.ndarray, bytearray)):
                self.opaque = self.opaque or f"{path} is a {type(item).__name__}"
            return []
        return self._enter_dict(path, attributes, "{}.{}")

    def _enter_module(self, path: str, module: torch.nn.Module) -> list[tuple[str, Any]]:
        attributes = vars(module)
        inside = self._enter_dict(path, attributes, "{}.{}")
        parts = [
            attributes[name] for name in ("_parameters", "_buffers", "_modules", *_MODULE_HOOKS)
        ]
        own = {id(part) for part in parts}
        inside = [(name, value) for name, value in inside if id(value) not in own]
        for part in parts[:3]:
            self._seen[id(part)] = part
            inside += self._enter_dict(path, part, "{}.{}")
        for name in _MODULE_HOOKS:
            hooks = attributes[name]
            self._seen[id(hooks)] = hooks
            self.guards.append((hooks, [], len(hooks)))
            if hooks:
                self.hook = self.hook or f"a hook of the module {path}"
        return inside

    def _enter_optimizer(self, path: str, optimizer: Optimizer) -> list[tuple[str, Any]]:
        self.optimizers.append(optimizer)
        inside = [(f"{path}.param_groups", group["params"]) for group in optimizer.param_groups]
        self.guards.append(
            (
                vars(optimizer),
                [(name, vars(optimizer)[name], OBJECT) for name in ("state", "param_groups")],
                -1,
            )
        )
        self._seen[id(optimizer.param_groups)] = optimizer.param_groups
        self._enter_list(path, optimizer.param_groups)
        for i, group in enumerate(optimizer.param_groups):
            self._seen[id(group)] = group
            checked = []
            for key, value in group.items():
                name = f"{path}.param_groups[{i}][{key!r}]"
                if key == "lr" and type(value) is float:
                    checked.append((key, value, NUMBER))
                    self.numbers.append((name, group))
                elif isinstance(value, _PLAIN) or key == "betas":
                    self.values[name] = value
                    checked.append((key, value, VALUE))
                else:
                    checked.append((key, value, OBJECT))
                    inside.append((name, value))
            self.guards.append((group, checked, len(group)))
        self._seen[id(optimizer.state)] = optimizer.state
        for parameter in (p for group in optimizer.param_groups for p in group["params"]):
            self.names.setdefault(id(parameter), "parameter")
        inside += self._enter_dict(f"{path}.state", optimizer.state, "{}[{!r}]")
        return inside

    def _enter_function(self, path: str, function: types.FunctionType) -> list[tuple[str, Any]]:
        if function.__module__ is not None and function.__module__.partition(".")[0] == "torch":
            return []
        inside = []
        code = function.__code__
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            try:
                value = cell.cell_contents
            except ValueError:
                continue  # empty
            self.guards.append((cell, [self._item(f"{path}'s {name}", None, value)], -1))
            inside.append((name, value))
        found = {}
        for name in _global_names(code):
            if name in function.__globals__:
                found[name] = function.__globals__[name]
        checked = [self._item(name, name, value) for name, value in found.items()]
        if checked:
            self.guards.append((function.__globals__, checked, -1))
        inside += found.items()
        for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            inside.append((f"{path}'s default", value))
        if function.__dict__:
            inside += self._enter_dict(path, function.__dict__, "{}.{}")
        return inside

    def rates(self) -> list[float]:
        """The learning rates as they are now."""
        return [group["lr"] for _, group in self.numbers]

    def changed_value(self, before: "Reach") -> tuple[str, Any, Any] | None:
        """A plain value that is another one than before: its path, then and now."""
        for path, value in self.values.items():
            if path in before.values:
                old = before.values[path]
                if old is not value and (type(old) is not type(value) or old != value):
                    return path, old, value
        return None

    def same_guards(self, other: "Reach") -> bool:
        """Whether both walks found the same objects in the same places."""
        if len(self.guards) != len(other.guards):
            return False
        for (a, items_a, size_a), (b, items_b, size_b) in zip(
            self.guards, other.guards, strict=True
        ):
            if a is not b or size_a != size_b or len(items_a) != len(items_b):
                return False
            for (key, x, mode), (other_key, y, _) in zip(items_a, items_b, strict=True):
                if key is not other_key and key != other_key:
                    return False
                if mode == OBJECT and x is not y:
                    return False
                if mode == VALUE and (type(x) is not type(y) or x != y):
                    return False
        return True


@functools.lru_cache(maxsize=256)
def _global_names(code: types.CodeType) -> tuple[str, ...]:
    """The names that code may look up among globals, with those of the functions inside it."""
    names = list(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names += _global_names(constant)
    return tuple(dict.fromkeys(names))


def reach_of(function: Callable[..., Any], args: Any, kwargs: Any) -> Reach:
    """What a call of the function can reach besides the tensors among its arguments."""
    name = getattr(function, "__name__", type(function).__name__)
    return Reach([*_objects("argument", (args, kwargs)), (name, function)])


def _objects(path: str, tree: Any) -> Iterable[tuple[str, Any]]:
    """The leaves of arguments that are no tensors."""
    if isinstance(tree, dict):
        for value in tree.values():
            yield from _objects(path, value)
    elif isinstance(tree, (list, tuple)):
        for value in tree:
            yield from _objects(path, value)
    elif not isinstance(tree, torch.Tensor):
        yield path, tree
