"""User mistakes and the message each gets. None of them harms the device: it works afterwards."""

import re

import pytest
import torch
import torch.nn.functional as F
from comparing import DEVICE
from torch import nn

pytestmark = pytest.mark.skipif(DEVICE.type != "lazy", reason="messages about the device lazy")

if DEVICE.type == "lazy":
    import torch_lazy


def lazy(*size, **kwargs):
    return torch.ones(*size, device="lazy", **kwargs)


BOTH_DEVICES = r"lazy:0.*cpu.*not a lazy tensor|cpu.*lazy:0.*not a lazy tensor"

# name, what is done, the exception, and what its message says
MISTAKES = [
    # Two devices in one call: the message names both.
    ("add of a CPU tensor", lambda: lazy(2) + torch.ones(2), RuntimeError, BOTH_DEVICES),
    ("add to a CPU tensor", lambda: torch.ones(2) + lazy(2), RuntimeError, BOTH_DEVICES),
    (
        "product with a CPU matrix",
        lambda: lazy(2, 2) @ torch.ones(2, 2),
        RuntimeError,
        BOTH_DEVICES,
    ),
    ("product of a CPU matrix", lambda: torch.ones(2, 2) @ lazy(2, 2), RuntimeError, BOTH_DEVICES),
    (
        "cat with a CPU tensor",
        lambda: torch.cat([lazy(2), torch.ones(2)]),
        RuntimeError,
        BOTH_DEVICES,
    ),
    (
        "stack with a CPU tensor",
        lambda: torch.stack([lazy(2), torch.ones(2)]),
        RuntimeError,
        BOTH_DEVICES,
    ),
    (
        "where with a CPU tensor",
        lambda: torch.where(lazy(2) > 0, lazy(2), torch.ones(2)),
        RuntimeError,
        BOTH_DEVICES,
    ),
    ("in-place with a CPU tensor", lambda: lazy(2).add_(torch.ones(2)), RuntimeError, BOTH_DEVICES),
    (
        "foreach with a CPU tensor",
        lambda: torch._foreach_add_([lazy(2)], [torch.ones(2)]),
        RuntimeError,
        BOTH_DEVICES,
    ),
    (
        "out= on the CPU",
        lambda: torch.add(lazy(2), 1, out=torch.ones(2)),
        RuntimeError,
        BOTH_DEVICES,
    ),
    (
        "gather with CPU indices",
        lambda: lazy(2).gather(0, torch.zeros(2).long()),
        RuntimeError,
        BOTH_DEVICES,
    ),
    ("module on the CPU", lambda: nn.Linear(2, 2)(lazy(2, 2)), RuntimeError, BOTH_DEVICES),
    (
        "embedding on the CPU",
        lambda: nn.Embedding(4, 2)(lazy(2).long()),
        RuntimeError,
        BOTH_DEVICES,
    ),
    (
        "labels on the CPU",
        lambda: F.cross_entropy(lazy(2, 3), torch.tensor([0, 1])),
        RuntimeError,
        BOTH_DEVICES,
    ),
    (
        "input on the CPU",
        lambda: nn.Linear(2, 2, device="lazy")(torch.ones(2, 2)),
        RuntimeError,
        BOTH_DEVICES,
    ),
    (
        "convolution weights on the CPU",
        lambda: F.conv1d(lazy(1, 1, 4), torch.ones(1, 1, 2)),
        RuntimeError,
        BOTH_DEVICES,
    ),
    # Things that only a CPU tensor has.
    (
        "numpy()",
        lambda: lazy(2).numpy(),
        TypeError,
        r"can't convert lazy:0 device type tensor to numpy",
    ),
    (
        "a numpy function",
        lambda: __import__("numpy").asarray(lazy(2)),
        TypeError,
        r"can't convert lazy:0",
    ),
    ("pinned memory", lambda: lazy(2).pin_memory(), RuntimeError, r"(?i)pin"),
    (
        "class out of range",
        lambda: F.one_hot(lazy(1).long() * 5, 3).cpu(),
        RuntimeError,
        r"index 5 is out of bounds",
    ),
    (
        "two lazy devices",
        lambda: torch.ones(2, device="lazy:1") + torch.ones(2, device="lazy"),
        RuntimeError,
        r"same device.*lazy:1 and lazy:0",
    ),
    # Kinds of tensors that the device does not hold.
    (
        "sparse tensor to the device",
        lambda: torch.eye(2).to_sparse().to("lazy"),
        NotImplementedError,
        r"(?i)sparse",
    ),
    (
        "sparse result",
        lambda: lazy(2, 2).to_sparse(),
        NotImplementedError,
        r"gives a Sparse tensor.*strided",
    ),
    ("compressed result", lambda: lazy(2, 2).to_sparse_csr(), NotImplementedError, r"(?i)sparse"),
    (
        "sparse factory",
        lambda: torch.sparse_coo_tensor(
            torch.zeros(1, 1).long(), torch.ones(1), (2,), device="lazy"
        ),
        NotImplementedError,
        r"(?i)sparse",
    ),
    (
        "sparse gradient",
        lambda: nn.Embedding(4, 2, sparse=True, device="lazy")(lazy(2).long()).sum().backward(),
        NotImplementedError,
        r"(?i)sparse",
    ),
    (
        "quantized result",
        lambda: torch.quantize_per_tensor(lazy(2), 0.1, 0, torch.qint8),
        NotImplementedError,
        r"(?i)quantize",
    ),
    (
        "nested result",
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], device="lazy"),
        (NotImplementedError, RuntimeError),
        r"(?i)nested",
    ),
    (
        "nested from device tensors",
        lambda: torch.nested.as_nested_tensor([lazy(2), lazy(3)]),
        (NotImplementedError, RuntimeError),
        r"(?i)nested",
    ),
    (
        "mkldnn layout",
        lambda: lazy(2).to_mkldnn(),
        (NotImplementedError, RuntimeError),
        r"(?i)mkldnn",
    ),
    # Settings and the package.
    (
        "unknown setting",
        lambda: torch_lazy.config.set("nothing", 1),
        ValueError,
        r"no setting.*there are",
    ),
    (
        "setting with a wrong value",
        lambda: torch_lazy.config.set("max_nodes", "many"),
        ValueError,
        r"whole number",
    ),
    ("step on another device", lambda: torch_lazy.mark_step("cpu"), RuntimeError, r"cpu"),
    (
        "graph of a CPU tensor",
        lambda: torch_lazy.debug.graph_text(torch.ones(2)),
        RuntimeError,
        r"not a lazy tensor",
    ),
]


@pytest.mark.parametrize(
    ("mistake", "expected", "message"), [m[1:] for m in MISTAKES], ids=[m[0] for m in MISTAKES]
)
def test_mistake(mistake, expected, message):
    with pytest.raises(expected, match=message):
        mistake()
    assert (lazy(2) + 1).tolist() == [2, 2]


def x(device, *size, **kwargs):
    return torch.ones(*size, device=device, **kwargs)


# What eager refuses on any device: the same exception with the same message, at the call.
LIKE_EAGER = {
    "shapes that do not broadcast": lambda d: x(d, 2) + x(d, 3),
    "inner sizes of a product": lambda d: x(d, 2, 3) @ x(d, 2, 3),
    "linear layer": lambda d: nn.Linear(3, 2, device=d)(x(d, 4, 5)),
    "convolution channels": lambda d: nn.Conv2d(3, 4, 3, device=d)(x(d, 1, 2, 8, 8)),
    "dimension out of range": lambda d: x(d, 2, 3).sum(5),
    "view of an impossible size": lambda d: x(d, 6).view(4, 2),
    "view of a transposed tensor": lambda d: x(d, 2, 3).t().view(6),
    "reshape to another count": lambda d: x(d, 6).reshape(5),
    "cat of different sizes": lambda d: torch.cat([x(d, 2, 3), x(d, 2, 2)]),
    "stack of nothing": lambda d: torch.stack([]),
    "expand": lambda d: x(d, 3).expand(2, 4),
    "select out of range": lambda d: x(d, 3)[5],
    "slice of a scalar": lambda d: x(d, [])[0],
    "narrow out of range": lambda d: x(d, 3).narrow(0, 2, 4),
    "permutation": lambda d: x(d, 2, 3).permute(0, 0),
    "squeeze out of range": lambda d: x(d, 2).squeeze(3),
    "integer result in-place": lambda d: x(d, 2, dtype=torch.int64).add_(1.5),
    "integer division in-place": lambda d: x(d, 2, dtype=torch.int64).div_(2),
    "mean of integers": lambda d: x(d, 2, dtype=torch.int64).mean(),
    "float indices": lambda d: x(d, 3)[x(d, 1)],
    "indices of a wrong type": lambda d: x(d, 2, 2).gather(1, x(d, 2, 2)),
    "labels of a wrong type": lambda d: F.cross_entropy(x(d, 2, 3), x(d, 2)),
    "item of many": lambda d: x(d, 2).item(),
    "truth of many": lambda d: bool(x(d, 2)),
    "integer to a negative power": lambda d: x(d, 2, dtype=torch.int64) ** -1,
    "dropout probability": lambda d: F.dropout(x(d, 2), 1.5),
    "standard deviation": lambda d: x(d, 2).normal_(0, -1),
    "range of uniform": lambda d: x(d, 2).uniform_(2, 1),
    "out of a wrong type": lambda d: torch.add(x(d, 2), 1.5, out=x(d, 2, dtype=torch.int64)),
    "in-place on expanded memory": lambda d: x(d, 1).expand(3).add_(1),
    "overlapping sum": lambda d: (lambda t: t[1:].add_(t[:-1]))(x(d, 4)),
    "in-place on a leaf": lambda d: x(d, 2).requires_grad_().add_(1),
    "gradient of integers": lambda d: x(d, 2, dtype=torch.int64).requires_grad_(),
    "backward of many": lambda d: (x(d, 2).requires_grad_() * 2).backward(),
    "backward twice": lambda d: (lambda y: (y.backward(), y.backward()))(
        (x(d, 2).requires_grad_() ** 2).sum()
    ),
    "backward without a graph": lambda d: x(d, 2).sum().backward(),
    "saved value modified": lambda d: (
        lambda a: (lambda b: (b.add_(1), b.sum().backward()))(a.exp())
    )(x(d, 2).requires_grad_()),
    "gradient of a wrong shape": lambda d: (x(d, 2).requires_grad_() * 2).backward(x(d, 3)),
    "grad of a wrong shape": lambda d: setattr(x(d, 2).requires_grad_(), "grad", x(d, 3)),
    "view of another size of type": lambda d: x(d, 3).view(torch.float64),
    "as_strided outside": lambda d: x(d, 3).as_strided((4,), (1,)),
    "unfold": lambda d: x(d, 3).unfold(0, 5, 1),
    "pooling window": lambda d: F.max_pool2d(x(d, 1, 1, 2, 2), 5),
    "negative size": lambda d: torch.zeros(-1, device=d),
    "arange without end": lambda d: torch.arange(0, 5, -1, device=d),
    "multinomial of too many": lambda d: torch.multinomial(x(d, 2), 5),
    "matrix that is not square": lambda d: torch.linalg.inv(x(d, 2, 3)),
    "einsum": lambda d: torch.einsum("ij,jk->ik", x(d, 2, 3), x(d, 2, 3)),
    "batch norm of one value": lambda d: nn.BatchNorm1d(2, device=d)(x(d, 1, 2)),
    "layer norm shape": lambda d: F.layer_norm(x(d, 2, 3), [4]),
    "foreach of different lengths": lambda d: torch._foreach_add([x(d, 2)], [x(d, 2), x(d, 2)]),
    "state of another shape": lambda d: nn.Linear(2, 2, device=d).load_state_dict(
        nn.Linear(3, 2).state_dict()
    ),
    "unknown argument": lambda d: torch.add(x(d, 2), nothing=1),
    # Dtypes that only the kernel refuses, with small tensors and with large ones.
    "product of types": lambda d: x(d, 2, 2) @ x(d, 2, 2, dtype=torch.float64),
    "large product of types": lambda d: x(d, 200, 200) @ x(d, 200, 200, dtype=torch.float64),
    "bitwise of floats": lambda d: x(d, 2) & x(d, 2),
    "bitwise of many floats": lambda d: x(d, 70000) & x(d, 70000),
    "softmax of integers": lambda d: x(d, 2, dtype=torch.int64).softmax(0),
    "comparison of complex numbers": lambda d: x(d, 2, dtype=torch.complex64) < 1,
    "comparison of many complex numbers": lambda d: x(d, 70000, dtype=torch.complex64) < 1,
    "aminmax of complex numbers": lambda d: torch.aminmax(x(d, 2, dtype=torch.complex64)),
    "complex of mixed types": lambda d: torch.complex(x(d, 2), x(d, 2, dtype=torch.float64)),
    "addr of integers with a float": lambda d: torch.addr(
        *(x(d, *s, dtype=torch.int64) for s in ((2, 3), (2,), (3,))), beta=0.5
    ),
    "large addr of integers with a float": lambda d: torch.addr(
        *(x(d, *s, dtype=torch.int64) for s in ((200, 300), (200,), (300,))), beta=0.5
    ),
    "mean into integers": lambda d: torch.mean(x(d, 3), 0, out=x(d, [], dtype=torch.int64)),
    "delta of Huber's loss": lambda d: F.huber_loss(x(d, 2), x(d, 2), delta=-1.0),
    "targets of a margin loss": lambda d: F.multi_margin_loss(
        x(d, 5, 4), x(d, 4, dtype=torch.int64)
    ),
    "targets of a large margin loss": lambda d: F.multi_margin_loss(
        x(d, 500, 400), x(d, 400, dtype=torch.int64)
    ),
    "interpolation of integers": lambda d: F.interpolate(
        x(d, 1, 1, 4, 4, dtype=torch.int64), scale_factor=2, mode="bilinear"
    ),
    "large interpolation of integers": lambda d: F.interpolate(
        x(d, 1, 3, 200, 200, dtype=torch.int64), scale_factor=2, mode="bilinear"
    ),
    "foreach of booleans": lambda d: torch._foreach_neg([x(d, 2, dtype=torch.bool)]),
    "foreach of many booleans": lambda d: torch._foreach_neg([x(d, 70000, dtype=torch.bool)] * 100),
    "foreach of many integers divided in place": lambda d: torch._foreach_div_(
        [x(d, 70000, dtype=torch.int64)] * 100, 2
    ),
    "samples of a fractional pooling": lambda d: F.fractional_max_pool2d(
        x(d, 1, 2, 9, 9), 2, 4, _random_samples=x(d, 1, 3, 2)
    ),
    "no samples of a large fractional pooling": lambda d: F.fractional_max_pool3d(
        x(d, 1, 8, 64, 64, 64), 2, 4, _random_samples=x(d, 0, 8, 3)
    ),
    "approximation of gelu": lambda d: F.gelu(x(d, 2), approximate="other"),
    # A Scalar is no size.
    "celu of integers with a large alpha": lambda d: F.celu(
        x(d, 3, dtype=torch.int32), alpha=2**21
    ),
    "power of a large number into integers": lambda d: torch.pow(
        2**21, x(d, 3), out=x(d, 3, dtype=torch.int32)
    ),
    # Dtypes of linear algebra.
    "eigenvalues of integers": lambda d: torch.linalg.eigvalsh(x(d, 3, 3, dtype=torch.int64)),
    "lu_factor of integers": lambda d: torch.linalg.lu_factor(x(d, 3, 3, dtype=torch.int64)),
    "lu_factor_ex of integers": lambda d: torch.linalg.lu_factor_ex(x(d, 3, 3, dtype=torch.int64)),
    "lu of many integers": lambda d: torch.linalg.lu(x(d, 300, 300, dtype=torch.int64)),
    "cross product of types": lambda d: torch.linalg.cross(x(d, 3), x(d, 3, dtype=torch.half)),
    "large cross product of types": lambda d: torch.linalg.cross(
        x(d, 30000, 3), x(d, 30000, 3, dtype=torch.half)
    ),
    "cross product of booleans": lambda d: torch.cross(
        x(d, 3, dtype=torch.bool), x(d, 3, dtype=torch.bool), dim=0
    ),
    "triangular_solve of booleans": lambda d: torch.triangular_solve(
        x(d, 3, 3, dtype=torch.bool), x(d, 3, 3, dtype=torch.bool)
    ),
    "ormqr of types": lambda d: torch.ormqr(x(d, 3, 3), x(d, 3, dtype=torch.float64), x(d, 3, 3)),
    # Attention.
    "attention with a mask of doubles": lambda d: attention(d, mask=torch.float64),
    "attention with a mask of halves": lambda d: attention(d, mask=torch.half),
    "attention with a mask of integers": lambda d: attention(d, mask=torch.int64),
    "attention of halves with a mask of bfloat16": lambda d: attention(
        d, torch.half, mask=torch.bfloat16
    ),
    "attention with a negative dropout": lambda d: attention(d, dropout_p=-1.0),
    "attention with a large dropout": lambda d: attention(d, dropout_p=1.5),
    "attention of vectors": lambda d: F.scaled_dot_product_attention(x(d, 8), x(d, 8), x(d, 8)),
    "attention of types": lambda d: F.scaled_dot_product_attention(
        x(d, 2, 8), x(d, 2, 8), x(d, 2, 8, dtype=torch.half)
    ),
}


def attention(device, dtype=torch.float32, mask=None, **kwargs):
    q = x(device, 1, 2, 8, 8, dtype=dtype)
    mask = mask and x(device, 8, 8, dtype=mask)
    return F.scaled_dot_product_attention(q, q, q, attn_mask=mask, **kwargs)


def message_of(error):
    """Without the device's name and the lines that torch-lazy adds."""
    text = str(error).split("\n(torch-lazy:")[0].split("\nException raised from")[0]
    text = re.sub(r"Lazy(\w+)Type", r"torch.\1Tensor", text)
    return re.sub(r"lazy(:0)?", "cpu", text).strip()


@pytest.mark.parametrize("name", LIKE_EAGER)
def test_like_eager(name):
    with pytest.raises(Exception) as expected:
        LIKE_EAGER[name]("cpu")
    with pytest.raises(type(expected.value)) as actual:
        LIKE_EAGER[name]("lazy")
    assert message_of(actual.value) == message_of(expected.value)
    assert (lazy(2) + 1).tolist() == [2, 2]


def of(dtype, function):
    """A call with a number, on a small tensor and on a large one."""
    return [
        lambda d, number, size=size: function(x(d, size, dtype=dtype), number)
        for size in (3, 70000)
    ]


# Calls with a number that the dtype can hold, and with one that it cannot.
OVERFLOWS = {
    "masked_fill of halves": (of(torch.half, lambda t, n: t.masked_fill(t > 0, n)), 5.0, 1e30),
    "masked_fill with a CPU tensor": (
        of(torch.half, lambda t, n: t.masked_fill(t > 0, torch.tensor(n))),
        5.0,
        1e30,
    ),
    "fill_ of int8": (of(torch.int8, lambda t, n: t.fill_(n)), 3, 300),
    "fill_ of uint8": (of(torch.uint8, lambda t, n: t.fill_(n)), 3.0, -1.0),
    "fill_ of halves": (of(torch.half, lambda t, n: t.fill_(n)), 5.0, 1e30),
    "fill_ of floats": (of(torch.float32, lambda t, n: t.fill_(n)), 5.0, 1e300),
    "fill_diagonal_": (of(torch.half, lambda t, n: t[:100].diag().fill_diagonal_(n)), 5.0, 1e9),
    "clamp of uint8": (of(torch.uint8, lambda t, n: t.clamp(max=n)), 30, 300),
    "clamp of uint8 to floats": (of(torch.uint8, lambda t, n: t.clamp(max=n)), 1e10, 1e39),
    "clamp of halves": (of(torch.half, lambda t, n: t.clamp(max=n)), 5.0, 1e30),
    "alpha": (of(torch.int8, lambda t, n: torch.add(t, t, alpha=n)), 30, 300),
    "value of addcmul": (
        of(torch.float32, lambda t, n: torch.addcmul(t, t, t, value=n)),
        3.0,
        1e39,
    ),
    "foreach": (
        of(torch.float32, lambda t, n: torch._foreach_addcmul([t], [t], [t], n)),
        3.0,
        1e39,
    ),
    "threshold": (of(torch.half, lambda t, n: F.threshold(t, 0.0, n)), 3.0, 1e9),
    "padding": (of(torch.half, lambda t, n: F.pad(t, (1, 1), value=n)), 3.0, 1e9),
    "new_full": (of(torch.int8, lambda t, n: t.new_full((3,), n)), 3, 300),
    "beta": (of(torch.float32, lambda t, n: torch.addmv(t[:1], t[None], t, beta=n)), 3.0, 1e39),
    "full of a dtype": (
        of(torch.float32, lambda t, n: torch.full((3,), n, dtype=torch.int8, device=t.device)),
        3,
        300,
    ),
}


@pytest.mark.parametrize("name", OVERFLOWS)
def test_a_number_too_large_after_one_that_fits(name):
    """An equal call but for the number was seen before: refused at the call all the same."""
    calls, fits, too_large = OVERFLOWS[name]
    for call in calls:
        with pytest.raises(RuntimeError) as expected:
            call("cpu", too_large)
        for _ in range(2):
            result = call("lazy", fits)
            with pytest.raises(RuntimeError) as actual:
                call("lazy", too_large)
            assert message_of(actual.value) == message_of(expected.value)
            del result


def test_one_half_takes_any_number():
    """As in eager, where one element is written in another way than many."""
    for _ in range(2):
        assert x("lazy", 1, dtype=torch.half).fill_(1e30).tolist() == [float("inf")]
        with pytest.raises(RuntimeError, match="without overflow"):
            x("lazy", 2, dtype=torch.half).fill_(1e30)


def test_a_replay_is_not_given_a_number_too_large():
    """A learning rate of which a replay makes numbers: recorded again, and refused as in eager."""
    parameter = nn.Parameter(torch.ones(3, device="lazy"))
    optimizer = torch.optim.SGD([parameter], lr=0.5)

    @torch_lazy.compile
    def step():
        parameter.grad = torch.ones_like(parameter)
        optimizer.step()

    for i in range(20):
        optimizer.param_groups[0]["lr"] = 0.5 / (i + 1)
        step()
    before = torch_lazy.metrics.counter_value("ReplayExecuted") or 0
    optimizer.param_groups[0]["lr"] = 1e39
    with pytest.raises(RuntimeError, match="without overflow"):
        step()
    assert (torch_lazy.metrics.counter_value("ReplayExecuted") or 0) == before
    optimizer.param_groups[0]["lr"] = 0.5
    step()
    assert torch.isfinite(parameter).all()


# What only data tells: raised when it runs, with eager's message.
WHEN_RUN = {
    "index out of range": lambda d: x(d, 3)[torch.tensor([1, 7], device=d)],
    "index_select out of range": lambda d: x(d, 3).index_select(0, torch.tensor([5], device=d)),
    "gather out of range": lambda d: x(d, 3).gather(0, torch.tensor([5], device=d)),
    "scatter out of range": lambda d: x(d, 3).scatter_(0, torch.tensor([5], device=d), 1.0),
    "write out of range": lambda d: x(d, 3).index_put_(
        (torch.tensor([5], device=d),), torch.tensor(1.0, device=d)
    ),
    "embedding out of range": lambda d: F.embedding(torch.tensor([9], device=d), x(d, 4, 2)),
    "label out of range": lambda d: F.cross_entropy(x(d, 2, 3), torch.tensor([0, 5], device=d)),
    "singular matrix": lambda d: torch.linalg.inv(torch.zeros(2, 2, device=d)),
    "not positive definite": lambda d: torch.linalg.cholesky(-torch.eye(2, device=d)),
    "integer division by zero": lambda d: (
        x(d, 2, dtype=torch.int64) // torch.zeros(2, dtype=torch.int64, device=d)
    ),
    "probabilities out of range": lambda d: torch.bernoulli(x(d, 2) * 3),
    "labels of a binary loss": lambda d: F.binary_cross_entropy(x(d, 2) * 3, x(d, 2)),
    "overlapping copy": lambda d: (lambda t: t[1:].copy_(t[:-1]))(x(d, 4)),
    "repeat_interleave of negative counts": lambda d: x(d, 2).repeat_interleave(
        torch.tensor([-1, 2], device=d)
    ),
}


@pytest.mark.parametrize("name", WHEN_RUN)
def test_when_run(name):
    with pytest.raises(Exception) as expected:
        WHEN_RUN[name]("cpu")
    with pytest.raises(type(expected.value)) as actual:
        WHEN_RUN[name]("lazy").cpu()
    assert message_of(actual.value) == message_of(expected.value)
    assert (lazy(2) + 1).tolist() == [2, 2]


def test_a_failed_run_leaves_the_rest():
    """What does not depend on the failed operator is computed; the error is told once."""
    good = lazy(3) * 2
    bad = lazy(3)[torch.tensor([7], device="lazy")]
    later = lazy(3) * 3
    with pytest.raises(IndexError, match="out of bounds"):
        torch_lazy.sync()
    assert good.tolist() == [2, 2, 2]
    assert later.tolist() == [3, 3, 3]
    del bad
    torch_lazy.sync()


def test_errors_say_where():
    """The operator is named; with source lines kept, the line of the user's code too."""
    index = torch.tensor([7], device="lazy")
    with pytest.raises(IndexError, match=r"raised by aten::index"):
        lazy(3)[index].cpu()
    here = pytest.raises(IndexError, match=r"test_errors\.py")
    with torch_lazy.config.override(source_lines=True), here:
        lazy(3)[index].cpu()


def test_check_mode_raises_at_the_call():
    index = torch.tensor([7], device="lazy")
    with torch_lazy.config.override(check=True), pytest.raises(IndexError):
        lazy(3)[index]


def fails():
    """A call that fails when it runs."""
    return lazy(3)[torch.tensor([7], device="lazy")]


def test_an_error_of_other_code_says_whose_it_is(nothing_pending):
    """Raised where everything runs: the operator is named, and that the code there is innocent."""
    bad = fails()
    with pytest.raises(IndexError, match=r"(?s)raised by aten::index.*not to the code"):
        torch_lazy.sync()
    with pytest.raises(IndexError) as own:  # where its result is read, the code is not innocent
        bad.cpu()
    assert "not to the code" not in str(own.value)


def test_an_error_of_a_reader_says_whose_it_is(nothing_pending):
    """A read runs the pending readers of what it overwrites; one of them fails."""
    x = lazy(3) * 1
    bad = x[torch.tensor([7], device="lazy")]
    x.add_(1)
    with pytest.raises(
        IndexError, match=r"(?s)raised by aten::index.*not to the code.*overwritten"
    ):
        x.cpu()
    assert x.tolist() == [2, 2, 2]
    del bad


def test_an_error_in_the_background_says_whose_it_is(nothing_pending):
    with torch_lazy.config.override(**{"async": "1", "source_lines": True}):
        bad = fails()
        torch_lazy.mark_step()
        there = r"(?s)raised by aten::index.*test_errors\.py:\d+ fails.*not to the code"
        with pytest.raises(IndexError, match=there):
            (lazy(2) + 1).cpu()
            torch_lazy.sync()
        del bad
    assert (lazy(2) + 1).tolist() == [2, 2]
