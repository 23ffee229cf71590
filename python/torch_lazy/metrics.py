"""What torch-lazy did: counters, metrics with samples over time, and what fell back."""

from collections.abc import Iterable
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


class Sample(NamedTuple):
    timestamp_ns: int
    value: float


class Metric(NamedTuple):
    """The samples of a metric since the last reset. Times are in nanoseconds."""

    total_samples: int
    accumulator: float
    """The sum of all samples."""
    samples: list[Sample]
    """The last of them (setting TORCH_LAZY_METRICS_SAMPLES), oldest first."""


def metric_names() -> list[str]:
    """Names of all metrics that have samples, sorted."""
    return _C.metric_names()


def metric_data(name: str) -> Metric | None:
    """None for a metric that is unknown or has no samples."""
    data = _C.metric_data(name)
    if data is None:
        return None
    total, accumulator, samples = data
    return Metric(total, accumulator, [Sample(*sample) for sample in samples])


def metrics_report(
    counter_names: Iterable[str] | None = None, metric_names: Iterable[str] | None = None
) -> str:
    """All metrics and counters as text, the backend's line, and what was executed at once.

    With names, only these counters and metrics, and the counters of what was executed at once.
    """
    if counter_names is None and metric_names is None:
        return _C.metrics_report()
    return _C.metrics_report(list(counter_names or ()), list(metric_names or ()))


def fallbacks() -> list[Fallback]:
    """Operators that were executed at once, and the user's line that called each last."""
    return [Fallback(*row) for row in _C.fallbacks()]


def reset() -> None:
    """Sets all counters to zero and forgets samples and fallbacks."""
    _C.reset_metrics()
