"""The compiler against eager and torch.compile: speed, first steps, shapes, memory, bits.

Each measurement has a process of its own (process.py).
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import workloads
from memory import peak_memory
from process import in_process, main, rows
from report import Row
from timing import Competitor, median_ratio, race

import torch_lazy

THREADS = 2
STEPS = 3  # in a row; their median leaves out the one that finds another runtime's threads spinning
SECONDS = 8  # for the turns of one workload


class Runtime(NamedTuple):
    device: str
    compiled: bool = False
    fused: bool = False
    """The optimizer: one of PyTorch's kernels for all parameters."""


OURS = "torch-lazy"
RUNTIMES = {
    "eager": Runtime("cpu"),
    "eager fused": Runtime("cpu", fused=True),
    "torch.compile": Runtime("cpu", compiled=True),
    "torch.compile fused": Runtime("cpu", compiled=True, fused=True),
    OURS: Runtime("lazy"),
}

# The least that the time of eager and of torch.compile may be, by ours.
TARGETS: dict[str, dict[str, float]] = {
    "gelu, norm, softmax 4096x1024": {"eager": 3.0, "torch.compile": 1.3},
    "MLP 8x512, AdamW": {"eager": 1.2, "torch.compile": 1.1},
    "GPT-2 4x256, no dropout": {"eager": 1.15, "torch.compile": 1.02},
    "GPT-2 4x256, dropout 0.1": {},
    "BERT 4x256": {"eager": 1.1, "torch.compile": 1.0},
    "ResNet-18 64x64": {"eager": 0.97, "torch.compile": 1.35},
}
GPT2 = "GPT-2 4x256, no dropout"


# ---- Speed ---------------------------------------------------------------------------------------


def speed(turns: int, torch_compile: bool) -> Iterator[Row]:
    runtimes = [name for name, runtime in RUNTIMES.items() if torch_compile or not runtime.compiled]
    usual = _in_process("eager_times", keep_memory=False)
    for name in workloads.COMPILED:
        yield from rows(
            "compiler, speed", name, lambda name=name: _speed(name, turns, runtimes, usual[name])
        )


def _speed(name: str, turns: int, runtimes: list[str], usual: list[float]) -> Iterator[Row]:
    times = _in_process("step_times", name, runtimes, turns)
    for runtime in times:
        if runtime == OURS:
            continue
        note = f"{_ms(times[runtime])} by {_ms(times[OURS])} ms"
        if runtime == "eager":
            note += f"; eager with malloc as it is: {_ms(usual)} ms"
        yield Row(
            "compiler, speed",
            f"{name}: {runtime}",
            median_ratio(times[runtime], times[OURS]),
            least=TARGETS[name].get(runtime),
            note=note,
            data={"seconds": times[runtime], "our_seconds": times[OURS], "usual_seconds": usual},
        )


def step_times(name: str, runtimes: list[str], turns: int) -> dict[str, list[float]]:
    made = {runtime: _make(name, RUNTIMES[runtime]) for runtime in runtimes}
    steps = {runtime: Competitor(step) for runtime, step in made.items() if step}
    return race(steps, turns, STEPS, clock=time.perf_counter, seconds=SECONDS)


def eager_times() -> dict[str, list[float]]:
    return {name: step_times(name, ["eager"], turns=5)["eager"] for name in workloads.COMPILED}


# ---- First steps ---------------------------------------------------------------------------------


def first_steps(torch_compile: bool) -> Iterator[Row]:
    """Each runtime in a fresh process: cold with no compiled code on disk, then warm."""
    for runtime in ("eager", "torch.compile", OURS):
        if torch_compile or not RUNTIMES[runtime].compiled:
            yield from rows(
                "compiler, until the end of the third step",
                runtime,
                lambda runtime=runtime: _first_steps(runtime),
            )


def _first_steps(runtime: str) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "TORCH_LAZY_COMPILER": "on",
            "TORCH_LAZY_CACHE_DIR": folder,
            "TORCHINDUCTOR_CACHE_DIR": folder,
        }
        for cache in ("",) if runtime == "eager" else ("cold", "warm"):
            seconds, kernels = _in_process("three_steps", runtime, **settings)
            yield Row(
                "compiler, until the end of the third step",
                f"{GPT2}: {runtime}" + (f", {cache}" if cache else ""),
                seconds * 1e3,
                "ms",
                note=f"{kernels} kernels compiled" if runtime == OURS else "",
            )


def three_steps(runtime: str) -> tuple[float, int]:
    step = _make(GPT2, RUNTIMES[runtime])
    start = time.perf_counter()
    for _ in range(3):
        step()
    return time.perf_counter() - start, _kernels_compiled()


# ---- New shapes ----------------------------------------------------------------------------------


def lengths() -> Iterator[Row]:
    """One GPT-2 and texts of thirty lengths, two steps each, compiled at once."""
    yield from rows("compiler, thirty lengths", "GPT-2 4x256", _lengths)


def _lengths() -> Iterator[Row]:
    found = _in_process("train_on_lengths")
    kernels, eager, ours = found["kernels"], found["eager"], found["ours"]
    yield Row(
        "compiler, thirty lengths",
        "kernels compiled after the third length",
        kernels[-1] - kernels[2],
        "",
        target=0,
        note=f"{kernels[0]} for the first length, {kernels[2]} for three, {kernels[-1]} for all",
        data=found,
    )
    for what, since in (("eager, all lengths", 0), ("eager, from the fourth on", 3)):
        yield Row(
            "compiler, thirty lengths",
            what,
            sum(eager[since:]) / sum(ours[since:]),
            note=f"{sum(eager[since:]):.2f} by {sum(ours[since:]):.2f} s",
        )


def train_on_lengths() -> dict[str, list]:
    texts = [40 + 3 * (i * 7 % 30) for i in range(30)]  # 40 to 127, mixed
    sides = {"eager": workloads.COMPILED[GPT2]("cpu"), "ours": workloads.COMPILED[GPT2]("lazy")}
    found: dict[str, list] = {"eager": [], "ours": [], "kernels": []}
    for tokens in texts:
        for side, training in sides.items():
            device = next(training.model.parameters()).device
            ids = torch.arange(4 * tokens).reshape(4, tokens).remainder(256).to(device)
            training.loss = lambda m=training.model, ids=ids: m(input_ids=ids, labels=ids).loss
            start = time.perf_counter()
            for _ in range(2):
                training.step()
                _finish()
            found[side].append(time.perf_counter() - start)
        found["kernels"].append(_kernels_compiled())
    return found


# ---- Memory --------------------------------------------------------------------------------------


def memory(cpp: Path) -> Iterator[Row]:
    for name in workloads.COMPILED:
        yield from rows("compiler, memory", name, lambda name=name: _memory(name, cpp))


def _memory(name: str, cpp: Path) -> Iterator[Row]:
    eager, ours = peak_memory(name, "cpu", cpp), peak_memory(name, "lazy", cpp, compiler="force")
    for what, key in (("peak of a step", "peak"), ("in use between steps", "resting")):
        yield Row(
            "compiler, memory",
            f"{name}, {what}",
            ours[key] / max(1, eager[key]),
            target=1.0 if key == "peak" else None,
            note=f"{ours[key] / 2**20:.1f} of {eager[key] / 2**20:.1f} MiB",
        )


# ---- Bandwidth -----------------------------------------------------------------------------------


def roofline(turns: int) -> Iterator[Row]:
    """A kernel that reads a tensor and writes another cannot be faster than a copy."""
    yield from rows("compiler, roofline", "a copy", lambda: _roofline(turns))


def _roofline(turns: int) -> Iterator[Row]:
    times = _in_process("chain_times", turns)
    copy = times.pop("copy")
    gigabytes = 2 * 4 * 4096 * 1024 / 1e9
    for name, seconds in times.items():
        yield Row(
            "compiler, roofline",
            f"{name}: share of a copy's bandwidth",
            median_ratio(copy, seconds),
            note=f"{gigabytes / statistics.median(seconds):.1f} of "
            f"{gigabytes / statistics.median(copy):.1f} GB/s",
            data={"seconds": seconds, "copy_seconds": copy},
        )


def chain_times(turns: int) -> dict[str, list[float]]:
    source = torch.randn(4096, 1024)
    destination = torch.empty_like(source)
    chains = {
        "pointwise": workloads.pointwise("lazy", 4096, 1024),
        "gelu, norm, softmax": workloads.normalized("lazy", 4096, 1024),
    }
    return race(
        {
            "copy": Competitor(lambda: destination.copy_(source)),
            **{name: Competitor(_finished(chain)) for name, chain in chains.items()},
        },
        turns,
        STEPS,
        clock=time.perf_counter,
        seconds=SECONDS,
    )


# ---- Bits ----------------------------------------------------------------------------------------


def bits() -> Iterator[Row]:
    """Whether the number of threads shows in the parameters after three steps."""
    for name in workloads.COMPILED:
        yield from rows("compiler, 1, 2 and 7 threads", name, lambda name=name: _bits(name))


def _bits(name: str) -> Iterator[Row]:
    found = _in_process("differing_tensors", name)
    yield Row(
        "compiler, 1, 2 and 7 threads",
        f"{name}: other bits",
        found[OURS],
        "",
        target=0,
        note=f"of {found['tensors']} tensors; eager: {found['eager']}",
    )


def differing_tensors(name: str) -> dict[str, int]:
    found = {}
    for runtime in ("eager", OURS):
        results = []
        for threads in (1, 2, 7):
            torch.set_num_threads(threads)
            results.append(_results(workloads.COMPILED[name](RUNTIMES[runtime].device)))
        found[runtime] = sum(
            any(not torch.equal(one.view(torch.int32), other.view(torch.int32)) for other in others)
            for one, *others in zip(*results, strict=True)
        )
        found["tensors"] = len(results[0])
    return found


def _results(workload: workloads.Training | workloads.Forward) -> list[torch.Tensor]:
    for _ in range(3):
        result = workload.step()
        _finish()
    if isinstance(workload, workloads.Training):
        return [p.detach().cpu() for p in workload.model.parameters()]
    return [result.cpu()]


# ---- Workloads on runtimes -----------------------------------------------------------------------


def _make(name: str, runtime: Runtime) -> Callable[[], object] | None:
    """A step of the workload; None where there is no optimizer to be fused."""
    workload = workloads.COMPILED[name](runtime.device)
    if runtime.fused:
        if not isinstance(workload, workloads.Training):
            return None
        for group in workload.optimizer.param_groups:
            group["fused"] = True
    if runtime.compiled:
        workload.compile()
    return _finished(workload) if runtime.device == "lazy" else workload.step


def _finished(workload: workloads.Training | workloads.Forward) -> Callable[[], object]:
    def step() -> object:
        result = workload.step()  # held, so that it is computed
        _finish()
        return result

    return step


def _finish() -> None:
    torch_lazy.mark_step()
    torch_lazy.wait_device_ops()


def _kernels_compiled() -> int:
    return torch_lazy.metrics.counter_value("KernelCompiled") or 0


def _ms(times: list[float]) -> str:
    return f"{statistics.median(times) * 1e3:.3g}"


def _in_process(task: str, *arguments: Any, **options: Any) -> Any:
    return in_process(__file__, task, *arguments, **options)


if __name__ == "__main__":
    torch.set_num_threads(THREADS)
    main(globals())
