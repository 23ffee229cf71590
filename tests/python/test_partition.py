"""What the Dynamo backend does to a graph before it is cut: equal calls become one."""

import subprocess
import sys

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from torch_lazy import dynamo_backend
from torch_lazy.dynamo_backend import compile_graph
from torch_lazy.partition import share_calls


def shared(function, *inputs):
    """How many calls become another one. The results stay what they were."""
    traced = make_fx(function)(*inputs)
    torch.manual_seed(0)
    expected = traced(*[x.clone() for x in inputs])
    before = len(traced.graph.nodes)
    share_calls(traced.graph)
    traced.graph.lint()
    traced.recompile()
    torch.manual_seed(0)
    results = traced(*[x.clone() for x in inputs])
    torch.testing.assert_close(results, expected, equal_nan=True)
    return before - len(traced.graph.nodes)


SHARED = {
    "equal calls": (lambda x: (x.exp() + x.exp()).sum(), 1),
    "what follows from them": (lambda x: (x.t().exp() + x.t().exp()).sum(), 2),
    "several results": (lambda x: (x.max(0)[0] + x.max(0)[0] + x.max(0)[1]).sum(), 6),
    "lists": (lambda x: (x.reshape([2, 3]).exp() + x.reshape([2, 3]).exp()).sum(), 2),
    "detached values": (lambda x: (x.exp().detach() + 1).sum(), 1),
    "fills": (lambda x: (x + x.new_full((3,), 2) * x.new_full((3,), 2)).sum(), 1),
}

KEPT = {
    "other calls": lambda x: (x.exp() + x.log()).sum(),
    "results": lambda x: (x.exp(), x.exp()),
    "detached results": lambda x: (x.exp().detach(), x.detach()),
    "views of results": lambda x: (x.exp().t(), x.exp()[0]),
    "random numbers": lambda x: (torch.rand_like(x) + torch.rand_like(x)).sum(),
    "dropout": lambda x: (torch.dropout(x, 0.5, True) + torch.dropout(x, 0.5, True)).sum(),
    "numbers of other types": lambda x: (x.new_full((3,), 1) / x.new_full((3,), 1.0)).sum(),
    "the two zeros": lambda x: (x.clamp_min(1) / (x * 0.0) - x.clamp_min(2) / (x * -0.0)).sum(),
    "writes in between": lambda x: (x.exp() + x.mul_(2).exp()).sum(),
}


@pytest.mark.parametrize("name", SHARED)
def test_equal_calls_are_shared(name):
    function, expected = SHARED[name]
    assert shared(function, torch.rand(2, 3) + 0.5) == expected


@pytest.mark.parametrize("name", KEPT)
def test_what_is_not_shared(name):
    assert shared(KEPT[name], torch.rand(2, 3) + 0.5) == 0


def test_results_that_are_equal_are_two_tensors():
    x = torch.rand(3, requires_grad=True)
    a, b = torch.compile(lambda x: (x.exp(), x.exp()), backend="torch_lazy")(x)
    assert a.data_ptr() != b.data_ptr()
    torch.testing.assert_close(a, b)


@pytest.mark.parametrize("function", [torch.tanh, torch.sigmoid, torch.exp])
def test_a_cheap_result_is_not_saved(function):
    def products(x, w):
        y = x @ w
        return (function(y) * y) @ w

    saved = []

    def pack(tensor):
        saved.append(tensor.shape)
        return tensor

    x, w = (torch.rand(*sizes, requires_grad=True) for sizes in ((7, 3), (3, 3)))
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: saved.append(t.shape) or t, lambda t: t
    ):
        result = torch.compile(products, backend="torch_lazy")(x, w)
    assert saved.count((7, 3)) + saved.count((3, 7)) == 3  # x, y and what w is multiplied with
    gradients = torch.autograd.grad(result.sum(), (x, w))
    torch.testing.assert_close(gradients, torch.autograd.grad(products(x, w).sum(), (x, w)))


def test_compiling_does_not_import_inductors_lowering():
    code = """
import sys, torch
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU())
torch.compile(model, backend="torch_lazy")(torch.randn(2, 4)).sum().backward()
loaded = [name for name in sys.modules if name in (
    "torch._inductor.pattern_matcher", "torch._inductor.lowering", "torch._inductor.compile_fx")]
assert not loaded, loaded
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_no_code_is_made_of_graphs(monkeypatch):
    modules = []

    def kept(module, inputs, **options):
        modules.append(module)
        return compile_graph(module, inputs, **options)

    monkeypatch.setattr(dynamo_backend, "compile_graph", kept)
    torch._dynamo.reset()
    x = torch.rand(3, requires_grad=True)
    torch.compile(lambda x: x.exp().sin().sum(), backend="torch_lazy")(x).backward()
    assert [module._needs_recompile() for module in modules] == [True, True]
