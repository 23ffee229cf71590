"""torch_lazy.compile: whole steps replayed, against eager and torch.compile of the same steps."""

import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import workloads
from process import in_process, main, rows
from report import Row
from timing import Competitor, median_ratio, race

import torch_lazy

OURS = "torch_lazy.compile"
THREADS = 2
STEPS = 3
SECONDS = 8
LONGEST = 600

# The least that the time of eager and of torch.compile may be, by ours.
TARGETS: dict[str, tuple[float, float] | None] = {
    "GPT-2 12x24": (5.0, 2.0),
    "MLP 8x16": (5.0, 2.5),
    "gelu, norm, softmax 4096x1024": (3.0, 1.4),
    "MLP 8x512, AdamW": (1.3, 1.2),
    "GPT-2 4x256, no dropout": (1.2, 1.05),
    "GPT-2 4x256, dropout 0.1": None,
    "BERT 4x256": (1.15, 1.05),
    "ResNet-18 64x64": (1.0, 1.4),
}
PARAMETERS = 200
HOST_MICROSECONDS = 30
FIRST_RESULT_SECONDS = 0.5


def make(name: str, runtime: str) -> Callable[[], object]:
    table = workloads.TINY if name in workloads.TINY else workloads.COMPILED
    workload = table[name]("lazy" if runtime == OURS else "cpu")
    if runtime == OURS:
        # Libraries leave out reads that only serve to warn, as they do under torch.compile.
        return torch_lazy.compile(workload.step, is_compiling=True)
    return torch.compile(workload.step) if runtime == "torch.compile" else workload.step


# ---- Speed ---------------------------------------------------------------------------------------


def speed(turns: int, torch_compile: bool) -> Iterator[Row]:
    for name in (*workloads.TINY, *workloads.COMPILED):
        yield from rows("replay, speed", name, lambda name=name: _speed(name, turns, torch_compile))


def _speed(name: str, turns: int, torch_compile: bool) -> Iterator[Row]:
    runtimes = [OURS, "eager", *["torch.compile"] * torch_compile]
    times = in_process(__file__, "step_times", name, runtimes, turns, longest=LONGEST)
    for i, other in enumerate(runtimes[1:]):
        targets = TARGETS[name]
        yield Row(
            "replay, speed",
            f"{name}: {other}",
            median_ratio(times[other], times[OURS]),
            least=targets[i] if targets else None,
            note=f"{_ms(times[other])} by {_ms(times[OURS])} ms",
            data={"seconds": times[other], "our_seconds": times[OURS]},
        )


def step_times(name: str, runtimes: list[str], turns: int) -> dict[str, list[float]]:
    torch.set_num_threads(THREADS)
    steps = {runtime: make(name, runtime) for runtime in runtimes}
    for _ in range(10):
        steps[OURS]()
    (row,) = steps[OURS].cache_info()
    if not row["replayed"]:
        raise RuntimeError(f"{name} is not replayed: {row['reason']}")
    competitors = {runtime: Competitor(step) for runtime, step in steps.items()}
    return race(competitors, turns, STEPS, clock=time.perf_counter, seconds=SECONDS)


# ---- The host ------------------------------------------------------------------------------------


def host() -> Iterator[Row]:
    """What a replay costs besides its kernels, by the optimizer of many tiny parameters."""
    for optimizer in ("SGD", "AdamW"):
        yield from rows("replay, host", optimizer, lambda optimizer=optimizer: _host(optimizer))


def _host(optimizer: str) -> Iterator[Row]:
    found = in_process(__file__, "host_microseconds", optimizer)
    yield Row(
        "replay, host",
        f"{PARAMETERS} parameters, {optimizer}",
        found["host"],
        "us",
        target=HOST_MICROSECONDS,
        note=f"{found['tensors']} tensors; with the kernels {found['all']:.0f} us",
    )


def host_microseconds(optimizer: str) -> dict[str, float]:
    torch.set_num_threads(1)
    parameters = [torch.nn.Parameter(torch.randn(4).to("lazy")) for _ in range(PARAMETERS)]
    chosen = getattr(torch.optim, optimizer)(parameters, lr=1e-3)

    def step(x: torch.Tensor) -> torch.Tensor:
        chosen.zero_grad()
        loss = torch.stack(parameters).mul(x).sum()
        loss.backward()
        chosen.step()
        return loss.detach()

    compiled = torch_lazy.compile(step)
    x = torch.ones(4, device="lazy")
    for _ in range(10):
        compiled(x)
    best = (float("inf"), 0.0)
    for _ in range(300):
        torch_lazy.metrics.reset()
        start = time.perf_counter()
        for _ in range(5):
            compiled(x)
        everything = (time.perf_counter() - start) / 5 * 1e6
        samples, nanoseconds, _ = torch_lazy._C.metric_data("ExecuteTime")
        best = min(best, (everything - nanoseconds / samples / 1e3, everything))
    tensors = PARAMETERS * (2 + len(next(iter(chosen.state.values()), {})))
    return {"host": best[0], "all": best[1], "tensors": tensors}


# ---- Saved graphs --------------------------------------------------------------------------------


def saved(cpp: Path) -> Iterator[Row]:
    """From the start of a process of C++ to the first result of a saved GPT-2."""
    yield from rows("replay, saved graph", "GPT-2 4x256", lambda: _saved(cpp))


def _saved(cpp: Path) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "gpt2.graph")
        in_process(__file__, "save_gpt2", path)
        settings = {"TORCH_LAZY_COMPILER": "on", "TORCH_LAZY_CACHE_DIR": folder}
        times = []
        for _ in range(5):
            start = time.perf_counter()
            subprocess.run(
                [str(cpp / "run_graph"), path],
                check=True,
                stdout=subprocess.PIPE,
                env={"PATH": "/usr/bin", "OMP_NUM_THREADS": "2", **settings},
            )
            times.append(time.perf_counter() - start)
        yield Row(
            "replay, saved graph",
            "process start to its end after one result, C++",
            statistics.median(times[1:]) * 1e3,
            "ms",
            target=FIRST_RESULT_SECONDS * 1e3,
            note=f"the first time {times[0] * 1e3:.0f} ms",
        )


def save_gpt2(path: str) -> None:
    model = workloads.COMPILED["GPT-2 4x256, no dropout"]("lazy").model.eval()

    def logits(ids: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return model(input_ids=ids).logits

    compiled = torch_lazy.compile(logits, is_compiling=True)
    torch_lazy.save_graph(compiled, path, [torch.zeros(4, 128, dtype=torch.int64)])


def _ms(times: list[float]) -> str:
    return f"{statistics.median(times) * 1e3:.3g}"


if __name__ == "__main__":
    main(globals())
