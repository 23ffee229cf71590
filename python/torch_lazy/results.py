"""Results of compiled functions: trees, with dataclasses, of tensors and other values."""

import collections
import dataclasses
from typing import Any

import torch
from torch.utils._pytree import tree_flatten

_PLAIN = (int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device, torch.Size)


def is_twisted(result: Any) -> str:
    """Why a result is no tree of plain containers, so that it cannot be made anew; empty: it is."""
    seen = {}
    waiting = [result]
    while waiting:
        item = waiting.pop()
        if not isinstance(item, (list, tuple, dict)) and not is_object(item):
            continue
        if id(item) in seen:
            if isinstance(item, tuple):
                continue
            return f"it returns one {type(item).__name__} in several places, or inside itself"
        seen[id(item)] = item
        if type(item) in (collections.OrderedDict, collections.defaultdict) and _vars_of(item):
            return f"it returns a {type(item).__name__} with attributes of its own"
        if isinstance(item, dict):
            if any(isinstance(key, torch.Tensor) for key in item):
                return f"it returns a {type(item).__name__} whose keys are tensors"
            waiting.extend(dict.values(item))
        elif isinstance(item, (list, tuple)):
            waiting.extend(item)
        else:
            waiting.extend(_attributes(item).values())
    return ""


def _vars_of(item: Any) -> dict[str, Any]:
    return getattr(item, "__dict__", {})


class Shape:
    """How a result is made of its leaves."""

    def __init__(self, value: Any, leaves: list[Any]) -> None:
        """Appends the leaves of `value`."""
        own, self.spec = tree_flatten(value)
        self.parts: list[_Object | None] = []
        """By leaf of `spec`: the object that it is; None: it is a leaf of the whole."""
        for leaf in own:
            if is_object(leaf):
                self.parts.append(_Object(leaf, leaves))
            else:
                self.parts.append(None)
                leaves.append(leaf)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shape) and self.spec == other.spec and self.parts == other.parts

    __hash__ = None  # type: ignore[assignment]

    def is_leaf(self) -> bool:
        return self.spec.is_leaf() and self.parts == [None]

    def rebuild(self) -> Any:
        """A function of the list of leaves."""
        if any(self.parts):
            return lambda leaves: self.make(iter(leaves))
        if self.spec.type is tuple and all(child.is_leaf() for child in self.spec.children()):
            return tuple
        return self.spec.unflatten

    def make(self, leaves: Any) -> Any:
        own = [next(leaves) if part is None else part.make(leaves) for part in self.parts]
        return self.spec.unflatten(own)


class _Object:
    """A dataclass among the results: made anew with the attributes that it had."""

    def __init__(self, value: Any, leaves: list[Any]) -> None:
        self.type = type(value)
        attributes = _attributes(value)
        self.names = list(attributes)
        self.shapes = [Shape(item, leaves) for item in attributes.values()]

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _Object)
            and self.type is other.type
            and self.names == other.names
            and self.shapes == other.shapes
        )

    __hash__ = None  # type: ignore[assignment]

    def make(self, leaves: Any) -> Any:
        made = object.__new__(self.type)
        for name, shape in zip(self.names, self.shapes, strict=True):
            object.__setattr__(made, name, shape.make(leaves))
        return made


def is_object(value: Any) -> bool:
    """Whether a result is taken apart and made anew: a dataclass."""
    return (
        dataclasses.is_dataclass(value)
        and not isinstance(value, (type, torch.Tensor, torch.nn.Module))
        and type(value).__new__ is object.__new__
    )


def _attributes(value: Any) -> dict[str, Any]:
    attributes = {
        field.name: getattr(value, field.name)
        for field in dataclasses.fields(value)
        if hasattr(value, field.name)
    }
    return attributes | _vars_of(value)


def same_leaf(a: Any, b: Any) -> bool:
    """Whether two calls returned the same: one object, or equal plain values."""
    if a is b:
        return True
    if type(a) is not type(b) or not isinstance(a, _PLAIN):
        return False
    return repr(a) == repr(b) if isinstance(a, (float, complex)) else a == b


def leaf_text(leaf: Any) -> str:
    return repr(leaf) if isinstance(leaf, _PLAIN) else f"a {type(leaf).__name__}"


def leaf_difference(a: Any, b: Any) -> str:
    """Why two calls that returned these cannot be one recording; empty: they can."""
    if same_leaf(a, b):
        return ""
    if isinstance(b, _PLAIN):
        return f"its result is {leaf_text(a)} in one call and {leaf_text(b)} in another"
    return (
        f"it returns {leaf_text(b)} that is another one in each call; return tensors, plain "
        f"values, or tuples, lists, dicts and dataclasses of them"
    )
