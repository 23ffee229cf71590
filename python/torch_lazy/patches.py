"""Every change that torch-lazy makes to PyTorch's own Python code, each with its reason.

`apply` makes all of them, once; `undo_patches` takes them back.

A patch point that another PyTorch does not have is reported in a warning; the rest is applied.
"""

import contextlib
import functools
import importlib
import inspect
import io
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import has_torch_function_unary

from torch_lazy import _C, config, step
from torch_lazy.autocast import with_lazy_name
from torch_lazy.device_context import DeviceContext

_undo = contextlib.ExitStack()
_is_applied = False
_is_drop_in = False


class PatchPointMissing(Exception):
    """This PyTorch does not have what a patch would change."""


# ---- Mixed precision -----------------------------------------------------------------------------


def autocast_state() -> None:
    """torch.autocast("lazy") and the functions around it: PyTorch has no autocast state for lazy.

    The name is mapped to the state that lazy tensors use (see autocast.py). Leaving the outermost
    region also forgets our casts of weights.
    """
    functions = {
        "is_autocast_enabled": with_lazy_name,
        "set_autocast_enabled": with_lazy_name,
        "get_autocast_dtype": with_lazy_name,
        "set_autocast_dtype": with_lazy_name,
        "clear_autocast_cache": _clearing_both_caches,
    }
    for name, make in functions.items():
        original = getattr(torch, name)
        _replace(torch, name, make)
        _replace(torch._C, name, lambda original, name=name: getattr(torch, name))
        _teach_torchscript(original, getattr(torch, name))
    _replace(torch._C, "_is_autocast_available", with_lazy_name)


def _teach_torchscript(original: Any, replacement: Any) -> None:
    """TorchScript knows PyTorch's own functions by their identity."""
    from torch.jit._builtins import _find_builtin, _get_builtin_table, _register_builtin

    operator = _find_builtin(original)
    if operator is not None:
        _register_builtin(replacement, operator)
        _undo.callback(_get_builtin_table().pop, id(replacement))


def _clearing_both_caches(clear_autocast_cache: Callable[[], None]) -> Callable[[], None]:
    def clear() -> None:
        clear_autocast_cache()
        _C.clear_autocast_cache()

    return clear


# ---- Optimizers ----------------------------------------------------------------------------------


def optimizer_devices() -> None:
    """foreach by default, and fused=True and capturable=True accepted, in optimizers on lazy.

    PyTorch keeps lists of device types for these. All of them work on lazy; foreach records a step
    in far fewer operations.
    """
    functions = (
        "_get_foreach_kernels_supported_devices",
        "_get_fused_kernels_supported_devices",
        "_get_capturable_supported_devices",
    )
    found = set()
    for module in _loaded_modules("torch.optim", "torch.utils._foreach_utils"):
        for name in functions:
            if name in vars(module):  # optimizers import them by name
                _replace(module, name, _with_lazy_in_list)
                found.add(name)
    if len(found) < len(functions):
        raise PatchPointMissing(", ".join(set(functions) - found))


def _with_lazy_in_list(devices: Callable[..., list[str]]) -> Callable[..., list[str]]:
    def devices_and_lazy(*args: Any, **kwargs: Any) -> list[str]:
        return [*devices(*args, **kwargs), "lazy"]

    return devices_and_lazy


def step_ends_with_optimizer() -> None:
    """An optimizer's step() ends a step, without a call in the user's program."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    _undo.callback(register_optimizer_step_post_hook(_end_step).remove)


def _end_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    for group in optimizer.param_groups:
        parameters = group["params"]
        if parameters and parameters[0].device.type == "lazy":
            break
    else:
        return
    if torch.compiler.is_compiling():
        return  # traced code has no steps; the caller's next step ends it
    if config.get("step_on_optimizer") != "1":
        return
    if _C.current_scope():
        step.sync(wait=False)  # a step cannot end inside a scope
    else:
        step.mark_step()


# ---- Copies and files ----------------------------------------------------------------------------


def deepcopy() -> None:
    """copy.deepcopy keeps what shares memory sharing it.

    PyTorch clones tensors of devices that have no storages, and lists lazy among them; ours have.
    """
    _replace(torch.Tensor, "__deepcopy__", _without_the_word_lazy)


def make_storages() -> None:
    """torch.UntypedStorage(n, device="lazy"), and with it storage.to("lazy") and storage.clone().

    PyTorch makes storages for a fixed list of devices.
    """
    _replace(torch.UntypedStorage, "__new__", _making_lazy_ones)


def _making_lazy_ones(new: Callable[..., Any]) -> Any:
    def new_storage(cls: Any, *args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        if device is None or torch.device(device).type != "lazy":
            return new(cls, *args, **kwargs)
        size = kwargs["size"] if "size" in kwargs else args[0] if args else 0
        if isinstance(size, int):
            return torch.empty(size, dtype=torch.uint8, device=device).untyped_storage()
        return torch.tensor(size, dtype=torch.uint8, device=device).untyped_storage()

    return staticmethod(new_storage)


def identify_memory() -> None:
    """data_ptr() of lazy tensors and storages: a number that tells one memory from another.

    Programs compare these numbers to find what is shared. In C++ asking for the pointer is an
    error: there is no memory behind it.
    """
    _replace(torch.Tensor, "data_ptr", _numbering_tensors)
    _replace(torch.UntypedStorage, "data_ptr", _numbering_storages)


def _numbering_tensors(data_ptr: Callable[..., int]) -> Callable[..., int]:
    def number(self: torch.Tensor) -> int:
        if has_torch_function_unary(self) or self.device.type != "lazy":
            return data_ptr(self)
        return _C.data_pointer(self)

    return number


def _numbering_storages(data_ptr: Callable[..., int]) -> Callable[..., int]:
    def number(self: torch.UntypedStorage) -> int:
        return _C.storage_pointer(self) if self.device.type == "lazy" else data_ptr(self)

    return number


def read_storages() -> None:
    """untyped_storage()[2:5]: a storage of its own with these bytes.

    PyTorch makes a storage that points into the first one's memory, and ours has no address.
    """
    _replace(torch.UntypedStorage, "__getitem__", _copying_slices)


def _copying_slices(get_item: Callable[..., Any]) -> Callable[..., Any]:
    def get(self: torch.UntypedStorage, index: Any) -> Any:
        if self.device.type != "lazy" or not isinstance(index, slice):
            return get_item(self, index)
        if index.step not in (None, 1):
            raise RuntimeError(
                f"Trying to slice with a step of {index.step}, but only a step of 1 is supported"
            )
        whole = torch.empty(0, dtype=torch.uint8, device=self.device).set_(self)
        return whole[index].clone().untyped_storage()

    return get


def dlpack() -> None:
    """torch.to_dlpack(tensor) and tensor.__dlpack__(): over the memory of the real device."""
    from torch_lazy.dlpack import exporting, exporting_device, packing

    _replace(torch.utils.dlpack, "to_dlpack", packing)
    _replace(torch, "to_dlpack", packing)
    _replace(torch.Tensor, "__dlpack__", exporting)
    _replace(torch.Tensor, "__dlpack_device__", exporting_device)


def generators() -> None:
    """torch.Generator("lazy"): PyTorch makes generators for a fixed list of devices."""
    from torch_lazy.generator import Generator

    _put(torch, "Generator", Generator)


def save_and_load() -> None:
    """torch.save, and torch.load with or without map_location: lazy storages get a location tag.

    A file loads where torch-lazy is not installed, with map_location="cpu".
    """
    torch.serialization.register_package(30, _location_tag, _restore_location)
    registry = torch.serialization._package_registry
    entry = next(row for row in registry if row[1] is _location_tag)
    _undo.callback(registry.remove, entry)


def _location_tag(storage: Any) -> str | None:
    return "lazy" if storage.device.type == "lazy" else None


def _restore_location(storage: Any, location: str) -> Any:
    if location.split(":")[0] != "lazy":
        return None
    return getattr(storage, "_untyped_storage", storage).to(device="lazy")


def plain_pickle() -> None:
    """pickle, and torch.save's old format: they touch a storage's memory, and ours has no address.

    pickle then uses the current format, which copies to the CPU first, as the old format now does.
    """
    _replace(torch.storage._StorageBase, "__reduce__", _reducing_to_zip_file)
    _replace(torch.storage.TypedStorage, "__reduce__", _reducing_to_zip_file)
    _replace(torch.UntypedStorage, "_write_file", _writing_from_the_cpu)
    _replace(torch.UntypedStorage, "_set_from_file", _reading_on_the_cpu)
    _replace(torch.UntypedStorage, "byteswap", _swapping_on_the_cpu)


def _reducing_to_zip_file(reduce: Callable[..., Any]) -> Callable[..., Any]:
    def reduce_storage(self: Any) -> Any:
        if getattr(self, "_untyped_storage", self).device.type != "lazy":
            return reduce(self)
        file = io.BytesIO()
        torch.save(self, file)
        return torch.storage._load_from_bytes, (file.getvalue(),)

    return reduce_storage


def _writing_from_the_cpu(write_file: Callable[..., Any]) -> Callable[..., Any]:
    def write(self: Any, *args: Any) -> Any:
        return write_file(self.cpu() if self.device.type == "lazy" else self, *args)

    return write


def _reading_on_the_cpu(set_from_file: Callable[..., Any]) -> Callable[..., Any]:
    def read(self: Any, *args: Any) -> Any:
        if self.device.type != "lazy":
            return set_from_file(self, *args)
        on_cpu = torch.UntypedStorage(self.nbytes())
        set_from_file(on_cpu, *args)
        return self.copy_(on_cpu)

    return read


def _swapping_on_the_cpu(byteswap: Callable[..., Any]) -> Callable[..., Any]:
    def swap(self: Any, *args: Any) -> Any:
        if self.device.type != "lazy":
            return byteswap(self, *args)
        on_cpu = self.cpu()
        byteswap(on_cpu, *args)
        return self.copy_(on_cpu)

    return swap


def send_to_process() -> None:
    """Lazy tensors in queues and DataLoader workers: sent as CPU memory, lazy again on arrival.

    PyTorch takes every unknown device's memory for the CPU's here, and would crash.
    """
    from multiprocessing.reduction import ForkingPickler

    reducers = ForkingPickler._extra_reducers
    original = reducers[torch.UntypedStorage]

    def reduce_storage(storage: torch.UntypedStorage) -> Any:
        if storage.device.type != "lazy":
            return original(storage)
        return _restore_location, (storage.cpu(), "lazy")

    reducers[torch.UntypedStorage] = reduce_storage
    _undo.callback(reducers.__setitem__, torch.UntypedStorage, original)


# ---- torch.compile -------------------------------------------------------------------------------


def fake_tensors() -> None:
    """torch.compile over lazy tensors: they can be faked like those of any device.

    PyTorch refuses them, because its own lazy tensors have no strides; torch.compile silently runs
    uncompiled. What stands for a lazy tensor in a trace has the index and the autocast key of one.
    """
    from torch._subclasses.fake_tensor import FakeTensor
    from torch._subclasses.functional_tensor import FunctionalTensor
    from torch._subclasses.meta_utils import MetaConverter

    _replace(MetaConverter, "__call__", _without_the_word_lazy)
    _replace(FakeTensor, "__new__", _standing_for_lazy)
    _replace(FunctionalTensor, "__new__", _standing_for_lazy)


def _standing_for_lazy(new: Callable[..., Any]) -> Any:
    def new_tensor(cls: Any, *args: Any, **kwargs: Any) -> Any:
        tensor = new(cls, *args, **kwargs)
        device = tensor.device
        if device.type != "lazy":
            return tensor
        if device.index is None:
            args = tuple(map(_with_index, args))
            kwargs = {name: _with_index(value) for name, value in kwargs.items()}
            tensor = new(cls, *args, **kwargs)
        _C.add_autocast_key(tensor)
        return tensor

    return staticmethod(functools.wraps(new)(new_tensor))


def _with_index(value: Any) -> Any:
    if isinstance(value, torch.device) and value.type == "lazy" and value.index is None:
        return torch.device("lazy", 0)
    return value


# ---- PyTorch's own lazy tensors ------------------------------------------------------------------


def stock_backend_stays_out() -> None:
    """torch._lazy.ts_backend.init() says what to do instead of what it does.

    It would register PyTorch's own kernels for the device lazy over ours, and leave a mixture.
    """
    _replace(torch._C._lazy_ts_backend, "_init", _refusing)


def _refusing(init: Callable[[], None]) -> Callable[[], None]:
    def refuse() -> None:
        raise RuntimeError(
            "The device lazy is torch-lazy's in this process. Call "
            "torch_lazy.install_as_torch_lazy() first, or set TORCH_LAZY_DROP_IN=1, to run "
            "programs written for torch._lazy on it."
        )

    return refuse


def install_as_torch_lazy() -> None:
    """Puts torch-lazy in the place of PyTorch's own lazy tensors.

    Afterwards torch._lazy, and whatever else calls torch._C._lazy and torch._C._lazy_ts_backend,
    works on torch-lazy's tensors, unchanged: every function of these two modules becomes ours. Step
    closures queued through torch._lazy and through torch_lazy are the same ones.

    TORCH_LAZY_DROP_IN=1 in the environment does this at import; undo_patches takes it back. A
    function that was imported from those modules by name before stays what it was.
    """
    global _is_drop_in
    if _is_drop_in:
        return
    _is_drop_in = True
    for ours, theirs in (
        (_C._lazy, torch._C._lazy),
        (_C._lazy_ts_backend, torch._C._lazy_ts_backend),
    ):
        for name in vars(ours):
            if not name.startswith("__"):
                _put(theirs, name, getattr(ours, name))
    from torch._lazy.device_context import DeviceContext as theirs

    for name in ("_CONTEXTS", "_CONTEXTS_LOCK"):
        _put(theirs, name, getattr(DeviceContext, name))
    _replace(torch._C, "_unsafe_reset_storage", _leaving_lazy_alone)


def _leaving_lazy_alone(reset_storage: Callable[..., None]) -> Callable[..., None]:
    """PyTorch's lazy tensors keep a second, functional storage, and ours have none to reset."""

    def reset(tensor: torch.Tensor) -> None:
        if tensor.device.type != "lazy":
            reset_storage(tensor)

    return reset


# ---- torch.distributed ---------------------------------------------------------------------------


def process_groups() -> None:
    """init_process_group("gloo") serves lazy tensors: their collectives are done on real memory."""
    if not torch.distributed.is_available():
        return
    from torch.distributed.distributed_c10d import Backend

    devices = Backend.backend_capability["gloo"]
    if "lazy" not in devices:
        devices.append("lazy")
        _undo.callback(devices.remove, "lazy")


# ---- Applying and undoing ------------------------------------------------------------------------

PATCHES = (
    autocast_state,
    optimizer_devices,
    step_ends_with_optimizer,
    make_storages,
    identify_memory,
    read_storages,
    dlpack,
    generators,
    deepcopy,
    save_and_load,
    plain_pickle,
    send_to_process,
    fake_tensors,
    process_groups,
    stock_backend_stays_out,
)


def apply() -> None:
    """Applies all patches, once."""
    global _is_applied
    if _is_applied:
        return
    _is_applied = True
    for patch in PATCHES:
        try:
            patch()
        except (PatchPointMissing, AttributeError, ImportError, KeyError) as error:
            reason = inspect.getdoc(patch).splitlines()[0]
            warnings.warn(
                f"torch-lazy: PyTorch {torch.__version__} has changed where the patch "
                f"{patch.__name__} applies ({error}). Not available now: {reason}",
                stacklevel=2,
            )


def undo_patches() -> None:
    """Takes all patches back. Lazy tensors still work; what each patch is for does not."""
    global _is_applied, _is_drop_in
    _undo.close()
    _is_applied = _is_drop_in = False


def _replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """owner.name = make(owner.name), and the original back on undo."""
    if not hasattr(owner, name):
        raise PatchPointMissing(f"{getattr(owner, '__name__', owner)}.{name}")
    inherited = isinstance(owner, type) and name not in vars(owner)
    original = inspect.getattr_static(owner, name)
    replacement = make(getattr(owner, name))
    if inspect.isfunction(replacement):
        functools.update_wrapper(replacement, getattr(owner, name))
    setattr(owner, name, replacement)
    if inherited:
        _undo.callback(delattr, owner, name)
    else:
        _undo.callback(setattr, owner, name, original)


def _put(owner: Any, name: str, value: Any) -> None:
    """owner.name = value, also where there was none, and back on undo."""
    if hasattr(owner, name):
        _undo.callback(setattr, owner, name, getattr(owner, name))
    else:
        _undo.callback(delattr, owner, name)
    setattr(owner, name, value)


def _without_the_word_lazy(function: types.FunctionType) -> types.FunctionType:
    """The same function, with "lazy" taken out of the constants it compares device types with."""

    def without(constant: Any) -> Any:
        if constant == "lazy":
            return ""
        if isinstance(constant, (tuple, frozenset)) and "lazy" in constant:
            return type(constant)(item for item in constant if item != "lazy")
        return constant

    code = function.__code__
    constants = tuple(map(without, code.co_consts))
    if constants == code.co_consts:
        raise PatchPointMissing(f"{function.__qualname__} does not mention lazy")
    copy = types.FunctionType(
        code.replace(co_consts=constants),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _loaded_modules(*prefixes: str) -> list[types.ModuleType]:
    for prefix in prefixes:
        importlib.import_module(prefix)
    return [m for name, m in list(sys.modules.items()) if name.startswith(prefixes) and m]
