"""Calls that eager refuses whatever the data is: refused at the call, with eager's type. Samples
are those of PyTorch's operator tests, and foreach operators with dtypes that they do not take."""

import re
import warnings

import pytest
import torch
from comparing import DEVICE
from torch.testing._internal.common_methods_invocations import (
    foreach_binary_op_db,
    foreach_other_op_db,
    foreach_pointwise_op_db,
    foreach_reduce_op_db,
    foreach_unary_op_db,
    op_db,
)
from torch.utils._pytree import tree_leaves, tree_map

pytestmark = pytest.mark.skipif(DEVICE.type != "lazy", reason="what is refused at the call")

if DEVICE.type == "lazy":
    import torch_lazy

WITH_ERRORS = [op for op in op_db if op.error_inputs_func is not None]
FOREACH = (
    foreach_unary_op_db
    + foreach_binary_op_db
    + foreach_pointwise_op_db
    + foreach_reduce_op_db
    + foreach_other_op_db
)
DTYPES = (
    torch.bool,
    torch.uint8,
    torch.int64,
    torch.float16,
    torch.float64,
    torch.complex64,
)


DEPENDS_ON_DATA = re.compile(r"is out of bounds for dimension|multinomial|probability tensor")
"""Errors that only a run can find."""


def error_of(call):
    try:
        call()
    except Exception as error:
        return type(error)
    return None


def called(op, value, args, kwargs):
    return op(value, *args, **kwargs)


def read(op, value, args, kwargs):
    tree_map(lambda t: t.cpu(), called(op, value, args, kwargs))


def name_of(op):
    return op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")


def on_device(value):
    """The same arguments on the device, lying in memory as they do here."""
    storages = {}
    tensors = {}

    def moved(item):
        if not isinstance(item, torch.Tensor) or item.device.type == "meta":
            return item
        if id(item) not in tensors:
            tensors[id(item)] = made(item)
        return tensors[id(item)]

    def made(item):
        if item.layout != torch.strided or item.is_quantized:
            return item.to(DEVICE)
        storage = item.untyped_storage()
        key = storage._cdata, item.dtype
        if key not in storages:
            size = storage.nbytes() // item.element_size()
            storages[key] = item.detach().as_strided((size,), (1,), 0).to(DEVICE)
        result = storages[key].as_strided(item.shape, item.stride(), item.storage_offset())
        return result.requires_grad_(item.requires_grad)

    return tree_map(moved, value)


def on_both_devices(value):
    devices = {leaf.device.type for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)}
    return len(devices) > 1


@pytest.mark.parametrize("op", WITH_ERRORS, ids=name_of)
def test_error_inputs(op):
    different = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, sample in enumerate(op.error_inputs("cpu")):
            s = sample.sample_input
            arguments = (s.input, s.args, s.kwargs)
            call = called if not DEPENDS_ON_DATA.search(sample.error_regex or "") else read
            expected, actual = (
                error_of(lambda a=a, call=call: call(op, *a))
                for a in (arguments, on_device(arguments))
            )
            if expected != actual:
                different.append((number, expected, actual))
        for number, sample in enumerate(op.error_inputs("lazy")):
            s = sample.sample_input
            if on_both_devices((s.input, s.args, s.kwargs)):
                actual = error_of(lambda s=s: called(op, s.input, s.args, s.kwargs))
                if actual is not sample.error_type:
                    different.append((number, "mixed devices", sample.error_type, actual))
    assert not different


def converted(sample, base, dtype, device):
    def convert(value):
        if not isinstance(value, torch.Tensor):
            return value
        value = value.detach()
        return (value.to(dtype) if value.dtype == base else value).to(device)

    return tree_map(convert, (sample.input, sample.args, sample.kwargs))


def refused_late(op, base):
    """Dtypes of which eager says at the call that it does not take them, and lazy later."""
    late = []
    sample = next(iter(op.sample_inputs("cpu", base)), None)
    for dtype in DTYPES if sample else ():
        input, args, kwargs = converted(sample, base, dtype, "cpu")
        if error_of(lambda: op(input, *args, **kwargs)) is None:  # noqa: B023
            continue
        input, args, kwargs = converted(sample, base, dtype, "lazy")
        if error_of(lambda: op(input, *args, **kwargs)) is None:  # noqa: B023
            late.append(dtype)
    return late


@pytest.mark.parametrize("op", FOREACH, ids=name_of)
def test_dtypes(op):
    base = torch.float32 if op.supports_dtype(torch.float32, "cpu") else torch.int64
    if not op.supports_dtype(base, "cpu"):
        pytest.skip("takes neither float32 nor int64")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert not refused_late(op, base)


def messages(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(w.message).replace("lazy:0", "cpu") for w in caught]


def x(device, *size, **kwargs):
    return torch.ones(*size, device=device, **kwargs)


WARNINGS = {
    "resized out": lambda d: torch.add(x(d, 3), 1, out=x(d, 2)),
    "resized out of a reduction": lambda d: torch.sum(x(d, 3, 2), 0, out=x(d, 3)),
    "resized out of a matmul": lambda d: torch.mm(x(d, 3, 2), x(d, 2, 3), out=x(d, 2)),
    "resized large out": lambda d: torch.add(x(d, 70000), 1, out=x(d, 2)),
    "resized out of cat": lambda d: torch.cat([x(d, 3), x(d, 3)], out=x(d, 2)),
    "resized out of index_select": lambda d: torch.index_select(
        x(d, 3), 0, x(d, 2, dtype=torch.int64), out=x(d, 1)
    ),
    "var of one": lambda d: x(d, 1).var(),
    "std of one": lambda d: x(d, 3, 1).std(1),
    "var_mean of none": lambda d: torch.var_mean(x(d, 0), 0),
    "sizes of a loss": lambda d: torch.nn.functional.mse_loss(x(d, 2), x(d, 2, 1)),
    "var of many ones": lambda d: x(d, 1, 100000).var(0),
    "std of many ones": lambda d: x(d, 1, 100000).std(0),
    "var_mean of many ones": lambda d: torch.var_mean(x(d, 1, 100000), 0),
    "std_mean with a correction": lambda d: torch.std_mean(x(d, 2, 100000), 0, correction=2),
    "var of many complex ones": lambda d: x(d, 1, 70000, dtype=torch.complex64).var(0),
    "var into a resized result": lambda d: torch.var(x(d, 1, 100000), 0, out=x(d, 3)),
    "two resized results": lambda d: torch.max(
        x(d, 2, 3), 1, out=(x(d, 5), x(d, 5, dtype=torch.int64))
    ),
    "eigenvalues into a resized result": lambda d: torch.linalg.eigvalsh(x(d, 3, 3), out=x(d, 2)),
}


@pytest.mark.parametrize("name", WARNINGS)
def test_warnings(name):
    """Those of eager, at the call, at every call, and not again when the value is computed."""
    expected = messages(lambda: WARNINGS[name]("cpu"))
    results = []
    for _ in range(2):
        assert messages(lambda: results.append(WARNINGS[name]("lazy"))) == expected
    assert messages(lambda: [torch_lazy.sync(), results.clear()]) == []


def test_whether_var_warns_depends_on_the_correction():
    """Two corrections that are alike for most kernels."""
    for correction in (4, 5, 4):
        calls = [lambda d, c=correction: x(d, 5, 20000).var(0, correction=c) for _ in range(2)]
        for call in calls:
            assert messages(lambda: call("lazy")) == messages(lambda: call("cpu"))  # noqa: B023


SIZES = [(), (3,), (0,), (2, 3), (1, 3), (0, 3), (300, 300)]
OUT_SIZES = [(0,), (), (5,), (3,), (2, 3), (2, 0), (300, 300)]
UNARY = ["neg", "abs", "exp", "sqrt", "floor", "sigmoid"]
BINARY = ["add", "sub", "mul", "div", "maximum", "atan2", "remainder", "floor_divide", "pow"]
REDUCTIONS = ["sum", "mean", "prod", "amax", "logsumexp", "var", "std", "cumsum", "norm"]
MATMULS = [
    ("mm", (2, 3), (3, 4)),
    ("mm", (300, 30), (30, 300)),
    ("bmm", (2, 3, 4), (2, 4, 5)),
    ("mv", (2, 3), (3,)),
    ("matmul", (3,), (3,)),
    ("addmm", (2, 2), (2, 3), (3, 2)),
    ("outer", (2,), (3,)),
]
LINALG = ["inv", "det", "cholesky", "eigvalsh", "svdvals"]


def out_calls(out):
    """Names, and functions that call the operator on a device."""

    def called(f, *sizes, **kwargs):
        def call(d):
            arguments = [x(d, s) if isinstance(s, tuple) else s for s in sizes]
            f(*arguments, **kwargs, out=torch.empty(out, device=d))

        return call

    for size in SIZES:
        for name in UNARY:
            yield (name, size), called(getattr(torch, name), size)
        for name in BINARY:
            yield (name, size), called(getattr(torch, name), size, size)
        for name in REDUCTIONS:
            yield (name, size), called(getattr(torch, name), size, dim=-1)
        yield ("add a number", size), called(torch.add, size, 2)
        yield ("clamp", size), called(torch.clamp, size, 0, 1)
    for name, *sizes in MATMULS:
        yield (name, sizes), called(getattr(torch, name), *sizes)
    for name in LINALG:
        f = getattr(torch.linalg, name)
        yield (name, 3), lambda d, f=f: f(torch.eye(3, device=d), out=torch.empty(out, device=d))


def messages_or_error(call):
    try:
        return messages(call)
    except Exception as error:
        return type(error)


@pytest.mark.parametrize("out", OUT_SIZES, ids=str)
def test_warnings_of_results_that_are_given(out):
    """As many as eager gives, with the same words: no trial adds its own."""
    different = []
    for name, call in out_calls(out):
        expected = messages_or_error(lambda: call("cpu"))  # noqa: B023
        actual = messages_or_error(lambda: call("lazy"))  # noqa: B023
        if actual != expected:
            different.append((name, expected, actual))
    assert not different


DEPRECATED = {
    "cholesky": lambda d: torch.cholesky(torch.eye(3, device=d)),
    "large cholesky": lambda d: torch.cholesky(torch.eye(300, device=d)),
    "triangular_solve": lambda d: torch.triangular_solve(x(d, 3, 3), torch.eye(3, device=d)),
}


@pytest.mark.parametrize("name", DEPRECATED)
def test_deprecated_linear_algebra(name):
    torch.set_warn_always(True)
    try:
        expected = messages(lambda: DEPRECATED[name]("cpu"))
        assert len(expected) == 1
        for _ in range(2):
            assert messages(lambda: DEPRECATED[name]("lazy")) == expected
    finally:
        torch.set_warn_always(False)
    DEPRECATED[name]("lazy")  # may be the first of the process
    assert messages(lambda: DEPRECATED[name]("lazy")) == []
    assert messages(lambda: torch_lazy.sync()) == []


@pytest.mark.parametrize("mode", ["0", "1"])
def test_what_kernels_warn_of_in_a_run_passes_the_filters(mode):
    """A worker's warnings come where the program's thread next touches a result."""
    library = torch.library.Library("warning_kernels", "FRAGMENT")
    name = f"warns{mode}"
    library.define(f"{name}(Tensor x) -> Tensor")
    library.impl(name, lambda x: torch.empty_like(x), "Meta")

    def kernel(x):
        return torch.var(x, 0)[None]

    library.impl(name, kernel, "CPU")
    with torch_lazy.config.override(**{"async": mode}):
        result = None

        def call():
            nonlocal result
            result = getattr(torch.ops.warning_kernels, name)(x("lazy", 1))

        assert messages(call) == []
        assert len(messages(lambda: result.cpu())) == 1
        assert messages(torch_lazy.sync) == []


def test_a_warning_of_a_process_is_given_once():
    """A complex number that becomes a real one: eager warns the first time."""
    torch.set_warn_always(True)
    try:
        assert len(messages(lambda: x("lazy", 2, dtype=torch.complex64).float())) == 1
    finally:
        torch.set_warn_always(False)
    assert messages(lambda: torch_lazy.sync()) == []


def test_what_zeros_fail_is_recorded_all_the_same(nothing_pending):
    """Division by zero depends on data: such calls are recorded, and fail when they run."""
    two = x("lazy", 3, dtype=torch.int64) + 1
    zero = two - 2
    quotients = [torch.floor_divide(two, zero), two % zero, torch.fmod(two, zero)]
    assert not torch_lazy.metrics.fallbacks()
    for quotient in quotients:
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            quotient.cpu()
