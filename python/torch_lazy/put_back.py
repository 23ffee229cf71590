"""Puts back what objects held: only what is another one, so that nobody who watches for changes
sees one."""

import collections
import queue
import types
from typing import Any

MISSING = object()
"""Stands for an attribute or an item that was not there."""


def plain_class(item: Any) -> Any:
    """The class whose methods do what a container does, whatever a subclass makes of them."""
    bases = (collections.OrderedDict, dict, list, set, frozenset, tuple, collections.deque)
    return next((base for base in bases if isinstance(item, base)), bytearray)


def refill_dict(items: dict[Any, Any], before: list[tuple[Any, Any]]) -> None:
    plain = plain_class(items)
    now = list(plain.items(items))
    if len(now) == len(before) and all(
        a is c and b is d for (a, b), (c, d) in zip(now, before, strict=True)
    ):
        return
    plain.clear(items)
    for key, value in before:
        plain.__setitem__(items, key, value)


def refill(items: Any, before: list[Any]) -> None:
    plain = plain_class(items)
    now = list(plain.__iter__(items))
    if len(now) == len(before) and all(a is b for a, b in zip(now, before, strict=True)):
        return
    if plain in (list, bytearray):
        plain.__setitem__(items, slice(None), before)
        return
    plain.clear(items)
    (plain.update if plain is set else plain.extend)(items, before)


def wake(waiting: queue.Queue) -> None:
    """Threads that wait for a queue look again: it may have become empty or full."""
    with waiting.mutex:
        waiting.not_empty.notify_all()
        waiting.not_full.notify_all()


def set_class(item: Any, cls: type) -> None:
    if type(item) is not cls:
        object.__setattr__(item, "__class__", cls)


def set_attribute(item: Any, name: str, value: Any) -> None:
    if getattr(item, name, MISSING) is not value:
        object.__setattr__(item, name, value)


def slot_value(item: Any, slot: types.MemberDescriptorType) -> Any:
    try:
        return slot.__get__(item)
    except AttributeError:
        return MISSING


def set_slot(item: Any, slot: types.MemberDescriptorType, value: Any) -> None:
    if slot_value(item, slot) is value:
        return
    if value is MISSING:
        slot.__delete__(item)
    else:
        slot.__set__(item, value)


def class_attributes(cls: type) -> dict[str, Any]:
    fixed = (types.MemberDescriptorType, types.GetSetDescriptorType)
    return {name: value for name, value in vars(cls).items() if not isinstance(value, fixed)}


def set_class_attributes(cls: type, before: dict[str, Any]) -> None:
    now = class_attributes(cls)
    for name in now.keys() - before.keys():
        type.__delattr__(cls, name)
    for name, value in before.items():
        if now.get(name, MISSING) is not value:
            type.__setattr__(cls, name, value)


def set_item(items: dict[str, Any], name: str, value: Any) -> None:
    now = items.get(name, MISSING)
    if now is value:
        return
    if value is MISSING:
        if not is_module(now):  # modules stay imported
            del items[name]
    else:
        items[name] = value


def set_cell(cell: types.CellType, value: Any) -> None:
    try:
        if cell.cell_contents is value:
            return
    except ValueError:
        if value is MISSING:
            return
    if value is MISSING:
        del cell.cell_contents
    else:
        cell.cell_contents = value


def is_module(value: Any) -> bool:
    return issubclass(type(value), types.ModuleType)  # isinstance would ask a proxy that is dead
