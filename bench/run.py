"""The benchmarks: `make bench`, or `make bench BENCH_ARGS="--only tiny"`. docs/benchmarks.md says
what is measured and how."""

import argparse
import os
import platform
from collections.abc import Callable, Iterable
from pathlib import Path

import backend
import compiler
import torch
from changing_numbers import numbers
from memory import memory
from overlap import overlap
from own_cost import capture_cost
from report import Row, Table
from speed import real, tiny

import replay

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="parts to run, separated by commas")
    parser.add_argument("--threads", type=int, default=1, help="threads of PyTorch's kernels")
    parser.add_argument("--turns", type=int, default=40, help="how often competitors take turns")
    parser.add_argument(
        "--no-compile", action="store_true", help="leave torch.compile out, which takes minutes"
    )
    parser.add_argument("--callgrind", action="store_true", help="count instructions too (slow)")
    parser.add_argument("--check", action="store_true", help="fail when a target is missed")
    parser.add_argument("--cpp", type=Path, default=ROOT / "build/bench/cpp")
    parser.add_argument("--out", type=Path, default=ROOT / "build/bench/results.json")
    args = parser.parse_args()

    parts: dict[str, Callable[[], Iterable[Row]]] = {
        "tiny": lambda: tiny(args.threads, args.turns),
        "real": lambda: real(args.threads, args.turns),
        "capture": lambda: capture_cost(args.cpp, args.callgrind),
        "numbers": numbers,
        "overlap": overlap,
        "memory": lambda: memory(args.cpp),
        "compiler.speed": lambda: compiler.speed(args.turns // 2, not args.no_compile),
        "compiler.first-steps": lambda: compiler.first_steps(not args.no_compile),
        "compiler.lengths": compiler.lengths,
        "compiler.memory": lambda: compiler.memory(args.cpp),
        "compiler.roofline": lambda: compiler.roofline(args.turns),
        "compiler.bits": compiler.bits,
        "replay.speed": lambda: replay.speed(args.turns // 2, not args.no_compile),
        "replay.host": replay.host,
        "replay.saved-graph": lambda: replay.saved(args.cpp),
        "backend.speed": lambda: backend.speed(args.threads, args.turns // 2),
        "backend.compile-time": lambda: backend.compile_time(args.threads),
        "backend.memory": lambda: backend.memory(args.cpp),
    }
    chosen = list(parts)
    if args.no_compile:
        chosen = [part for part in chosen if not _within(part, "backend")]
    if args.only:
        names = args.only.split(",")
        if unknown := [name for name in names if not any(_within(part, name) for part in parts)]:
            parser.error(f"no part {', '.join(unknown)}; there are {', '.join(parts)}")
        chosen = [part for part in parts if any(_within(part, name) for name in names)]

    load = os.getloadavg()[0]
    cores = f"{args.threads} of {os.cpu_count()} cores"
    print(f"PyTorch {torch.__version__}, {cores}, load {load:.1f} before the start")
    print("Ratios are torch-lazy's time (or memory) by eager's, medians of interleaved turns;")
    print(
        "where the speed of the compiler or the backend is measured, the other's by torch-lazy's.\n"
    )
    table = Table()
    for name in chosen:
        table.add(parts[name]())
    facts = {
        "torch": torch.__version__,
        "machine": platform.processor(),
        "threads": args.threads,
        "load": load,
    }
    table.save(str(args.out), facts)
    missed = [row.name for row in table.missed()]
    print(f"Targets missed: {', '.join(missed)}" if missed else "All targets met.")
    print(f"Details: {os.path.relpath(args.out)}")
    if missed and args.check:
        raise SystemExit(1)


def _within(part: str, name: str) -> bool:
    """Whether the name chooses the part: "compiler" chooses "compiler.speed" and all the others."""
    return part == name or part.startswith(name + ".")


if __name__ == "__main__":
    main()
