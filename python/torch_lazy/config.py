"""Settings: read from the environment at the start (TORCH_LAZY_... and the LTC_... of torch._lazy),
changed here while running. Names may be given as there or short: "TORCH_LAZY_MAX_NODES" or
"max_nodes".
"""

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

from torch_lazy import _C

_PREFIXES = ("TORCH_LAZY_", "LTC_")


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


def get_force_fallback() -> str:
    """The operator that set_force_fallback or the setting LTC_FORCE_FALLBACK names, or ""."""
    return _C._lazy._get_force_fallback()


def set_force_fallback(configval: str) -> None:
    """Has an operator, named without its overload ("aten::sub"), executed at once; "" for none."""
    _C._lazy._set_force_fallback(configval)


def set_reuse_ir(val: bool) -> None:
    """Whether a step that repeats the last one is recorded with its help (see ir_cache)."""
    _C._lazy._set_reuse_ir(val)


def _full_name(name: str) -> str:
    if name.startswith(_PREFIXES):
        return name
    known = [row[0] for row in _C.settings()]
    candidates = [prefix + name.upper() for prefix in _PREFIXES]
    return next((full for full in candidates if full in known), candidates[0])


def _as_text(value: str | int | bool) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)
