"""Numbers beside half precision, in compiled kernels: rounded where eager rounds them, bit by bit.

Also tensors of rank 0, whose dimensions have names but no place in the sizes.
"""

import pytest
import torch
import torch.nn.functional as F
from comparing import DEVICE

if DEVICE.type != "lazy":
    pytest.skip("a test of the compiler", allow_module_level=True)

import torch_lazy
from torch_lazy import config, metrics

aten = torch.ops.aten

OPERATORS = {
    "add": lambda a, b: a + 0.3,
    "add-alpha": lambda a, b: torch.add(a, b, alpha=0.3),
    "add-alpha-in-place": lambda a, b: a.clone().add_(b, alpha=0.3),
    "sub": lambda a, b: a - 0.3,
    "sub-alpha": lambda a, b: torch.sub(a, b, alpha=0.3),
    "rsub": lambda a, b: 0.3 - a,
    "rsub-alpha": lambda a, b: torch.rsub(a, b, alpha=0.3),
    "mul": lambda a, b: a * 0.3,
    "div": lambda a, b: a / 0.3,
    "div-trunc": lambda a, b: torch.div(a, 0.3, rounding_mode="trunc"),
    "floor-divide": lambda a, b: a // 0.3,
    "fmod": lambda a, b: torch.fmod(a, 0.3),
    "gt": lambda a, b: a > 0.3,
    "eq": lambda a, b: torch.full_like(a, 0.3) == 0.3,
    "add-rank-0": lambda a, b: a + torch.tensor(0.3, device=a.device),
    "mul-rank-0": lambda a, b: a * torch.tensor(0.3, device=a.device),
    "rank-0-mul": lambda a, b: torch.tensor(0.3, device=a.device) * a,
    "div-rank-0": lambda a, b: a / torch.tensor(0.3, device=a.device),
    "clamp": lambda a, b: a.clamp(-0.3, 0.3),
    "leaky-relu": lambda a, b: F.leaky_relu(a, 0.3),
    "hardshrink": lambda a, b: F.hardshrink(a, 0.3),
    "hardshrink-backward": lambda a, b: aten.hardshrink_backward(b, a, 0.3),
    "softshrink": lambda a, b: F.softshrink(a, 0.3),
    "threshold": lambda a, b: F.threshold(a, 0.3, 2.0),
    "threshold-backward": lambda a, b: aten.threshold_backward(b, a, 0.3),
    "foreach-add": lambda a, b: torch._foreach_add([a], 0.3),
    "foreach-add-alpha": lambda a, b: torch._foreach_add([a], [b], alpha=0.3),
    "foreach-sub": lambda a, b: torch._foreach_sub([a], 0.3),
    "foreach-mul": lambda a, b: torch._foreach_mul([a], 0.3),
    "foreach-div": lambda a, b: torch._foreach_div([a], 0.3),
    "foreach-addcdiv": lambda a, b: torch._foreach_addcdiv([a], [b], [b + 9], value=0.3),
    "where": lambda a, b: torch.where(a > 0, a, 0.3),
}


def run(call, device, dtype):
    torch.manual_seed(4)
    edges = torch.full((64,), 0.3)
    a = torch.cat([torch.randn(4096), edges, -edges]).to(dtype).to(device)
    b = torch.randn(a.shape).to(dtype).to(device)
    result = call(a, b)
    return result[0] if isinstance(result, (list, tuple)) else result


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", OPERATORS)
def test_number_beside_half_precision(name, dtype):
    expected = run(OPERATORS[name], "cpu", dtype)
    torch_lazy.sync()
    metrics.reset()
    with config.override(compiler="force", plan_cache=0):
        actual = run(OPERATORS[name], DEVICE, dtype).cpu()
    assert metrics.counters().get("GraphCompiled", 0) > 0
    assert not [n for n in metrics.counters() if "CompiledRunFailed" in n]
    different = (actual != expected).sum().item()
    assert different == 0, f"{different} of {expected.numel()} elements differ"


RANK_0 = {
    "flip": lambda x: torch.flip(x, [0]),
    "flip-last": lambda x: torch.flip(x, [-1]),
    "sum": lambda x: torch.sum(x, 0),
    "softmax": lambda x: torch.softmax(x, -1),
    "cumsum": lambda x: torch.cumsum(x, 0),
    "amax": lambda x: torch.amax(x, 0),
    "argmax": lambda x: torch.argmax(x, 0),
    "index_select": lambda x: torch.index_select(x, 0, torch.tensor([0], device=x.device)),
    "gather": lambda x: torch.gather(x, 0, torch.tensor(0, device=x.device)),
    "stack": lambda x: torch.stack([x, x]),
    "norm": lambda x: torch.linalg.vector_norm(x, 2, 0),
    "var": lambda x: torch.var(x, 0, correction=0),
    "sort": lambda x: torch.sort(x, 0)[0],
    "logsumexp": lambda x: torch.logsumexp(x, 0),
    "repeat": lambda x: x.repeat(3),
    "count_nonzero": lambda x: torch.count_nonzero(x, 0),
}


@pytest.mark.parametrize("name", RANK_0)
def test_dimensions_of_rank_0(name):
    expected = RANK_0[name](torch.tensor(1.5) * 2)
    with config.override(compiler="force", plan_cache=0):
        for _ in range(2):
            actual = RANK_0[name](torch.tensor(1.5, device=DEVICE) * 2)
            assert actual.shape == expected.shape
            torch.testing.assert_close(actual.cpu(), expected)
