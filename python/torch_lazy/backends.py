"""Plug-ins that execute recorded graphs: a shared library each (see docs/backends.md).

A package offers one as an entry point of the group `torch_lazy.backends`: the object that it names
is the path of the library, or a function that returns it.
"""

import importlib.metadata
import os

from torch_lazy import _C

GROUP = "torch_lazy.backends"


def load_backend(name: str | os.PathLike[str]) -> None:
    """Uses a backend for every graph from now on.

    `name` is the path of its library, or the name under which an installed package offers it.
    Nothing may be pending: load it at the start of the program, or after `torch_lazy.sync()`. The
    setting TORCH_LAZY_BACKEND does the same for a whole program.
    """
    _C.load_backend(os.fspath(name))


def backend_name() -> str:
    """The backend in use: "aten" (PyTorch's own kernels) unless another was loaded."""
    return _C.backend_name()


def installed_backends() -> list[str]:
    """Names of the backends that installed packages offer."""
    return sorted({entry.name for entry in importlib.metadata.entry_points(group=GROUP)})


def path_of(name: str) -> str:
    """The library that a package offers under `name`, or "" if none does. Called by the core."""
    for entry in importlib.metadata.entry_points(group=GROUP, name=name):
        found = entry.load()
        return os.fspath(found() if callable(found) else found)
    return ""
