"""Rows of the compiler's table of operators: fused kernels against eager, and no call left over."""

import dataclasses
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from comparing import DEVICE, Copier, difference

if DEVICE.type != "lazy":
    pytest.skip("a test of the compiler", allow_module_level=True)

import torch_lazy
from torch_lazy import config, metrics

aten = torch.ops.aten
FLOATS = (torch.float32, torch.float64, torch.bfloat16)
# Relative, and relative to the largest element.
CLOSE = {torch.float32: 2e-5, torch.float64: 1e-11, torch.bfloat16: 4e-2, torch.float16: 5e-3}


class Make:
    """Inputs of a case: of one dtype, lying in memory in some way."""

    def __init__(self, dtype, lying):
        self.dtype = dtype
        self.lying = lying

    def lie(self, x):
        if self.lying == "transposed" and x.dim() > 1:
            x = x.transpose(0, -1).contiguous().transpose(0, -1)
        if self.lying == "sliced" and x.dim() > 0:
            x = x.repeat_interleave(2, dim=-1)[..., ::2]
        return x

    def __call__(self, *size, scale=2.0):
        return self.lie(torch.randn(size, dtype=torch.float64).mul(scale).to(self.dtype))

    def positive(self, *size):
        return self.lie(torch.rand(size, dtype=torch.float64).add(0.1).to(self.dtype))

    def unit(self, *size):
        return self.lie(torch.rand(size, dtype=torch.float64).mul(0.9).add(0.05).to(self.dtype))

    def special(self, *values):
        return torch.tensor(values, dtype=self.dtype)

    def ints(self, high, *size, low=0, dtype=torch.long):
        return self.lie(torch.randint(low, high, size, dtype=dtype))


@dataclasses.dataclass
class Case:
    name: str
    call: Callable
    inputs: Callable
    grad: bool = True
    dtypes: tuple = FLOATS
    left: tuple = ()  # operators that may be left to PyTorch


def tensors(tree):
    return [x for x in torch.utils._pytree.tree_leaves(tree) if isinstance(x, torch.Tensor)]


def run(call, args, grad, directions):
    """Results, then gradients of those that depend on floating-point inputs."""
    inputs = [x for x in tensors(args) if x.is_floating_point()]
    if grad:
        for x in inputs:
            x.requires_grad_()
    results = tensors(call(*args))
    outputs = list(results)
    if grad:
        ends = [x for x in results if x.requires_grad]
        if not directions:
            directions += [torch.randn(x.shape).to(x.dtype) for x in ends]
        starts = [d.to(x.device) for d, x in zip(directions, ends, strict=True)]
        outputs += [
            g for g in torch.autograd.grad(ends, inputs, starts, allow_unused=True) if g is not None
        ]
    return outputs


def check(case, dtype, lying):
    args = case.inputs(Make(dtype, lying))
    grad = case.grad and dtype.is_floating_point
    directions = []
    expected = run(case.call, Copier("cpu")(args), grad, directions)
    on_device = Copier(DEVICE)(args)
    directions = [d.to(DEVICE) for d in directions]
    torch_lazy.sync()
    metrics.reset()
    # No plan is kept, so that the one of this run is a new one.
    with config.override(compiler="force", plan_cache=0):
        actual = run(case.call, on_device, grad, directions)
        torch_lazy.sync(wait=True)
    counters = metrics.counters()
    left = [name.removeprefix("CompiledCall_aten::") for name in counters if "CompiledCall" in name]
    assert [name for name in left if name.split(".")[0].rstrip("_") not in case.left] == []
    assert "CompiledRunFailed" not in counters
    assert counters.get("GraphCompiled", 0) > 0
    assert len(actual) == len(expected)
    for i, (want, have) in enumerate(zip(expected, actual, strict=True)):
        close = CLOSE.get(want.dtype, 0.0)
        finite = want.detach().double()
        finite = finite[finite.isfinite()].abs()
        largest = min(finite.max().item(), 1e4) if finite.numel() else 0.0
        how = (close, close * max(largest, 1e-2))
        assert difference(want, have, f"result {i}", close=how) is None


def cases(*list_of_cases):
    """Parameters of a test: every case in every dtype, and in the first of them lying otherwise."""
    params = []
    for i, case in enumerate(list_of_cases):
        for dtype in case.dtypes:
            for lying in ("plain", ("transposed", "sliced")[i % 2]):
                if lying == "plain" or dtype == case.dtypes[0]:
                    name = f"{case.name}-{str(dtype).removeprefix('torch.')}-{lying}"
                    params.append(pytest.param(case, dtype, lying, id=name))
    return pytest.mark.parametrize(("case", "dtype", "lying"), params)


def one(m):
    return (m(5, 7, 3),)


def unary(name, call=None, inputs=one, **more):
    return Case(name, call or getattr(F, name), inputs, **more)


# ---- What is left to PyTorch: shapes that a fused kernel does not know ----

HWC = torch.arange(24.0)
GROUP_NORM = (None, None, 2, 3, 4, 3, 1e-5)  # weight, bias, N, C, HxW, group, eps
ODD_SHAPES = {
    "slice_backward of rows": lambda d: aten.slice_backward(
        torch.randn(1, 4, generator=torch.Generator().manual_seed(0)).to(d), [3, 4], 0, 0, 2, 1
    ),
    "slice_backward of a vector": lambda d: aten.slice_backward(HWC[:4].to(d), [3, 4], 0, 0, 3, 2),
    "slice_backward of a number": lambda d: aten.slice_backward(HWC[1].to(d), [3, 4], 0, 1, 3, 1),
    "select_backward of one": lambda d: aten.select_backward(HWC[3:4].to(d), [3, 4], 0, 1),
    "select_backward of a number": lambda d: aten.select_backward(HWC[3].to(d), [3, 4], 0, 1),
    "group norm of a vector": lambda d: aten.native_group_norm(HWC.to(d), *GROUP_NORM),
    "group norm of rows": lambda d: aten.native_group_norm(HWC.view(6, 4).to(d), *GROUP_NORM),
    "group norm of other sizes": lambda d: aten.native_group_norm(
        HWC.view(4, 3, 2).to(d), *GROUP_NORM
    ),
    "group norm backward of rows": lambda d: aten.native_group_norm_backward(
        HWC.cos().view(6, 4).to(d),
        HWC.view(6, 4).to(d),
        HWC[:6].view(2, 3).to(d),
        HWC[1:7].view(2, 3).to(d),
        None,
        *GROUP_NORM[2:6],
        [True, False, False],
    ),
}


@pytest.mark.parametrize("name", ODD_SHAPES)
def test_odd_shapes(name):
    with config.override(compiler="force", plan_cache=0):
        want, have = tensors(ODD_SHAPES[name]("cpu")), tensors(ODD_SHAPES[name](DEVICE))
        for a, b in zip(want, have, strict=True):
            assert a.shape == b.shape
            torch.testing.assert_close(b.cpu(), a)


# ---- Activations ---------------------------------------------------------------------------------


@cases(
    unary("hardswish"),
    unary("hardsigmoid"),
    unary("mish"),
    unary("elu"),
    unary("elu-parameters", lambda x: F.elu(x, 1.3)),
    unary("elu-inplace", lambda x: F.elu(x * 2, 0.7, inplace=True)),
    unary("selu"),
    unary("celu", lambda x: F.celu(x, 1.7)),
    unary("softplus", lambda x: F.softplus(x, 1.3, 2.0)),
    unary("logsigmoid"),
    unary("hardtanh", lambda x: F.hardtanh(x, -0.7, 1.1)),
    unary("relu6"),
    unary("hardshrink", lambda x: F.hardshrink(x, 0.8)),
    unary("softshrink", lambda x: F.softshrink(x, 0.8)),
    unary("softsign"),
    unary("threshold", lambda x: F.threshold(x, 0.3, 20.0)),
    unary("glu", inputs=lambda m: (m(5, 7, 6),)),
    unary("glu-first", lambda x: F.glu(x, 0), lambda m: (m(6, 5),)),
    Case("prelu", F.prelu, lambda m: (m(4, 5, 3), m(5))),
    Case("prelu-one", F.prelu, lambda m: (m(4, 5), m(1))),
    unary(
        "edges",
        lambda x: [
            F.hardswish(x),
            F.hardsigmoid(x),
            F.relu6(x),
            F.hardshrink(x, 3.0),
            F.softshrink(x, 3.0),
            F.threshold(x, 3.0, 1.0),
            F.elu(x),
            F.mish(x),
        ],
        lambda m: (m.special(-3.0, 3.0, 0.0, -0.0, 6.0, -1e4, 1e4, float("inf"), 0.25),),
        dtypes=(torch.float32, torch.bfloat16),
    ),
)
def test_activations(case, dtype, lying):
    check(case, dtype, lying)


def test_activations_of_nan():
    x = torch.tensor([float("nan"), 1.0, float("nan"), -1.0])
    for call in (F.hardswish, F.hardsigmoid, F.hardshrink, F.softshrink, F.mish, F.logsigmoid):
        check(Case("nan", call, lambda m: (x,), grad=False), torch.float32, "plain")


@pytest.mark.parametrize("size", [1, 5, 40, 200])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_softmax_of_special_numbers(dtype, size):
    inf, nan = float("inf"), float("nan")

    def rows(m):
        x = m(9, size)
        for row, value in enumerate((nan, inf, -inf)):
            x[row, size // 2] = value  # one
            x[3 + row] = value  # all
        x[6] = -inf
        x[6, -1] = nan
        x[7, 0], x[7, -1] = inf, nan
        return (x,)

    def calls(x):
        return [
            call(x, dim)
            for call in (torch.softmax, torch.log_softmax, aten._safe_softmax, torch.logsumexp)
            for dim in (0, 1)
        ]

    check(Case("special", calls, rows, grad=False), dtype, "plain")


# ---- Losses --------------------------------------------------------------------------------------


def two(m):
    return (m(5, 7), m(5, 7))


def losses(name, call, inputs=two, **more):
    return [
        Case(
            f"{name}-{reduction}",
            lambda *args, reduction=reduction: call(*args, reduction=reduction),
            inputs,
            **more,
        )
        for reduction in ("none", "mean", "sum")
    ]


@cases(
    *losses("smooth_l1", F.smooth_l1_loss),
    *losses("smooth_l1-beta", lambda a, b, **k: F.smooth_l1_loss(a, b, beta=0.6, **k)),
    *losses("smooth_l1-zero", lambda a, b, **k: F.smooth_l1_loss(a, b, beta=0.0, **k)),
    *losses("huber", lambda a, b, **k: F.huber_loss(a, b, delta=0.6, **k)),
    *losses("l1", F.l1_loss),
    *losses("mse", F.mse_loss),
    *losses("soft_margin", lambda a, b, **k: F.soft_margin_loss(a, b.detach(), **k)),
    *losses("bce", lambda a, b, **k: F.binary_cross_entropy(a, b.detach().sigmoid(), **k),
            lambda m: (m.unit(5, 7), m(5, 7))),
    *losses("bce-weight", lambda a, b, w, **k: F.binary_cross_entropy(
                a, b.detach().sigmoid(), weight=w.detach(), **k),
            lambda m: (m.unit(5, 7), m(5, 7), m.positive(5, 7))),
    *losses("bce-logits", F.binary_cross_entropy_with_logits,
            lambda m: (m(5, 7), m.unit(5, 7))),
    *losses("bce-logits-weights", lambda a, b, w, p, **k: F.binary_cross_entropy_with_logits(
                a, b.detach(), weight=w.detach(), pos_weight=p.detach(), **k),
            lambda m: (m(5, 7), m.unit(5, 7), m.positive(5, 7), m.positive(7))),
    *losses("kl_div", lambda a, b, **k: F.kl_div(a, b, **k),
            lambda m: (m(5, 7), m.positive(5, 7))),
    *losses("poisson", F.poisson_nll_loss, lambda m: (m(5, 7), m.positive(5, 7))),
    *losses("cross_entropy", F.cross_entropy, lambda m: (m(5, 7), m.ints(7, 5))),
    *losses("cross_entropy-one", F.cross_entropy, lambda m: (m(1, 7), m.ints(7, 1))),
    *losses("cross_entropy-weight", lambda a, t, w, **k: F.cross_entropy(
                a, t, weight=w.detach(), ignore_index=2, **k),
            lambda m: (m(9, 7), m.ints(7, 9), m.positive(7))),
    *losses("cross_entropy-2d", F.cross_entropy, lambda m: (m(3, 7, 4, 5), m.ints(7, 3, 4, 5))),
    *losses("cross_entropy-2d-weight", lambda a, t, w, **k: F.cross_entropy(
                a, t, weight=w.detach(), ignore_index=0, **k),
            lambda m: (m(2, 5, 3, 1), m.ints(5, 2, 3, 1), m.positive(5))),
    *losses("cross_entropy-smooth", lambda a, t, **k: F.cross_entropy(
                a, t, label_smoothing=0.1, **k),
            lambda m: (m(5, 7), m.ints(7, 5))),
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")
def test_losses(case, dtype, lying):
    check(case, dtype, lying)


def test_numbers_out_of_range_raise_as_eager_does():
    x = torch.randn(3, 4).to(DEVICE)
    with config.override(compiler="force"):
        for delta in (0, -1, -0.5):
            with pytest.raises(RuntimeError, match="non-positive values for delta"):
                F.huber_loss(x, x * 2, delta=delta).cpu()
        with pytest.raises(RuntimeError, match="alpha cannot be 0"):
            F.celu(x, 0.0).cpu()


def test_targets_out_of_range_raise_as_eager_does():
    x = torch.randn(3, 4).to(DEVICE)
    with config.override(compiler="force"), pytest.raises(IndexError, match="Target 4 is out of"):
        F.nll_loss(x, torch.tensor([0, 4, 1]).to(DEVICE)).cpu()
    with config.override(compiler="force"), pytest.raises(RuntimeError, match="between 0 and 1"):
        F.binary_cross_entropy(torch.full((3,), 1.5).to(DEVICE), torch.ones(3).to(DEVICE)).cpu()


# ---- Batch, group and other norms ----------------------------------------------------------------


def batch_norm(training, affine=True, statistics=True, momentum=0.1):
    def call(x, w, b, mean, var):
        mean, var = mean.detach() * 1.0, var.detach() * 1.0
        y = F.batch_norm(
            x,
            mean if statistics else None,
            var if statistics else None,
            w if affine else None,
            b if affine else None,
            training,
            momentum,
            1e-4,
        )
        return y, mean, var

    return call


def channels(*size):
    c = size[1]
    return lambda m: (m(*size), m(c), m(c), m(c), m.positive(c))


def channels_last(m):
    x, *rest = channels(3, 6, 5, 4)(m)
    return (x.to(memory_format=torch.channels_last), *rest)


@cases(
    Case("train", batch_norm(True), channels(4, 5, 3, 3)),
    Case("train-2d", batch_norm(True), channels(9, 5)),
    Case("train-3d", batch_norm(True, momentum=0.5), channels(2, 1, 7)),
    Case("train-plain", batch_norm(True, affine=False), channels(4, 5, 3)),
    Case("train-no-statistics", batch_norm(True, statistics=False), channels(4, 5, 3)),
    Case("train-channels-last", batch_norm(True), channels_last),
    Case("train-long", batch_norm(True), lambda m: tuple(
            x.movedim(1, -1).contiguous().movedim(-1, 1) + 3 if x.dim() > 1 else x
            for x in channels(40, 3, 900)(m)), dtypes=FLOATS[:2]),
    Case("eval", batch_norm(False), channels(4, 5, 3, 3)),
    Case("eval-2d", batch_norm(False), channels(9, 5)),
    Case("eval-plain", batch_norm(False, affine=False), channels(4, 5, 3)),
    Case("eval-channels-last", batch_norm(False), channels_last),
    Case("eval-no-grad", batch_norm(False), channels(4, 5, 3, 3), grad=False),
    Case("instance", lambda x: F.instance_norm(x), lambda m: (m(3, 4, 5, 5),)),
)  # fmt: skip
def test_batch_norm(case, dtype, lying):
    check(case, dtype, lying)


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_that_says_it_writes_its_statistics(training):
    legit = Case(
        "legit",
        lambda x, w, b, mean, var: [
            *torch.ops.aten._native_batch_norm_legit(x, w, b, mean, var, training, 0.2, 1e-3),
            mean,
            var,
        ],
        channels(4, 5, 3),
        grad=False,
    )
    check(legit, torch.float32, "plain")


def test_batch_norm_runs_in_parts():
    """Between forward and backward the step ends: also the empty results of eval are there."""
    for training in (True, False):
        results = []
        for device in ("cpu", DEVICE):
            torch.manual_seed(0)
            model = torch.nn.BatchNorm2d(3).train(training)
            x = torch.randn(4, 3, 5, 5)
            model, x = model.to(device), x.to(device).requires_grad_()
            with config.override(compiler="force"):
                y = model(x)
                torch_lazy.sync()
                (y * y).sum().backward()
                results.append([y, x.grad, model.weight.grad, model.running_var])
                torch_lazy.sync()
        for want, have in zip(*results, strict=True):
            torch.testing.assert_close(have.cpu(), want, rtol=1e-4, atol=1e-4)


@cases(
    Case("group", lambda x, w, b: F.group_norm(x, 3, w, b), lambda m: (m(4, 6, 5, 3), m(6), m(6))),
    Case("group-2d", lambda x, w, b: F.group_norm(x, 2, w, b), lambda m: (m(5, 6), m(6), m(6))),
    Case("group-plain", lambda x: F.group_norm(x, 2), lambda m: (m(2, 4, 7),)),
    Case("group-all", lambda x, w: F.group_norm(x, 6, w), lambda m: (m(2, 6, 3, 1), m(6))),
    Case("group-channels-last", lambda x, w, b: F.group_norm(x, 3, w, b).contiguous() * 2,
         lambda m: (m(2, 6, 4, 4).to(memory_format=torch.channels_last), m(6), m(6)), grad=False),
    Case("rms", lambda x, w: F.rms_norm(x, (7,), w), lambda m: (m(5, 7), m(7))),
    Case("layer-plain", lambda x: F.layer_norm(x, (7,)), lambda m: (m(5, 7),)),
)  # fmt: skip
def test_group_norm(case, dtype, lying):
    check(case, dtype, lying)


# ---- Indexing ------------------------------------------------------------------------------------

MOVED = (torch.float32, torch.int64, torch.bool, torch.bfloat16)


def moved(name, call, inputs, **more):
    return Case(name, call, inputs, dtypes=MOVED, **more)


@cases(
    moved("index_select", lambda x, i: x.index_select(0, i), lambda m: (m(5, 7), m.ints(5, 3))),
    moved("index_select-last", lambda x, i: x.index_select(-1, i),
          lambda m: (m(5, 7), m.ints(7, 9, dtype=torch.int32))),
    moved("gather", lambda x, i: x.gather(1, i), lambda m: (m(5, 7), m.ints(7, 4, 3))),
    moved("gather-first", lambda x, i: x.gather(0, i), lambda m: (m(5, 3, 2), m.ints(5, 8, 3, 2))),
    moved("index", lambda x, i: x[i], lambda m: (m(5, 7), m.ints(5, 4, low=-5))),
    moved("index-2d", lambda x, i: x[:, i], lambda m: (m(3, 5, 7), m.ints(5, 2, 4, low=-5))),
    moved("index-two", lambda x, i, j: x[i, j],
          lambda m: (m(5, 7, 3), m.ints(5, 4), m.ints(7, 4, low=-7))),
    moved("index-broadcast", lambda x, i, j: x[i, j],
          lambda m: (m(5, 7), m.ints(5, 4, 1), m.ints(7, 3))),
    moved("index-apart", lambda x, i, j: x[i, :, j],
          lambda m: (m(5, 2, 7), m.ints(5, 4), m.ints(7, 4))),
    moved("index-middle", lambda x, i: x[:, :, i], lambda m: (m(2, 3, 4, 5), m.ints(4, 6))),
    moved("scatter-value", lambda x, i: x.scatter(1, i, 2), lambda m: (m(5, 7), m.ints(7, 5, 1))),
    moved("scatter-src", lambda x, i, s: x.scatter(0, i, s),
          lambda m: (m(5, 7), m.ints(5, 1, 7), m(1, 7))),
    moved("scatter-larger-src", lambda x, i, s: x.scatter(0, i, s),
          lambda m: (m(5, 7), m.ints(5, 1, 7), m(2, 7)), grad=False),
    moved("one_hot", lambda i: F.one_hot(i, 6), lambda m: (m.ints(6, 3, 4),), grad=False),
    moved("max-backward", lambda x: x.max(1)[0], lambda m: (m(5, 7),), grad=True),
    moved("pad", lambda x: F.pad(x, (1, 2), value=1), lambda m: (m(5, 7),)),
    moved("pad-two", lambda x: F.pad(x, (1, -2, 0, 3)), lambda m: (m(2, 5, 7),)),
    moved("pad-cut", lambda x: F.pad(x, (-1, -2, -1, 0)), lambda m: (m(5, 7),)),
    moved("stack", lambda x, y: torch.stack([x, y, x]), lambda m: (m(5, 7), m(5, 7))),
    moved("stack-last", lambda x, y: torch.stack([x, y], -1), lambda m: (m(5, 1), m(5, 1))),
    moved("flip", lambda x: x.flip(0), lambda m: (m(5, 7),)),
    moved("flip-two", lambda x: x.flip(0, -1), lambda m: (m(5, 3, 7),)),
    moved("roll", lambda x: x.roll(2, 1), lambda m: (m(5, 7),)),
    moved("roll-back", lambda x: x.roll(-8, 0), lambda m: (m(5, 7),)),
    moved("repeat", lambda x: x.repeat(2, 3), lambda m: (m(5, 7),)),
    moved("repeat-more", lambda x: x.repeat(2, 1, 3), lambda m: (m(5, 1),)),
    moved("select_scatter", lambda x, y: x.select_scatter(y, 1, -2), lambda m: (m(5, 7), m(5))),
    moved("slice_scatter", lambda x, y: x.slice_scatter(y, 1, 2, 5), lambda m: (m(5, 7), m(5, 3))),
    moved("slice_scatter-step", lambda x, y: x.slice_scatter(y, 0, 1, None, 2),
          lambda m: (m(6, 7), m(3, 7))),
    moved("select-backward", lambda x: x[2] * 1, lambda m: (m(5, 7),)),
    moved("slice-backward", lambda x: x[1:-1, ::3] * 1, lambda m: (m(5, 7),)),
)  # fmt: skip
def test_indexing(case, dtype, lying):
    if not dtype.is_floating_point:
        # The same program over integers or booleans.
        floats = case.inputs

        def inputs(m):
            made = floats(Make(torch.float32, m.lying))
            return tuple(m.lie((x * 3).to(m.dtype)) if x.is_floating_point() else x for x in made)

        case = dataclasses.replace(case, inputs=inputs)
    if case.name.startswith(("max", "select-b", "slice-b")) and dtype == torch.bool:
        pytest.skip("not for booleans")
    check(case, dtype, lying)


def test_indices_out_of_range_raise_as_eager_does():
    x = torch.randn(3, 4).to(DEVICE)
    bad = torch.tensor([0, 3]).to(DEVICE)
    for call in (
        lambda: x.index_select(0, bad),
        lambda: x[bad],
        lambda: x.gather(0, bad.view(2, 1)),
        lambda: x.scatter(1, torch.tensor([[0], [4], [1]]).to(DEVICE), 1.0),
        lambda: x[torch.tensor([-4]).to(DEVICE)],
        lambda: x.index_add(0, bad, x[:2]),
        lambda: x.index_add(0, bad - 1, x[:2]),
        lambda: x.index_put([bad], x[:2], accumulate=True),
        lambda: x.index_put([bad - 4], x[:2], accumulate=True),
        lambda: x.scatter_add(0, bad.view(2, 1), x),
        lambda: x.clone().scatter_add_(0, bad.view(2, 1) - 1, x),
    ):
        with config.override(compiler="force"), pytest.raises((IndexError, RuntimeError)):
            call().cpu()


# ---- Sums at positions ---------------------------------------------------------------------------

NUMBERS = (*FLOATS, torch.float16, torch.int64, torch.int8)


def summed(name, call, inputs, **more):
    return Case(name, call, inputs, dtypes=NUMBERS, **more)


def embedding(**options):
    return lambda w, i: F.embedding(i, w, **options)


def onto(x, change):
    """What `change` leaves in a copy of x that it writes."""
    made = x.clone()
    change(made)
    return made


@cases(
    Case("embedding", embedding(), lambda m: (m(9, 70), m.ints(9, 4, 6))),
    Case("embedding-padding", embedding(padding_idx=-2), lambda m: (m(4, 5), m.ints(4, 3, 7))),
    Case("embedding-one", embedding(), lambda m: (m(4, 5), torch.tensor(2))),
    Case("embedding-int", embedding(), lambda m: (m(9, 3), m.ints(9, 50, dtype=torch.int32))),
    Case("embedding-column", embedding(), lambda m: (m(9, 1), m.ints(9, 50)), left=("embedding",)),
    summed("index_add", lambda x, i, s: x.index_add(0, i, s),
           lambda m: (m(5, 7), m.ints(5, 40), m(40, 7))),
    summed("index_add-alpha", lambda x, i, s: x.index_add(1, i, s, alpha=3),
           lambda m: (m(5, 7, 2), m.ints(7, 9), m(5, 9, 2))),
    summed("index_add-line", lambda x, i, s: x.index_add(0, i, s),
           lambda m: (m(5), m.ints(5, 100), m(100))),
    summed("index_add-view", lambda x, i, s: onto(x, lambda y: y[:, 2:5].index_add_(0, i, s)),
           lambda m: (m(5, 7), m.ints(5, 11), m(11, 3))),
    summed("index_add-constant", lambda x: x.index_add(0, torch.ones(
               9, dtype=torch.long, device=x.device), torch.ones_like(x[:1]).expand(9, 7)),
           lambda m: (m(5, 7),)),
    summed("index_put", lambda x, i, s: x.index_put([i], s, accumulate=True),
           lambda m: (m(5, 7), m.ints(5, 40, low=-5), m(40, 7))),
    summed("index_put-broadcast", lambda x, i, j, s: x.index_put([i, j], s, accumulate=True),
           lambda m: (m(5, 7, 3), m.ints(5, 4, 1), m.ints(7, 6), m(3))),
    summed("index_put-apart", lambda x, i, j, s: aten.index_put(x, [i, None, j], s, True),
           lambda m: (m(5, 2, 7), m.ints(5, 40), m.ints(7, 40), m(40, 2))),
    summed("index_put-middle", lambda x, i, s: aten.index_put(x, [None, i], s, True),
           lambda m: (m(3, 5, 7), m.ints(5, 2, 4), m(3, 2, 4, 7))),
    summed("index_put-all", lambda x, i, s: x.index_put([i, i], s, accumulate=True),
           lambda m: (m(5, 5), m.ints(5, 90), m(90))),
    summed("index_put-one-value", lambda x, i: onto(x, lambda y: y.index_put_(
               [i.expand(6)], torch.ones((), dtype=x.dtype, device=x.device), accumulate=True)),
           lambda m: (m(5, 7), m.ints(5, 1))),
    summed("scatter_add", lambda x, i, s: x.scatter_add(0, i, s),
           lambda m: (m(5, 7), m.ints(5, 9, 7), m(9, 7))),
    summed("scatter_add-larger-src", lambda x, i, s: x.scatter_add(0, i, s),
           lambda m: (m(5, 7), m.ints(5, 9, 6), m(12, 7)), grad=False),
    summed("scatter_add-last", lambda x, i, s: x.scatter_add(-1, i, s),
           lambda m: (m(5, 4, 7), m.ints(7, 5, 3, 20), m(5, 3, 20))),
    summed("scatter_add-one", lambda x, i, s: onto(x, lambda y: y.scatter_add_(1, i, s)),
           lambda m: (m(5, 7), m.ints(7, 5, 1), m(5, 1))),
    summed("scatter_reduce", lambda x, i, s: x.scatter_reduce(0, i, s, "sum"),
           lambda m: (m(5, 7), m.ints(5, 9, 7), m(9, 7))),
)  # fmt: skip
def test_sums_at_positions(case, dtype, lying):
    if not dtype.is_floating_point:
        floats = case.inputs

        def inputs(m):
            made = floats(Make(torch.float32, m.lying))
            return tuple(m.lie((x * 3).to(m.dtype)) if x.is_floating_point() else x for x in made)

        case = dataclasses.replace(case, inputs=inputs)
    check(case, dtype, lying)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_sums_round_as_eagers_do(dtype):
    """In the order of the indices, so to the last bit."""
    g, i = torch.randn(300, 70).to(dtype), torch.randint(0, 5, (300,))
    calls = {
        "embedding": lambda g, i: aten.embedding_dense_backward(g, i, 5, -1, False),
        "index_add": lambda g, i: g[:5].index_add(0, i, g),
        "index_put": lambda g, i: g[:5].index_put([i], g, accumulate=True),
        "scatter_add": lambda g, i: g[:5].scatter_add(0, i.view(-1, 1).expand(-1, 70), g),
        "one column": lambda g, i: g[:5, 0].index_put([i], g[:, 0], accumulate=True),
    }
    for name, call in calls.items():
        with config.override(compiler="force"):
            assert torch.equal(call(g.to(DEVICE), i.to(DEVICE)).cpu(), call(g, i)), name


def test_elements_keep_their_order_beside_other_reductions():
    x, places = torch.randn(64, 64), torch.randint(0, 5, (64, 64))

    def results(x, places):
        sums = torch.zeros(5, device=x.device).index_put_([places], x, accumulate=True)
        return x.t().sum(), x.argmax(), x.t().argmin(), sums

    with config.override(compiler="force"):
        found = results(x.to(DEVICE), places.to(DEVICE))
        torch_lazy.sync(list(found))
    for want, have in zip(results(x, places)[1:], found[1:], strict=True):
        assert torch.equal(have.cpu(), want)


def test_sums_of_nothing():
    x, none = torch.randn(5, 7), torch.empty(0, dtype=torch.long)
    for call in (
        lambda x, i: x.index_add(0, i, x[:0]),
        lambda x, i: x.index_put([i], x[:0], accumulate=True),
        lambda x, i: x.scatter_add(0, i.view(0, 1), x),
        lambda x, i: aten.embedding_dense_backward(x[:0], i, 4, -1, False),
        lambda x, i: x.clone().index_add_(0, i, x[:0]),
    ):
        with config.override(compiler="force"):
            assert torch.equal(call(x.to(DEVICE), none.to(DEVICE)).cpu(), call(x, none))


# ---- Arithmetic ----------------------------------------------------------------------------------


def special_pairs(m):
    values = [0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 1e4, float("inf"), -float("inf"), float("nan")]
    a = torch.tensor(values, dtype=m.dtype)
    return (a.view(-1, 1), a.view(1, -1))


def binary(name, call, inputs=two, **more):
    return [
        Case(name, call, inputs, **more),
        Case(f"{name}-broadcast", call, lambda m: (m(5, 1, 3), m(4, 1)), **more),
        Case(f"{name}-special", call, special_pairs, grad=False,
             dtypes=(torch.float32, torch.float64)),
    ]  # fmt: skip


@cases(
    *binary("floor_divide", torch.floor_divide, grad=False, dtypes=FLOATS[:2]),
    *binary("logaddexp", torch.logaddexp),
    *binary("logaddexp2", torch.logaddexp2, left=("pow",)),
    *binary("xlogy", torch.xlogy),
    *binary("xlog1py", torch.special.xlog1py),
    *binary("fmax", torch.fmax),
    *binary("fmin", torch.fmin),
    *binary("heaviside", torch.heaviside, grad=False),
    unary("floor_divide-number", lambda x: torch.floor_divide(x, 0.3), grad=False,
          dtypes=FLOATS[:2]),
    unary("nan_to_num", lambda x: [torch.nan_to_num(x / 0), torch.nan_to_num(x / 0, 1.5, 2.5, 3.5)],
          lambda m: (m.special(1.0, -1.0, 0.0, 2.0),)),
    unary("nan_to_num-grad", torch.nan_to_num),
    unary("sgn", torch.sgn),
    unary("isposinf", lambda x: [torch.isposinf(x), torch.isneginf(x)],
          lambda m: (m.special(1.0, float("inf"), -float("inf"), float("nan")),), grad=False),
    unary("frac", torch.frac),
    unary("sinc", torch.sinc),
    unary("sinc-zero", torch.sinc, lambda m: (m.special(0.0, 0.5, 1.0),)),
    unary("deg2rad", torch.deg2rad),
    unary("rad2deg", torch.rad2deg),
    unary("logit", torch.logit, lambda m: (m.unit(5, 7),)),
    unary("logit-eps", lambda x: torch.logit(x, 0.2), lambda m: (m(5, 7),)),
    unary("logit-edges", torch.logit, lambda m: (m.special(0.0, 1.0, 0.5),), grad=False),
    unary("entr", torch.special.entr, lambda m: (m.positive(5, 7),)),
    unary("entr-special", torch.special.entr, lambda m: (m.special(0.0, -1.0, 2.0),), grad=False),
)  # fmt: skip
def test_arithmetic(case, dtype, lying):
    check(case, dtype, lying)


@pytest.mark.parametrize(
    "dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64], ids=str
)
def test_shifts(dtype):
    low = 0 if dtype == torch.uint8 else -128
    a = torch.randint(low, 128, (9, 5), dtype=dtype)
    by = torch.tensor([0, 1, 5, 7, 8, 15, 31, 63, 64], dtype=dtype).view(-1, 1)
    shift = Case(
        "shift",
        lambda x, y: [x << y, x >> y, torch.bitwise_left_shift(x, y), x << 2, x >> 1],
        lambda m: (a, by),
    )
    check(shift, dtype, "plain")


def test_integers():
    a, b = torch.randint(-9, 9, (5, 7)), torch.randint(-9, 9, (7,))
    calls = Case(
        "integers",
        lambda x, y: [
            torch.fmax(x, y),
            torch.fmin(x, y),
            torch.sgn(x),
            torch.count_nonzero(x, 1),
            torch.xlogy(x.abs(), y.abs() + 1),
            torch.deg2rad(x),
            *torch.aminmax(x, dim=0),
        ],
        lambda m: (a, b),
    )
    check(calls, torch.int64, "plain")


@cases(
    unary("logsumexp", lambda x: x.logsumexp(1)),
    unary("logsumexp-dims", lambda x: x.logsumexp((0, 2), keepdim=True)),
    unary("logsumexp-infinite", lambda x: x.logsumexp(1),
          lambda m: (m.special(-float("inf"), -float("inf"), float("inf"), 1.0).view(2, 2),),
          grad=False),
    unary("norm", lambda x: x.norm()),
    unary("norm-dim", lambda x: x.norm(dim=1)),
    unary("norm-1", lambda x: x.norm(1, dim=(0, 1), keepdim=True)),
    unary("norm-inf", lambda x: x.norm(float("inf"), dim=2), grad=False),
    unary("norm-minus-inf", lambda x: x.norm(-float("inf"), dim=2), grad=False),
    unary("norm-0", lambda x: x.norm(0, dim=2), grad=False),
    unary("vector_norm", lambda x: torch.linalg.vector_norm(x, 2, 1)),
    unary("vector_norm-dtype", lambda x: torch.linalg.vector_norm(x, dtype=torch.float64),
          dtypes=FLOATS[:2]),
    unary("normalize", lambda x: F.normalize(x)),
    Case("cosine", F.cosine_similarity, two),
    unary("foreach_norm", lambda x: torch._foreach_norm([x, x[0]]), grad=False),
    unary("aminmax", lambda x: [*torch.aminmax(x), *torch.aminmax(x, dim=1, keepdim=True)],
          grad=False),
    unary("count_nonzero", lambda x: [torch.count_nonzero(x.trunc()), (x > 0).count_nonzero(1)],
          grad=False),
    unary("nansum", lambda x: x.sqrt().nansum(1), grad=False),
)  # fmt: skip
def test_over_dimensions(case, dtype, lying):
    check(case, dtype, lying)


@cases(
    unary("cumsum", lambda x: x.cumsum(1), lambda m: (m(3, 200, 5),)),
    unary("cumsum-row", lambda x: (x * 2).cumsum(-1).sin(), lambda m: (m(3, 100),)),
    unary("cumsum-first", lambda x: x.cumsum(0).sum(0), lambda m: (m(50, 4, 5),)),
    unary("cumsum-softmax", lambda x: x.softmax(1).cumsum(1), lambda m: (m(4, 70),)),
    unary("cumsum-flip", lambda x: x.flip(1).cumsum(1).flip(1), lambda m: (m(4, 70),)),
    unary("cumsum-reshape", lambda x: x.cumsum(1).view(4, 7, 10).sum(1), lambda m: (m(4, 70),)),
    unary("cumsum-two", lambda x: x.cumsum(1).cumsum(0) + x.cumsum(0), lambda m: (m(40, 70),)),
    unary("cumsum-one", lambda x: [x.cumsum(1), x[0, 0, 0].cumsum(0)], lambda m: (m(3, 1, 5),)),
    unary("cumsum-dtype", lambda x: x.cumsum(1, dtype=torch.float64), lambda m: (m(3, 64),)),
    unary("cumsum-to-int", lambda x: x.cumsum(1, dtype=torch.int64), lambda m: (m(3, 64),),
          grad=False),
    unary("cumsum-out", lambda x: torch.cumsum(x, 1, out=torch.zeros_like(x)),
          lambda m: (m(5, 64),), grad=False),
    unary("cumsum-in-place", lambda x: x.clone().cumsum_(1), lambda m: (m(5, 64),)),
    unary("cumsum-turned", lambda x: torch.cumsum(x.clone(), 1).t().cumsum(1),
          lambda m: (m(40, 40),)),
    unary("cumprod", lambda x: x.cumprod(0), lambda m: (m.positive(20, 8),), grad=False),
    unary("cumprod-middle", lambda x: x.cumprod(1).sin(), lambda m: (m.positive(3, 9, 8),),
          grad=False),
)  # fmt: skip
def test_scans(case, dtype, lying):
    check(case, dtype, lying)


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64], ids=str
)
def test_scans_of_integers(dtype):
    def calls(x):
        return [
            x.cumsum(1),
            x.cumsum(0),
            x.cumprod(1),
            x.cumsum(0, dtype=torch.int16),
            x.cumsum(1, dtype=torch.float32),
        ]

    case = Case("integers", calls, lambda m: (m.ints(2, 50, 300, dtype=torch.long).to(dtype),))
    check(case, dtype, "plain")


def test_scans_of_special_numbers():
    inf, nan = float("inf"), float("nan")
    values = [1.0, inf, 2.0, -inf, 3.0] + [0.0] * 40 + [nan] + [1.0] * 20

    def calls(x):
        return [x.cumsum(0), x[4:].cumsum(0), x[:3].expand(40, 3).t().cumsum(1)]

    case = Case("special", calls, lambda m: (m.special(*values),), grad=False)
    check(case, torch.float64, "plain")


# Where it does not pay PyTorch's kernel is called: cost.cpp.
@pytest.mark.parametrize(
    ("call", "left"),
    [
        (lambda x: x.view(-1, 8).cumsum(1), 1),
        (lambda x: x.view(-1, 3).cumsum(0), 1),
        (lambda x: x.cumprod(1), 1),
        (lambda x: x.cumsum(1), 0),
        (lambda x: x.cumsum(0), 0),
        (lambda x: x.cumprod(0), 0),
    ],
)
def test_scans_where_they_pay(call, left):
    x = torch.rand(48, 64)
    on_device = x.to(DEVICE)
    torch_lazy.sync()
    metrics.reset()
    with config.override(compiler="force", plan_cache=0):
        have = call(on_device)
        torch_lazy.sync(wait=True)
    assert metrics.counters().get("GraphCalls", 0) == left
    torch.testing.assert_close(have.cpu(), call(x))


# ---- Optimizers ----------------------------------------------------------------------------------

OPTIMIZERS = {
    "adam": lambda p: torch.optim.Adam(p, lr=0.02, fused=True),
    "adam-all": lambda p: torch.optim.Adam(
        p, lr=0.02, betas=(0.4, 0.9), weight_decay=0.1, amsgrad=True, maximize=True, fused=True
    ),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.02, fused=True),
    "adamw-all": lambda p: torch.optim.AdamW(
        p, lr=0.02, eps=1e-3, weight_decay=0.2, amsgrad=True, maximize=True, fused=True
    ),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.03, fused=True),
    "sgd-momentum": lambda p: torch.optim.SGD(p, lr=0.03, momentum=0.9, dampening=0.3, fused=True),
    "sgd-nesterov": lambda p: torch.optim.SGD(
        p, lr=0.03, momentum=0.9, nesterov=True, weight_decay=0.1, maximize=True, fused=True
    ),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.03, fused=True),
    "adagrad-all": lambda p: torch.optim.Adagrad(
        p, lr=0.03, lr_decay=0.2, weight_decay=0.1, initial_accumulator_value=0.5, fused=True
    ),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_fused_optimizers(name, dtype):
    if name.startswith("sgd") and dtype == torch.bfloat16:
        pytest.skip("eager's own kernel is wrong (PyTorch 2.13), and is what runs")
    results = []
    for device in ("cpu", DEVICE):
        torch.manual_seed(0)
        shapes = [(5, 7), (3,), (), (9, 4)]
        params = [torch.randn(s, dtype=dtype).to(device).requires_grad_() for s in shapes]
        params[3] = params[3].detach().t().requires_grad_()
        gradients = [[torch.randn(s, dtype=dtype).to(device) for s in shapes] for _ in range(3)]
        optimizer = OPTIMIZERS[name](params)
        torch_lazy.sync()
        metrics.reset()
        with config.override(compiler="force"):
            for step in gradients:
                for i, (param, gradient) in enumerate(zip(params, step, strict=True)):
                    param.grad = gradient.t() if i == 3 else gradient
                optimizer.step()
        state = [x for s in optimizer.state.values() for x in s.values() if x is not None]
        results.append([*params, *(p.grad for p in params), *state])
    left = [name for name in metrics.counters() if name.startswith("CompiledCall_")]
    assert left == []
    close = CLOSE[dtype]
    for want, have in zip(*results, strict=True):
        torch.testing.assert_close(have.detach().cpu(), want.detach(), rtol=close, atol=close)


# ---- Pooling -------------------------------------------------------------------------------------


def max_pool(*args, **options):
    return lambda x: F.max_pool2d(x, *args, **options, return_indices=True)


POOLS = {
    "resnet": (max_pool(3, 2, 1), (2, 5, 8, 9)),
    "plain": (max_pool(2), (2, 3, 7, 6)),
    "ceil": (max_pool(2, ceil_mode=True), (2, 3, 7, 5)),
    "each place": (max_pool(3, 1, 1), (2, 3, 4, 5)),
    "uneven": (max_pool((2, 3), (1, 2), (1, 0), ceil_mode=True), (3, 8, 10)),
    "wide padding": (max_pool(4, 3, 2, ceil_mode=True), (2, 2, 5, 5)),
    "column": (max_pool((2, 1)), (4, 5, 6, 1)),
    "one": (max_pool(1), (1, 1, 1, 1)),
}


@cases(
    *(Case(name, call, lambda m, shape=shape: (m(*shape),),
           left=("max_pool2d_with_indices_backward",))
      for name, (call, shape) in POOLS.items()),
    Case("chain", lambda x: F.max_pool2d(F.relu(x * 2), 3, 2, 1).exp(),
         lambda m: (m(2, 3, 9, 8, scale=0.5),), left=("max_pool2d_with_indices_backward",)),
)  # fmt: skip
def test_pooling(case, dtype, lying):
    check(case, dtype, lying)


@pytest.mark.parametrize("format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", [name for name in POOLS if len(POOLS[name][1]) == 4])
def test_pooling_of_special_numbers(name, format):
    call, shape = POOLS[name]
    x = torch.randn(shape)
    several = x.masked_fill(x > 0.5, torch.nan).masked_fill(x < -0.5, -torch.inf)
    for given in (several, torch.full(shape, -torch.inf), x.round()):
        given = given.contiguous(memory_format=format)
        with config.override(compiler="force"):
            have = [y.cpu() for y in call(given.to(DEVICE))]
        for mine, eagers in zip(have, call(given), strict=True):
            torch.testing.assert_close(mine, eagers, rtol=0, atol=0, equal_nan=True)
            assert mine.stride() == eagers.stride()


def test_pooling_with_gaps_is_pytorchs():
    x = torch.randn(2, 3, 9, 9)
    gaps = max_pool(3, 1, 1, dilation=2)
    metrics.reset()
    with config.override(compiler="force", plan_cache=0):
        have = [y.cpu() for y in gaps(x.to(DEVICE))]
    assert metrics.counter_value("CompiledCall_aten::max_pool2d_with_indices") == 1
    assert all(mine.equal(eagers) for mine, eagers in zip(have, gaps(x), strict=True))


# ---- Merged with others --------------------------------------------------------------------------


@cases(
    Case("residual", lambda x, w, b, mean, var: F.relu(
            batch_norm(True)(x * 2, w, b, mean, var)[0] + x), channels(4, 5, 3, 3)),
    Case("residual-eval", lambda x, w, b, mean, var: F.relu(
            batch_norm(False)(x * 2, w, b, mean, var)[0] + x), channels(4, 5, 3, 3)),
    Case("group-silu", lambda x, w, b: F.silu(F.group_norm(x + 1, 2, w, b)) * x,
         lambda m: (m(3, 4, 5, 2), m(4), m(4))),
    Case("index-chain", lambda x, i: (x * 2)[i].exp().flip(0) + F.pad(x[:3], (0, 0, 1, 0)),
         lambda m: (m(5, 7, scale=0.5), m.ints(5, 4))),
    Case("stack-sum", lambda x, y: torch.stack([x * 2, y.sin()]).sum(0).roll(1, 0), two),
    Case("loss-chain", lambda x, t: F.cross_entropy(F.mish(x * 2), t) * 3,
         lambda m: (m(6, 7), m.ints(7, 6))),
    Case("scatter-chain", lambda x: F.softmax(x.max(1, keepdim=True)[0] * x, 1),
         lambda m: (m(5, 7),)),
    Case("glu-chain", lambda x: F.glu(x.sin() * 2).exp(), lambda m: (m(5, 6),)),
)  # fmt: skip
def test_merged_with_others(case, dtype, lying):
    check(case, dtype, lying)
