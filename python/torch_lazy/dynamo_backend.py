"""torch.compile(model, backend="torch_lazy"): graphs of TorchDynamo run as plans of torch-lazy.

A graph, forward or backward, is run on lazy tensors over the memory of its arguments, once for each
set of their shapes, and what that recorded is run from then on. Arguments may be plain tensors of
the real device or lazy ones.
"""

import importlib.abc
import importlib.util
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch.fx.node import map_aggregate, map_arg

from torch_lazy import _C
from torch_lazy.compile import CompileWarning
from torch_lazy.partition import partition

NAME = "torch_lazy"

_RECORDINGS = 64
"""Of one graph: for the shapes that it was called with last."""

_ATTEMPTS = 3
"""Recordings that may fail in a row: a call that is new to the device is executed at once."""


def backend(module: torch.fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Any:
    """What torch.compile calls with the graph of a function."""
    from torch._dynamo import config, disable
    from torch._dynamo.utils import flatten_graph_inputs
    from torch._functorch.aot_autograd import aot_module_simplified
    from torch.fx._lazy_graph_module import _use_lazy_graph_module

    if options:
        raise ValueError(
            f'torch.compile(backend="torch_lazy") takes no options, but got {options}; '
            f"torch_lazy.config has the settings"
        )
    if any(isinstance(x, (list, tuple, dict)) for x in inputs):
        return flatten_graph_inputs(module, inputs, backend)
    # Graphs are run as they are: nobody needs the Python code of their modules.
    lazily = _use_lazy_graph_module(config.use_lazy_graph_module)
    with lazily:
        compiled = aot_module_simplified(
            module,
            inputs,
            fw_compiler=_compile_forward,
            bw_compiler=disable(_compile_backward),
            inference_compiler=compile_graph,
            partition_fn=partition,
            keep_inference_input_mutations=True,
        )
    return disable(compiled)


def _compile_forward(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    # By default backward may use up what forward has saved, and then refuses to come twice.
    context = torch._guards.TracingContext.try_get()
    if context is not None and context.fw_metadata is not None:
        context.fw_metadata.bw_donated_idxs = []
    return compile_graph(module, inputs)


def _compile_backward(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    # What forward saved; not its arguments or the gradients, which others may have or not.
    names = [node.name for node in module.graph.find_nodes(op="placeholder")]
    saved = [not name.startswith(("primals", "tangents")) for name in names]
    return compile_graph(module, inputs, use_up=saved)


def compile_graph(
    module: torch.fx.GraphModule, inputs: Sequence[Any], use_up: Sequence[bool] = ()
) -> Callable[..., Any]:
    """Runs a graph of AOTAutograd: a pure function, but for arguments that it copies results to."""
    graph = CompiledGraph(module, use_up=use_up)

    def run(args: list[Any]) -> Any:
        return graph(args)

    run._boxed_call = True  # takes a list, and lets go of what is in it
    return run


class CompiledGraph:
    """A graph and what was recorded of it. Called with a list of arguments, which it empties."""

    def __init__(
        self, module: torch.fx.GraphModule, *, to_lazy: bool = False, use_up: Sequence[bool] = ()
    ) -> None:
        """`to_lazy`: all results go to the device lazy, not only those that the graph has there.
        `use_up`: by argument, whether its memory may be used and freed where nobody else has it.
        """
        self._module = module
        self._on_lazy = OnLazy(module)
        self._runner = _C.GraphRunner(_lazy_results(module, to_lazy), list(use_up), _RECORDINGS)
        self._call = self._runner.call
        self._failed = 0
        self._lock = threading.Lock()

    def __call__(self, args: list[Any]) -> list[Any]:
        results = self._call(args)
        return self._record(args) if results is None else results

    def _record(self, args: list[Any]) -> list[Any]:
        if self._failed >= _ATTEMPTS:
            return self._run_plainly(args)
        with self._lock:
            given = self._runner.begin(args)
            if given is None:
                return self._run_plainly(args)
            args.clear()
            try:
                with torch.no_grad(), torch._C._DisableAutocast():
                    results = list(self._on_lazy(given))
                del given
                results, obstacle = self._runner.finish(results)
            finally:
                self._runner.abandon()
        self._failed = self._failed + 1 if obstacle else 0
        if self._failed == _ATTEMPTS:
            warnings.warn(
                f"torch-lazy: a compiled graph of {len(self._module.graph.nodes)} nodes is run "
                f"operator by operator: {obstacle}",
                CompileWarning,
                stacklevel=2,
            )
        return results

    def _run_plainly(self, args: list[Any]) -> list[Any]:
        given = list(args)
        args.clear()
        with torch.no_grad(), torch._C._DisableAutocast():
            return list(self._module(*given))


def _lazy_results(module: torch.fx.GraphModule, all_of_them: bool) -> list[bool]:
    """For each result that is a tensor, whether it goes to the device lazy."""
    (output,) = module.graph.find_nodes(op="output")
    values = [node.meta.get("val") for node in output.args[0] if isinstance(node, torch.fx.Node)]
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    return [all_of_them or tensor.device.type == "lazy" for tensor in tensors]


# ---- Graphs on the device lazy -------------------------------------------------------------------


class OnLazy:
    """Runs a graph that was made for the real device on the device lazy."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        self._module = module
        self._last_use: dict[torch.fx.Node, list[torch.fx.Node]] = {}
        seen: set[torch.fx.Node] = set()
        for node in reversed(module.graph.nodes):
            self._last_use[node] = [n for n in node.all_input_nodes if n not in seen]
            seen.update(node.all_input_nodes)

    def __call__(self, args: Sequence[Any]) -> Any:
        given = iter(args)
        values: dict[torch.fx.Node, Any] = {}
        for node in self._module.graph.nodes:
            if node.op == "placeholder":
                values[node] = next(given)
            elif node.op == "get_attr":
                values[node] = self._attribute(node.target)
            else:
                arguments, named = map_arg((node.args, node.kwargs), values.__getitem__)
                if node.op == "output":
                    return arguments[0]
                values[node] = self._call(node.target, arguments, named)
            for dead in self._last_use[node]:
                del values[dead]
        raise AssertionError("a graph has an output")

    def _attribute(self, name: str) -> Any:
        value = attrgetter(name)(self._module)
        if isinstance(value, torch.fx.GraphModule):  # a part that an operator calls
            part = OnLazy(value)
            return lambda *args: part(args)
        return _to_lazy(value)

    def _call(self, function: Any, args: Any, kwargs: Any) -> Any:
        function = _REPLACEMENTS.get(function, function)
        return function(*map_aggregate(args, _to_lazy), **map_aggregate(kwargs, _to_lazy))


def _to_lazy(value: Any) -> Any:
    if isinstance(value, torch.device) and value.type == torch.device(_C.real_device()).type:
        return torch.device("lazy", 0)
    if isinstance(value, torch.Tensor) and value.device.type == torch.device(_C.real_device()).type:
        return value.to("lazy")
    return value


aten = torch.ops.aten


def _drawn_in_place(draw: Any) -> Callable[..., torch.Tensor]:
    """Of a function that gives random numbers: the operator that draws them into new memory.

    Draws are recorded where they fill a tensor, and drawn anew when the graph runs again.
    """

    def function(like: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return draw(torch.empty_like(like), *args, **kwargs)

    return function


def _native_dropout(
    x: torch.Tensor, p: float, train: bool | None
) -> tuple[torch.Tensor, torch.Tensor]:
    if train is False:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    mask = torch.empty(x.shape, dtype=torch.bool, device=x.device).bernoulli_(1 - p)
    return (x * mask).mul_(0.0 if p == 1 else 1 / (1 - p)), mask


def _batch_norm_functional(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor,
    variance: torch.Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[torch.Tensor, ...]:
    mean, variance = mean.clone(), variance.clone()
    results = aten._native_batch_norm_legit.default(
        x, weight, bias, mean, variance, training, momentum, eps
    )
    return *results, mean, variance


_REPLACEMENTS: dict[Any, Callable[..., Any]] = {
    aten.bernoulli.p: _drawn_in_place(aten.bernoulli_.float),
    aten.uniform.default: _drawn_in_place(aten.uniform_.default),
    aten.normal_functional.default: _drawn_in_place(aten.normal_.default),
    aten.exponential.default: _drawn_in_place(aten.exponential_.default),
    aten.geometric.default: _drawn_in_place(aten.geometric_.default),
    aten.log_normal.default: _drawn_in_place(aten.log_normal_.default),
    aten.cauchy.default: _drawn_in_place(aten.cauchy_.default),
    aten.random.default: _drawn_in_place(aten.random_.default),
    getattr(aten.random, "from"): _drawn_in_place(getattr(aten.random_, "from")),
    aten.random.to: _drawn_in_place(aten.random_.to),
    aten.native_dropout.default: _native_dropout,
    aten._native_batch_norm_legit_functional.default: _batch_norm_functional,
}
"""What the device would execute at once, said in operators that it records."""


# ---- Registration --------------------------------------------------------------------------------

_REGISTRY = "torch._dynamo.backends.registry"


def register() -> None:
    """Makes the name known to torch.compile, also before TorchDynamo is imported, which is slow."""
    if _REGISTRY in sys.modules:
        _register_in(sys.modules[_REGISTRY])
    else:
        sys.meta_path.insert(0, _WhenImported())


def _register_in(registry: Any) -> None:
    if NAME not in registry._COMPILER_FNS:
        registry.register_backend(compiler_fn=backend, name=NAME)


class _WhenImported(importlib.abc.MetaPathFinder):
    """Registers the backend as soon as the registry is imported, then is gone."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname != _REGISTRY:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_register(module: Any) -> None:
                execute(module)
                _register_in(module)

            spec.loader.exec_module = execute_and_register
        return spec
