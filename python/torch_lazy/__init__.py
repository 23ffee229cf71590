"""torch-lazy: a tensor on the device "lazy" records what is done to it, and runs it when needed.

Importing torch is enough, since this package is one of torch's backends; importing torch_lazy does
the same.
"""

import atexit
import os
import sys


def _autoload() -> None:
    """Called by torch at the end of its import. Importing this package is all that is needed."""


# torch calls _autoload while it is being imported, also when it is this package that imports torch:
# the function has to be there before the next line.
import torch  # noqa: E402

__version__ = "0.1.0"

_load_error: ImportError | None = None
try:
    import torch_lazy._C
except ImportError as error:
    # Inside torch's own import a broken installation of ours must not take torch away.
    if not getattr(sys.modules["torch"].__spec__, "_initializing", False):
        raise ImportError(
            f"torch-lazy's compiled part cannot be loaded with PyTorch {torch.__version__} "
            f"({error}). Install torch-lazy again: it is built for one version of PyTorch."
        ) from error
    import warnings

    warnings.warn(
        f"torch-lazy is not available: its compiled part cannot be loaded with PyTorch "
        f"{torch.__version__} ({error}). Install it again: it is built for one version of PyTorch.",
        stacklevel=2,
    )
    _load_error = error

if _load_error is None:
    from torch_lazy import (
        closure,
        computation,
        config,
        debug,
        device_context,
        device_module,
        dynamo_backend,
        ir_cache,
        metrics,
        patches,
        ts_backend,
    )
    from torch_lazy.autocast import autocast
    from torch_lazy.backends import backend_name, installed_backends, load_backend
    from torch_lazy.closure import add_step_closure, run_step_closures
    from torch_lazy.compile import CompileWarning, compile
    from torch_lazy.dlpack import from_dlpack, to_dlpack
    from torch_lazy.exported import load_exported
    from torch_lazy.patches import install_as_torch_lazy, undo_patches
    from torch_lazy.saved_graph import load_graph, save_graph
    from torch_lazy.step import (
        get_tensor_id,
        mark_step,
        save,
        sync,
        sync_multi,
        to_cpu,
        wait_device_ops,
    )

    device_module.register()
    dynamo_backend.register()
    patches.apply()
    # While Python is still there: operators written in it may be among what was scheduled.
    atexit.register(torch_lazy._C.finish)
    if config.get("drop_in") == "1":
        install_as_torch_lazy()


def __getattr__(name: str):
    if _load_error is not None and not name.startswith("__"):
        raise ImportError(
            f"torch_lazy.{name} is not available: torch-lazy's compiled part could not be loaded"
        ) from _load_error
    raise AttributeError(f"module 'torch_lazy' has no attribute '{name}'")


_package_dir = os.path.dirname(os.path.abspath(__file__))

cmake_prefix_path: str = os.path.join(_package_dir, "share", "cmake")
"""For CMake's find_package(TorchLazy), beside torch.utils.cmake_prefix_path."""


def include_paths() -> list[str]:
    """Folders with the headers of the C++ interface (torch.utils.cpp_extension: torch's own)."""
    return [os.path.join(_package_dir, "include")]


__all__ = [
    "CompileWarning",
    "__version__",
    "add_step_closure",
    "autocast",
    "backend_name",
    "closure",
    "cmake_prefix_path",
    "compile",
    "computation",
    "config",
    "debug",
    "device_context",
    "from_dlpack",
    "get_tensor_id",
    "include_paths",
    "install_as_torch_lazy",
    "installed_backends",
    "ir_cache",
    "load_backend",
    "load_exported",
    "load_graph",
    "mark_step",
    "metrics",
    "run_step_closures",
    "save",
    "save_graph",
    "sync",
    "sync_multi",
    "to_cpu",
    "to_dlpack",
    "ts_backend",
    "undo_patches",
    "wait_device_ops",
]
