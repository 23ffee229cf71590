"""The recorded graph behind tensors, as text or as a picture; scopes, which name parts of it."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator

import torch

from torch_lazy import _C

Tensors = torch.Tensor | Iterable[torch.Tensor]


def graph_text(tensors: Tensors) -> str:
    """What is recorded and not run yet for these tensors, one operation per line."""
    return _C.graph_text(_as_list(tensors))


def graph_dot(tensors: Tensors) -> str:
    """The same graph in the language of Graphviz."""
    return _C.graph_dot(_as_list(tensors))


def save_graph(tensors: Tensors, path: str | os.PathLike[str]) -> None:
    """Writes the graph to a file: text (.txt), Graphviz (.dot) or a picture (.svg, .png, .pdf).

    Pictures are drawn by Graphviz' program `dot`.
    """
    path = os.fspath(path)
    kind = os.path.splitext(path)[1].removeprefix(".")
    if kind in ("txt", "dot"):
        with open(path, "w", encoding="utf-8") as file:
            file.write(graph_text(tensors) if kind == "txt" else graph_dot(tensors))
        return
    program = shutil.which("dot")
    if program is None:
        raise RuntimeError(
            f"save_graph: drawing {path} needs Graphviz' program dot, which is not installed; "
            "a path that ends in .dot or .txt needs nothing"
        )
    source = graph_dot(tensors)
    result = subprocess.run(
        [program, f"-T{kind}", "-o", path], input=source, capture_output=True, text=True
    )
    if result.returncode != 0:
        raise RuntimeError(f"save_graph: dot could not draw {path}: {result.stderr.strip()}")


@contextlib.contextmanager
def scope(name: str) -> Iterator[None]:
    """Names what this thread records inside a `with` block, in dumps (setting TORCH_LAZY_IR_DEBUG).

    Scopes are numbered in the order in which they are opened inside their parent, like
    "model.1/layer.2". A step must not end inside a scope; numbers start again after it.
    """
    _C.push_scope(name)
    try:
        yield
    finally:
        _C.pop_scope()


def current_scope() -> str:
    """The open scopes of this thread; empty outside of any."""
    return _C.current_scope()


def tensor_id(tensor: torch.Tensor) -> int:
    """A number for the tensor's buffer, never used again; tensors that share memory share it."""
    return _C.tensor_id(tensor)


def is_pending(tensor: torch.Tensor) -> bool:
    """Whether the tensor's value is recorded and not computed yet."""
    return _C.is_pending(tensor)


def pending_nodes() -> int:
    """How many operations are recorded and not run yet."""
    return _C.pending_nodes()


def render_ir_graph(tensors: Iterable[torch.Tensor]) -> str:
    """The graph behind the tensors, in the language of Graphviz and as torch._lazy writes it."""
    return _C._lazy._get_tensors_dot(list(tensors))


def dump_ir(tensors: Iterable[torch.Tensor], ir_format: str) -> str:
    """The graph behind the tensors as torch._lazy writes it.

    Args:
        tensors: lazy tensors.
        ir_format: "text" for what is recorded, "backend" for what the backend makes of it.
    """
    if ir_format == "text":
        return _C._lazy._get_tensors_text(list(tensors))
    if ir_format == "backend":
        return _C._lazy._get_tensors_backend(list(tensors))
    raise RuntimeError(f"Unrecognized IR format: {ir_format}")


def _as_list(tensors: Tensors) -> list[torch.Tensor]:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
