"""linear is one differentiable operator on lazy, several on the CPU: same bits and strides, forward
and backward, whatever the shapes, strides and gradients asked for."""

import itertools

import pytest
import torch

SHAPES = [(4,), (3, 4), (2, 3, 4), (2, 2, 3, 4), (1, 4), (5, 1, 4), (0, 4), (33, 4)]


def in_layouts(shape):
    """Tensors of this shape that lie differently in memory."""
    tensors = [torch.randn(shape)]
    if len(shape) >= 2:
        tensors += [
            torch.randn(*shape[:-2], shape[-1], shape[-2]).mT,
            torch.randn(shape[::-1]).permute(*reversed(range(len(shape)))),
            torch.randn(*shape[:-1], shape[-1] * 2)[..., ::2],
        ]
    return tensors


def copy_to(device, tensor, dtype, requires_grad):
    copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=dtype, device=device)
    return copy.copy_(tensor).requires_grad_(requires_grad)


def results(device, tensors, dtype, requires_grad):
    leaves = [
        None if t is None else copy_to(device, t, dtype, grad)
        for t, grad in zip(tensors, requires_grad, strict=True)
    ]
    y = torch.nn.functional.linear(*leaves)
    wanted = [t for t in leaves if t is not None and t.requires_grad]
    grads = torch.autograd.grad(y, wanted, torch.full_like(y, 0.7)) if wanted else ()
    return [(t.detach().cpu(), t.stride()) for t in (y, *grads)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bits_and_strides_are_eagers(shape, dtype):
    torch.manual_seed(0)
    weights = [torch.randn(5, 4), torch.randn(4, 5).t(), torch.randn(5, 8)[:, ::2], torch.randn(4)]
    for x, w, biased in itertools.product(in_layouts(shape), weights, (True, False)):
        if biased and w.dim() == 1 and len(shape) > 1:
            continue  # eager refuses it
        bias = torch.randn(w.shape[:-1]) if biased else None
        for requires_grad in itertools.product((True, False), repeat=3):
            eager = results("cpu", (x, w, bias), dtype, requires_grad)
            lazy = results("lazy", (x, w, bias), dtype, requires_grad)
            for (expected, stride), (value, lazy_stride) in zip(eager, lazy, strict=True):
                assert stride == lazy_stride, (x.stride(), w.stride(), biased, requires_grad)
                assert torch.equal(expected, value), (x.stride(), w.stride(), biased, requires_grad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_forward_mode_and_double_backward(dtype):
    def run(device):
        torch.manual_seed(0)
        x, w, b = (torch.randn(s, dtype=dtype).to(device) for s in ((3, 4), (5, 4), (5,)))
        f = torch.nn.functional.linear
        _, tangent = torch.func.jvp(lambda v: f(v, w, b), (x,), (torch.ones_like(x),))
        batched = torch.vmap(lambda v: f(v, w, b))(torch.stack([x, x]))
        w.requires_grad_()
        (first,) = torch.autograd.grad(f(x, w, b).pow(3).abs().sum(), w, create_graph=True)
        (second,) = torch.autograd.grad(first.abs().sum(), w)
        return [t.detach().cpu() for t in (tangent, batched, first, second)]

    for expected, value in zip(run("cpu"), run("lazy"), strict=True):
        torch.testing.assert_close(value, expected)


@pytest.mark.parametrize("changed", range(3), ids=["input", "weight", "bias"])
@pytest.mark.parametrize("requires_grad", itertools.product((True, False), repeat=3), ids=str)
@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 3, 4)], ids=str)
def test_what_may_change_before_backward_is_what_may_in_eager(shape, requires_grad, changed):
    def outcome(device):
        torch.manual_seed(0)
        leaves = [torch.randn(s).to(device) for s in (shape, (5, 4), (5,))]
        for leaf, wanted in zip(leaves, requires_grad, strict=True):
            leaf.requires_grad_(wanted)
        y = torch.nn.functional.linear(*leaves)
        with torch.no_grad():
            leaves[changed].mul_(2)
        try:
            y.sum().backward()
        except RuntimeError as error:
            return "modified by an inplace operation" in str(error) or str(error)
        return [None if leaf.grad is None else leaf.grad.cpu().tolist() for leaf in leaves]

    if any(requires_grad):
        assert outcome("lazy") == outcome("cpu")
