"""torch.compile(backend="torch_lazy") against eager: values, gradients, writes."""

import contextlib
import copy
import gc
import subprocess
import sys
import threading
import warnings
import weakref

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from comparing import COMPILED, replayed
from torch import nn
from torch.nn.attention.flex_attention import flex_attention
from torch.utils import _pytree as pytree

import torch_lazy

CLOSE = {"rtol": 1e-4, "atol": 1e-5} if COMPILED else {"rtol": 1.3e-6, "atol": 1e-6}
DEVICES = ["cpu", "lazy"]


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


def compiled(function, **options):
    return torch.compile(function, backend="torch_lazy", **options)


def moved(tree, device):
    def leaf(x):
        if not isinstance(x, torch.Tensor):
            return x
        return x.detach().clone().to(device).requires_grad_(x.requires_grad)

    return pytree.tree_map(leaf, tree)


def assert_same(actual, expected, device, **tolerance):
    actual, actual_spec = pytree.tree_flatten(actual)
    expected, expected_spec = pytree.tree_flatten(expected)
    assert actual_spec == expected_spec
    for a, e in zip(actual, expected, strict=True):
        if isinstance(e, torch.Tensor):
            assert a.device.type == device
            assert a.stride() == e.stride()
            torch.testing.assert_close(a.detach().cpu(), e.detach(), **(tolerance or CLOSE))
        else:
            assert a == e


def check_function(function, inputs, device, calls=3, fullgraph=True, **options):
    """Calls with new data of the same kind; results and inputs afterwards are eager's."""
    run = compiled(function, fullgraph=fullgraph, **options)
    before = replayed()
    for _ in range(calls):
        given = pytree.tree_map(
            lambda x: (
                torch.randn_like(x) if isinstance(x, torch.Tensor) and x.is_floating_point() else x
            ),
            inputs,
        )
        ours, theirs = moved(given, device), moved(given, "cpu")
        assert_same(run(*ours), function(*theirs), device)
        assert_same(ours, theirs, device)
    assert replayed() - before >= calls - 1


def check_training(model, batches, device, loss=lambda y: y.square().mean()):
    """Steps of SGD: results, gradients, parameters and buffers are eager's."""
    ours, theirs = copy.deepcopy(model).to(device), model
    run = compiled(ours, fullgraph=True)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (ours, theirs)]
    before = replayed()
    for batch in batches:
        results = []
        for call, optimizer, where in (
            (run, optimizers[0], device),
            (theirs, optimizers[1], "cpu"),
        ):
            optimizer.zero_grad()
            torch.manual_seed(1)
            result = call(*moved(batch, where))
            loss(result).backward()
            results.append(result)
        assert_same(*results, device)
        assert_same(
            [p.grad for p in ours.parameters()], [p.grad for p in theirs.parameters()], device
        )
        for optimizer in optimizers:
            optimizer.step()
    assert_same(list(ours.parameters()), list(theirs.parameters()), device)
    assert_same(list(ours.buffers()), list(theirs.buffers()), device)
    assert replayed() - before >= 2 * (len(batches) - 1)


# ---- Models --------------------------------------------------------------------------------------


def convolutions():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip


class Block(nn.Module):
    def __init__(self, width=16, heads=2):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Linear(32, width))

    def forward(self, x):
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(self.norms[0](x)).chunk(3, -1)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norms[1](x))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.cell = nn.Embedding(10, 6), nn.GRUCell(6, 8)

    def forward(self, ids):
        state = torch.zeros(ids.shape[0], 8, device=ids.device)
        for word in self.words(ids).unbind(1):
            state = self.cell(word, state)
        return state


TRAINED = {
    "mlp": (
        lambda: nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)),
        lambda: (torch.randn(5, 8),),
    ),
    "convolutions": (convolutions, lambda: (torch.randn(4, 3, 12, 12),)),
    "transformer": (Block, lambda: (torch.randn(2, 6, 16),)),
    "recurrent": (Recurrent, lambda: (torch.randint(10, (3, 4)),)),
}


@pytest.mark.parametrize("name", TRAINED)
def test_training_is_eagers(name, device):
    make, batch = TRAINED[name]
    check_training(make(), [batch() for _ in range(4)], device)


def test_evaluation_is_eagers(device):
    model = convolutions().eval()
    for p in model.buffers():
        if p.is_floating_point():
            p.uniform_(0.5, 1.5)
    ours = copy.deepcopy(model).to(device)
    run = compiled(ours, fullgraph=True)
    for mode in (torch.no_grad, torch.inference_mode):
        for _ in range(3):
            x = torch.randn(2, 3, 12, 12)
            with mode():
                assert_same(run(x.to(device)), model(x), device)
    assert_same(list(ours.buffers()), list(model.buffers()), device)


def test_dropout_has_new_numbers_in_every_call(device):
    model = nn.Dropout(0.5)
    run = compiled(model, fullgraph=True)
    x = torch.ones(1000).to(device).requires_grad_()
    results = []
    for _ in range(4):
        x.grad = None
        y = run(x)
        y.sum().backward()
        assert torch.equal(y.detach().cpu(), x.grad.cpu())  # the same numbers in backward
        assert set(y.tolist()) == {0.0, 2.0}
        results.append(tuple(y.tolist()))
    assert len(set(results)) == 4
    assert 400 < sum(value == 2.0 for value in results[3]) < 600


def test_random_numbers_follow_the_seed(device):
    def function(x):
        return x + torch.rand_like(x), torch.randn(3, device=x.device), F.dropout(x, 0.3)

    run = compiled(function, fullgraph=True)
    x = torch.randn(20).to(device)
    run(x)
    results = []
    for seed in (1, 2, 1):
        torch.manual_seed(seed)
        results.append([y.cpu() for y in run(x)])
    for first, other, again in zip(*results, strict=True):
        assert torch.equal(first, again)
        assert not torch.equal(first, other)


def test_autocast_is_eagers(device):
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    ours = copy.deepcopy(model).to(device)
    run = compiled(ours, fullgraph=True)
    for _ in range(3):
        x = torch.randn(4, 8)
        with torch.autocast(device, torch.bfloat16):
            actual = run(x.to(device))
        with torch.autocast("cpu", torch.bfloat16):
            expected = model(x)
        assert actual.dtype == torch.bfloat16
        assert_same(actual, expected, device, rtol=2e-2, atol=2e-2)
        for m, y in ((ours, actual), (model, expected)):
            m.zero_grad()
            y.float().sum().backward()
        assert_same(
            [p.grad for p in ours.parameters()], [p.grad for p in model.parameters()], device,
            rtol=2e-2, atol=2e-2,
        )  # fmt: skip


def test_only_some_inputs_need_gradients(device):
    def function(a, b, c):
        return (a * b).sum() + (b * c).sin().sum()

    run = compiled(function, fullgraph=True)
    for needs in ((True, False, True), (False, True, False), (False, False, False)):
        for _ in range(2):
            tensors = [torch.randn(4).requires_grad_(need) for need in needs]
            ours, theirs = moved(tensors, device), moved(tensors, "cpu")
            results = run(*ours), function(*theirs)
            assert_same(*results, device)
            if any(needs):
                for result in results:
                    result.backward()
            for a, e in zip(ours, theirs, strict=True):
                assert (a.grad is None) == (e.grad is None)
                if e.grad is not None:
                    assert_same(a.grad, e.grad, device)


# ---- Views and writes ----------------------------------------------------------------------------


def writes_everything(x, y):
    x.add_(y)
    y.mul_(2)
    return x * y


def writes_through_a_view(x, y):
    x[1:, :2].copy_(y[:-1, :2])
    x.t()[0].zero_()
    return x.sum()


def returns_views(x, y):
    return x.t(), x[1:], y.view(-1), x


def returns_a_view_of_what_it_wrote(x, y):
    x.mul_(3)
    return x[0], y


def returns_shared_memory(x, y):
    z = x + y
    return z, z[1:], z.t()


def returns_a_tree(x, y):
    return {"sum": x + y, "more": (x - y, [3, None, "text"])}


@pytest.mark.parametrize(
    "function",
    [
        writes_everything,
        writes_through_a_view,
        returns_views,
        returns_a_view_of_what_it_wrote,
        returns_shared_memory,
        returns_a_tree,
    ],
)
def test_functions_are_eagers(function, device):
    check_function(function, (torch.randn(3, 4), torch.randn(3, 4)), device)


def test_results_share_memory_as_in_eager(device):
    run = compiled(returns_shared_memory, fullgraph=True)
    view = compiled(returns_views, fullgraph=True)
    for _ in range(3):
        x, y = torch.randn(3, 4).to(device), torch.randn(3, 4).to(device)
        z, rest, turned = run(x, y)
        z.zero_()
        assert rest.sum().item() == 0 and turned.sum().item() == 0
        turned, *_, itself = view(x, y)
        assert itself is x
        turned.fill_(2)
        assert x.sum().item() == 24


def test_inputs_are_left_alone(device):
    """Only what the function writes is written: the plan reuses no memory of the caller's."""

    def function(x, y):
        return ((x * 2 + y).relu() - x).exp() * y

    run = compiled(function, fullgraph=True)
    x, y = torch.randn(64, 64), torch.randn(64, 64)
    ours = moved((x, y), device)
    for _ in range(20):
        run(*ours)
        assert_same(ours, (x, y), device, rtol=0, atol=0)


def strided(kind):
    base = torch.randn(6, 8)
    return {
        "transposed": base.t(),
        "offset": base[2:4, 1:5],
        "every other": base[::2, ::2],
        "expanded": base[:, :1].expand(6, 4),
        "no elements": base[:0],
        "no dimensions": base[1, 2],
        "conjugate": torch.complex(base, base).conj(),
    }[kind]


@pytest.mark.parametrize(
    "kind",
    [
        "transposed",
        "offset",
        "every other",
        "expanded",
        "no elements",
        "no dimensions",
        "conjugate",
    ],
)
def test_inputs_of_any_layout(kind, device):
    def function(x):
        return x * 2, x.sum()

    run = compiled(function, fullgraph=True)
    for _ in range(3):
        x = strided(kind)
        y = x.to(device) if device == "cpu" else moved_layout(x, device)
        assert y.stride() == x.stride()
        assert_same(run(y), function(x), device)


def moved_layout(x, device):
    """x on the device, lying in its storage as it does."""
    whole = x.untyped_storage().nbytes() // x.element_size()
    base = x.new_empty(0).set_(x.untyped_storage(), 0, (whole,), (1,)).clone().to(device)
    y = base.as_strided(x.size(), x.stride(), x.storage_offset())
    return y.conj() if x.is_conj() else y


def test_writes_into_a_part_of_memory(device):
    def function(x, y):
        x.add_(1)
        y.mul_(2)

    run = compiled(function, fullgraph=True)
    for _ in range(20):
        base = torch.randn(6, 8)
        ours, theirs = moved(base, device), base.clone()
        for f, b in ((run, ours), (function, theirs)):
            f(b[:, :3], b[:, 3:6])  # between each other's elements
        assert_same(ours, theirs, device)


def test_inputs_that_share_memory(device):
    def function(x, y):
        x.add_(1)
        return x + y

    run = compiled(function, fullgraph=True)
    for _ in range(3):
        base = torch.randn(4, 4)
        for views in (lambda b: (b, b), lambda b: (b[0], b[1]), lambda b: (b[:2], b[1:3])):
            ours, theirs = moved(base, device), base.clone()
            assert_same(run(*views(ours)), function(*views(theirs)), device)
            assert_same(ours, theirs, device)


def test_batches_cut_from_one_tensor_are_one_recording(device):
    data = torch.randn(40, 3)
    ours = data.to(device)
    run = compiled(lambda x: (x * 2).cumsum(0), fullgraph=True)
    before = replayed()
    for i in range(10):
        batch = slice(4 * i, 4 * i + 4)
        assert_same(run(ours[batch]), (data[batch] * 2).cumsum(0), device)
    assert replayed() - before == 9


def test_results_on_another_device():
    def function(x):
        return (x + 1).cpu(), x * 2

    run = compiled(function, fullgraph=True)
    for _ in range(3):
        x = torch.randn(3)
        here, there = run(x.to("lazy"))
        assert here.device.type == "cpu" and there.device.type == "lazy"
        assert torch.equal(here, x + 1) and torch.equal(there.cpu(), x * 2)


def test_numbers_made_in_the_function(device):
    constant = torch.tensor([1.0, 2.0, 3.0])

    def function(x):
        steps = torch.arange(3, device=x.device)
        return x + steps + torch.full((3,), 0.5, device=x.device) + constant.to(x.device)

    check_function(function, (torch.randn(3),), device)


# ---- Shapes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dynamic", [True, None])
def test_new_sizes(dynamic, device):
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    ours = copy.deepcopy(model).to(device)
    run = torch.compile(ours, backend="torch_lazy", dynamic=dynamic, fullgraph=True)
    torch._dynamo.utils.counters.clear()
    for batch in (3, 5, 7, 2, 5, 3, 9):
        x = torch.randn(batch, 4)
        results = []
        for m, call, where in ((ours, run, device), (model, model, "cpu")):
            m.zero_grad()
            y = call(x.to(where))
            y.square().sum().backward()
            results.append(y)
        assert_same(*results, device)
        assert_same(
            [p.grad for p in ours.parameters()], [p.grad for p in model.parameters()], device
        )
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert graphs == (1 if dynamic else 2)


def test_sizes_as_results_and_numbers(device):
    def function(x, scale, count):
        return x.reshape(-1)[:count] * scale / x.shape[0], x.shape[0] * 2

    run = torch.compile(function, backend="torch_lazy", dynamic=True)
    for rows, scale, count in ((3, 0.5, 2), (5, 0.25, 4), (3, 1.5, 2), (5, 2.0, 3), (4, 3.0, 3)):
        x = torch.randn(rows, 2)
        assert_same(run(x.to(device), scale, count), function(x, scale, count), device)


# ---- Dynamo around it ----------------------------------------------------------------------------


def test_graph_breaks(device, capsys):
    def function(x):
        y = x * 2
        print("in the middle")
        y.add_(1)
        return y.sin()

    check_function(function, (torch.randn(4),), device, fullgraph=False)
    assert capsys.readouterr().out.count("in the middle") == 6


def test_the_whole_training_step_of_a_user(device):
    """Parameters that an optimizer changes between calls are read where they are."""
    model = nn.Linear(4, 4)
    ours = copy.deepcopy(model).to(device)
    run = compiled(ours)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.1) for m in (ours, model)]
    for _ in range(5):
        x = torch.randn(3, 4)
        for call, optimizer, where in ((run, optimizers[0], device), (model, optimizers[1], "cpu")):
            optimizer.zero_grad()
            call(x.to(where)).square().sum().backward()
            optimizer.step()
    assert_same(list(ours.parameters()), list(model.parameters()), device)


def test_inside_torch_lazy_compile():
    inner = compiled(lambda x: x.sin() * 2)
    outer = torch_lazy.compile(lambda x: inner(x) + 1)
    for _ in range(6):
        x = torch.randn(4)
        with torch.no_grad():
            assert_same(outer(x.to("lazy")), x.sin() * 2 + 1, "lazy")


def test_pending_work_comes_first():
    run = compiled(lambda x: x.add_(1))
    x = torch.zeros(4).to("lazy")
    for _ in range(3):
        before = x * 10  # pending; reads what is about to be written
        x.mul_(2)
        run(x)
        after = x + 0
    assert x.tolist() == [7.0] * 4
    assert before.tolist() == [30.0] * 4
    assert after.tolist() == [7.0] * 4


# ---- What cannot be recorded ---------------------------------------------------------------------


def test_obstacles_are_told_once_and_results_are_right(device):
    def function(x):
        return torch.bernoulli(x) + x

    run = compiled(function, fullgraph=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for i in range(6):
            x = torch.rand(10).to(device)
            torch.manual_seed(i)
            actual = run(x)
            torch.manual_seed(i)
            assert_same(actual, function(x.cpu()), device)
    told = [w for w in caught if issubclass(w.category, torch_lazy.CompileWarning)]
    assert len(told) == 1
    assert "bernoulli" in str(told[0].message)


def choice(x, y):
    return torch.cond(x.sum() > 0, lambda x, y: x.sin() * y, lambda x, y: x.cos() + y, (x, y))


def loop(x, y):
    def go_on(count, x):
        return count < y.size(0)

    def body(count, x):
        return count + 1, (x * 0.5).sin()

    return torch._higher_order_ops.while_loop(go_on, body, (torch.zeros((), dtype=int), x))[1]


def scanned(x, y):
    return torch._higher_order_ops.scan(lambda sum, row: (sum + row, sum * row), y[0] * 0, x)


def mapped(x, y):
    return torch._higher_order_ops.map(lambda row, y: (row * y).sin().sum(0), x, y)


def attention(x, y):
    q, k = x[None, None], y[None, None]
    return flex_attention(q, k, k, score_mod=lambda score, b, h, i, j: score + (i - j))


@torch.compiler.nested_compile_region
def region(x, y):
    return (x @ y.t()).sin() @ y


@pytest.mark.parametrize("function", [choice, loop], ids=lambda f: f.__name__)
@pytest.mark.parametrize("sign", [1, -1])
def test_decisions_inside_a_graph_run_operator_by_operator(function, sign, device):
    run = compiled(function, fullgraph=True)
    x, y = torch.rand(4, 3) * sign, torch.randn(4, 3)
    with pytest.warns(torch_lazy.CompileWarning, match="reads a number") as told:
        for _ in range(5):
            assert_same(run(*moved((x, y), device)), function(x, y), device)
    assert len([w for w in told if w.category is torch_lazy.CompileWarning]) == 1


def test_gradients_of_a_decision(device):
    results = []
    for run, where in ((compiled(choice, fullgraph=True), device), (choice, "cpu")):
        inputs = [torch.ones(4, 3) / 2, torch.arange(12.0).view(4, 3)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for sign in (1, -1, 1, -1, 1, -1):
                given = [(x * sign).to(where).requires_grad_() for x in inputs]
                run(*given).sum().backward()
                results.append([x.grad for x in given])
    for ours, theirs in zip(results[:6], results[6:], strict=True):
        assert_same(ours, theirs, device)


@pytest.mark.parametrize("function", [scanned, mapped, region])
def test_parts_of_graphs_are_recorded(function, device):
    check_function(function, (torch.randn(4, 3), torch.randn(4, 3)), device)


@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_flexible_attention_is_recorded():  # PyTorch refuses it on the device lazy
    check_function(attention, (torch.randn(4, 16), torch.randn(4, 16)), "cpu")


def test_checkpoints_are_recomputed(device):
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x):
            block = lambda x: F.dropout(self.layer(x).tanh(), 0.0)  # noqa: E731
            return torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)

    check_training(Checkpointed(), [(torch.randn(4, 3),) for _ in range(3)], device)


def test_errors_are_eagers(device):
    run = compiled(lambda table, index: table[index] * 2, fullgraph=True)
    table = torch.randn(4, 2).to(device)
    for index in ([1, 2], [0, 3], [1, 9], [2, 2], [9, 9], [3, 3]):
        given = torch.tensor(index).to(device)
        wrong = max(index) > 3
        with pytest.raises(IndexError) if wrong else contextlib.nullcontext():
            result = run(table, given)
            assert_same(result, table.cpu()[torch.tensor(index)] * 2, device)


AT_POSITIONS = {
    "index": lambda y, i: y[i],
    "index of an index": lambda y, i: y[i[(i * 0 + 1).abs()]],
    "index_select": lambda y, i: y.index_select(0, i),
    "embedding": lambda y, i: F.embedding(i, y),
    "gather": lambda y, i: y.gather(0, i[:, None]),
    "index_add": lambda y, i: y.index_add(0, i, y[:2]),
    "nll_loss": lambda y, i: F.nll_loss(y[:2], i),
}


@pytest.mark.parametrize("name", AT_POSITIONS)
def test_errors_in_backward_are_eagers(name, device):
    """Although backward has used up what forward saved when it finds the index."""

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, i):
            y = x @ x.t()
            ctx.save_for_backward(y, i)
            return y.sum(1, keepdim=True) * x

        @staticmethod
        def backward(ctx, gradient):
            y, i = ctx.saved_tensors
            found = AT_POSITIONS[name]((y + gradient.sum()).exp(), i)
            return gradient * found.sin().sum() + (y * 2).exp().sum(), None

    def gradient(run, i, device):
        x = torch.arange(12.0).view(4, 3).div(20).to(device).requires_grad_()
        run(x, torch.tensor([0, i], device=device)).sum().backward()
        return x.grad.cpu()

    run = compiled(lambda x, i: Function.apply(x, i), fullgraph=True)
    for i in (1, 2, 3):
        torch.testing.assert_close(gradient(run, i, device), gradient(Function.apply, i, "cpu"))
    with pytest.raises((IndexError, RuntimeError)) as expected:
        gradient(Function.apply, 9, "cpu")
    with pytest.raises(expected.type) as error:
        gradient(run, 9, device)
    message, where = str(error.value).split("\n")
    assert message == str(expected.value)
    assert "sum" not in where  # what the operator was merged with
    torch.testing.assert_close(gradient(run, 2, device), gradient(Function.apply, 2, "cpu"))


def test_an_error_while_recording_leaves_nothing_behind():
    run = compiled(lambda table, index: table[index] * 2, fullgraph=True)
    kept = None
    try:
        run(torch.randn(4, 2), torch.tensor([9]))
    except IndexError as error:
        kept = error
    assert kept is not None
    assert not torch_lazy._C.is_recording()
    check_function(lambda x: x + 1, (torch.randn(3),), "cpu")


def test_options_are_refused():
    with pytest.raises(Exception, match="takes no options"):
        torch.compile(lambda x: x + 1, backend="torch_lazy", options={"a": 1})(torch.ones(2))


# ---- Memory --------------------------------------------------------------------------------------


def test_nothing_is_kept_alive(device):
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).to(device)
    run = compiled(model)
    for _ in range(3):
        x = torch.randn(4, 8).to(device)
        y = run(x)
        storages = [weakref.ref(t) for t in (x, y)]
        y.sum().backward()
        del x, y
        gc.collect()
        assert [ref() for ref in storages] == [None, None]


def test_backward_frees_what_forward_saved(device):
    """At its last use, not at the end: most of it is gone when the last memory is taken."""
    layers = [nn.Linear(256, 256, bias=False) for _ in range(8)]
    model = nn.Sequential(*(m for layer in layers for m in (layer, nn.Tanh()))).to(device)
    for p in model.parameters():
        p.requires_grad_(False)
    run = compiled(model, fullgraph=True)
    saved = 8 * 4096 * 256 * 4
    for _ in range(3):
        x = torch.randn(4096, 256).to(device).requires_grad_()
        with torch.profiler.profile(profile_memory=True) as profile:
            run(x).sum().backward()
    events = profile.profiler.kineto_results.events()
    changes = [event.nbytes() for event in events if event.name() == "[memory]"]
    large = [i for i, nbytes in enumerate(changes) if nbytes > 2**20]
    assert sum(changes[: large[-1]]) < saved / 2


def test_a_call_that_gives_plain_tensors_runs_on_its_own_thread():
    """Its memory then comes from where the thread's other memory does, the first time too."""
    threads = []

    def noting(x):
        threads.append(threading.get_ident())
        return x + 1

    with torch.library._scoped_library("torch_lazy_test_dynamo", "FRAGMENT") as library:
        library.define("noting(Tensor x) -> Tensor")
        library.impl("noting", noting, "CPU")
        library.impl("noting", torch.empty_like, "Meta")
        operator = torch.ops.torch_lazy_test_dynamo.noting
        with torch_lazy.config.override(**{"async": 1}):
            run = compiled(lambda x: operator(x.exp()) * 2)
            for _ in range(3):
                assert_same(run(torch.zeros(3)), torch.full((3,), 4.0), "cpu")
    assert threads == [threading.get_ident()] * 3


def test_memory_of_others_is_not_used_up():
    """What backward reads last may be an array of NumPy's, or a tensor that somebody has."""
    run = compiled(lambda x, w: (x * w).exp().sin().sum(), fullgraph=True)
    for _ in range(20):
        array = np.random.rand(64).astype(np.float32)
        before = array.copy()
        w = torch.randn(64, requires_grad=True)
        run(torch.from_numpy(array), w).backward()
        assert (array == before).all()


def test_a_second_backward_is_eagers(device):
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
    ours = copy.deepcopy(model).to(device)
    run = compiled(ours, fullgraph=True)
    for retain in (False, True, False, True, True):
        x = torch.randn(3, 4)
        for m, call, where in ((ours, run, device), (model, model, "cpu")):
            m.zero_grad()
            loss = call(x.to(where)).square().sum()
            if retain:
                loss.backward(retain_graph=True)
            loss.backward()
        assert_same(
            [p.grad for p in ours.parameters()], [p.grad for p in model.parameters()], device
        )


# ---- The package ---------------------------------------------------------------------------------


def test_the_name_is_known_without_importing_dynamo_early():
    code = (
        "import sys, torch; assert 'torch._dynamo' not in sys.modules; import torch_lazy; "
        "assert 'torch._dynamo' not in sys.modules; "
        "f = torch.compile(lambda x: x + 1, backend='torch_lazy'); "
        "assert f(torch.ones(2)).tolist() == [2.0, 2.0]; "
        "assert 'torch_lazy' in torch._dynamo.list_backends()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
