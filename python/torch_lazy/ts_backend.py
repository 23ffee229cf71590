"""For programs written for torch._lazy, which begin with `torch._lazy.ts_backend.init()`."""

from torch_lazy import _C


def init() -> None:
    """Nothing to do, any number of times: the device is ready when torch_lazy is imported."""
    _C._lazy_ts_backend._init()
