"""Steps that repeat are recorded with the help of the last one: counters, dump, reset, switch."""

import re

import pytest
import torch
from comparing import DEVICE

if DEVICE.type != "lazy":
    pytest.skip("these are about the device lazy", allow_module_level=True)

from lazy_names import bindings, config, count, ir_cache, lazy, metrics

import torch_lazy

ADDITIONS = "IrNodeReused_torch::lazy::AddTensor"
NORMALIZATIONS = "IrNodeReused_torch::lazy::NativeBatchNorm"


@pytest.fixture(autouse=True)
def reuse(nothing_pending):
    """Reuse is on, nothing is remembered, and the setting is put back."""
    with torch_lazy.config.override(reuse_ir=True):
        ir_cache.reset()
        yield
        ir_cache.reset()


def operands():
    """The same random tensors on both devices, and zeros."""
    torch.manual_seed(0)
    cpu = [torch.randn(2, 3, 4), torch.randn(2, 3, 4), torch.zeros(2, 3, 4)]
    return cpu, [t.clone().to("lazy") for t in cpu]


def accumulate(x, y, z, step, steps=10):
    for i in range(steps):
        z += x + y if i < steps // 2 or step == "add" else x - y
        if z.device.type == "lazy":
            lazy.mark_step()
    return z


# ---- Reuse ---------------------------------------------------------------------------------------


def test_repeated_additions():
    cpu, ours = operands()
    torch.testing.assert_close(accumulate(*ours, "add").cpu(), accumulate(*cpu, "add"))
    assert count(ADDITIONS) >= 14


def test_another_path_after_five_steps():
    cpu, ours = operands()
    torch.testing.assert_close(accumulate(*ours, "sub").cpu(), accumulate(*cpu, "sub"))
    assert count(ADDITIONS) >= 8


def test_another_path_with_an_operator_that_is_executed_at_once():
    cpu, ours = operands()
    config.set_force_fallback("aten::sub")
    try:
        result = accumulate(*ours, "sub").cpu()
    finally:
        config.set_force_fallback("")
    torch.testing.assert_close(result, accumulate(*cpu, "sub"))
    assert count(ADDITIONS) >= 8
    assert count("aten::sub.Tensor") == 5


def test_repeated_normalizations():
    x = torch.randn(4, 3, 16, 16)
    weight, bias = torch.randn(3), torch.randn(3)

    def normalize(x, weight, bias):
        with_statistics, _, _ = torch.ops.aten.native_batch_norm(
            x, weight, bias, None, None, True, 0.1, 1e-5
        )
        without, _, _ = torch.ops.aten._native_batch_norm_legit(x, weight, bias, True, 0.1, 1e-5)
        return with_statistics, without

    expected = normalize(x, weight, bias)
    ours = [t.to("lazy") for t in (x, weight, bias)]
    for _ in range(10):
        results = normalize(*ours)
        lazy.mark_step()
    torch.testing.assert_close([t.cpu() for t in results], list(expected))
    assert count(NORMALIZATIONS) >= 7


def test_b30_reuse_is_switched_while_running():
    _, ours = operands()
    config.set_reuse_ir(False)
    accumulate(*ours, "add")
    assert [name for name in metrics.counter_names() if name.startswith("IrNodeReused_")] == []
    bindings._set_reuse_ir(True)
    accumulate(*ours, "add")
    assert count(ADDITIONS) > 0


def test_values_are_right_when_every_step_differs():
    x, y = torch.randn(3), torch.randn(3)
    a, b = x.to("lazy"), y.to("lazy")
    functions = [torch.add, torch.mul, torch.sub, torch.maximum]
    for i in range(24):
        chosen = [functions[(i >> k) % 4] for k in range(3)]
        expected, result = x, a
        for function in chosen:
            expected, result = function(expected, y), function(result, b)
        lazy.mark_step()
        assert torch.equal(result.cpu(), expected)


def test_other_shapes_do_not_reuse():
    for n in (2, 3, 4, 2, 3, 4):
        x = torch.arange(float(n)).to("lazy") + 1
        lazy.mark_step()
        assert x.tolist() == [i + 1 for i in range(n)]


# ---- Dump and reset ------------------------------------------------------------------------------


def dumped(tmp_path):
    file = tmp_path / "cache.dot"
    ir_cache.dump(str(file))
    return file.read_text()


def test_b29_a_dump_is_a_dot_file(tmp_path):
    _, ours = operands()
    accumulate(*ours, "add", steps=4)
    text = dumped(tmp_path)
    assert text.startswith("digraph G {\n")
    assert text.endswith("}\n")
    nodes = re.findall(r'^(\d+)\[label="([\w:]+), (\d+) hits"\]$', text, re.MULTILINE)
    edges = re.findall(r"^(\d+) -> (\d+)$", text, re.MULTILINE)
    assert len(nodes) + len(edges) + 2 == len(text.splitlines())
    hits = {operator: int(hits) for _, operator, hits in nodes}
    assert hits["aten::add"] >= 1
    labelled = {number for number, _, _ in nodes}
    assert {child for _, child in edges} == labelled  # all but the root have a label and a parent
    assert len({parent for parent, _ in edges} - labelled) == 1


def test_b28_reset_forgets_everything(tmp_path):
    _, ours = operands()
    accumulate(*ours, "add", steps=4)
    assert "->" in dumped(tmp_path)
    ir_cache.reset()
    text = dumped(tmp_path)
    assert text.startswith("digraph G {\n")
    assert "->" not in text
    metrics.reset()
    x = ours[0] + ours[1]
    assert count(ADDITIONS) == 0
    assert x.shape == (2, 3, 4)


def test_a_branch_in_the_dump(tmp_path):
    a = torch.ones(3).to("lazy")
    for i in range(4):
        x = (a * 2).relu() if i % 2 else (a * 2).exp()
        lazy.mark_step(wait=True)
        del x
    text = dumped(tmp_path)
    parents = [parent for parent, _ in re.findall(r"^(\d+) -> (\d+)$", text, re.MULTILINE)]
    assert len(set(parents)) < len(parents)
    assert count("TrieForked") >= 1
