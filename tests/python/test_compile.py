"""torch_lazy.compile: replayed functions leave what eager leaves, and what cannot be replayed is
traced and said.
"""

import collections
import copy
import functools
import os
import threading
import warnings

import pytest
import torch
from comparing import replayed
from torch import nn
from torch.nn import functional as F

import torch_lazy
from torch_lazy import CompileWarning

pytestmark = [
    pytest.mark.usefixtures("nothing_pending"),
    pytest.mark.filterwarnings("error::torch_lazy.CompileWarning"),
]

CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def recorded():
    return torch_lazy.metrics.counter_value("ReplayRecorded") or 0


def assert_same(actual, expected):
    torch.testing.assert_close(actual.cpu(), expected, **CLOSE)


def assert_same_state(actual, expected):
    for (name, a), (_, b) in zip(
        actual.state_dict().items(), expected.state_dict().items(), strict=True
    ):
        torch.testing.assert_close(a.cpu(), b, **CLOSE, msg=lambda m, name=name: f"{name}: {m}")
    for a, b in zip(actual.parameters(), expected.parameters(), strict=True):
        assert (a.grad is None) == (b.grad is None)
        if a.grad is not None:
            assert_same(a.grad, b.grad)


def mlp():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3))


class Trainer:
    """A model, an optimizer, and a training step."""

    def __init__(self, model, optimizer, device="cpu", clip=0.0):
        self.model = model.to(device)
        self.optimizer = optimizer(self.model.parameters())
        self.clip = clip

    def step(self, x, y):
        self.optimizer.zero_grad()
        loss = F.mse_loss(self.model(x), y)
        loss.backward()
        if self.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        return loss


def batches(count, batch=4):
    generator = torch.Generator().manual_seed(5)
    for _ in range(count):
        yield (
            torch.randn(batch, 6, generator=generator),
            torch.randn(batch, 3, generator=generator),
        )


OPTIMIZERS = {
    "sgd": functools.partial(torch.optim.SGD, lr=0.1),
    "momentum": functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9),
    "adamw": functools.partial(torch.optim.AdamW, lr=1e-2),
    "adam_amsgrad": functools.partial(torch.optim.Adam, lr=1e-2, amsgrad=True),
    "adam_single": functools.partial(torch.optim.Adam, lr=1e-2, foreach=False),
    "adamw_fused": functools.partial(torch.optim.AdamW, lr=1e-2, fused=True),
    "adamw_capturable": functools.partial(torch.optim.AdamW, lr=1e-2),
    "rmsprop": functools.partial(torch.optim.RMSprop, lr=1e-2),
    "adamax": functools.partial(torch.optim.Adamax, lr=1e-2),
    "nadam": functools.partial(torch.optim.NAdam, lr=1e-2),
}


@pytest.mark.parametrize("schedule", [False, True], ids=["constant", "schedule"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training(name, schedule):
    eager = Trainer(mlp(), OPTIMIZERS[name], clip=0.5)
    lazy = Trainer(mlp(), OPTIMIZERS[name], "lazy", clip=0.5)
    step = torch_lazy.compile(lazy.step)
    schedules = [torch.optim.lr_scheduler.ExponentialLR(t.optimizer, 0.9) for t in (eager, lazy)]
    for x, y in batches(12):
        assert_same(step(x.to("lazy"), y.to("lazy")), eager.step(x, y))
        if schedule:
            for each in schedules:
                each.step()
    assert_same_state(lazy.model, eager.model)
    assert replayed() >= 6


def test_a_step_without_slots_for_its_numbers_is_traced():
    """Adagrad counts its steps in Python: each step has other numbers."""
    lazy = Trainer(mlp(), functools.partial(torch.optim.Adagrad, lr=0.1, lr_decay=0.1), "lazy")
    eager = Trainer(mlp(), functools.partial(torch.optim.Adagrad, lr=0.1, lr_decay=0.1))
    step = torch_lazy.compile(lazy.step)
    with pytest.warns(CompileWarning, match="not replayed"):
        for x, y in batches(8):
            assert_same(step(x.to("lazy"), y.to("lazy")), eager.step(x, y))
    assert_same_state(lazy.model, eager.model)
    assert replayed() == 0


def test_a_schedule_inside_is_traced():
    lazy, eager = (Trainer(mlp(), OPTIMIZERS["sgd"], device) for device in ("lazy", "cpu"))
    rates = [torch.optim.lr_scheduler.ExponentialLR(t.optimizer, 0.9) for t in (lazy, eager)]

    def step(x, y):
        loss = lazy.step(x, y)
        rates[0].step()
        return loss

    compiled = torch_lazy.compile(step)
    with pytest.warns(CompileWarning, match="changes|learning rate") as caught:
        for x, y in batches(8):
            assert_same(compiled(x.to("lazy"), y.to("lazy")), eager.step(x, y))
            rates[1].step()
    assert len([w for w in caught if w.category is CompileWarning]) == 1
    assert_same_state(lazy.model, eager.model)


def test_accumulation_over_batches():
    """Three backward passes to a step: gradients are there at the entry, or not."""
    trainers = [Trainer(mlp(), OPTIMIZERS["momentum"], device) for device in ("lazy", "cpu")]

    def make(trainer):
        def accumulate(x, y):
            loss = F.mse_loss(trainer.model(x), y) / 3
            loss.backward()
            return loss

        def update():
            trainer.optimizer.step()
            trainer.optimizer.zero_grad()

        return accumulate, update

    (lazy, lazy_update), (eager, eager_update) = (make(t) for t in trainers)
    lazy, lazy_update = torch_lazy.compile(lazy), torch_lazy.compile(lazy_update)
    for i, (x, y) in enumerate(batches(30)):
        assert_same(lazy(x.to("lazy"), y.to("lazy")), eager(x, y))
        if i % 3 == 2:
            lazy_update()
            eager_update()
    assert_same_state(trainers[0].model, trainers[1].model)
    assert replayed() > 15


def test_gradients_that_share_memory():
    """Those of stacked parameters are views of one tensor, before a replay and after it."""

    def run(device):
        parameters = [nn.Parameter(torch.full((3,), float(i), device=device)) for i in range(4)]

        def step(x):
            for parameter in parameters:
                parameter.grad = None
            torch.stack(parameters).pow(2).mul(x).sum().backward()

        if device == "lazy":
            step = torch_lazy.compile(step)
        kept, seen = [], []
        for call in range(7):
            step(torch.arange(1.0, 4.0, device=device) * (call + 1))
            if call in (3, 5):
                kept.append(parameters[1].grad)  # from then on the old ones are somebody's
            first, second = parameters[0].grad, parameters[1].grad
            assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
            seen += [parameter.grad.cpu().clone() for parameter in parameters]
            parameters[2].grad.zero_()  # not what the others see
            seen += [parameter.grad.cpu().clone() for parameter in parameters]
        return seen + [grad.cpu() for grad in kept]

    before = replayed()
    actual = run("lazy")
    assert replayed() - before >= 4
    for a, b in zip(actual, run("cpu"), strict=True):
        assert_same(a, b)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_that_the_caller_keeps(set_to_none):
    """A gradient that is replaced stays what it was for who holds it."""

    def train(device, wrap):
        model = mlp().to(device)

        def step(x):
            model.zero_grad(set_to_none=set_to_none)
            model(x).square().sum().backward()

        step = wrap(step)
        kept = []
        for x, _ in batches(8):
            step(x.to(device))
            kept.append(model[0].weight.grad)
        return [grad.cpu() for grad in kept]

    for a, b in zip(train("lazy", torch_lazy.compile), train("cpu", lambda f: f), strict=True):
        assert_same(a, b)
    assert replayed() >= 4


def test_dropout_draws_new_numbers_that_follow_the_seed():
    def run(device, wrap):
        torch.manual_seed(9)
        f = wrap(lambda x: (F.dropout(x, 0.5), torch.rand_like(x), torch.randn(3, device=device)))
        return [[t.cpu() for t in f(torch.ones(64).to(device))] for _ in range(8)]

    lazy, eager = run("lazy", torch_lazy.compile), run("cpu", lambda f: f)
    assert replayed() >= 5
    for a, b in zip(lazy, eager, strict=True):
        for x, y in zip(a, b, strict=True):
            assert_same(x, y)
    assert not torch.equal(lazy[-1][0], lazy[-2][0])


def test_batch_norm_in_training_and_evaluation():
    models = [nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU()) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    models[0].to("lazy")
    with torch.no_grad():
        forward = torch_lazy.compile(models[0].__call__)
        for i in range(24):
            for model in models:
                model.train(i % 4 < 2)
            x = torch.randn(3, 2, 6, 6)
            assert_same(forward(x.to("lazy")), models[1](x))
        assert replayed() >= 8
    assert_same_state(*models)
    assert models[0][1].num_batches_tracked.item() == 12


def test_tied_weights():
    def make(device):
        torch.manual_seed(1)
        embedding = nn.Embedding(10, 4)
        head = nn.Linear(4, 10, bias=False)
        head.weight = embedding.weight
        model = nn.ModuleDict({"e": embedding, "h": head}).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(ids):
            optimizer.zero_grad()
            loss = F.cross_entropy(model["h"](model["e"](ids)), ids)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return model, step

    (lazy, step), (eager, eager_step) = make("lazy"), make("cpu")
    step = torch_lazy.compile(step)
    for _ in range(8):
        ids = torch.randint(0, 10, (5,))
        assert_same(step(ids.to("lazy")), eager_step(ids))
    assert lazy["e"].weight is lazy["h"].weight
    assert_same_state(lazy, eager)
    assert replayed() >= 4


def test_views_that_the_caller_keeps_see_the_changes():
    trainer = Trainer(mlp(), OPTIMIZERS["sgd"], "lazy")
    eager = Trainer(mlp(), OPTIMIZERS["sgd"])
    row, eager_row = trainer.model[0].weight.detach()[1], eager.model[0].weight.detach()[1]
    step = torch_lazy.compile(trainer.step)
    for x, y in batches(8):
        step(x.to("lazy"), y.to("lazy"))
        eager.step(x, y)
        assert_same(row, eager_row)
    assert replayed() >= 4


def test_results_are_fresh_while_others_live():
    f = torch_lazy.compile(lambda x: (x + 1, x * 2))
    results = [f(torch.full((3,), float(i), device="lazy")) for i in range(10)]
    assert replayed() >= 6
    for i, (a, b) in enumerate(results):
        assert a.tolist() == [i + 1.0] * 3
        assert b.tolist() == [i * 2.0] * 3


def test_arguments_that_alias():
    """Whether arguments share memory decides what a write does."""

    def add_and_read(a, b):
        a.add_(1)
        return b * 2

    f = torch_lazy.compile(add_and_read)
    for i in range(16):
        x, y = torch.full((4,), float(i)), torch.zeros(4)
        lazy_x, lazy_y = x.to("lazy"), y.to("lazy")
        kind = (i // 4) % 3
        if kind == 0:
            actual, expected = f(lazy_x, lazy_y), add_and_read(x, y)
        elif kind == 1:
            actual, expected = f(lazy_x, lazy_x), add_and_read(x, x)
        else:
            actual, expected = f(lazy_x[:2], lazy_x[1:3]), add_and_read(x[:2], x[1:3])
        assert_same(actual, expected)
        assert_same(lazy_x, x)
    assert replayed() >= 4


def test_results_that_alias_arguments_and_each_other():
    def f(x):
        y = x.mul_(2)
        z = x + 1
        return y, x[1:], z, z[:2], z.t()

    compiled = torch_lazy.compile(f)
    for i in range(8):
        x = torch.arange(6.0).view(2, 3) + i
        lazy = x.to("lazy")
        outputs, expected = compiled(lazy), f(x)
        for a, b in zip(outputs, expected, strict=True):
            assert a.stride() == b.stride()
            assert a.storage_offset() == b.storage_offset()
        assert outputs[0] is lazy
        outputs[3].fill_(7)
        expected[3].fill_(7)
        outputs[1].zero_()
        expected[1].zero_()
        for a, b in zip(outputs, expected, strict=True):
            assert_same(a, b)
        assert_same(lazy, x)
    assert replayed() >= 4


def test_trees():
    Point = collections.namedtuple("Point", "x y")

    def f(tree, *, scale=1, names=("a", "b")):
        return {
            "sum": tree["list"][0] + tree["list"][1][0] * scale,
            "point": Point(tree["list"][0] - 1, None),
            "count": len(tree["list"]),
            "names": names,
        }

    compiled = torch_lazy.compile(f)
    for i in range(8):
        a, b = torch.full((2,), float(i)), torch.ones(2)
        actual = compiled({"list": [a.to("lazy"), (b.to("lazy"),)]}, scale=3)
        expected = f({"list": [a, (b,)]}, scale=3)
        assert_same(actual["sum"], expected["sum"])
        assert_same(actual["point"].x, expected["point"].x)
        assert type(actual["point"]) is Point
        assert (actual["count"], actual["names"]) == (2, ("a", "b"))
    assert replayed() >= 5


def test_signatures():
    """Shapes, dtypes, values, structure, grad mode and autocast are calls of another kind."""
    f = torch_lazy.compile(lambda x, k: x * k)
    x = torch.ones(2, device="lazy")
    calls = [
        lambda: f(x, 2),
        lambda: f(x, 3),
        lambda: f(x, 2.0),
        lambda: f(torch.ones(3, device="lazy"), 2),
        lambda: f(torch.ones(2, 2, device="lazy").t(), 2),
        lambda: f(x.double(), 2),
        lambda: f(x, k=2),
        lambda: f(x, x),
    ]
    for _ in range(4):
        for call in calls:
            call()
    with torch.no_grad():
        f(x, 2)
    with torch.autocast("lazy", dtype=torch.bfloat16):
        f(x, 2)
    assert len(f.cache_info()) == len(calls) + 2
    assert f(x, 3).tolist() == [3, 3]
    f.cache_clear()
    assert f.cache_info() == []
    small = torch_lazy.compile(lambda x, k: x * k, cache_size=2)
    for k in range(5):
        assert small(x, k).tolist() == [k, k]
    assert len(small.cache_info()) == 2


def test_batch_sizes():
    trainer, eager = (
        Trainer(mlp(), OPTIMIZERS["adamw"], "lazy"),
        Trainer(mlp(), OPTIMIZERS["adamw"]),
    )
    step = torch_lazy.compile(trainer.step)
    for i in range(24):
        x, y = next(iter(batches(1, batch=2 + i % 3)))
        assert_same(step(x.to("lazy"), y.to("lazy")), eager.step(x, y))
    assert_same_state(trainer.model, eager.model)
    assert len(step.cache_info()) == 3
    assert replayed() >= 12


def test_state_that_is_loaded_is_seen():
    trainer, eager = (
        Trainer(mlp(), OPTIMIZERS["adamw"], "lazy"),
        Trainer(mlp(), OPTIMIZERS["adamw"]),
    )
    step = torch_lazy.compile(trainer.step)
    data = list(batches(40))
    for x, y in data[:6]:
        step(x.to("lazy"), y.to("lazy"))
        eager.step(x, y)
    saved = [
        copy.deepcopy((t.model.state_dict(), t.optimizer.state_dict())) for t in (trainer, eager)
    ]
    for x, y in data[6:12]:
        step(x.to("lazy"), y.to("lazy"))
        eager.step(x, y)
    for each, (model, optimizer) in zip((trainer, eager), saved, strict=True):
        each.model.load_state_dict(model)
        each.optimizer.load_state_dict(optimizer)
    for x, y in data[12:20]:
        assert_same(step(x.to("lazy"), y.to("lazy")), eager.step(x, y))
    assert_same_state(trainer.model, eager.model)
    # Other memory, other parameters, another optimizer.
    for each in (trainer, eager):
        each.model[0].weight.data = each.model[0].weight.data * 0.5
    for x, y in data[20:26]:
        assert_same(step(x.to("lazy"), y.to("lazy")), eager.step(x, y))
    for each, device in ((trainer, "lazy"), (eager, "cpu")):
        torch.manual_seed(8)
        each.model[2] = nn.Linear(8, 3).to(device)
        each.optimizer = torch.optim.SGD(each.model.parameters(), lr=0.1)
    for x, y in data[26:]:
        assert_same(step(x.to("lazy"), y.to("lazy")), eager.step(x, y))
    assert_same_state(trainer.model, eager.model)
    assert replayed() > 15


def test_group_numbers_that_have_no_rule():
    """Betas change: another graph of numbers, so the function is recorded again."""
    trainer, eager = (
        Trainer(mlp(), OPTIMIZERS["adamw"], "lazy"),
        Trainer(mlp(), OPTIMIZERS["adamw"]),
    )
    step = torch_lazy.compile(trainer.step)
    for i, (x, y) in enumerate(batches(20)):
        if i == 8:
            for each in (trainer, eager):
                each.optimizer.param_groups[0]["betas"] = (0.5, 0.6)
        assert_same(step(x.to("lazy"), y.to("lazy")), eager.step(x, y))
    assert_same_state(trainer.model, eager.model)
    assert replayed() >= 10


def test_two_groups_whose_rates_part():
    def make(device):
        model = mlp().to(device)
        groups = [{"params": model[0].parameters()}, {"params": model[2].parameters()}]
        optimizer = torch.optim.SGD(groups, lr=0.1)

        def step(x, y):
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()

        return model, optimizer, step

    (lazy, optimizer, step), (eager, eager_optimizer, eager_step) = make("lazy"), make("cpu")
    step = torch_lazy.compile(step)
    for i, (x, y) in enumerate(batches(20)):
        for each in (optimizer, eager_optimizer):
            first, second = each.param_groups
            first["lr"] = 0.1 / (1 + i)
            second["lr"] = 0.1 / (1 + i) if i < 10 else 0.2 / (1 + i)
        step(x.to("lazy"), y.to("lazy"))
        eager_step(x, y)
        assert_same_state(lazy, eager)
    assert replayed() >= 10


# ---- What is not replayed ------------------------------------------------------------------------


def test_a_counter_keeps_a_function_traced():
    class Counting:
        count = 0

        def __init__(self):
            self.calls = 0

        def __call__(self, x):
            self.calls += 1
            return x + self.calls

    counting = Counting()
    f = torch_lazy.compile(counting)
    x = torch.zeros(1, device="lazy")
    with pytest.warns(CompileWarning, match=r"calls changes from \d+ to \d+ in the call") as caught:
        assert [f(x).item() for _ in range(10)] == list(range(1, 11))
    assert len(caught) == 1
    assert replayed() == 0


def test_an_iterator_cannot_be_checked():
    hidden = iter(range(100))
    f = torch_lazy.compile(lambda x: x * next(hidden))
    x = torch.ones(1, device="lazy")
    with pytest.warns(
        CompileWarning, match=r"hidden is a range_iterator, whose content can change"
    ):
        assert [f(x).item() for _ in range(8)] == list(range(8))


def test_the_environment_is_checked(monkeypatch):
    monkeypatch.setenv("HIDDEN_NUMBER", "1")
    f = torch_lazy.compile(lambda x: x * int(os.environ["HIDDEN_NUMBER"]))
    x = torch.ones(1, device="lazy")
    assert [f(x).item() for _ in range(12)] == [1.0] * 12
    assert replayed() > 0
    monkeypatch.setenv("HIDDEN_NUMBER", "5")
    assert [f(x).item() for _ in range(12)] == [5.0] * 12


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x * x.sum().item(), r"reads a number.*test_compile.py:"),
        (lambda x: x[x > 0], r"aten::(nonzero|index).* is executed at once.*test_compile.py:"),
        (lambda x: x + x.cpu().to("lazy"), "copies a tensor to the CPU"),
        (lambda x: x.cpu(), "copies a tensor to the CPU"),
        (lambda x: torch_lazy.sync([x + 1]) or x, "runs before it has ended"),
    ],
)
def test_reads_cut(function, reason):
    f = torch_lazy.compile(function)
    x = torch.tensor([1.0, -2.0, 3.0])
    with pytest.warns(CompileWarning, match=reason) as caught:
        for _ in range(8):
            assert_same(f(x.to("lazy")), function(x.to("lazy")).cpu())
    assert len([w for w in caught if w.category is CompileWarning]) == 1
    assert replayed() == 0


def test_a_tensor_that_is_kept_elsewhere():
    kept = []

    def f(x):
        y = x + 1
        kept.append(y)
        return y * 2

    compiled = torch_lazy.compile(f)
    with pytest.warns(CompileWarning, match="kept somewhere else|replaces objects"):
        for i in range(8):
            compiled(torch.full((1,), float(i), device="lazy"))
    assert [t.item() for t in kept] == [i + 1 for i in range(8)]


def test_state_in_a_closure():
    """A hidden state that is replaced in each call cannot be followed, and is not."""
    state = {"h": torch.zeros(2, device="lazy")}

    def f(x):
        state["h"] = torch.tanh(state["h"] + x)
        return state["h"] * 1

    compiled = torch_lazy.compile(f)
    expected = torch.zeros(2)
    with pytest.warns(CompileWarning):
        for _ in range(8):
            expected = torch.tanh(expected + 1)
            assert_same(compiled(torch.ones(2, device="lazy")), expected)


def test_state_that_is_written_in_place():
    state = torch.zeros(2, device="lazy")

    def f(x):
        state.add_(x).mul_(2)
        return state.sum()

    compiled = torch_lazy.compile(f)
    expected = torch.zeros(2)
    for i in range(10):
        x = torch.full((2,), float(i))
        expected.add_(x).mul_(2)
        assert_same(compiled(x.to("lazy")), expected.sum())
        assert_same(state, expected)
    assert replayed() >= 6


def test_graphs_that_backward_still_needs():
    model = mlp().to("lazy")
    forward = torch_lazy.compile(model.forward)
    with pytest.warns(CompileWarning, match=r"torch.no_grad\(\)"):
        for x, _ in batches(7):
            model.zero_grad()
            forward(x.to("lazy")).sum().backward()
            eager = mlp()
            eager(x).sum().backward()
            assert_same_state(model, eager)
    with torch.no_grad():
        for x, _ in batches(7):
            assert_same(forward(x.to("lazy")), mlp()(x))
    assert replayed() >= 4


def test_a_second_backward():
    trainer = Trainer(mlp(), OPTIMIZERS["sgd"], "lazy")
    step = torch_lazy.compile(trainer.step)
    for x, y in batches(8):
        loss = step(x.to("lazy"), y.to("lazy"))
        assert loss.requires_grad
        assert not loss.is_leaf
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()
    assert replayed() >= 4


def test_hooks():
    seen = []
    model = mlp().to("lazy")
    model[0].register_forward_hook(lambda module, args, output: seen.append(1))
    f = torch_lazy.compile(model.__call__)
    with torch.no_grad():
        with pytest.warns(CompileWarning, match="pure_hooks=True"):
            for x, _ in batches(8):
                f(x.to("lazy"))
        assert len(seen) == 8
        model[0]._forward_hooks.clear()
        model[0].register_forward_hook(lambda module, args, output: output * 2)
        pure = torch_lazy.compile(model.__call__, pure_hooks=True)
        for x, _ in batches(8):
            eager = mlp()
            assert_same(pure(x.to("lazy")), eager[2](eager[1](eager[0](x) * 2)))
        assert replayed() >= 5
        # A hook that comes later is seen.
        model[0].register_forward_hook(lambda module, args, output: output + 1)
        x, _ = next(iter(batches(1)))
        assert_same(pure(x.to("lazy")), eager[2](eager[1](eager[0](x) * 2 + 1)))


def test_attributes_of_modules_that_change():
    dropout = nn.Dropout(0.5)
    f = torch_lazy.compile(lambda x: dropout(x))
    for _ in range(6):
        f(torch.ones(50, device="lazy"))
    dropout.p = 0.0
    assert f(torch.ones(50, device="lazy")).tolist() == [1.0] * 50


# ---- Plain tensors -------------------------------------------------------------------------------


def test_plain_tensors_as_arguments():
    def f(x, mask):
        x = x.to("lazy")
        return x * mask.to("lazy", torch.float32)[1:] + x

    compiled = torch_lazy.compile(f)
    for i in range(8):
        x, mask = torch.randn(3), torch.tensor([True, i % 2 == 0, False, True])
        assert_same(compiled(x, mask), f(x, mask).cpu())
    assert replayed() >= 5


def test_computing_with_plain_arguments_is_traced():
    f = torch_lazy.compile(lambda x, scale: x * scale)
    x = torch.ones(2, device="lazy")
    with pytest.warns(CompileWarning, match="move it to the device lazy"):
        for i in [1.0] * 7 + [2.0, 3.0]:
            assert f(x, torch.tensor(i)).tolist() == [i, i]


def test_constants_from_the_host():
    f = torch_lazy.compile(lambda x: x + torch.tensor([1.0, 2.0], device="lazy"))
    for i in range(8):
        assert f(torch.full((2,), float(i), device="lazy")).tolist() == [i + 1.0, i + 2.0]
    assert replayed() >= 5


# ---- Errors --------------------------------------------------------------------------------------


def test_an_exception_in_the_function():
    def f(x, fail):
        x.add_(1)
        if fail:
            raise KeyError("no")
        return x * 2

    compiled = torch_lazy.compile(f)
    x = torch.zeros(2, device="lazy")
    for _ in range(5):
        compiled(x, False)
    for _ in range(3):
        with pytest.raises(KeyError):
            compiled(x, True)
    assert x.tolist() == [8, 8]
    assert compiled(x, False).tolist() == [18, 18]


def test_an_exception_that_is_kept_ends_the_recording():
    def f(x):
        raise ValueError("no")

    kept = []
    try:
        torch_lazy.compile(f)(torch.zeros(1, device="lazy"))
    except ValueError as error:
        kept.append(error)
    assert kept
    assert not torch_lazy._C.is_recording()


def test_arguments_in_larger_memory():
    """The same layout over more memory: what lies beside it stays."""

    def f(x):
        x.fill_(1)
        return x + 1

    compiled = torch_lazy.compile(f)
    for _ in range(5):
        compiled(torch.zeros(4, device="lazy"))
    assert replayed() >= 2
    large = torch.full((8,), 5.0, device="lazy")
    assert compiled(large[:4]).tolist() == [2, 2, 2, 2]
    assert large.tolist() == [1, 1, 1, 1, 5, 5, 5, 5]


def test_an_error_inside_a_replay():
    """What ran before it stays, as in eager; it names the recorded line."""
    table = torch.arange(4.0)

    def make(device):
        total = torch.zeros(1, device=device)
        rows = table.to(device)

        def f(index):
            total.add_(1)
            chosen = rows[index]
            total.add_(10)
            return chosen

        return torch_lazy.compile(f) if device == "lazy" else f, total

    (f, total), (eager, eager_total) = make("lazy"), make("cpu")
    good, bad = torch.tensor([1, 3]), torch.tensor([1, 7])
    for _ in range(6):
        assert_same(f(good.to("lazy")), eager(good))
    assert replayed() >= 2
    with pytest.raises(IndexError):
        eager(bad)
    with pytest.raises(IndexError, match=r"test_compile\.py"):
        f(bad.to("lazy"))
    assert_same(total, eager_total)
    assert_same(f(good.to("lazy")), eager(good))
    assert_same(total, eager_total)


def test_bad_uses():
    with pytest.raises(TypeError, match="takes a function"):
        torch_lazy.compile(3)
    f = torch_lazy.compile(lambda x: x + 1, donate=(1,))
    with pytest.raises(ValueError, match="donate names the argument 1"):
        f(torch.ones(1, device="lazy"))


def test_donated_arguments():
    f = torch_lazy.compile(lambda x, y: (x * 2 + 1, y + 1), donate=0)
    for i in range(8):
        x, y = torch.full((2,), float(i), device="lazy"), torch.ones(2, device="lazy")
        a, b = f(x, y)
        assert a.tolist() == [2 * i + 1.0] * 2
        assert b.tolist() == [2, 2]
        assert y.tolist() == [1, 1]
        with pytest.raises(RuntimeError, match="donate"):
            x.tolist()
    assert replayed() >= 5


# ---- Together with other things ------------------------------------------------------------------


def test_nested():
    inner = torch_lazy.compile(lambda x: x * 2)
    outer = torch_lazy.compile(lambda x: inner(x) + 1)
    for i in range(8):
        x = torch.full((1,), float(i), device="lazy")
        assert outer(x).item() == 2 * i + 1
        assert inner(x).item() == 2 * i
    assert replayed() >= 8


def test_methods_and_decorators():
    class Model:
        def __init__(self, scale):
            self.scale = torch.full((1,), scale, device="lazy")

        @torch_lazy.compile
        def forward(self, x):
            return x * self.scale

    @torch_lazy.compile(cache_size=4)
    def plus_one(x):
        """Adds one."""
        return x + 1

    models = [Model(2.0), Model(3.0)]
    for i in range(8):
        x = torch.full((1,), float(i), device="lazy")
        assert [m.forward(x).item() for m in models] == [2 * i, 3 * i]
        assert plus_one(x).item() == i + 1
    assert plus_one.__doc__ == "Adds one."
    assert replayed() >= 12


def test_what_is_pending_runs_first():
    x = torch.zeros(2, device="lazy")
    f = torch_lazy.compile(lambda: x.add_(1))
    for _ in range(8):
        before = x * 1  # recorded, not run
        x.mul_(2)
        f()
        after = x * 1
        assert (before * 2 + 1).tolist() == after.tolist()
    assert replayed() >= 5


def test_steps_inside():
    def f(x):
        y = x + 1
        torch_lazy.mark_step()
        return y * 2

    compiled = torch_lazy.compile(f)
    for i in range(8):
        assert compiled(torch.full((1,), float(i), device="lazy")).item() == 2 * i + 2
    assert replayed() >= 5


def test_threads():
    """Two threads, each with its function and one function for both."""
    shared = torch_lazy.compile(lambda x: torch.tanh(x) * 3)
    errors = []

    def work(seed, trainer, eager):
        try:
            step = torch_lazy.compile(trainer.step)
            for x, y in batches(15):
                assert_same(step(x.to("lazy"), y.to("lazy")), eager.step(x, y))
                assert_same(shared(x.to("lazy") + seed), torch.tanh(x + seed) * 3)
            assert_same_state(trainer.model, eager.model)
        except Exception as error:
            errors.append(error)

    trainers = [  # made here: the seed is everybody's
        [Trainer(mlp(), OPTIMIZERS["adamw"], device) for device in ("lazy", "cpu")]
        for _ in range(2)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CompileWarning)  # while both record, neither may trust
        threads = [threading.Thread(target=work, args=(i, *trainers[i])) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not errors, errors[0]


def test_versions_are_counted():
    """Autograd sees that a saved tensor was changed by a replay."""
    weight = torch.ones(2, device="lazy")
    f = torch_lazy.compile(lambda: weight.mul_(2))
    for _ in range(5):
        f()
    assert replayed() >= 2
    x = torch.ones(2, device="lazy", requires_grad=True)
    y = (x * weight).sum()
    f()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_memory_is_not_kept():
    f = torch_lazy.compile(lambda x: x * 2 + 1)
    x = torch.ones(1 << 16, device="lazy")
    for _ in range(5):
        f(x)
    torch_lazy.sync()
    before = torch_lazy._C.memory_allocated()
    for _ in range(5):
        f(x)
    assert torch_lazy._C.memory_allocated() == before


def test_nothing_is_recorded_in_a_replay():
    trainer = Trainer(mlp(), OPTIMIZERS["adamw"], "lazy")
    step = torch_lazy.compile(trainer.step)
    data = [(x.to("lazy"), y.to("lazy")) for x, y in batches(9)]
    for x, y in data[:6]:
        step(x, y)
    captured = {
        name: torch_lazy.metrics.counter_value(name)
        for name in torch_lazy.metrics.counter_names()
        if name.startswith("lazy::")
    }
    for x, y in data[6:]:
        step(x, y)
    assert captured == {name: torch_lazy.metrics.counter_value(name) for name in captured}
