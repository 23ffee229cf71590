"""torch_lazy.load_exported: programs of torch.export run as plans of torch-lazy."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_lazy import _C
from torch_lazy.dynamo_backend import CompiledGraph


def load_exported(program: "torch.export.ExportedProgram | str | os.PathLike[str]") -> "Exported":
    """A function that runs an exported program, given itself or as a file of torch.export.save.

    It takes what the program takes, plain tensors or lazy ones, and gives results of their kind.
    """
    from torch.export import ExportedProgram

    if isinstance(program, (str, os.PathLike)):
        program = _load(os.fspath(program))
    elif not isinstance(program, ExportedProgram):
        raise TypeError(
            f"torch_lazy.load_exported takes an ExportedProgram or the path of a file, but got "
            f"{type(program)}"
        )
    return Exported(program)


def _load(path: str) -> "torch.export.ExportedProgram":
    if not os.path.isfile(path):
        raise FileNotFoundError(f"torch_lazy.load_exported: there is no file {path}")
    try:
        return torch.export.load(path)
    except Exception as error:  # of many types, depending on where the damage is
        raise ValueError(
            f"torch_lazy.load_exported: {path} is damaged, or no file of torch.export.save: {error}"
        ) from error


class Exported:
    """A program with its parameters and buffers. Buffers that it changes are changed here."""

    def __init__(self, program: "torch.export.ExportedProgram") -> None:
        self._state: dict[str, torch.Tensor] = {}
        self._own = [self._tensor_of(program, spec) for spec in program.graph_signature.input_specs]
        self._inputs = _Inputs(program)
        self._results = program.call_spec.out_spec
        module = _with_writes(program)
        self._graphs = {False: CompiledGraph(module), True: _LazyGraph(module)}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        inputs = self._inputs(args, kwargs)
        lazy = any(isinstance(x, torch.Tensor) and x.device.type == "lazy" for x in inputs)
        given = iter(inputs)
        results = self._graphs[lazy]([next(given) if own is None else own for own in self._own])
        return pytree.tree_unflatten(results, self._results)

    def state_dict(self) -> Mapping[str, torch.Tensor]:
        """Parameters and buffers by name, as they are now."""
        return dict(self._state)

    def _tensor_of(self, program: "torch.export.ExportedProgram", spec: Any) -> torch.Tensor | None:
        """What the program has for one of its inputs; None: it comes from the caller."""
        kind = spec.kind.name
        if kind == "USER_INPUT":
            return None
        if kind not in ("PARAMETER", "BUFFER", "CONSTANT_TENSOR"):
            raise ValueError(
                f"torch_lazy.load_exported: the program needs {spec.target} ({kind}), which is no "
                f"tensor"
            )
        found = program.state_dict.get(spec.target)
        tensor = (program.constants[spec.target] if found is None else found).detach()
        if kind == "BUFFER":
            tensor = tensor.clone()
        if kind != "CONSTANT_TENSOR":
            self._state[spec.target] = tensor
        return tensor


def _with_writes(program: "torch.export.ExportedProgram") -> torch.fx.GraphModule:
    """The program's graph; new values of buffers and inputs that it returns are written in it."""
    signature = program.graph_signature
    graph = torch.fx.Graph()
    results = graph.graph_copy(program.graph, {})
    inputs = graph.find_nodes(op="placeholder")
    places = {spec.target: node for spec, node in zip(signature.input_specs, inputs, strict=True)}
    places |= {node.name: node for node in inputs}
    returned = []
    for spec, result in zip(signature.output_specs, results, strict=True):
        if spec.kind.name in ("BUFFER_MUTATION", "USER_INPUT_MUTATION"):
            graph.call_function(torch.ops.aten.copy_.default, (places[spec.target], result))
        elif spec.kind.name == "USER_OUTPUT":
            returned.append(result)
        else:
            raise ValueError(
                f"torch_lazy.load_exported runs programs for inference, and this one returns a "
                f"{spec.kind.name}"
            )
    graph.output(tuple(returned))
    return torch.fx.GraphModule(program.graph_module, graph)


class _LazyGraph(CompiledGraph):
    """The program on lazy tensors, though it was exported from plain ones."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        super().__init__(module, to_lazy=True)

    def _run_plainly(self, args: list[Any]) -> list[Any]:
        args[:] = [
            _C.to_real(x) if isinstance(x, torch.Tensor) and x.device.type == "lazy" else x
            for x in args
        ]
        results = super()._run_plainly(args)
        return [x.to("lazy") if isinstance(x, torch.Tensor) else x for x in results]


# ---- Inputs --------------------------------------------------------------------------------------


_KINDS = 1024
"""Of inputs that were found to be right, and are remembered."""


def _kind_of(x: Any) -> tuple[Any, ...]:
    if isinstance(x, torch.Tensor):
        return x.shape, x.dtype
    return type(x), x if isinstance(x, (int, float, str)) else None


class _Inputs:
    """What the program may be called with."""

    def __init__(self, program: "torch.export.ExportedProgram") -> None:
        self._spec = program.call_spec.in_spec
        self._keywords = list(self._spec.children()[1].context)
        self._ranges = program.range_constraints
        placeholders = program.graph.find_nodes(op="placeholder")
        specs = program.graph_signature.input_specs
        self._expected = [
            (node.name, node.meta.get("val"))
            for node, spec in zip(placeholders, specs, strict=True)
            if spec.kind.name == "USER_INPUT"
        ]
        self._seen: set[Any] = set()

    def __call__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """The inputs in the program's order. Raises an error that tells what is wrong with them."""
        inputs = self._flatten(args, kwargs)
        kinds = tuple(map(_kind_of, inputs))
        if kinds not in self._seen:
            self._check(inputs)
            if len(self._seen) >= _KINDS:
                self._seen.clear()
            self._seen.add(kinds)
        # What is no tensor and no size is part of the program; a graph takes numbers only.
        return [
            x if isinstance(expected, (torch.Tensor, torch.SymInt)) else 0
            for x, (_, expected) in zip(inputs, self._expected, strict=True)
        ]

    def _flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        if set(kwargs) != set(self._keywords):
            raise TypeError(
                f"the exported program takes the keyword arguments {self._keywords}, but got "
                f"{list(kwargs)}"
            )
        inputs, spec = pytree.tree_flatten((tuple(args), {k: kwargs[k] for k in self._keywords}))
        if spec != self._spec:
            raise TypeError(
                f"the exported program takes arguments of the structure {self._spec}, but got "
                f"{spec}"
            )
        return inputs

    def _check(self, inputs: Sequence[Any]) -> None:
        sizes = _Sizes(self._ranges)
        for x, (name, expected) in zip(inputs, self._expected, strict=True):
            if isinstance(expected, torch.Tensor):
                self._check_tensor(name, x, expected)
                for dimension, (size, wanted) in enumerate(
                    zip(x.shape, expected.shape, strict=True)
                ):
                    sizes.add(f"size {dimension} of {name}", size, wanted)
            elif isinstance(expected, torch.SymInt) and isinstance(x, int):
                sizes.add(name, x, expected)
            elif type(x) is not type(expected) or x != expected:
                raise ValueError(
                    f"the exported program was made for {name} = {expected!r}, but got {x!r}"
                )
        sizes.check()

    @staticmethod
    def _check_tensor(name: str, x: Any, expected: torch.Tensor) -> None:
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"{name} of the exported program is a tensor, but got {type(x)}")
        if x.dtype != expected.dtype:
            raise TypeError(
                f"{name} of the exported program has the dtype {expected.dtype}, but got {x.dtype}"
            )
        if x.dim() != expected.dim():
            raise ValueError(
                f"{name} of the exported program has {expected.dim()} dimensions, but got "
                f"{x.dim()} (shape {tuple(x.shape)})"
            )


class _Sizes:
    """Sizes of one call against what was said about dynamic ones when the program was exported."""

    def __init__(self, ranges: Mapping[Any, Any]) -> None:
        self._ranges = ranges
        self._found: list[tuple[str, int, Any]] = []  # name, size, what it should be
        self._symbols: dict[Any, int] = {}

    def add(self, name: str, size: int, expected: Any) -> None:
        if isinstance(expected, torch.SymInt):
            expression = expected.node.expr
            if expression.is_Symbol:
                self._symbols.setdefault(expression, size)
            self._found.append((name, size, expression))
        elif size != expected:
            raise ValueError(f"{name} of the exported program is {expected}, but got {size}")

    def check(self) -> None:
        self._solve()
        for name, size, expression in self._found:
            value = expression.subs(self._symbols)
            if value != size:
                known = ", ".join(f"{s} = {n}" for s, n in self._symbols.items())
                raise ValueError(
                    f"{name} of the exported program is {expression} where {known}, but got {size}"
                )
            allowed = self._ranges.get(expression)
            if allowed is not None and not allowed.lower <= size <= allowed.upper:
                raise ValueError(
                    f"{name} of the exported program is between {allowed.lower} and "
                    f"{allowed.upper}, but got {size}"
                )

    def _solve(self) -> None:
        """Finds symbols that are no input's size themselves, but part of one, as in 2*s."""
        import sympy

        for _, size, expression in self._found:
            unknown = expression.free_symbols - set(self._symbols)
            if len(unknown) == 1:
                (symbol,) = unknown
                for value in sympy.solve(expression.subs(self._symbols) - size, symbol):
                    if value.is_Integer:
                        self._symbols[symbol] = int(value)
