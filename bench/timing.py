"""Interleaved timing: competitors take turns, and only ratios within one turn count."""

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass
class Competitor:
    step: Callable[[], None]
    after: Callable[[], None] = lambda: None
    """Called after every step, outside the timed region."""


def seconds(competitor: Competitor, steps: int) -> float:
    """The median time of a step among `steps` in a row."""
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        competitor.step()
        times.append(time.perf_counter() - start)
        competitor.after()
    return statistics.median(times)


def race(competitors: Mapping[str, Competitor], turns: int, steps: int) -> dict[str, list[float]]:
    """Times of a step by competitor, one per turn. Whoever begins changes from turn to turn."""
    names = list(competitors)
    results: dict[str, list[float]] = {name: [] for name in names}
    for competitor in competitors.values():
        for _ in range(5):  # first steps differ: they make gradients, optimizer state and plans
            competitor.step()
            competitor.after()
    gc.collect()
    gc.disable()
    try:
        for turn in range(turns):
            shift = turn % len(names)
            for name in names[shift:] + names[:shift]:
                results[name].append(seconds(competitors[name], steps))
    finally:
        gc.enable()
    return results


def median_ratio(times: list[float], reference: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(times, reference, strict=True))
