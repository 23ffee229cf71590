"""Functions saved as graphs: recorded once, then run from C++ or Python without their code."""

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from torch_lazy import _C
from torch_lazy.compile import CompiledFunction
from torch_lazy.device_steps import StepsOnDevice, keep_steps_on_device
from torch_lazy.program_state import ProgramState
from torch_lazy.reach import reach_of

_CALLS = 5
"""Within which a function has to be replayable."""

_TOLERANCE = 1e-3
"""Within which two ways to compute the same state agree, of the largest of its kind."""


def save_graph(
    function: Callable[..., Any],
    path: str | os.PathLike[str],
    example_inputs: Sequence[torch.Tensor],
) -> None:
    """Records `function` and writes it to a file: its graph and its state, never machine code.

    The function takes the tensors of `example_inputs`; in the file their kinds and sizes are fixed.
    It may be inference or a training step. To record it, it is called a few times; what these calls
    change (weights, gradients, the optimizer's state, attributes, random numbers) is put back,
    whether saving succeeds or not. State that they make (an optimizer's, at its first step) has in
    the file the value that it is made with. Plain tensors that it holds and moves to the device are
    constants of the file.

    torch_lazy::load_graph in C++ and torch_lazy.load_graph here read it.
    """
    inputs = tuple(_on_device(example) for example in example_inputs)
    compiled = (
        function.anew() if isinstance(function, CompiledFunction) else CompiledFunction(function)
    )
    state = ProgramState(compiled.function, inputs)
    try:
        _Trial(compiled, inputs, state).save(os.fsencode(path))
    finally:
        try:
            state.restore()
        except KeyboardInterrupt:  # one that came before it began: it goes on where it was
            state.restore()
            raise


class _Trial:
    """Calls that change the program's state, which whoever asked for them puts back."""

    def __init__(
        self, compiled: CompiledFunction, inputs: tuple[torch.Tensor, ...], before: ProgramState
    ) -> None:
        self._compiled = compiled
        self._inputs = inputs
        self._before = before
        self._random = torch.get_rng_state()

    def save(self, path: bytes) -> None:
        optimizers = reach_of(self._compiled.function, self._inputs, {}).optimizers
        for optimizer in optimizers:
            keep_steps_on_device(optimizer)
        # Not recorded: a mode that sees operators is active.
        with StepsOnDevice(optimizers), _Births() as births:
            self._compiled.function(*self._copies())
        after_one = _values(self._tensors())
        made = births.values(self._unknown(self._tensors()))
        self._compiled(*self._copies())
        after_two = _values(self._tensors())
        call = self._record()
        known = [*self._inputs, *call.slots]
        known += [t.grad for t in known if t.is_leaf and t.grad is not None]
        names = [call.attempt.reach.names.get(id(t), "") for t in call.slots]
        unknown = dict.fromkeys(map(id, self._unknown(known)), "gradient")
        for tensor, name in zip(call.slots, names, strict=True):
            if id(tensor) in unknown:
                unknown[id(tensor)] = name.rpartition("[")[2]
        first = self._first_values(known, unknown, made, [after_one, after_two])
        self._begin(known, first)
        self._before.check()
        hosts = list(call.slot_hosts)
        _C.save_recording(call.recording, len(self._inputs), known, hosts, names, path)

    def _record(self) -> Any:
        for _ in range(_CALLS):
            call = self._compiled.trusted_call(self._inputs)
            if call is not None:
                return call
            self._compiled(*self._copies())
        call = self._compiled.trusted_call(self._inputs)
        if call is None:
            reasons = [row["reason"] for row in self._compiled.cache_info() if row["reason"]]
            raise RuntimeError(
                "torch_lazy.save_graph: the function cannot be saved: "
                + (reasons[0] if reasons else "no two calls in a row were alike")
            )
        return call

    # ---- State that the first call makes ---------------------------------------------------------

    def _first_values(
        self,
        known: list[torch.Tensor],
        unknown: dict[int, str],
        made: "dict[int, _Made]",
        expected: "list[_Values]",
    ) -> dict[int, torch.Tensor]:
        """What tensors that were not there before hold before the first call: such that the
        recorded call, made from there, computes what the first calls did."""
        if not unknown:
            return {}
        as_made = {key: value.value for key, value in made.items()}
        # A momentum that is made as a copy of the first gradient: zero before it.
        written = {key: value.value for key, value in made.items() if value.written}
        for first in (as_made, written):
            self._begin(known, first)
            torch.set_rng_state(self._random)
            if all(self._computes(known, unknown, values) for values in expected):
                return first
        raise RuntimeError(
            "torch_lazy.save_graph: the first call of the function does something else than the "
            "later ones, which are what a file has (SGD with dampening is like that); call it once "
            "before it is saved"
        )

    def _begin(self, known: list[torch.Tensor], first: dict[int, torch.Tensor]) -> None:
        with torch.no_grad():
            for tensor in known[len(self._inputs) :]:
                value = self._before.kept.get(id(tensor), first.get(id(tensor)))
                if value is None:
                    tensor.zero_()
                else:
                    tensor.copy_(value)

    def _computes(
        self,
        known: list[torch.Tensor],
        unknown: dict[int, str],
        expected: "_Values",
    ) -> bool:
        self._compiled(*self._copies())
        error: dict[str, float] = {}
        size: dict[str, float] = {}
        for tensor in known:
            if id(tensor) not in unknown or id(tensor) not in expected or tensor.numel() == 0:
                continue
            kind = unknown[id(tensor)]
            a, b = (_numbers(t) for t in (tensor, expected[id(tensor)][1]))
            same = (a == b) | (a.isnan() & b.isnan())
            difference = torch.where(same, 0.0, a - b).abs().max().item()
            error[kind] = max(error.get(kind, 0.0), difference)
            size[kind] = max(size.get(kind, 0.0), b.nan_to_num().abs().max().item())
        return all(error[kind] <= _TOLERANCE * size[kind] for kind in error)

    # ---- What there is ---------------------------------------------------------------------------

    def _copies(self) -> list[torch.Tensor]:
        return [example.detach().clone() for example in self._inputs]

    def _reach(self) -> Any:
        return reach_of(self._compiled.function, self._inputs, {})

    def _tensors(self) -> list[torch.Tensor]:
        tensors = list(self._reach().tensors.values())
        return tensors + [t.grad for t in tensors if t.is_leaf and t.grad is not None]

    def _unknown(self, tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        inputs = set(map(id, self._inputs))
        return [t for t in tensors if id(t) not in self._before.kept and id(t) not in inputs]


_Values = dict[int, tuple[torch.Tensor, torch.Tensor]]
"""Tensors by id, which stays theirs as long as they are here, and copies of them."""


def _values(tensors: Iterable[torch.Tensor]) -> _Values:
    return {id(tensor): (tensor, tensor.detach().clone()) for tensor in tensors}


def _numbers(tensor: torch.Tensor) -> torch.Tensor:
    host = tensor.detach().cpu()
    return (torch.view_as_real(host) if host.is_complex() else host).double()


class _Made(NamedTuple):
    tensor: torch.Tensor
    value: torch.Tensor
    written: bool
    """Whether the call that made it wrote it later, so that its value is a start."""


class _Births(TorchDispatchMode):
    """Keeps what memory held before it was written for the first time."""

    def __init__(self) -> None:
        super().__init__()
        self._held: dict[int, tuple[StorageWeakRef, torch.Tensor | None]] = {}
        self._most = 256

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        schema = getattr(func, "_schema", None)
        for i, argument in enumerate(schema.arguments if schema else ()):
            if argument.alias_info is not None and argument.alias_info.is_write:
                value = args[i] if i < len(args) else kwargs.get(argument.name)
                for tensor in tree_leaves(value):
                    self._before_write(tensor)
        result = func(*args, **kwargs)
        if schema and schema.name.startswith(("aten::empty", "aten::new_empty")):
            # Holds nothing yet: the first write belongs to its making.
            self._hold(result.untyped_storage(), None)
        return result

    def _before_write(self, tensor: Any) -> None:
        if not isinstance(tensor, torch.Tensor) or tensor.device.type != "lazy":
            return
        storage = tensor.untyped_storage()
        held = self._held.get(storage._cdata)
        if held is not None and not held[0].expired():
            if held[1] is None:
                del self._held[storage._cdata]
            return
        elements = storage.nbytes() // tensor.element_size()
        self._hold(storage, tensor.detach().as_strided((elements,), (1,), 0).clone())

    def _hold(self, storage: torch.UntypedStorage, value: torch.Tensor | None) -> None:
        if len(self._held) >= self._most:  # what is gone needs no copy
            self._held = {k: held for k, held in self._held.items() if not held[0].expired()}
            self._most = max(256, 2 * len(self._held))
        self._held[storage._cdata] = (StorageWeakRef(storage), value)

    def values(self, tensors: Iterable[torch.Tensor]) -> dict[int, _Made]:
        """What these tensors were made with."""
        made = {}
        for tensor in tensors:
            _, value = self._held.get(tensor.untyped_storage()._cdata, (None, None))
            if value is None or value.dtype != tensor.dtype:
                made[id(tensor)] = _Made(tensor, tensor.detach().clone(), written=False)
            else:
                seen = value.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
                made[id(tensor)] = _Made(tensor, seen.clone(), written=True)
        return made


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


def load_graph(path: str | os.PathLike[str], *, namespaces: Sequence[str] = ()) -> LoadedGraph:
    """Reads a file of save_graph; one that is damaged or foreign raises a clear error.

    A file calls operators of PyTorch that compute tensors and do nothing else. `namespaces` names
    other libraries whose operators it may call, too.
    """
    return LoadedGraph(_C.load_graph(os.fsencode(path), list(namespaces)))
