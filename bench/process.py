"""Measurements in processes of their own, in which malloc keeps the memory it has.

By default it returns large blocks to the system, and eager's time then depends on what was
allocated before.
"""

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from report import Row

LONGEST = 300  # seconds that one process may take

KEEP_MEMORY = ":".join(
    f"glibc.malloc.{name}={value}"
    for name, value in (
        ("mmap_threshold", 2**32),
        ("trim_threshold", 2**40),
        ("top_pad", 2**28),
    )
)


class Failed(subprocess.SubprocessError):
    """A process did not come to its end."""


def rows(part: str, name: str, measure: Callable[[], Iterator[Row]]) -> Iterator[Row]:
    """A failure is a row of its own, so that the other rows still come."""
    try:
        yield from measure()
    except subprocess.SubprocessError as error:
        yield Row(part, f"{name}: failed", math.nan, target=0, note=str(error))


def in_process(
    file: str,
    task: str,
    *arguments: Any,
    keep_memory: bool = True,
    longest: float = LONGEST,
    **settings: str,
) -> Any:
    """What a function of a file returns in a process with these environment variables."""
    environment = os.environ | {"TORCH_LAZY_COMPILER": "force", "TORCH_LAZY_CACHE_DIR": "off"}
    environment |= settings
    environment.pop("GLIBC_TUNABLES", None)
    if keep_memory:
        environment["GLIBC_TUNABLES"] = KEEP_MEMORY
    command = [sys.executable, file, task, json.dumps(arguments)]
    try:
        run = subprocess.run(
            command, check=True, stdout=subprocess.PIPE, text=True, env=environment, timeout=longest
        )
    except subprocess.SubprocessError as error:
        raise Failed(f"{task}: {type(error).__name__}, see above") from error
    return json.loads(run.stdout.splitlines()[-1])


def main(functions: dict[str, Any]) -> None:
    """The other side: calls the function that the command line names."""
    task, arguments = sys.argv[1:]
    if "GLIBC_TUNABLES" in os.environ:
        torch.ones(2**28)  # a gigabyte that malloc has from now on, so that no step pays for it
    print(json.dumps(functions[task](*json.loads(arguments))))
    if "torch_lazy" in sys.modules:
        failed = sys.modules["torch_lazy"].metrics.counter_value("CompiledRunFailed")
        if failed:
            print(f"{task}{arguments}: {failed} compiled runs failed", file=sys.stderr)
