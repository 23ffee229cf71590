"""What this thread remembers of the last steps in order to record the next ones faster."""

import os

from torch_lazy import _C


def dump(dot_file_name: str | os.PathLike[str]) -> None:
    """Writes it to a file in the language of Graphviz: recorded calls, how often each was met."""
    _C._lazy._dump_ir_cache(os.fspath(dot_file_name))


def reset() -> None:
    """Forgets it."""
    _C._lazy._clear_ir_cache()
