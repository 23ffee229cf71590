"""torch.compile(backend="torch_lazy") against torch.compile's own backend, inductor."""

import ctypes
import os
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
PLAIN = "plain"  # without torch.compile
TRACING = "eager"  # the backend that does nothing: TorchDynamo alone
FIRST_STEP = "backend, until the end of the first step"
SPEED = 0.95  # the least that inductor's time may be, by ours
COMPILE_TIME = 0.15  # the most that our time to the first result may be, by inductor's
LONGEST = 900
SECONDS = 8


def _make(name: str, backend: str) -> Callable[[], Any]:
    workload = workloads.COMPILED[name]("cpu")
    if backend != PLAIN:
        workload.compile(backend)
    return workload.step


# ---- Speed ---------------------------------------------------------------------------------------


def speed(threads: int, turns: int) -> Iterator[Row]:
    for name in workloads.COMPILED:
        yield from rows("backend, speed", name, lambda name=name: _speed(name, threads, turns))


def _speed(name: str, threads: int, turns: int) -> Iterator[Row]:
    times = in_process(__file__, "step_times", name, threads, turns, longest=LONGEST)
    for other in (THEIRS, PLAIN):
        yield Row(
            "backend, speed",
            f"{name}: {'eager' if other == PLAIN else other}",
            median_ratio(times[other], times[OURS]),
            least=SPEED if other == THEIRS else None,
            note=f"{_ms(times[other])} by {_ms(times[OURS])} ms",
            data={"seconds": times[other], "our_seconds": times[OURS]},
        )


def step_times(name: str, threads: int, turns: int) -> dict[str, list[float]]:
    torch.set_num_threads(threads)
    steps = {backend: Competitor(_make(name, backend)) for backend in (OURS, THEIRS, PLAIN)}
    clock = time.process_time if threads == 1 else time.perf_counter
    return race(steps, turns, steps=2, clock=clock, seconds=SECONDS)


# ---- Time to the first result --------------------------------------------------------------------


def compile_time(threads: int) -> Iterator[Row]:
    """Each backend in a fresh process, with no compiled code on disk."""
    for name in workloads.COMPILED:
        yield from rows(FIRST_STEP, name, lambda name=name: _compile_time(name, threads))


def _compile_time(name: str, threads: int) -> Iterator[Row]:
    found = {}
    for backend in (OURS, THEIRS, TRACING):
        with tempfile.TemporaryDirectory() as folder:
            settings = {
                "TORCH_LAZY_COMPILER": "on",
                "TORCH_LAZY_CACHE_DIR": folder,
                "TORCHINDUCTOR_CACHE_DIR": folder,
            }
            found[backend] = in_process(
                __file__, "first_steps", name, backend, threads, longest=LONGEST, **settings
            )
    ours, theirs, tracing = (found[backend] for backend in (OURS, THEIRS, TRACING))
    yield Row(
        FIRST_STEP,
        name,
        ours["first"] / theirs["first"],
        target=COMPILE_TIME,
        note=f"{ours['first']:.2f} by {theirs['first']:.2f} s; "
        f"three steps: {ours['third']:.2f} by {theirs['third']:.2f} s",
        data=found,
    )
    yield Row(
        FIRST_STEP,
        "    CPU time",
        ours["cpu"] / theirs["cpu"],
        target=COMPILE_TIME,
        note=f"{ours['cpu']:.2f} by {theirs['cpu']:.2f} s",
    )
    own = ours["cpu"] - tracing["cpu"], theirs["cpu"] - tracing["cpu"]
    yield Row(
        FIRST_STEP,
        "    CPU time, less TorchDynamo and a step",
        own[0] / own[1],
        note=f"{own[0]:.2f} by {own[1]:.2f} s; both have {tracing['cpu']:.2f} s",
    )


def first_steps(name: str, backend: str, threads: int) -> dict[str, float]:
    torch.set_num_threads(threads)
    step = _make(name, backend)
    start, cpu = time.perf_counter(), _cpu_time()
    step()
    first, cpu = time.perf_counter() - start, _cpu_time() - cpu
    step()
    step()
    return {"first": first, "cpu": cpu, "third": time.perf_counter() - start}


def _cpu_time() -> float:
    """Of this process and of those that it has started and that have ended: inductor's compiler."""
    return sum(os.times()[:4])


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
