"""What torch-lazy did: counters of operators, compilations and steps, and what fell back."""

from typing import NamedTuple

from torch_lazy import _C


class Fallback(NamedTuple):
    """An operator that was executed at once instead of being recorded."""

    operator: str
    count: int
    source: str
    """The line of the user's code that called it last."""


def counter_names() -> list[str]:
    """Names of all counters that are not zero, sorted."""
    return _C.counter_names()


def counter_value(name: str) -> int | None:
    """None for a counter that is unknown or zero."""
    return _C.counter_value(name)


def counters() -> dict[str, int]:
    """All counters that are not zero."""
    return {name: _C.counter_value(name) or 0 for name in _C.counter_names()}


def metrics_report() -> str:
    """The whole registry as text."""
    return _C.metrics_report()


def fallbacks() -> list[Fallback]:
    """Operators that were executed at once, and the user's line that called each last."""
    return [Fallback(*row) for row in _C.fallbacks()]


def reset() -> None:
    """Sets all counters to zero and forgets the fallbacks."""
    _C.reset_metrics()
