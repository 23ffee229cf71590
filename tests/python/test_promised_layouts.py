"""Sizes and strides that are promised when a call is recorded, where eager's own Meta kernels or
composite operators would promise something else.
"""

import pytest
import torch
import torch.nn.functional as F
from comparing import DEVICE, Copier, difference


def both(call, *args):
    """What differs between eager and the device, the second time too: then it is a cached call."""
    for _ in range(2):
        found = difference(call(*Copier("cpu")(args)), call(*Copier(DEVICE)(args)))
        if found:
            return found
    return None


def test_number_in_tensor():
    def call(x):
        out = torch.empty(0, dtype=torch.bool, device=x.device)
        return torch.isin(3, x), torch.isin(7, x, invert=True), torch.isin(3, x, out=out).shape

    assert both(call, torch.arange(4)) is None


@pytest.mark.parametrize(
    ("shape", "memory_format"),
    [((2, 4, 3, 5), torch.channels_last), ((2, 4, 3, 5, 2), torch.channels_last_3d)],
)
def test_group_norm_keeps_channels_last(shape, memory_format):
    x = torch.randn(shape).to(memory_format=memory_format).requires_grad_()
    weight, bias = torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True)

    assert both(lambda x, w, b: F.group_norm(x, 2, w, b), x, weight, bias) is None
    assert both(lambda x: F.group_norm(x, 4), x.detach()) is None

    def gradients(device):
        leaves = [t.detach().clone().to(device).requires_grad_() for t in (x, weight, bias)]
        return torch.autograd.grad(F.group_norm(leaves[0], 2, *leaves[1:]).square().sum(), leaves)

    # PyTorch's formula looks at the device's name, and takes another kernel than on the CPU.
    for want, have in zip(gradients("cpu"), gradients(DEVICE), strict=True):
        torch.testing.assert_close(have.cpu(), want)


def test_group_norm_refuses_what_eager_refuses():
    for shape, groups in (((2, 3, 4), 2), ((2, 4), 0)):
        for device in ("cpu", DEVICE):
            with pytest.raises(RuntimeError, match="Expected"):
                torch.group_norm(torch.ones(shape, device=device), groups)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (1, 2, 3, 0), (3, 2, 1, 0), (0, 1, 3, 2)])
@pytest.mark.parametrize("channels", [1, 4])
def test_max_pool3d_without_a_batch(order, channels):
    x = torch.randn(channels, 6, 4, 8)
    back = [order.index(d) for d in range(4)]
    x = x.permute(order).contiguous().permute(back).requires_grad_()

    def call(x):
        y, indices = F.max_pool3d(x, 2, return_indices=True)
        return y, indices, torch.autograd.grad(y.square().sum(), x)

    assert both(call, x) is None


def test_attention_without_an_output_gradient():
    layer = torch.nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    layer = layer.double().to(DEVICE)
    x = torch.randn(2, 3, 4, dtype=torch.double).to(DEVICE).requires_grad_()
    assert torch.autograd.gradcheck(layer, (x,))


def in_columns(shape, dtype=torch.float32):
    return torch.randn(shape[::-1]).permute(*reversed(range(len(shape)))).to(dtype)


TWO_ORDERS = {
    "rsub": torch.rsub,
    "rsub alpha": lambda a, b: torch.rsub(a, b, alpha=2),
    "soft_margin_loss": lambda a, b: F.soft_margin_loss(a, b, reduction="none"),
    "huber_loss": lambda a, b: F.huber_loss(a, b, reduction="none"),
    "native_dropout_backward": lambda a, b: torch.ops.aten.native_dropout_backward(a, b, 2.0),
    "soft_margin_loss gradient": lambda a, b: torch.ops.aten.soft_margin_loss_backward(
        torch.ones_like(a), a, b, 0
    ),
}
DTYPES = (torch.float32, torch.float64, torch.float16)


@pytest.mark.parametrize("name", TWO_ORDERS)
def test_strides_and_dtypes_of_two_operands(name):
    """Operands that lie in different orders, of different dtypes."""
    shape = (3, 4)
    for first in DTYPES:
        for second in DTYPES:
            a, b = torch.randn(shape).to(first), in_columns(shape, second)
            assert both(TWO_ORDERS[name], a, b) is None, (first, second)
            assert both(TWO_ORDERS[name], b, a) is None, (second, first)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("loss", [F.huber_loss, F.soft_margin_loss])
def test_losses_of_mixed_dtypes(loss, reduction):
    def call(x, target):
        return loss(x, target, reduction=reduction)

    for first in DTYPES:
        for second in DTYPES:
            x, target = torch.randn(3, 4).to(first), torch.randn(3, 4).to(second)
            assert both(call, x, target) is None, (first, second)


def test_addr_of_a_scalar():
    vectors = torch.randn(2), torch.randn(3)
    for dtype in DTYPES:
        for shape in ((), (1,), (3,), (2, 1), (2, 3)):
            assert both(torch.addr, torch.ones(shape, dtype=dtype), *vectors) is None


def test_dropout_backward_of_a_mask_with_a_dtype():
    for dtype in (*DTYPES, torch.bool, torch.int64):
        for grad in (torch.randn(4, 3), in_columns((4, 3)), torch.arange(12).reshape(4, 3)):
            mask = torch.ones(4, 6, dtype=dtype)[:, ::2]
            call = torch.ops.aten.native_dropout_backward
            assert both(lambda g, m: call(g, m, 2.0), grad, mask) is None  # noqa: B023


def test_log_sigmoid_backward_of_a_larger_buffer():
    call = torch.ops.aten.log_sigmoid_backward
    assert both(call, torch.randn(3), torch.randn(3), torch.rand(2, 3)) is None


def test_factories_that_compute_on_a_device():
    calls = [
        lambda d: torch.kaiser_window(5, device=d),
        lambda d: torch.kaiser_window(5, periodic=False, device=d),
        lambda d: torch.kaiser_window(5, periodic=False, beta=3.0, device=d),
        lambda d: torch.kaiser_window(1, device=d),
        lambda d: torch.ops.aten.kaiser_window.out(5, out=torch.empty(0, device=d)),
        lambda d: torch.ops.aten.range.out_(1, 4, out=torch.empty(0, device=d)),
        lambda d: torch.range(1, 4, device=d),
    ]
    for call in calls:
        assert both(call, "cpu") is None


def test_batch_norm_without_an_update():
    x, zeros, ones = torch.randn(2, 3, 4), torch.zeros(3), torch.ones(3)
    call = torch.ops.aten._batch_norm_no_update
    assert both(lambda *args: call(*args, 0.1, 1e-5)[:3], x, ones, zeros, zeros, ones) is None
