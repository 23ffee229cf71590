"""How much of the time the program's thread waits while its kernels run on the worker."""

import time
from collections.abc import Iterator

import torch
import workloads
from report import Row

import torch_lazy

STEPS = 30


def overlap() -> Iterator[Row]:
    """A loop whose kernels take longer than its tracing, on one thread: one core is spare."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch_lazy.config.override(**{"async": 1}):
            for name, make in workloads.REAL.items():
                yield _waiting(name, make("lazy"))
    finally:
        torch.set_num_threads(threads)


def _waiting(name: str, training: workloads.Training) -> Row:
    for _ in range(3):
        training.step()
    torch_lazy.wait_device_ops()
    torch_lazy.metrics.reset()
    start = time.perf_counter()
    for _ in range(STEPS):
        training.step()
    recorded = time.perf_counter() - start
    waited = _seconds("WaitTime")
    torch_lazy.wait_device_ops()
    total = time.perf_counter() - start
    return Row(
        "overlap",
        f"{name}: share of the loop spent waiting",
        waited / recorded,
        "",
        target=0.1,
        note=f"{STEPS} steps recorded in {recorded:.2f} s, done after {total:.2f} s, "
        f"kernels {_seconds('ExecuteTime'):.2f} s",
    )


def _seconds(metric: str) -> float:
    data = torch_lazy.metrics.metric_data(metric)
    return data.accumulator / 1e9 if data else 0.0
