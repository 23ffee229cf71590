"""`torch.Generator("lazy")`: a generator of the device that does the work, by the name of lazy."""

from typing import Any

import torch

from torch_lazy import _C

_Generator = torch._C.Generator


class _LazyGenerator(_Generator):
    """Draws what a generator of the real device draws, and says that it is on lazy."""

    def __new__(cls, device: torch.device) -> "_LazyGenerator":
        generator = super().__new__(cls, torch.device(_C.real_device()))
        generator._index = device.index or 0
        return generator

    @property
    def device(self) -> torch.device:
        return torch.device("lazy", self._index)

    def __reduce__(self) -> Any:
        return _restore, (self.device, self.get_state())

    def clone_state(self) -> "_LazyGenerator":
        return _restore(self.device, self.get_state())


def _restore(device: torch.device, state: torch.Tensor) -> "_LazyGenerator":
    return _LazyGenerator(device).set_state(state)


class _ByDevice(type(_Generator)):
    """Makes generators of each device's own class; PyTorch's class has a fixed list of devices."""

    def __call__(cls, device: Any = "cpu") -> torch.Generator:
        device = torch.device(device)
        return _LazyGenerator(device) if device.type == "lazy" else _Generator(device)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, _Generator)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, _Generator)


class Generator(_Generator, metaclass=_ByDevice):
    __doc__ = _Generator.__doc__
