"""A model recorded once on the device lazy becomes a function that runs its computation by hash.

Nothing is recorded again: the caller answers for calling it only where the recording holds (same
shapes, same path through the model), as TorchDynamo's guards do.
"""

import copy
import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from torch_lazy import computation, metrics, step
from torch_lazy import debug as lazy_debug
from torch_lazy.tensor_factory_functions import tensor_factory_functions

debug = "debug_extract_compiled_graph" in os.environ
"""Whether to print what is extracted."""


@dataclasses.dataclass
class GraphInputMatcher:
    """Finds the inputs of a computation for a call: an argument of the call where the recorded
    input was an argument, otherwise (weights, constants) what was recorded.
    """

    tensor_id_to_arg_idx: dict[int, int]
    graph_input_tensor_ids: list[int]
    graph_input_ivalues: list[Any]

    def __call__(self, args: Sequence[Any]) -> list[Any]:
        recorded = zip(self.graph_input_tensor_ids, self.graph_input_ivalues, strict=True)
        return [
            args[self.tensor_id_to_arg_idx[tensor_id]]
            if tensor_id in self.tensor_id_to_arg_idx
            else value
            for tensor_id, value in recorded
        ]


class ReturnValueHandler:
    """A computation has one result for each distinct tensor; a list of tensors may repeat some.

    `index` says for each distinct tensor where in the list it stands.
    """

    def __init__(self, lazy_out_list: Sequence[torch.Tensor]) -> None:
        self.total_count = len(lazy_out_list)
        places: dict[int, list[int]] = {}  # in the order of first appearance
        for place, tensor in enumerate(lazy_out_list):
            places.setdefault(id(tensor), []).append(place)
        self.index = list(places.values())

    def duplicate_eager_tensors(self, eager_tensor_list: Sequence[Any]) -> list[Any]:
        """The list again, with results in place of the distinct tensors."""
        if len(eager_tensor_list) != len(self.index):
            raise AssertionError(
                f"the computation has {len(eager_tensor_list)} results, but {len(self.index)} "
                "distinct tensors were given"
            )
        results = [None] * self.total_count
        for places, result in zip(self.index, eager_tensor_list, strict=True):
            for place in places:
                results[place] = result
        return results


def force_lazy_device(model: fx.GraphModule) -> None:
    """Has the model make its own tensors on the device lazy: those for which it names a device, and
    those of the functions in tensor_factory_functions without one.
    """

    def lazy_instead(value: Any) -> Any:
        return torch.device("lazy", value.index) if isinstance(value, torch.device) else value

    for node in model.graph.nodes:
        args = tuple(map(lazy_instead, node.args))
        kwargs = {name: lazy_instead(value) for name, value in node.kwargs.items()}
        names_a_device = any(isinstance(x, torch.device) for x in (*args, *kwargs.values()))
        if node.target in tensor_factory_functions and not names_a_device:
            kwargs["device"] = torch.device("lazy")
        node.args, node.kwargs = args, kwargs
    model.recompile()


def get_fallback_ops() -> list[str]:
    """Operators that were executed at once since the last metrics.reset(), each as name=count."""
    return [
        f"{name}={metrics.counter_value(name)}"
        for name in metrics.counter_names()
        if "aten::" in name
    ]


def extract_compiled_graph(
    model: fx.GraphModule, example_inputs: Sequence[torch.Tensor]
) -> Callable[..., Sequence[torch.Tensor]]:
    """A function of the model's arguments that runs the computation recorded for `example_inputs`.

    It takes and returns tensors of the device that does the work, and returns a list even for one
    result. Arguments that the model changes are changed. Resets the metrics.
    """
    lazy_args = [arg.to(device="lazy") for arg in example_inputs]
    arg_index = {step.get_tensor_id(arg): index for index, arg in enumerate(lazy_args)}
    lazy_model = copy.deepcopy(model).to(device=torch.device("lazy"))
    force_lazy_device(lazy_model)

    metrics.reset()
    lazy_out = lazy_model(*lazy_args)
    fallbacks = get_fallback_ops()
    metrics.reset()
    if fallbacks:
        raise RuntimeError(
            f"Fail to extract the compiled graph because of fallback: {','.join(fallbacks)}"
        )
    if not isinstance(lazy_out, (tuple, list)):
        lazy_out = (lazy_out,)

    # Arguments are results too: the model may have changed them.
    args_and_out = (*lazy_args, *lazy_out)
    handler = ReturnValueHandler(args_and_out)
    if debug:
        print("Code of the model:", model.code, sep="\n")
        print("Recorded:", lazy_debug.dump_ir(args_and_out, "text"), sep="\n")
    ids, values = computation.get_tensors_ts_device_data_node(args_and_out)
    matcher = GraphInputMatcher(arg_index, ids, values)
    graph_hash = computation.get_graph_hash(args_and_out)
    if debug:
        print(f"Hash: {graph_hash.hex()}\nArguments: {list(arg_index)}\nInputs: {ids}")
    step.sync_multi(args_and_out, [])  # compiles, and keeps the computation under its hash

    def run_extracted(*args: torch.Tensor) -> Sequence[torch.Tensor]:
        if not args_and_out:
            return ()
        results = handler.duplicate_eager_tensors(
            computation.run_cached_graph(graph_hash, matcher(args))
        )
        for arg, result in zip(args, results, strict=False):
            if result is not arg:
                arg.copy_(result)
        return results[len(args) :]

    return run_extracted
