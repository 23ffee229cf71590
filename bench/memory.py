"""Peak memory of a training step, counted by one allocator for eager and for lazy.

Each side runs in a process of its own, in which all CPU memory comes from the counting allocator.
"""

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from report import Row

NAME = "GPT-2 4x256"
TARGET = 1.1


def memory(cpp: Path) -> Iterator[Row]:
    eager, lazy = (peak_memory(NAME, device, cpp) for device in ("cpu", "lazy"))
    yield Row(
        "memory",
        f"{NAME}, peak of a step",
        lazy["peak"] / eager["peak"],
        target=TARGET,
        note=f"{lazy['peak'] / 2**20:.1f} of {eager['peak'] / 2**20:.1f} MiB",
        data={"eager": eager, "lazy": lazy},
    )
    yield Row(
        "memory",
        f"{NAME}, in use between steps",
        lazy["resting"] / eager["resting"],
        note=f"{lazy['resting'] / 2**20:.1f} of {eager['resting'] / 2**20:.1f} MiB",
    )


def peak_memory(name: str, device: str, cpp: Path, compiler: str = "off") -> dict[str, int]:
    command = [sys.executable, __file__, name, device, str(cpp / "libcounting_allocator.so")]
    environment = os.environ | {"TORCH_LAZY_COMPILER": compiler}
    run = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return json.loads(run.stdout.splitlines()[-1])


def _measure(name: str, device: str, library: str) -> dict[str, int]:
    import torch
    import workloads

    import torch_lazy

    counter = ctypes.CDLL(library)
    counter.peak_bytes.restype = counter.bytes_in_use.restype = ctypes.c_int64
    counter.start_counting()
    torch.set_num_threads(1)
    training = (workloads.REAL | workloads.COMPILED)[name](device)
    for _ in range(2):
        counter.reset_peak()
        for _ in range(3):
            result = training.step()  # held, so that it is computed
            torch_lazy.mark_step()
            torch_lazy.wait_device_ops()
            del result
    return {"peak": counter.peak_bytes(), "resting": counter.bytes_in_use()}


if __name__ == "__main__":
    print(json.dumps(_measure(*sys.argv[1:])))
