"""Interleaved timing: competitors take turns, and only ratios within one turn count."""

import gc
import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

WARM_UP_STEPS = 5  # first steps differ: they make gradients, optimizer state and plans


@dataclass
class Competitor:
    step: Callable[[], None]
    after: Callable[[], None] = lambda: None
    """Called after every step, outside the timed region."""


def race(
    competitors: Mapping[str, Competitor],
    turns: int,
    steps: int,
    clock: Callable[[], float] = time.process_time,
    seconds: float = math.inf,
) -> dict[str, list[float]]:
    """Seconds per step by competitor, one number per turn: the median of `steps` steps in a row.

    Whoever begins changes from turn to turn. With one thread the process's CPU time is the time a
    step takes, and other processes on the machine do not count. No turn begins after `seconds`,
    except the first three.
    """
    for competitor in competitors.values():
        _time(competitor, WARM_UP_STEPS, clock)
    names = list(competitors)
    results: dict[str, list[float]] = {name: [] for name in names}
    gc.collect()
    gc.disable()
    end = time.monotonic() + seconds
    try:
        for turn in range(turns):
            if turn >= 3 and time.monotonic() > end:
                break
            first = turn % len(names)
            for name in names[first:] + names[:first]:
                results[name].append(_time(competitors[name], steps, clock))
    finally:
        gc.enable()
    return results


def median_ratio(times: list[float], reference: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(times, reference, strict=True))


def _time(competitor: Competitor, steps: int, clock: Callable[[], float]) -> float:
    times = []
    for _ in range(steps):
        start = clock()
        competitor.step()
        times.append(clock() - start)
        competitor.after()
    return statistics.median(times)
