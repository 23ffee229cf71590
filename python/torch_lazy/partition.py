"""How the graph of a training step is cut into forward and backward: by PyTorch's partitioner.

What is computed twice is shared before, here: PyTorch's own pass for that imports inductor.
"""

import operator
from typing import Any

import torch
from torch import fx

_PURE = ("aten", "prims")
"""Namespaces whose operators do what their schemas say and nothing else."""


_SAME = (torch.ops.aten.detach.default, torch.ops.aten.alias.default)
"""Of a graph that has its gradients: a detached tensor is the tensor."""


def partition(joint: fx.GraphModule, inputs: Any, **kwargs: Any) -> Any:
    """(forward, backward); what is cheap to compute again is not saved between them.

    Autograd saves the results of some operators detached, which the partitioner takes for an
    operator that cannot be computed again.
    """
    from torch._functorch import config
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch.fx._lazy_graph_module import _make_graph_module

    if config.cse:
        share_calls(joint.graph)
    with config.patch(cse=False):
        forward, backward = min_cut_rematerialization_partition(joint, inputs, **kwargs)
    # The last pass gives backward a module whose code is made at once, and again for each copy.
    return forward, _make_graph_module(backward, backward.graph)


def share_calls(graph: fx.Graph) -> None:
    """A call that repeats an earlier one of the same values becomes that one; detached ones too.

    Calls whose memory leaves the graph stay: two results are two tensors.
    """
    leaving = _behind_results(graph)
    known: dict[Any, fx.Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if _may_write(node.target):
            known.clear()
        elif node in leaving:
            continue
        elif node.target in _SAME and node.args[0] not in leaving:
            _replace(node, node.args[0])
        elif _is_function(node.target):
            call = (
                node.target,
                node.meta.get("recompute"),
                _key(node.args),
                _key(tuple(node.kwargs.items())),
            )
            try:
                first = known.setdefault(call, node)
            except TypeError:  # an argument that has no hash
                continue
            if first is not node:
                _replace(node, first)


def _replace(node: fx.Node, other: fx.Node) -> None:
    node.replace_all_uses_with(other)
    node.graph.erase_node(node)


def _behind_results(graph: fx.Graph) -> set[fx.Node]:
    """The nodes whose memory a result of the graph may have."""
    (output,) = graph.find_nodes(op="output")
    nodes = set(output.all_input_nodes)
    for node in reversed(graph.nodes):
        if node in nodes and _may_share_memory(node.target):
            nodes.update(node.all_input_nodes)
    return nodes


def _may_share_memory(target: Any) -> bool:
    if isinstance(target, torch._ops.OpOverload) and target.namespace in _PURE:
        return any(result.alias_info is not None for result in target._schema.returns)
    return True


def _may_write(target: Any) -> bool:
    if isinstance(target, torch._ops.OpOverload):
        return target._schema.is_mutable
    return target is not operator.getitem


def _is_function(target: Any) -> bool:
    """Whether its results are tensors and depend on its arguments alone."""
    if target is operator.getitem:
        return True
    return (
        target.namespace in _PURE
        and torch.Tag.nondeterministic_seeded not in target.tags
        and all(_is_tensor(result.type) for result in target._schema.returns)
    )


def _is_tensor(kind: Any) -> bool:
    return isinstance(kind, torch.TensorType)


def _key(argument: Any) -> Any:
    """Equal for equal arguments; numbers of other types, and the two zeros, are not equal."""
    if isinstance(argument, (list, tuple)):
        return tuple(map(_key, argument))
    if isinstance(argument, slice):
        return _key((argument.start, argument.stop, argument.step))
    if isinstance(argument, (float, complex)):
        return type(argument), repr(argument)
    return type(argument), argument
