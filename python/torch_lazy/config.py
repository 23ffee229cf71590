"""Settings: read from the environment at the start (TORCH_LAZY_...), changed here while running.

Names may be given as in the environment or short: "TORCH_LAZY_MAX_NODES" or "max_nodes".
"""

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

from torch_lazy import _C

_PREFIX = "TORCH_LAZY_"


class Setting(NamedTuple):
    name: str
    value: str
    default: str
    meaning: str


def get(name: str) -> str:
    return _C.get_setting(_full_name(name))


def set(name: str, value: str | int | bool) -> None:
    _C.set_setting(_full_name(name), _as_text(value))


def table() -> list[Setting]:
    """All settings with their values, defaults and meanings."""
    return [Setting(*row) for row in _C.settings()]


@contextlib.contextmanager
def override(**values: str | int | bool) -> Iterator[None]:
    """Changes settings until the end of a `with` block: `override(max_nodes=100, check=True)`."""
    with contextlib.ExitStack() as restore:
        for name, value in values.items():
            restore.callback(set, name, get(name))
            set(name, value)
        yield


def _full_name(name: str) -> str:
    return name if name.startswith(_PREFIX) else _PREFIX + name.upper()


def _as_text(value: str | int | bool) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)
