"""Mixed precision: torch_lazy.autocast, and how the name "lazy" reaches PyTorch's autocast state.

PyTorch keeps autocast's state (on or off, data type) per device type, and has none for lazy. Lazy
tensors use the state and the dispatch key of "ipu", a device that is no longer made.
"""

import functools
import threading
from typing import Any

import torch

from torch_lazy import _C

STATE = "ipu"
"""The device type whose autocast state is ours."""

_thread = threading.local()


def default_dtype() -> torch.dtype:
    """What eager uses on the device that does the work."""
    return torch.get_autocast_dtype(torch.device(_C.real_device()).type)


def state_for(device_type: str) -> str:
    """The device type under which PyTorch keeps the state; for all but lazy, itself."""
    if device_type != "lazy":
        return device_type
    if not getattr(_thread, "has_dtype", False):
        # The state is per thread, and starts with another device's default.
        _thread.has_dtype = True
        torch.set_autocast_dtype(STATE, default_dtype())
    return STATE


class autocast(torch.autocast):
    """`torch.autocast("lazy", ...)`: a context manager or decorator for mixed precision.

    Operators run in the type that eager's autocast chooses on the device that does the work.

    Args:
        dtype: torch.bfloat16 or torch.float16; by default what eager uses (bfloat16 on the CPU).
        enabled: False switches autocast off inside a region where it is on.
        cache_enabled: whether a weight that is used twice is cast once.
    """

    def __init__(
        self,
        dtype: torch.dtype | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        if isinstance(dtype, str):
            raise TypeError(
                f"torch_lazy.autocast is for the device lazy and takes no device type; "
                f"for other devices: torch.autocast({dtype!r})"
            )
        super().__init__(state_for("lazy"), dtype, enabled, cache_enabled)

    def __exit__(self, *exception: Any) -> bool | None:
        try:
            return super().__exit__(*exception)
        finally:
            if not torch.is_autocast_enabled(STATE):
                _C.clear_autocast_cache()


def _is_lazy(device_type: Any) -> bool:
    """Also with an index, as programs have it that pass a device as text."""
    return isinstance(device_type, str) and device_type.split(":")[0] == "lazy"


def with_lazy_name(function: Any) -> Any:
    """A function of a device type, made to understand "lazy"."""

    @functools.wraps(function)
    def mapped(*args: Any, **kwargs: Any) -> Any:
        if args and _is_lazy(args[0]):
            args = (state_for("lazy"), *args[1:])
        elif _is_lazy(kwargs.get("device_type")):
            kwargs["device_type"] = state_for("lazy")
        return function(*args, **kwargs)

    return mapped
