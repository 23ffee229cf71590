"""What the tests share: the device under test, arguments copied to it as they lie in memory, and
comparison with eager, bit by bit.
"""

import os
import traceback

import torch
from torch.utils import _pytree as pytree

# TORCH_LAZY_TEST_DEVICE=cpu runs eager against eager: a test of the tests.
DEVICE = torch.device(os.environ.get("TORCH_LAZY_TEST_DEVICE", "lazy"))
if DEVICE.type == "lazy":
    import torch_lazy

# Fused kernels round otherwise than eager does: then results are compared within these, relative
# to the element and to the tensor's largest one.
COMPILED = os.environ.get("TORCH_LAZY_COMPILER", "off") != "off"
TOLERANCES = {torch.float64: 1e-5, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 4e-2}


def replayed():
    """How many calls were replayed so far."""
    return torch_lazy.metrics.counter_value("Replayed") or 0


class Copier:
    """Copies trees of arguments to a device.

    Kept: strides, offset, bytes outside a view, shared storages, identity, conj and neg bits,
    requires_grad. The device among arguments (`device="cpu"`) becomes the target. With `pending`,
    values are still to be computed by a recorded operator.
    """

    def __init__(self, device, pending=False):
        self.device = torch.device(device)
        self.pending = pending
        self.bases = {}
        self.copies = {}
        self.keep = []  # the originals: their ids are the keys

    def __call__(self, tree):
        return pytree.tree_map(self.leaf, tree)

    def leaf(self, x):
        if isinstance(x, torch.Tensor):
            if id(x) not in self.copies:
                self.keep.append(x)
                self.copies[id(x)] = self.tensor(x)
            return self.copies[id(x)]
        if isinstance(x, torch.nn.Module):
            assert not x.state_dict(), "modules with state are not copied"
        if isinstance(x, torch.device) or (isinstance(x, str) and x == "cpu"):
            return self.device if torch.device(x).type == "cpu" else x
        return x

    def tensor(self, x):
        if x.layout != torch.strided or x.is_quantized:
            return x.detach().clone().to(self.device).requires_grad_(x.requires_grad)
        storage = x.untyped_storage()
        with torch.no_grad():
            base = self.bases.get(storage._cdata)
            if base is None:
                self.keep.append(storage)
                whole = storage.nbytes() // x.element_size()
                base = x.new_empty(0).set_(storage, 0, (whole,), (1,))
                base = base.clone().to(self.device)
                if self.pending:
                    base = base.clone()
                self.bases[storage._cdata] = base
            if base.dtype != x.dtype:
                base = base.view(x.dtype)
        y = base.as_strided(x.size(), x.stride(), x.storage_offset())
        if x.is_conj():
            y = y.conj()
        if x.is_neg():
            y = torch._neg_view(y)
        return y.detach().requires_grad_(x.requires_grad)


def on_cpu(x):
    """A CPU tensor with x's values, conj and neg resolved."""
    return x.detach().cpu().resolve_conj().resolve_neg()


def bits_differ(a, b):
    """Which elements of two CPU tensors differ: NaN equals NaN, 0.0 does not equal -0.0."""
    if a.is_complex():
        a, b = torch.view_as_real(a), torch.view_as_real(b)
    if not a.is_floating_point():
        return a != b
    if COMPILED and a.dtype in TOLERANCES:
        tolerance = TOLERANCES[a.dtype]
        wide, other = a.to(torch.float64), b.to(torch.float64)
        finite = wide[wide.isfinite()].abs()
        largest = min(finite.max().item(), 1e4) if finite.numel() else 0.0
        return ~torch.isclose(
            other, wide, rtol=tolerance, atol=tolerance * max(largest, 0.5), equal_nan=True
        )
    as_integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    differ = a.view(as_integers) != b.view(as_integers)
    if differ.any():
        differ &= ~(a.to(torch.float64).isnan() & b.to(torch.float64).isnan())
    return differ


def layout_of(x):
    return {
        "dtype": x.dtype,
        "size": tuple(x.size()),
        "stride": x.stride(),
        "storage_offset": x.storage_offset(),
        "conj": x.is_conj(),
        "neg": x.is_neg(),
        "requires_grad": x.requires_grad,
    }


def tensor_difference(expected, actual, path, values=True, close=None):
    if type(expected) is not type(actual):
        return f"{path}: {type(expected).__name__} expected, {type(actual).__name__} found"
    if expected.layout != actual.layout:
        return f"{path}: layout {expected.layout} expected, {actual.layout} found"
    if actual.device.type != DEVICE.type:
        return f"{path}: on device {actual.device}"
    if expected.layout != torch.strided or expected.is_quantized:
        return f"{path}: cannot compare {expected.layout}, quantized {expected.is_quantized}"
    want, have = layout_of(expected), layout_of(actual)
    wrong = [f"{k} {have[k]} instead of {want[k]}" for k in want if want[k] != have[k]]
    if wrong:
        return f"{path}: " + ", ".join(wrong)
    if not values:
        actual.cpu()
        return None
    a, b = on_cpu(expected), on_cpu(actual)
    if close is not None:
        try:
            torch.testing.assert_close(b, a, rtol=close[0], atol=close[1], equal_nan=True)
            return None
        except AssertionError as error:
            return f"{path}: {error}"
    differ = bits_differ(a, b)
    if differ.any():
        where = tuple(differ.nonzero()[0].tolist())
        at = where[: a.dim()]
        return (
            f"{path}: {int(differ.sum())} of {differ.numel()} elements differ, first at {at}: "
            f"{b[at].item()!r} instead of {a[at].item()!r} (size {tuple(a.shape)}, {a.dtype})"
        )
    return None


def difference(expected, actual, path="result", values=True, close=None):
    """What first differs between eager's results and the device's, as text; None if nothing."""
    if isinstance(expected, torch.Tensor) or isinstance(actual, torch.Tensor):
        if not (isinstance(expected, torch.Tensor) and isinstance(actual, torch.Tensor)):
            return f"{path}: {expected!r} expected, {actual!r} found"
        return tensor_difference(expected, actual, path, values, close)
    if isinstance(expected, (list, tuple)) and not isinstance(expected, torch.Size):
        if type(expected) is not type(actual) or len(expected) != len(actual):
            return f"{path}: {expected!r} expected, {actual!r} found"
        pairs = [(f"{path}[{i}]", expected[i], actual[i]) for i in range(len(expected))]
    elif isinstance(expected, dict):
        if type(expected) is not type(actual) or list(expected) != list(actual):
            return f"{path}: keys {list(expected)} expected, {list(actual)} found"
        pairs = [(f"{path}[{k!r}]", expected[k], actual[k]) for k in expected]
    else:
        same = type(expected) is type(actual) and (
            expected == actual or (expected != expected and actual != actual)
        )
        if COMPILED and close is None:
            close = (TOLERANCES[torch.float32], 0)
        if not same and close is not None and isinstance(expected, (float, complex)):
            same = abs(expected - actual) <= close[1] + close[0] * abs(expected)
        if not same and isinstance(expected, torch.device):
            same = actual.type == DEVICE.type
        return None if same else f"{path}: {expected!r} expected, {actual!r} found"
    for where, e, a in pairs:
        found = difference(e, a, where, values, close)
        if found:
            return found
    return None


def tensors_in(*trees):
    return [x for x in pytree.tree_leaves(trees) if isinstance(x, torch.Tensor)]


def aliasing(tensors):
    """Which tensors share a storage: for each, the index of the first with the same one."""
    first = {}
    return [
        first.setdefault(x.untyped_storage()._cdata, i) if x.layout == torch.strided else -1
        for i, x in enumerate(tensors)
    ]


class Raised:
    """An exception as a result, without the frames that would keep its tensors alive."""

    def __init__(self, error):
        self.type = type(error)
        self.message = str(error)
        self.where = "".join(traceback.format_tb(error.__traceback__)[-2:])

    def __repr__(self):
        return f"{self.type.__name__}: {self.message[:400]}"


def outcome(function, *args, seed=None, **kwargs):
    """What a call gives: its result, or Raised."""
    if seed is not None:
        torch.manual_seed(seed)
    try:
        return function(*args, **kwargs)
    except Exception as error:
        return Raised(error)
