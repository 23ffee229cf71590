"""`torch.lazy`: what PyTorch and its users ask of a device's module.

There is one lazy device. Random numbers, memory pools and capabilities are those of the device that
does the work; functions that wait really run what is recorded.
"""

import os
import sys
import time
from typing import Any, NamedTuple

import torch

from torch_lazy import _C

_initialized = True
"""Checkpointing looks at this before it saves and restores the random state."""

_is_in_bad_fork = False

Device = torch.device | str | int | None


def register() -> None:
    """Makes this module `torch.lazy`."""
    module = sys.modules[__name__]
    if getattr(torch, "lazy", None) is not module:
        torch._register_device_module("lazy", module)


# ---- Devices -----------------------------------------------------------------------------------


def is_available() -> bool:
    return _C.device_count() > 0


def is_initialized() -> bool:
    return True


def init() -> None:
    """Nothing to do: the device is ready when torch_lazy is imported."""


def device_count() -> int:
    return _C.device_count()


def current_device() -> int:
    return 0


def set_device(device: Device) -> None:
    """Accepts the device that there is, and refuses any other."""
    _index(device)


class device:
    """`with torch.lazy.device(0):` accepts the device that there is, and refuses any other."""

    def __init__(self, device: Device) -> None:
        self.idx = _index(device)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exception: Any) -> None:
        pass


class device_of(device):
    """`with torch.lazy.device_of(tensor):` the tensor's device, if it is lazy."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__(tensor.device if tensor.device.type == "lazy" else None)


def real_device() -> torch.device:
    """The device that does the work: the CPU, or a CUDA device (setting TORCH_LAZY_DEVICE)."""
    return torch.device(_C.real_device())


class DeviceProperties(NamedTuple):
    name: str
    real_device: torch.device
    total_memory: int


def get_device_properties(device: Device = None) -> DeviceProperties:
    _index(device)
    real = real_device()
    if real.type == "cuda":
        total = torch.cuda.get_device_properties(real).total_memory
    else:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return DeviceProperties(get_device_name(device), real, total)


def get_device_name(device: Device = None) -> str:
    _index(device)
    real = real_device()
    worker = torch.cuda.get_device_name(real) if real.type == "cuda" else str(real)
    return f"torch-lazy on {worker}"


def is_bf16_supported(including_emulation: bool = True) -> bool:
    if real_device().type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation)
    return True


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.bfloat16, torch.float16]


# ---- Waiting -----------------------------------------------------------------------------------


def synchronize(device: Device = None) -> None:
    """Runs everything that is recorded and returns when it is done."""
    _index(device)
    _C.mark_step("", True)
    _C.wait_device_ops()
    real = real_device()
    if real.type == "cuda":
        torch.cuda.synchronize(real)


class Stream:
    """The one queue of the device: work runs in the order of the program."""

    def __init__(self, device: Device = None, priority: int = 0, **unused: Any) -> None:
        self.device = torch.device("lazy", _index(device))
        self.device_index = self.device.index
        self.device_type = "lazy"
        self.stream_id = 0

    def synchronize(self) -> None:
        synchronize(self.device)

    def query(self) -> bool:
        return _C.pending_nodes() == 0

    def wait_event(self, event: "Event") -> None:
        """What was recorded before the event runs before what comes now, as always."""

    def wait_stream(self, stream: "Stream") -> None:
        """As for wait_event: the order of the program is the order of execution."""

    def record_event(self, event: "Event | None" = None) -> "Event":
        event = Event() if event is None else event
        event.record(self)
        return event

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *exception: Any) -> None:
        pass

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.device == self.device

    def __hash__(self) -> int:
        return hash((Stream, self.device))

    def __repr__(self) -> str:
        return f"<torch.lazy.Stream device={self.device}>"


class Event:
    """A point in the program. One that measures time runs what was recorded before it."""

    def __init__(self, enable_timing: bool = False, **unused: Any) -> None:
        self.enable_timing = enable_timing
        self._time: float | None = None
        self._recorded = False

    def record(self, stream: Stream | None = None) -> None:
        self._recorded = True
        if self.enable_timing:
            synchronize()
            self._time = time.perf_counter()

    def wait(self, stream: Stream | None = None) -> None:
        """Work recorded later runs later anyway."""

    def synchronize(self) -> None:
        if self._recorded:
            synchronize()

    def query(self) -> bool:
        return not self._recorded or _C.pending_nodes() == 0

    def elapsed_time(self, end: "Event") -> float:
        """Milliseconds between two events made with enable_timing=True."""
        if self._time is None or end._time is None:
            raise RuntimeError(
                "elapsed_time: both events must be made with enable_timing=True and recorded"
            )
        return (end._time - self._time) * 1000.0


def current_stream(device: Device = None) -> Stream:
    return Stream(device)


def default_stream(device: Device = None) -> Stream:
    return Stream(device)


def set_stream(stream: Stream) -> None:
    """There is one stream, and it is set."""


def stream(stream: Stream | None) -> Stream:
    """`with torch.lazy.stream(s):` there is one stream; work keeps the order of the program."""
    return stream or Stream()


# ---- Random numbers: the generator of the device that does the work ------------------------------


def manual_seed(seed: int) -> None:
    if real_device().type == "cuda":
        torch.cuda.manual_seed_all(seed)
    else:
        torch.default_generator.manual_seed(seed)


manual_seed_all = manual_seed


def seed() -> int:
    """Seeds from the system's source of randomness and returns the seed."""
    if real_device().type == "cuda":
        torch.cuda.seed_all()
        return torch.cuda.initial_seed()
    return torch.default_generator.seed()


def seed_all() -> None:
    seed()


def initial_seed() -> int:
    if real_device().type == "cuda":
        return torch.cuda.initial_seed()
    return torch.default_generator.initial_seed()


def get_rng_state(device: Device = None) -> torch.Tensor:
    _index(device)
    real = real_device()
    if real.type == "cuda":
        return torch.cuda.get_rng_state(real)
    return torch.default_generator.get_state()


def set_rng_state(new_state: torch.Tensor, device: Device = None) -> None:
    _index(device)
    real = real_device()
    if real.type == "cuda":
        torch.cuda.set_rng_state(new_state, real)
    else:
        torch.default_generator.set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    return [get_rng_state()]


def set_rng_state_all(new_states: list[torch.Tensor]) -> None:
    for state in new_states:
        set_rng_state(state)


# ---- Memory --------------------------------------------------------------------------------------


def memory_allocated(device: Device = None) -> int:
    """Bytes that lazy tensors hold on the device that does the work."""
    _index(device)
    return _C.memory_allocated()


def max_memory_allocated(device: Device = None) -> int:
    """The most that was held since the start, or since reset_peak_memory_stats()."""
    _index(device)
    return _C.max_memory_allocated()


def reset_peak_memory_stats(device: Device = None) -> None:
    _index(device)
    _C.reset_peak_memory()


def memory_reserved(device: Device = None) -> int:
    """Bytes taken from the system: PyTorch's allocator for CUDA keeps a pool, the CPU's none."""
    real = real_device()
    if real.type == "cuda":
        return torch.cuda.memory_reserved(real)
    return memory_allocated(device)


def max_memory_reserved(device: Device = None) -> int:
    real = real_device()
    if real.type == "cuda":
        return torch.cuda.max_memory_reserved(real)
    return max_memory_allocated(device)


def memory_stats(device: Device = None) -> dict[str, int]:
    return {
        "allocated_bytes.all.current": memory_allocated(device),
        "allocated_bytes.all.peak": max_memory_allocated(device),
        "reserved_bytes.all.current": memory_reserved(device),
        "reserved_bytes.all.peak": max_memory_reserved(device),
    }


def empty_cache() -> None:
    """Gives back what the real device's allocator keeps for later; on the CPU it keeps nothing."""
    if real_device().type == "cuda":
        torch.cuda.empty_cache()


def _index(device: Device) -> int:
    if device is None:
        return 0
    device = torch.device("lazy", device) if isinstance(device, int) else torch.device(device)
    if device.type != "lazy":
        raise ValueError(f"expected a lazy device, got {device}")
    if (device.index or 0) >= _C.device_count():
        raise RuntimeError(
            f"there is no device {device}: the number of lazy devices is {_C.device_count()}"
        )
    return device.index or 0
