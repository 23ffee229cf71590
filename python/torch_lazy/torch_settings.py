"""PyTorch's settings and hooks that are no objects of the program: how each is read and set."""

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from torch_lazy import _C


def settings() -> Iterator[tuple[Callable[[], Any], Callable[[Any], Any]]]:
    """How settings are read and set."""
    c = torch._C
    yield torch.is_grad_enabled, c._set_grad_enabled
    yield torch.get_default_dtype, torch.set_default_dtype
    yield (
        lambda: (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        lambda value: torch.use_deterministic_algorithms(value[0], warn_only=value[1]),
    )
    yield (
        c._get_deterministic_fill_uninitialized_memory,
        c._set_deterministic_fill_uninitialized_memory,
    )
    for device in ("cpu", "lazy"):
        yield (
            functools.partial(torch.is_autocast_enabled, device),
            functools.partial(torch.set_autocast_enabled, device),
        )
        yield (
            functools.partial(torch.get_autocast_dtype, device),
            functools.partial(torch.set_autocast_dtype, device),
        )
    yield torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled
    yield torch.get_float32_matmul_precision, torch.set_float32_matmul_precision
    kernels = torch.backends.cuda
    yield kernels.flash_sdp_enabled, kernels.enable_flash_sdp
    yield kernels.mem_efficient_sdp_enabled, kernels.enable_mem_efficient_sdp
    yield kernels.math_sdp_enabled, kernels.enable_math_sdp
    yield kernels.cudnn_sdp_enabled, kernels.enable_cudnn_sdp
    yield c._get_mkldnn_enabled, c._set_mkldnn_enabled
    yield c._get_cudnn_enabled, c._set_cudnn_enabled
    yield c._get_cudnn_benchmark, c._set_cudnn_benchmark
    yield c._get_cudnn_deterministic, c._set_cudnn_deterministic
    yield torch.get_num_threads, torch.set_num_threads
    yield (
        lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        lambda value: torch.set_anomaly_enabled(*value),
    )
    yield c._is_multithreading_enabled, c._set_multithreading_enabled
    yield torch.is_warn_always_enabled, torch.set_warn_always
    yield (
        lambda: getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None),
        lambda context: torch.set_default_device(context and context.device),
    )
    yield c._len_torch_function_stack, _shorten_function_modes
    yield c._len_torch_dispatch_stack, _shorten_dispatch_modes
    for name, *_ in _C.settings():
        yield (
            functools.partial(_C.get_setting, name),
            functools.partial(_C.set_setting, name),
        )


def _shorten_function_modes(length: int) -> None:
    while torch._C._len_torch_function_stack() > length:
        torch._C._pop_torch_function_stack()


def _shorten_dispatch_modes(length: int) -> None:
    while torch._C._len_torch_dispatch_stack() > length:
        torch._C._pop_torch_dispatch_stack()


def set_setting(get: Callable[[], Any], put: Callable[[Any], Any], value: Any) -> None:
    if get() != value:
        put(value)


def global_hooks() -> list[Any]:
    """Containers of hooks that run for all modules and optimizers, and how tensors are printed."""
    places = ("torch.nn.modules.module", "torch.optim.optimizer")
    hooks = [
        value
        for place in places
        for name, value in vars(sys.modules[place]).items()
        if name.startswith("_global_") and isinstance(value, dict)
    ]
    return [*hooks, torch._tensor_str.PRINT_OPTS]
