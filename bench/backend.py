"""torch.compile(backend="torch_lazy") against torch.compile's own backend, inductor."""

import ctypes
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import workloads
from process import in_process, main, rows
from report import Row
from timing import Competitor, median_ratio, race

OURS, THEIRS = "torch_lazy", "inductor"
SPEED = 0.95  # the least that inductor's time may be, by ours
COMPILE_TIME = 0.1  # the most that our time to the first result may be, by inductor's
LONGEST = 900
SECONDS = 8


def _make(name: str, backend: str) -> Callable[[], Any]:
    workload = workloads.COMPILED[name]("cpu")
    if backend != "eager":
        workload.compile(backend)
    return workload.step


# ---- Speed ---------------------------------------------------------------------------------------


def speed(threads: int, turns: int) -> Iterator[Row]:
    for name in workloads.COMPILED:
        yield from rows("backend, speed", name, lambda name=name: _speed(name, threads, turns))


def _speed(name: str, threads: int, turns: int) -> Iterator[Row]:
    times = in_process(__file__, "step_times", name, threads, turns, longest=LONGEST)
    for other in (THEIRS, "eager"):
        yield Row(
            "backend, speed",
            f"{name}: {other}",
            median_ratio(times[other], times[OURS]),
            least=SPEED if other == THEIRS else None,
            note=f"{_ms(times[other])} by {_ms(times[OURS])} ms",
            data={"seconds": times[other], "our_seconds": times[OURS]},
        )


def step_times(name: str, threads: int, turns: int) -> dict[str, list[float]]:
    torch.set_num_threads(threads)
    steps = {backend: Competitor(_make(name, backend)) for backend in (OURS, THEIRS, "eager")}
    clock = time.process_time if threads == 1 else time.perf_counter
    return race(steps, turns, steps=2, clock=clock, seconds=SECONDS)


# ---- Time to the first result --------------------------------------------------------------------


def compile_time() -> Iterator[Row]:
    """Each backend in a fresh process, with no compiled code on disk."""
    for name in workloads.COMPILED:
        yield from rows(
            "backend, until the end of the first step", name, lambda name=name: _compile_time(name)
        )


def _compile_time(name: str) -> Iterator[Row]:
    found = {}
    for backend in (OURS, THEIRS):
        with tempfile.TemporaryDirectory() as folder:
            settings = {
                "TORCH_LAZY_COMPILER": "on",
                "TORCH_LAZY_CACHE_DIR": folder,
                "TORCHINDUCTOR_CACHE_DIR": folder,
            }
            found[backend] = in_process(
                __file__, "first_steps", name, backend, longest=LONGEST, **settings
            )
    first, third = zip(*(found[backend] for backend in (OURS, THEIRS)), strict=True)
    yield Row(
        "backend, until the end of the first step",
        name,
        first[0] / first[1],
        target=COMPILE_TIME,
        note=f"{first[0]:.2f} by {first[1]:.2f} s; three steps: {third[0]:.2f} by {third[1]:.2f} s",
        data=found,
    )


def first_steps(name: str, backend: str) -> tuple[float, float]:
    step = _make(name, backend)
    start = time.perf_counter()
    step()
    first = time.perf_counter() - start
    step()
    step()
    return first, time.perf_counter() - start


# ---- Memory --------------------------------------------------------------------------------------


def memory(cpp: Path) -> Iterator[Row]:
    for name in workloads.COMPILED:
        yield from rows("backend, memory", name, lambda name=name: _memory(name, cpp))


def _memory(name: str, cpp: Path) -> Iterator[Row]:
    library = str(cpp / "libcounting_allocator.so")
    ours, theirs = (
        in_process(__file__, "peak_bytes", name, backend, library, longest=LONGEST)
        for backend in (OURS, THEIRS)
    )
    yield Row(
        "backend, memory",
        f"{name}, peak of a step",
        ours / theirs,
        note=f"{ours / 2**20:.1f} of {theirs / 2**20:.1f} MiB",
    )


def peak_bytes(name: str, backend: str, library: str) -> int:
    torch.set_num_threads(1)
    counter = ctypes.CDLL(library)
    counter.peak_bytes.restype = ctypes.c_int64
    counter.start_counting()
    step = _make(name, backend)
    for _ in range(2):
        counter.reset_peak()
        for _ in range(3):
            step()
    return counter.peak_bytes()


def _ms(times: list[float]) -> str:
    return f"{statistics.median(times) * 1e3:.3g}"


if __name__ == "__main__":
    main(globals())
