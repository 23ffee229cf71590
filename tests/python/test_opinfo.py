"""PyTorch's operator database (OpInfo) on the device against eager: values bit by bit, dtype, size,
strides, offset, aliasing.

One test per operator and kind: `pytest tests/python/test_opinfo.py -k softmax`. What is not
compared bit by bit stands in opinfo_exceptions.py. A summary gives the totals.
"""

import contextlib
import os
import random
import re
import warnings

import pytest
import torch
from comparing import DEVICE, Copier, Raised, aliasing, difference, outcome, tensors_in
from opinfo_exceptions import EXCEPTIONS, exception_for
from torch.testing._internal import common_methods_invocations as database
from torch.testing._internal.autograd_function_db import autograd_function_db
from torch.testing._internal.custom_op_db import custom_op_db

if DEVICE.type == "lazy":
    import torch_lazy

SEED = 1234

# A few operators have thousands of samples (max_pool2d). Every sample runs in forward float32; the
# other kinds take this many, evenly spread, unless TORCH_LAZY_TEST_ALL_SAMPLES is set.
SAMPLES = None if "TORCH_LAZY_TEST_ALL_SAMPLES" in os.environ else 50


def name_of(op):
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


FOREACH = (
    database.foreach_unary_op_db
    + database.foreach_binary_op_db
    + database.foreach_pointwise_op_db
    + database.foreach_reduce_op_db
    + database.foreach_other_op_db
)
OPERATORS = {
    name_of(op): op for op in database.op_db + FOREACH + custom_op_db + autograd_function_db
}
assert len(OPERATORS) == sum(
    map(len, (database.op_db, FOREACH, custom_op_db, autograd_function_db))
)


def operators(condition):
    return [name for name, op in OPERATORS.items() if condition(op)]


def supports(op, dtype):
    return dtype in op.supported_dtypes("cpu")


def samples_of(op, dtype, requires_grad=False, limit=SAMPLES):
    torch.manual_seed(SEED)
    random.seed(SEED)
    try:
        samples = list(op.sample_inputs("cpu", dtype, requires_grad=requires_grad))
    except RuntimeError:  # the database lists types that its own samples cannot be made of
        return []
    if limit is None or len(samples) <= limit:
        return samples
    return [samples[i * len(samples) // limit] for i in range(limit)]


def describe(sample):
    def show(x):
        if isinstance(x, torch.Tensor):
            layout = x.stride() if x.layout == torch.strided else x.layout
            return f"tensor({tuple(x.shape)}, {layout}, {x.dtype})"
        if isinstance(x, (list, tuple)):
            return "[" + ", ".join(map(show, x)) + "]"
        return repr(x)

    arguments = [show(sample.input), *map(show, sample.args)]
    return ", ".join(arguments + [f"{k}={show(v)}" for k, v in sample.kwargs.items()])


class Comparison:
    """Runs samples of one operator on both devices and says how the operator stands."""

    def __init__(self, name, kind, record_property):
        self.name, self.kind = name, kind
        self.exception = exception_for(name, kind)
        how = self.exception.how if self.exception else None
        self.values = how != "layout"
        self.close = self.exception.close if how == "close" else None
        self.refused = how == "refused"
        self.compared = 0
        self.errors = []  # on samples that eager refuses too
        self.problems = []
        self.refusals = 0
        self.status = how or "equal"
        self.record_property = record_property

    def run(self, function, sample, pending=False):
        """Compares function(input, args, kwargs) on copies of the sample for each device."""
        if self.status == "not run":
            return
        results = []
        for device in ("cpu", DEVICE):
            arguments = outcome(self.copies, sample, Copier(device, pending))
            if isinstance(arguments, Raised):
                results.append((arguments, None))
                continue
            # Factories that say no device make their result on the default one.
            default = contextlib.nullcontext() if tensors_in(arguments) else torch.device(device)
            with warnings.catch_warnings(), default:
                warnings.simplefilter("ignore")
                results.append((outcome(function, *arguments, seed=SEED), arguments))
        (expected, before), (actual, after) = results
        found = self.judge(expected, before, actual, after)
        if found:
            self.problems.append(f"{found}\n    for {describe(sample)}")

    def copies(self, sample, copy):
        others = Copier("cpu") if self.status == "on cpu" else copy
        return copy(sample.input), others(sample.args), others(dict(sample.kwargs))

    def judge(self, expected, expected_arguments, actual, actual_arguments):
        if isinstance(expected, Raised):
            self.errors.append(expected)
            if not isinstance(actual, Raised):
                # Errors that depend on data come when the values are computed.
                actual = outcome(lambda: [x.cpu() for x in tensors_in(actual, actual_arguments)])
            if not isinstance(actual, Raised):
                return f"no error, eager raises {expected!r}"
            if not issubclass(actual.type, expected.type):
                return f"{actual!r} instead of {expected!r}"
            return None
        if isinstance(actual, Raised):
            if self.refused and re.search(self.exception.message, actual.message):
                self.refusals += 1
                return None
            return f"raises {actual!r}"
        self.compared += 1
        try:
            found = difference(expected, actual, "result", self.values, self.close)
            if not found and self.status != "on cpu":
                found = difference(
                    expected_arguments, actual_arguments, "argument", self.values, self.close
                )
        except Exception as error:
            return f"raises when it is read: {type(error).__name__}: {error}"
        if found:
            return found
        want = aliasing(tensors_in(expected, expected_arguments))
        have = aliasing(tensors_in(actual, actual_arguments))
        return (
            None if want == have else f"aliasing {have} instead of {want} (results, then arguments)"
        )

    def finish(self):
        if self.status == "not run":
            self.record_property("opinfo", (self.kind, self.status))
            return
        if self.status == "on cpu":
            self.status = "equal"
        if not self.compared and not self.refusals:
            self.status = "eager refuses"
        self.record_property("opinfo", (self.kind, self.status))
        if self.problems:
            rest = len(self.problems) - 3
            more = f"\n... and {rest} more" if rest > 0 else ""
            pytest.fail("\n".join(self.problems[:3]) + more, pytrace=False)
        if self.refused:
            stale = self.compared and not self.refusals
            assert not stale, "the exception is not needed: nothing was refused"


@pytest.fixture(autouse=True)
def random_samples(monkeypatch):
    """The database's wrapper of random operators asks the original lazy runtime to mark a step."""
    if DEVICE.type == "lazy":
        monkeypatch.setattr(torch, "_lazy", torch_lazy, raising=False)


def forward_of(op):
    return lambda x, args, kwargs: op(x, *args, **kwargs)


FORWARD = [
    (dtype, name)
    for dtype in (torch.float32, torch.bfloat16, torch.complex64, torch.int64, torch.bool)
    for name in operators(lambda op, dtype=dtype: supports(op, dtype))
]


def short(dtype):
    return str(dtype).removeprefix("torch.")


def with_dtype(cases):
    return pytest.mark.parametrize("dtype,name", cases, ids=[f"{short(d)}-{n}" for d, n in cases])


@with_dtype(FORWARD)
def test_forward(dtype, name, record_property):
    op = OPERATORS[name]
    comparison = Comparison(name, f"forward {short(dtype)}", record_property)
    limit = None if dtype == torch.float32 else SAMPLES
    for sample in samples_of(op, dtype, limit=limit):
        comparison.run(forward_of(op), sample)
    comparison.finish()


GRADIENT = operators(
    lambda op: op.supports_autograd and torch.float32 in op.supported_backward_dtypes("cpu")
)


def gradients_of(op, process):
    def gradients(x, args, kwargs):
        inputs = [t for t in tensors_in(x, args, kwargs) if t.requires_grad]
        outputs = tensors_in(process(op(x, *args, **kwargs)))
        outputs = [t for t in outputs if t.requires_grad]
        generator = torch.Generator().manual_seed(SEED)
        cotangents = [
            torch.randn(t.shape, generator=generator, dtype=t.dtype).to(t.device) for t in outputs
        ]
        return outputs, torch.autograd.grad(outputs, inputs, cotangents, allow_unused=True)

    return gradients


@pytest.mark.parametrize("name", GRADIENT)
def test_gradient(name, record_property):
    op = OPERATORS[name]
    comparison = Comparison(name, "gradient float32", record_property)
    for sample in samples_of(op, torch.float32, requires_grad=True):
        comparison.run(gradients_of(op, sample.output_process_fn_grad), sample, pending=True)
    comparison.finish()


INPLACE = operators(lambda op: op.get_inplace() is not None and supports(op, torch.float32))


@pytest.mark.parametrize("name", INPLACE)
def test_inplace(name, record_property):
    op = OPERATORS[name]
    inplace = op.get_inplace()

    def write(x, args, kwargs):
        result = inplace(x, *args, **kwargs)
        assert isinstance(x, (list, tuple)) or result is x
        return result

    comparison = Comparison(name, "in-place float32", record_property)
    for sample in samples_of(op, torch.float32):
        comparison.run(write, sample, pending=True)
    comparison.finish()


OUT = operators(lambda op: op.supports_out and op not in FOREACH and supports(op, torch.float32))


def right_size(x):
    return torch.full_like(x, 1, memory_format=torch.contiguous_format)


def empty(x):
    return x.new_empty(0)


def wrong_size(x):
    return x.new_ones([n + 1 for n in x.shape] or [2])


def strided(x):
    """Every second element of memory, dimensions in reverse order."""
    order = list(reversed(range(x.dim())))
    base = x.new_ones([x.shape[d] for d in order] + [2])
    back = [order.index(d) for d in range(x.dim())]
    return base.select(-1, 1).permute(back)


def wrong_dtype(x):
    return torch.ones_like(x, dtype=torch.float64 if x.dtype.is_floating_point else torch.int16)


def with_out(op, make):
    def call(x, args, kwargs):
        with torch.random.fork_rng():
            shapes = op(x, *args, **kwargs)
        if isinstance(shapes, torch.Tensor):
            out = make(shapes)
        else:
            out = type(shapes)([make(t) for t in shapes])
            out = tuple(out) if isinstance(shapes, tuple) else out
        storages = [t.untyped_storage()._cdata for t in tensors_in(out)]
        result = op(x, *args, **kwargs, out=out)
        assert storages == [t.untyped_storage()._cdata for t in tensors_in(out)]
        for written, returned in zip(tensors_in(out), tensors_in(result), strict=True):
            assert written is returned
        return result, out

    return call


@pytest.mark.parametrize("name", OUT)
@pytest.mark.parametrize("make", [right_size, empty, wrong_size, strided, wrong_dtype])
def test_out(make, name, record_property):
    op = OPERATORS[name]
    comparison = Comparison(name, f"out= {make.__name__}", record_property)
    for sample in samples_of(op, torch.float32, limit=SAMPLES and SAMPLES // 3):
        comparison.run(with_out(op, make), sample)
    comparison.finish()


STRIDED = operators(
    lambda op: supports(op, torch.float32) and op.name in {o.name for o in database.op_db}
)


@pytest.mark.parametrize("name", STRIDED)
def test_noncontiguous(name, record_property):
    op = OPERATORS[name]
    comparison = Comparison(name, "non-contiguous float32", record_property)
    for sample in samples_of(op, torch.float32):
        if not any(x.layout != torch.strided for x in tensors_in(sample.input, sample.args)):
            sample = sample.noncontiguous()
        comparison.run(forward_of(op), sample, pending=True)
    comparison.finish()


ERRORS = operators(lambda op: getattr(op, "error_inputs_func", None) is not None)


@pytest.mark.parametrize("name", ERRORS)
def test_error(name, record_property):
    """What eager refuses is refused, with an error of the same kind."""
    op = OPERATORS[name]
    comparison = Comparison(name, "errors", record_property)
    torch.manual_seed(SEED)
    for error_input in op.error_inputs("cpu"):
        comparison.run(forward_of(op), error_input.sample_input)
    if comparison.errors:
        comparison.compared += 1
    comparison.finish()


def test_exceptions_name_operators():
    for entry in EXCEPTIONS:
        unknown = [name for name in entry.operators if name not in OPERATORS]
        assert not unknown, f"{unknown} are not in the database"
        assert entry.reason
