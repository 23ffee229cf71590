"""The names under test: torch_lazy's, or with TORCH_LAZY_DROP_IN=1 those of torch._lazy (PyTorch's
own Python code) on torch-lazy. test_drop_in.py runs the files that use them a second time.
"""

import importlib
import os
import pathlib
import subprocess
import sys

import torch

import torch_lazy

IS_DROP_IN = torch_lazy.config.get("drop_in") == "1"
PACKAGE = "torch._lazy" if IS_DROP_IN else "torch_lazy"


def module(name):
    return importlib.import_module(f"{PACKAGE}.{name}")


lazy = importlib.import_module(PACKAGE)
closure = module("closure")
computation = module("computation")
config = module("config")
debug = module("debug")
device_context = module("device_context")
ir_cache = module("ir_cache")
metrics = module("metrics")
ts_backend = module("ts_backend")
bindings = torch._C._lazy if IS_DROP_IN else torch_lazy._C._lazy
ts_bindings = torch._C._lazy_ts_backend if IS_DROP_IN else torch_lazy._C._lazy_ts_backend


def count(name):
    return metrics.counter_value(name) or 0


def run_program(program, *arguments, **environment):
    """Runs a program, text or a file, in a process of its own; it can import this file too.

    Returns what it prints.
    """
    here = str(pathlib.Path(__file__).parent)
    how = [str(program)] if isinstance(program, pathlib.Path) else ["-c", program]
    result = subprocess.run(
        [sys.executable, *how, *map(str, arguments)],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([here, os.environ.get("PYTHONPATH", "")]),
            **environment,
        },
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout
