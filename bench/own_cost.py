"""What torch-lazy's own code costs per captured operator (bench/cpp/capture_cost.cpp)."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from report import Row

TARGET_NS = {"0": 1300, "1": 433}  # by whether traces are reused


def capture_cost(cpp: Path, callgrind: bool) -> Iterator[Row]:
    program = str(cpp / "capture_cost")
    for reuse in ("0", "1"):
        environment = os.environ | {"TORCH_LAZY_REUSE_IR": reuse}
        part = "capture, reuse " + ("on" if reuse == "1" else "off")
        output = subprocess.run(
            [program], check=True, capture_output=True, text=True, env=environment
        ).stdout
        for line in output.splitlines():
            result = json.loads(line)
            yield Row(
                part,
                result["operator"],
                result["own_ns"],
                "ns",
                target=TARGET_NS[reuse] if "mix" in result["operator"] else None,
                note=f"{result['total_ns']:.0f} less {result['dispatcher_ns']:.0f} for the rest",
                data=result,
            )
        if callgrind:
            yield from _instructions(program, cpp / "callgrind.out", part, environment)


def _instructions(program: str, out: Path, part: str, environment: dict[str, str]) -> Iterator[Row]:
    """Counts inside torch_lazy::capture and what it calls, allocation included."""
    if shutil.which("valgrind") is None:
        raise SystemExit("--callgrind needs valgrind")
    command = [program, "--only", "a mix of these", "--lazy-only", "--turns", "20"]
    run = subprocess.run(
        [
            "valgrind",
            "--tool=callgrind",
            "--toggle-collect=torch_lazy::capture(*",
            f"--callgrind-out-file={out}",
            *command,
        ],
        check=True,
        capture_output=True,
        text=True,
        env=environment,
    )
    calls = json.loads(run.stdout.splitlines()[-1])["calls"]
    total = int(re.search(r"Collected : (\d+)", run.stderr)[1])
    yield Row(part, "instructions per operator", total / calls, "", note=os.path.relpath(out))
    listing = subprocess.run(
        ["callgrind_annotate", "--inclusive=yes", "--threshold=100", str(out)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    seen = {}
    for count, function in re.findall(
        r"^ *([\d,]+) \(.*?\) +\S+?:(torch_lazy::[^(]+)", listing, re.M
    ):
        seen.setdefault(function, int(count.replace(",", "")))
    for function, count in list(seen.items())[:12]:
        yield Row(part, f"  {function}", count / calls, "")
