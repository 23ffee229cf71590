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
