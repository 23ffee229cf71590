"""The time of a training step against eager's: recording it alone, and recording and running it."""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping

import torch
import workloads
from report import Row
from timing import Competitor, median_ratio, race

import torch_lazy


def tiny(threads: int, turns: int) -> Iterator[Row]:
    """Models so small that overhead is all there is."""
    targets = {"MLP 8x16": (0.7, 1.25), "GPT-2 12x24": (1.0, 1.4)}
    yield from _against_eager("tiny", workloads.TINY, targets, threads, turns, steps=5)


def real(threads: int, turns: int) -> Iterator[Row]:
    targets = {"MLP 8x512": (None, 1.05), "GPT-2 4x256": (None, 1.05)}
    yield from _against_eager("real", workloads.REAL, targets, threads, turns // 2, steps=1)


def _against_eager(
    part: str,
    models: Mapping[str, Callable[[str], workloads.Training]],
    targets: Mapping[str, tuple[float | None, float]],
    threads: int,
    turns: int,
    steps: int,
) -> Iterator[Row]:
    for name, make in models.items():
        times = _race(make, threads, turns, steps)
        eager = times["eager"]
        capture_target, both_target = targets[name]
        for what, key, target in (
            ("capture alone", "capture", capture_target),
            ("capture and run", "both", both_target),
            ("eager with foreach=True", "eager_foreach", None),
        ):
            yield Row(
                part,
                f"{name}, {what}",
                median_ratio(times[key], eager),
                target=target,
                note=f"{_ms(times[key])} of {_ms(eager)} ms",
                data={"seconds": times[key], "eager_seconds": eager},
            )


def _race(
    make: Callable[[str], workloads.Training], threads: int, turns: int, steps: int
) -> dict[str, list[float]]:
    torch.set_num_threads(threads)
    eager, eager_foreach = make("cpu"), make("cpu")
    captured, run = make("lazy"), make("lazy")
    for group in eager_foreach.optimizer.param_groups:
        group["foreach"] = True

    def run_step() -> None:
        run.step()
        torch_lazy.mark_step()

    # On the caller's thread: what is compared is work, not how it is spread over cores.
    with torch_lazy.config.override(step_on_optimizer=False, **{"async": 0}):
        # The state that an optimizer makes in its first step must be there before steps are thrown
        # away: a discarded write leaves what was there before.
        captured.step()
        torch_lazy.mark_step()
        return race(
            {
                "eager": Competitor(eager.step),
                "eager_foreach": Competitor(eager_foreach.step),
                "capture": Competitor(captured.step, after=torch_lazy._C.discard_pending),
                "both": Competitor(run_step),
            },
            turns,
            steps,
            clock=time.process_time if threads == 1 else time.perf_counter,
        )


def _ms(times: list[float]) -> str:
    return f"{statistics.median(times) * 1e3:.3g}"
