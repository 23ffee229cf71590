"""Computations that were compiled once, found by the hash of their graph and run on other data."""

from collections.abc import Sequence
from typing import Any

import torch

from torch_lazy import _C


def get_graph_hash(tensors: Sequence[torch.Tensor]) -> bytes:
    """16 bytes that identify the graph behind the tensors. Runs nothing.

    A sync_multi of the same tensors keeps its computation under this hash.
    """
    return _C._lazy._get_graph_hash(tensors)


def get_tensors_ts_device_data_node(
    tensors: Sequence[torch.Tensor],
) -> tuple[list[int], list[Any]]:
    """What the graph behind the tensors reads: ids (get_tensor_id) and values, in the same order.

    Values are tensors of the device that does the work, and numbers; the id of a number is -1.
    """
    return _C._lazy_ts_backend._get_tensors_ts_device_data_node(tensors)


def run_cached_graph(hash_str: bytes, graph_inputs: Sequence[Any]) -> list[torch.Tensor]:
    """Runs the computation with this hash on other inputs, which come in the order of
    get_tensors_ts_device_data_node.

    Returns a tensor of the device that does the work for each distinct tensor that was synced.
    """
    return _C._lazy_ts_backend._run_cached_graph(hash_str, graph_inputs)
