"""What Python code keeps for a device, such as the closures that wait for the end of a step."""

import threading
from typing import Any, ClassVar

from torch_lazy import _C


class DeviceContext:
    """A bag of attributes that belong to one device."""

    _CONTEXTS: ClassVar[dict[str, "DeviceContext"]] = {}
    _CONTEXTS_LOCK = threading.Lock()

    def __init__(self, device: str) -> None:
        self.device = device


def get_device_context(device: Any = None) -> DeviceContext:
    """The one context of the device of this name; by default of the device that does the work."""
    name = _C._lazy._get_default_device_type() if device is None else str(device)
    with DeviceContext._CONTEXTS_LOCK:
        if name not in DeviceContext._CONTEXTS:
            DeviceContext._CONTEXTS[name] = DeviceContext(name)
        return DeviceContext._CONTEXTS[name]
