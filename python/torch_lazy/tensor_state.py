"""What a tensor holds, kept so that it can be put back bit by bit."""

from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


class TensorState:
    """A tensor's memory, content, gradient, history and hooks, and whether it wants a gradient."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.inference = tensor.is_inference()
        self.gradient = tensor.grad if tensor.is_leaf or tensor.retains_grad else None
        self.requires_grad = tensor.requires_grad
        self.grad_fn = tensor.grad_fn
        self.hooks = {name: getattr(tensor, name) for name in _TENSOR_HOOKS}
        self.version = 0 if self.inference else tensor._version
        self.alias: torch.Tensor | None = None
        self.value: torch.Tensor | None = None
        self.keeps_history = False
        self.history: torch.Tensor | None = None
        """What leads to the tensor's history if that has to be made again."""
        self._parts: list[_Part] = []
        if tensor.device.type == "meta" or is_traceable_wrapper_subclass(tensor):
            return  # nothing in memory, or all of it in the tensors that are its attributes
        with torch.inference_mode(self.inference), _plain_calls():
            with torch.no_grad():
                self.alias = tensor.detach()
                self._parts = [_Part(part) for part in _dense_parts(self.alias)]
            if self.grad_fn is not None and not tensor._is_view():
                with torch.enable_grad():
                    self.history = tensor.clone()
        if tensor.layout == torch.strided and not tensor.is_nested:
            self.value = self._parts[0].value

    @property
    def lost(self) -> bool:
        """Whether it has a history that it cannot get rid of: that of a view."""
        if self.inference or self.requires_grad or not self.tensor.requires_grad:
            return False
        return self.tensor._is_view() and not self.tensor.is_leaf

    def restore(self) -> None:
        tensor = self.tensor
        with torch.inference_mode(self.inference), _plain_calls(), torch.no_grad():
            self._restore_history()
            if self.alias is not None and not _same_memory(tensor, self.alias):
                tensor.data = self.alias
            for part in self._parts:
                part.restore()
        if tensor.is_leaf and tensor.requires_grad != self.requires_grad:
            tensor.requires_grad_(self.requires_grad)
        if (tensor.is_leaf or tensor.retains_grad) and tensor.grad is not self.gradient:
            tensor.grad = self.gradient
        for name, before in self.hooks.items():
            now = getattr(tensor, name)
            if now is not before:
                if now:
                    now.clear()  # autograd has it, too
                setattr(tensor, name, before)
        if not self.inference:
            # What autograd saved before is what is there again.
            torch._C._autograd._unsafe_set_version_counter((tensor,), (self.version,))

    def _restore_history(self) -> None:
        tensor = self.tensor
        if self.inference or self.keeps_history or tensor._is_view():
            return
        if tensor.grad_fn is self.grad_fn:
            return
        tensor.detach_()
        if self.history is not None:
            with torch.enable_grad():
                tensor.copy_(self.history)


_TENSOR_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


class _Part:
    """A tensor's memory, or one that it is made of, and what it holds."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.alias = tensor
        self.value = tensor.clone()
        self.nbytes = tensor.untyped_storage().nbytes()
        # Elements that share memory cannot be written one by one, by the program neither.
        self.writable = torch._debug_has_internal_overlap(tensor) != 1

    def restore(self) -> None:
        storage = self.alias.untyped_storage()
        # Memory on the device lazy does not shrink (docs/compile.md).
        if storage.nbytes() != self.nbytes and self.alias.device.type != "lazy":
            storage.resize_(self.nbytes)
        if self.writable:
            self.alias.copy_(self.value)


def _dense_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    if tensor.is_nested:
        return [tensor.values()]
    if tensor.layout == torch.strided:
        return [tensor]
    if tensor.layout == torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return []


def _plain_calls() -> Any:
    """Calls without the functions of subclasses, which may be the program's."""
    return torch._C.DisableTorchFunctionSubclass()


def _same_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.layout != b.layout or a.dtype != b.dtype or a.is_nested != b.is_nested:
        return False
    if not a.is_nested and a.shape != b.shape:
        return False
    if a.is_nested or a.layout != torch.strided:
        if a.layout == torch.sparse_coo and a.is_coalesced() != b.is_coalesced():
            return False
        return all(map(_same_memory, _dense_parts(a), _dense_parts(b)))
    return (
        a.untyped_storage()._cdata == b.untyped_storage()._cdata
        and a.storage_offset() == b.storage_offset()
        and a.stride() == b.stride()
        and a.is_conj() == b.is_conj()
        and a.is_neg() == b.is_neg()
    )
