"""What is recorded and what runs at once, when it runs, how often it is compiled, what it holds."""

import pytest
import torch
from comparing import DEVICE
from torch import nn

if DEVICE.type != "lazy":
    pytest.skip("these are about the device lazy", allow_module_level=True)

import torch_lazy
from torch_lazy import config, debug, metrics

pytestmark = pytest.mark.usefixtures("nothing_pending")


def counters():
    return {name: metrics.counter_value(name) for name in metrics.counter_names()}


def recorded():
    return {name for name in metrics.counter_names() if name.startswith("lazy::")}


def executed():
    """Operators have a namespace, recorded ones lazy:: before it."""
    names = metrics.counter_names()
    return {n for n in names if "::" in n and not n.startswith(("lazy::", "IrNodeReused_"))}


# ---- Recorded or executed ------------------------------------------------------------------------


def test_operators_are_recorded():
    x = torch.ones(3, 3, device="lazy")
    y = (x @ x).relu().sum()
    assert debug.is_pending(y)
    assert not executed()
    assert {name.split(".")[0] for name in recorded()} >= {"lazy::mm", "lazy::relu", "lazy::sum"}
    assert y.item() == 27


def test_views_record_nothing():
    x = torch.ones(4, 6, device="lazy")
    before = debug.pending_nodes()
    x.t()[1:3].reshape(8).view(2, 4).unsqueeze(0).expand(3, 2, 4).select(0, 1)
    assert debug.pending_nodes() == before


def test_a_training_step_falls_back_nowhere():
    model = nn.Sequential(
        nn.Embedding(10, 8),
        nn.Linear(8, 8),
        nn.LayerNorm(8),
        nn.GELU(),
        nn.Dropout(0.1),
        nn.Linear(8, 10),
    ).to("lazy")
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.arange(6, device="lazy")
    for _ in range(2):
        loss = nn.functional.cross_entropy(model(ids), ids)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    assert metrics.fallbacks() == []
    loss.item()


DATA_DEPENDENT = {
    "nonzero": lambda x: x.nonzero(),
    "masked_select": lambda x: x.masked_select(x > 0),
    "index": lambda x: x[x > 0],
    "_unique2": lambda x: x.unique(),
    "unique_consecutive": lambda x: torch.unique_consecutive(x),
    "repeat_interleave": lambda x: x.repeat_interleave(x.long()),
}


@pytest.mark.parametrize("name", DATA_DEPENDENT)
def test_data_dependent_results(name):
    """Their size depends on data: they execute at once, and the line that asked for it is kept."""
    x = torch.tensor([0.0, 2.0, 2.0, 1.0], device="lazy") * 1
    result = DATA_DEPENDENT[name](x)
    assert result.tolist() == DATA_DEPENDENT[name](x.cpu()).tolist()
    (fallback,) = [
        row for row in metrics.fallbacks() if row.operator.split(".")[0] == f"aten::{name}"
    ]
    assert fallback.count == 1
    assert "test_laziness.py" in fallback.source
    assert metrics.counter_value(fallback.operator) == 1


def test_indices_are_recorded():
    x = torch.arange(5.0, device="lazy")
    y = x[torch.tensor([1, 3], device="lazy")]
    x[torch.tensor([0], device="lazy")] = 7.0
    assert not executed()
    assert (x.tolist(), y.tolist()) == ([7, 1, 2, 3, 4], [1, 3])


@torch.library.custom_op("torch_lazy_tests::with_fake", mutates_args=(), device_types="cpu")
def with_fake(x: torch.Tensor, factor: float) -> torch.Tensor:
    return x * factor


@with_fake.register_fake
def _(x, factor):
    return torch.empty_like(x)


@torch.library.custom_op("torch_lazy_tests::without_fake", mutates_args=(), device_types="cpu")
def without_fake(x: torch.Tensor) -> torch.Tensor:
    return x[x > 0].clone()


@torch.library.custom_op("torch_lazy_tests::writes", mutates_args={"x"}, device_types="cpu")
def writes(x: torch.Tensor, y: torch.Tensor) -> None:
    x.add_(y)


@writes.register_fake
def _(x, y):
    return None


def double_backward(ctx, grad):
    return grad * ctx.factor, None


def keep_factor(ctx, inputs, output):
    ctx.factor = inputs[1]


with_fake.register_autograd(double_backward, setup_context=keep_factor)


def test_custom_operator_with_a_fake_kernel_is_recorded():
    x = torch.ones(3, device="lazy", requires_grad=True)
    y = with_fake(x, 2.5)
    assert debug.is_pending(y)
    assert any("with_fake" in name for name in recorded())
    y.sum().backward()
    assert y.tolist() == [2.5] * 3
    assert x.grad.tolist() == [2.5] * 3


def test_custom_operator_without_one_executes_at_once():
    x = torch.tensor([1.0, -1.0, 2.0], device="lazy") * 2
    assert without_fake(x).tolist() == [2, 4]
    assert any("without_fake" in name for name in executed())
    assert any(
        "without_fake" in row.operator and "test_laziness.py" in row.source
        for row in metrics.fallbacks()
    )


def test_custom_operator_that_writes():
    results = []
    for device in ("cpu", "lazy"):
        x = torch.zeros(4, device=device)
        view = x[1:]
        writes(view, torch.ones(3, device=device))
        writes(x, torch.ones(4, device=device))
        assert x._version > 0
        results.append(x.tolist())
    assert results[0] == results[1]
    assert any("writes" in name for name in recorded())


@torch.library.custom_op("torch_lazy_tests::for_any_device", mutates_args=())
def for_any_device(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * 2


def test_custom_operator_for_any_device():
    """Its body runs with lazy tensors and is recorded operator by operator."""
    x = torch.ones(3, device="lazy")
    assert for_any_device(x).tolist() == for_any_device(torch.ones(3)).tolist()
    assert executed() <= {"aten::_local_scalar_dense"}


# ---- When it runs --------------------------------------------------------------------------------


def test_a_value_is_computed_once():
    x = torch.ones(3, device="lazy") * 2
    y = x.exp()
    first = y.tolist()
    runs = metrics.counter_value("UncachedCompile")
    assert y.tolist() == first == y.cpu().tolist()
    assert metrics.counter_value("UncachedCompile") == runs
    assert metrics.counter_value("CachedCompile") is None


def test_reading_runs_what_it_needs():
    x = torch.ones(3, device="lazy") * 2
    y = x + 1
    other = torch.ones(3, device="lazy") * 5
    assert y.tolist() == [3, 3, 3]
    assert not debug.is_pending(y)
    assert debug.is_pending(other)


def test_sync_of_some_tensors():
    x, y = torch.ones(3, device="lazy") * 2, torch.ones(3, device="lazy") * 3
    torch_lazy.sync([x])
    assert not debug.is_pending(x)
    assert debug.is_pending(y)
    torch_lazy.mark_step()
    assert not debug.is_pending(y)


def test_dead_values_are_not_computed():
    x = torch.ones(3, device="lazy")
    y = x[torch.tensor([7], device="lazy")]  # would raise
    del y
    z = x + 1
    torch_lazy.mark_step()
    assert z.tolist() == [2, 2, 2]


def test_writes_before_older_reads_run():
    """What a pending operator reads stays what it was, though its tensor is overwritten first."""
    x = torch.ones(4, device="lazy")
    torch_lazy.sync()
    before = x * 10
    x.fill_(2)
    middle = x * 10
    x[1:3].zero_()
    torch_lazy.sync([x])
    assert x.tolist() == [2, 0, 0, 2]
    assert middle.tolist() == [20] * 4
    assert before.tolist() == [10] * 4


def test_growing_graphs_are_cut():
    with config.override(max_nodes=10):
        x = torch.zeros(2, device="lazy")
        for _ in range(100):
            x = x + 1
            assert debug.pending_nodes() <= 10
    assert x.tolist() == [100, 100]


def test_long_chains():
    """Neither recording nor freeing a long chain of operations runs out of stack."""
    x = torch.zeros(2, device="lazy")
    for _ in range(30000):
        x = x + 1
    assert x.tolist() == [30000] * 2
    y = torch.zeros(2, device="lazy")
    for _ in range(30000):
        y = y + 1
    del y
    assert (x + 1).tolist() == [30001] * 2


def test_every_operation_at_once():
    with config.override(check=True):
        x = torch.ones(3, device="lazy") * 2
        assert not debug.is_pending(x)
        x[1:].add_(1)
        assert x.tolist() == [2, 3, 3]


# ---- How often it is compiled --------------------------------------------------------------------


def test_equal_graphs_are_compiled_once():
    for number in range(10):
        x = torch.full((3,), float(number), device="lazy")
        y = (x * 2 + 1).sum()
        assert y.item() == 6 * number + 3
    assert metrics.counter_value("UncachedCompile") == 1
    assert metrics.counter_value("CachedCompile") == 9


@pytest.mark.parametrize(
    "function",
    [
        lambda x, s: x * s,
        lambda x, s: x.add(x, alpha=s),
        lambda x, s: x.clamp(s, s + 1),
        lambda x, s: torch.where(x > s, x, s),
        lambda x, s: x.addcmul(x, x, value=s),
        lambda x, s: x.lerp(x * 2, s),
        lambda x, s: x.fill_(s) * 1,
        lambda x, s: torch.full((2,), s, device=x.device) + x,
        lambda x, s: x.masked_fill(x > 0, s),
        lambda x, s: x * torch.tensor(s),
        lambda x, s: nn.functional.leaky_relu(x, s),
        lambda x, s: torch._foreach_mul([x, x], s)[0],
    ],
)
def test_numbers_are_inputs(function):
    for number in range(20):
        value = 1.75 + number * 0.37
        x = torch.ones(2, device="lazy")
        assert function(x, value).tolist() == function(torch.ones(2), value).tolist()
    assert metrics.counter_value("UncachedCompile") == 1


def test_numbers_that_select_behaviour():
    """Equal structure is not enough where a number selects another kernel."""
    x = torch.tensor([3.0, -4.0], device="lazy")
    for order in (0, 1, 2, 3, float("inf"), 0.5, 2, 0):
        assert x.norm(order).item() == x.cpu().norm(order).item()
    for exponent in (0, 1, 2, 3, 0.5, -1, 2):
        assert (x * x).pow(exponent).tolist() == (x * x).cpu().pow(exponent).tolist()
    for correction in (0, 1):
        assert x.var(correction=correction).item() == x.cpu().var(correction=correction).item()
    for p in (0.0, 1.0, 0.5, 0.0):
        torch.manual_seed(1)
        expected = nn.functional.dropout(torch.ones(6), p).tolist()
        torch.manual_seed(1)
        assert nn.functional.dropout(torch.ones(6, device="lazy"), p).tolist() == expected


def test_other_live_tensors_are_another_graph():
    """The same calls with another set of living results: each gets what it asks for."""
    for keep in (True, False, True, False):
        x = torch.ones(3, device="lazy")
        y = x * 2
        z = y + 1
        if not keep:
            del y
        torch_lazy.mark_step()
        assert z.tolist() == [3, 3, 3]
        if keep:
            assert y.tolist() == [2, 2, 2]


def test_process_state_is_part_of_the_graph():
    x = torch.randn(4, 4, generator=torch.Generator().manual_seed(0)).to("lazy")

    def run():
        return (x @ x).tolist(), torch.ones(2, device="lazy").dtype

    before = run()
    torch.set_default_dtype(torch.float64)
    try:
        assert run() == (before[0], torch.float64)
    finally:
        torch.set_default_dtype(torch.float32)
    assert run() == before


# ---- Memory --------------------------------------------------------------------------------------

KIB = 1024


def test_memory_of_dead_tensors_is_given_back():
    torch_lazy.sync()
    before = torch.lazy.memory_allocated()
    x = torch.ones(256 * KIB, device="lazy")
    y = x * 2
    torch_lazy.sync()
    assert torch.lazy.memory_allocated() >= before + 2 * KIB * KIB
    del x, y
    assert torch.lazy.memory_allocated() == before


def test_intermediates_are_freed_at_their_last_use():
    """A chain of 20 operations needs two tensors at a time, not 20."""
    x = torch.ones(256 * KIB, device="lazy")
    torch_lazy.sync()
    torch.lazy.reset_peak_memory_stats()
    before = torch.lazy.memory_allocated()
    y = x
    for _ in range(20):
        y = y.sin() + 1
    torch_lazy.sync()
    assert torch.lazy.max_memory_allocated() <= before + 3 * KIB * KIB
    del y


def test_in_place_updates_reuse_memory():
    x = torch.ones(256 * KIB, device="lazy")
    torch_lazy.sync()
    torch.lazy.reset_peak_memory_stats()
    before = torch.lazy.memory_allocated()
    for _ in range(10):
        x.mul_(2).add_(1)
    torch_lazy.sync()
    assert torch.lazy.max_memory_allocated() <= before + KIB
    assert x[0].item() == 2047


def test_graphs_that_hold_much_memory_are_cut():
    """Without reads or steps, recorded operations must not keep ever more memory alive."""
    with config.override(max_bytes_held=8 * KIB * KIB):
        torch.lazy.reset_peak_memory_stats()
        before = torch.lazy.memory_allocated()
        total = torch.zeros(256 * KIB, device="lazy")
        for _ in range(40):
            total = total + torch.ones(256 * KIB).to("lazy")
        torch_lazy.sync()
        assert torch.lazy.max_memory_allocated() - before <= 24 * KIB * KIB
    assert total[0].item() == 40


# ---- Seeing it -----------------------------------------------------------------------------------


def test_graphs_as_text():
    x = torch.ones(2, 3, device="lazy")
    y = torch.add(x, 2).t().mul_(3)
    text, dot = debug.graph_text([y]), debug.graph_dot([y])
    for name in ("add", "mul_"):
        assert name in text
        assert name in dot
    assert dot.startswith("digraph")
    assert y.tolist() == [[9, 9]] * 3


def test_report():
    (torch.ones(3, device="lazy") * 2).nonzero()
    torch_lazy.mark_step()
    report = metrics.metrics_report()
    for name in ("MarkStep", "lazy::mul", "aten::nonzero"):
        assert name in report
