"""Programs that see a device other than the CPU take the way of CUDA: what CUDA computes and the
CPU refuses works on lazy, in a wider type.
"""

import pytest
import torch
import torch.nn.functional as F
from comparing import DEVICE

if DEVICE.type != "lazy":
    pytest.skip("a test of the device lazy", allow_module_level=True)

import torch_lazy

INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)


def counted():
    return torch_lazy.metrics.counter_value("ComputedInWiderType") or 0


@pytest.mark.parametrize("dtype", INTEGERS)
def test_histogram_of_integers(dtype):
    """What mixture-of-experts models count tokens per expert with."""
    experts = torch.tensor([1, 3, 3, 0, 2, 3], dtype=dtype)
    for _ in range(3):
        before = counted()
        result = torch.histc(experts.to(DEVICE), bins=4, min=0, max=3)
        assert result.dtype == dtype
        assert result.tolist() == [1, 1, 1, 3]
        assert counted() == before + 1
    out = torch.empty(4, dtype=dtype, device=DEVICE)
    torch.histc(experts.to(DEVICE), bins=4, min=0, max=3, out=out)
    assert out.tolist() == [1, 1, 1, 3]


HALF = {
    "avg_pool3d": lambda x: F.avg_pool3d(x.reshape(1, 1, 4, 4, 4), 2),
    "upsample_aa": lambda x: F.interpolate(
        x.reshape(1, 1, 8, 8), (5, 5), mode="bilinear", antialias=True
    ),
    "multi_margin_loss": lambda x: F.multi_margin_loss(
        x.reshape(8, 8), torch.arange(8, device=x.device)
    ),
    "multilabel_margin_loss": lambda x: F.multilabel_margin_loss(
        x.reshape(8, 8), torch.arange(64, device=x.device).reshape(8, 8) % 8
    ),
    "polygamma": lambda x: torch.polygamma(1, x.abs() + 1),
    "round": lambda x: torch.round(x, decimals=2),
    "fft": lambda x: torch.view_as_real(torch.fft.fft(x).to(torch.complex64)),
    "rfft": lambda x: torch.view_as_real(torch.fft.rfft2(x.reshape(8, 8)).to(torch.complex64)),
    "irfft": lambda x: torch.fft.irfft(torch.fft.rfft(x)),
}


@pytest.mark.parametrize("name", HALF)
def test_half_precision(name):
    x = torch.randn(64).half()
    expected = HALF[name](x.float())
    for _ in range(2):
        result = HALF[name](x.to(DEVICE))
        assert result.dtype in (torch.half, torch.float32)
        torch.testing.assert_close(result.cpu().float(), expected, rtol=1e-2, atol=2e-2)


@pytest.mark.parametrize("name", ["avg_pool3d", "upsample_aa", "multi_margin_loss", "irfft"])
def test_gradients_in_half_precision(name):
    x = torch.randn(64).half()

    def gradient(leaf):
        leaf = leaf.detach().requires_grad_()
        HALF[name](leaf).square().sum().backward()
        return leaf.grad

    result = gradient(x.to(DEVICE))
    assert result.dtype == torch.half
    torch.testing.assert_close(result.cpu().float(), gradient(x.float()), rtol=2e-2, atol=2e-1)


@pytest.mark.parametrize("name", ["exp", "sin", "sqrt", "tanh", "sigmoid", "sum", "prod"])
def test_complex_half(name):
    x = torch.randn(8, dtype=torch.complex64) * 0.5
    operator = getattr(torch, name)
    result = operator(x.to(torch.complex32).to(DEVICE))
    assert result.dtype == torch.complex32
    torch.testing.assert_close(result.to(torch.complex64).cpu(), operator(x), rtol=2e-2, atol=2e-2)


def test_complex_powers_of_half_precision():
    x = torch.rand(8) + 0.5
    for base in (1 + 0j, 0.5j, 2.2 - 1.6j, 2 + 0j):  # one has a kernel of its own in eager
        for power in (torch.pow, lambda base, x: torch.pow(x, base)):
            result = power(base, x.half().to(DEVICE))
            assert result.dtype == torch.complex32
            expected = power(base, x.half().float())
            torch.testing.assert_close(
                result.cpu().to(torch.complex64), expected, rtol=1e-2, atol=1e-2
            )


def test_complex_half_is_said_to_be_experimental():
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        for _ in range(2):
            with pytest.warns(UserWarning, match="experimental"):
                torch.randn(3, dtype=torch.complex32, device=DEVICE)
    finally:
        torch.set_warn_always(always)


def test_booleans():
    x = torch.tensor([[True, False], [True, True]])
    assert torch.abs(x.to(DEVICE)).dtype == torch.bool
    assert torch.trace(x.to(DEVICE)).item() == 2


def test_what_no_device_computes_is_still_refused():
    integers = torch.arange(4, device=DEVICE)
    with pytest.raises(RuntimeError, match="not implemented for 'Long'"):
        F.layer_norm(integers, (4,)).cpu()


LINEAR_ALGEBRA = {
    "cholesky": torch.linalg.cholesky,
    "qr": torch.linalg.qr,
    "svd": torch.linalg.svd,
    "eig": torch.linalg.eig,
    "eigh": torch.linalg.eigh,
    "eigvals": torch.linalg.eigvals,
    "eigvalsh": torch.linalg.eigvalsh,
    "lu": torch.linalg.lu,
    "lu_factor": torch.linalg.lu_factor,
    "ldl_factor": torch.linalg.ldl_factor,
    "inv": torch.linalg.inv,
    "det": torch.linalg.det,
    "slogdet": torch.linalg.slogdet,
    "pinv": torch.linalg.pinv,
    "solve": lambda a: torch.linalg.solve(a, a),
    "solve_triangular": lambda a: torch.linalg.solve_triangular(a, a, upper=True),
    "lstsq": lambda a: torch.linalg.lstsq(a, a),
    "householder_product": lambda a: torch.linalg.householder_product(a, a[0]),
    "torch.cholesky": torch.cholesky,
    "cholesky_inverse": torch.cholesky_inverse,
    "geqrf": torch.geqrf,
    "bitwise_or": lambda a: torch.bitwise_or(a, a),
}


@pytest.mark.parametrize("dtype", [torch.half, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", LINEAR_ALGEBRA)
def test_what_no_device_computes_in_16_bits(name, dtype):
    """Eager's own error, of the dtype that the program uses."""

    def error(device):
        with pytest.raises(RuntimeError) as raised:
            result = LINEAR_ALGEBRA[name](torch.eye(3, dtype=dtype, device=device))
            (result if isinstance(result, torch.Tensor) else result[0]).cpu()
        return raised.type, str(raised.value).splitlines()[0]

    assert error(DEVICE) == error("cpu")


def test_complex_results_of_real_arguments_are_narrowed():
    x = torch.randn(8).half()
    for call in (torch.fft.fft, torch.fft.rfft):
        assert call(x.to(DEVICE)).cpu().dtype == torch.complex32


def test_autocast_with_an_index():
    with torch.autocast("lazy:0", dtype=torch.bfloat16):
        assert torch.is_autocast_enabled("lazy")
        x = torch.ones(2, 2, device=DEVICE)
        assert (x @ x).dtype == torch.bfloat16
    assert not torch.is_autocast_enabled("lazy")


MIXED = {
    "lstsq": lambda a, b: torch.linalg.lstsq(a, b),
    "masked_select": lambda a, b: torch.masked_select(a, b > 0),
    "equal": lambda a, b: torch.equal(a, b),
    "add": lambda a, b: a + b,
    "bincount": lambda a, b: torch.bincount(a.flatten().long().abs(), b.flatten()),
    "where": lambda a, b: torch.where(b > 0, a, a),
}


@pytest.mark.parametrize("name", MIXED)
@pytest.mark.parametrize("first", ["cpu", "lazy"])
def test_mixed_devices_are_refused(name, first):
    second = "lazy" if first == "cpu" else "cpu"
    a, b = torch.randn(3, 3).to(first), torch.randn(3, 3).to(second)
    with pytest.raises(RuntimeError, match="same device"):
        MIXED[name](a, b)


@pytest.mark.skipif(not hasattr(F, "grouped_mm"), reason="this PyTorch has no grouped_mm")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_tokens_to_experts(dtype):
    """The way of mixture-of-experts models in transformers: counts per expert, one matmul."""
    tokens, weights = torch.randn(12, 16).to(dtype), torch.randn(4, 16, 8).to(dtype)
    experts = torch.tensor([3, 0, 1, 1, 2, 3, 3, 0, 1, 2, 2, 3])

    def program(device):
        x = tokens.clone().to(device).requires_grad_()
        w = weights.clone().to(device).requires_grad_()
        ids, order = torch.sort(experts.to(device))
        counted = ids.float() if torch.device(device).type == "cpu" else ids.int()
        counts = torch.histc(counted, bins=4, min=0, max=3)
        ends = torch.cumsum(counts, dim=0, dtype=torch.int32)
        y = F.grouped_mm(x[order], w, offs=ends)
        y.float().square().sum().backward()
        return [t.cpu() for t in (ends, y, x.grad, w.grad)]

    for want, have in zip(program("cpu"), program(DEVICE), strict=True):
        torch.testing.assert_close(have, want)
