"""Functions saved as graphs: recorded once, then run from C++ or Python without their code."""

import os
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_lazy import _C
from torch_lazy.compile import CompiledFunction, keep_steps_on_device
from torch_lazy.reach import reach_of

_CALLS = 5
"""Within which a function has to be replayable."""


def save_graph(
    function: Callable[..., Any],
    path: str | os.PathLike[str],
    example_inputs: Sequence[torch.Tensor],
) -> None:
    """Records `function` and writes it to a file: its graph and its state, never machine code.

    The function takes the tensors of `example_inputs`; in the file their kinds and sizes are fixed.
    It may be inference or a training step. To record it, it is called a few times; what these calls
    change (weights, the optimizer's state) is put back before it is saved. State that they make
    (an optimizer's, at its first step) begins with zeros. Plain tensors that it holds and moves to
    the device are constants of the file.

    torch_lazy::load_graph in C++ and torch_lazy.load_graph here read it.
    """
    inputs = tuple(_on_device(example) for example in example_inputs)
    compiled = function if isinstance(function, CompiledFunction) else CompiledFunction(function)
    for optimizer in reach_of(compiled.function, inputs, {}).optimizers:
        keep_steps_on_device(optimizer)
    before = reach_of(compiled.function, inputs, {})
    kept = {id(t): (t, t.detach().clone()) for t in before.tensors.values()}
    gradients = [(t, t.grad) for t in before.tensors.values() if t.is_leaf]
    for _ in range(_CALLS):
        compiled(*(example.detach().clone() for example in inputs))
        variant = compiled.variant_for(inputs)
        if variant is not None:
            break
    else:
        reasons = [row["reason"] for row in compiled.cache_info() if row["reason"]]
        raise RuntimeError(
            "torch_lazy.save_graph: the function cannot be saved: "
            + (reasons[0] if reasons else "no two calls in a row were alike")
        )
    known = [*inputs, *variant.slots]
    known += [t.grad for t in known if t.is_leaf and t.grad is not None]
    with torch.no_grad():
        for tensor in variant.slots:
            if id(tensor) in kept:
                tensor.copy_(kept[id(tensor)][1])
            else:
                tensor.zero_()
    names = [variant.attempt.reach.names.get(id(t), "") for t in variant.slots]
    hosts = list(variant.slot_hosts)
    _C.save_recording(variant.recording, len(inputs), known, hosts, names, os.fspath(path))
    for tensor, gradient in gradients:
        tensor.grad = gradient


def _on_device(example: Any) -> torch.Tensor:
    if not isinstance(example, torch.Tensor):
        raise TypeError(
            f"torch_lazy.save_graph: example_inputs are tensors, but one is {type(example)}"
        )
    return example.to("lazy")


class LoadedGraph:
    """A function that was loaded from a file."""

    def __init__(self, graph: Any) -> None:
        self._graph = graph

    def __call__(self, *arguments: torch.Tensor) -> list[torch.Tensor]:
        """The tensors that the function returned, in the order of its tree of results."""
        return self._graph(arguments)

    @property
    def arguments(self) -> list[str]:
        """What each argument has to be, like "Float[4,16]"."""
        return self._graph.arguments

    @property
    def state(self) -> dict[str, torch.Tensor]:
        """The tensors that it keeps from call to call."""
        return dict(self._graph.state)


def load_graph(path: str | os.PathLike[str]) -> LoadedGraph:
    """Reads a file of save_graph; one that is damaged or foreign raises a clear error."""
    return LoadedGraph(_C.load_graph(os.fspath(path)))
