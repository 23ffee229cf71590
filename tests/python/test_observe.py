"""What a compiled function depends on without having it as an argument or in a closure."""

import collections
import itertools
import os
import random
import sys
import threading
import time
import types
import warnings

import numpy as np
import pytest
import torch

import torch_lazy
from torch_lazy.compile import CompileWarning
from torch_lazy.observe import code_facts

FACTOR = 2.0
COUNTER = itertools.count()
LOCAL = threading.local()
HELPER = types.ModuleType("observed_helper")
exec(
    "factor = 2.0\ndef scaled(x):\n    return x * factor\nclass Scale:\n    factor = 2.0",
    vars(HELPER),
)
sys.modules["observed_helper"] = HELPER


def replayed():
    return torch_lazy.metrics.counters().get("Replayed", 0)


def check(function, change, *, first=2.0, then=3.0):
    """Replays with the first factor; after the change the function gives what it should."""
    compiled = torch_lazy.compile(function)
    x = torch.ones(1, device="lazy")
    assert [compiled(x).item() for _ in range(12)] == [first] * 12
    assert replayed() > 0
    change()
    assert [compiled(x).item() for _ in range(12)] == [then] * 12


@pytest.fixture(autouse=True)
def counted():
    torch_lazy.metrics.reset()


class Net(torch.nn.Module):
    scale = 2.0

    def forward(self, x):
        return x * FACTOR * self.scale / 2.0


class WithSlots:
    __slots__ = ("factor",)

    def __init__(self):
        self.factor = 2.0


def test_a_global_in_forward(monkeypatch):
    net = Net()
    check(lambda x: net(x), lambda: monkeypatch.setitem(globals(), "FACTOR", 3.0))


def test_a_class_attribute_through_self(monkeypatch):
    net = Net()
    check(lambda x: net(x), lambda: monkeypatch.setattr(Net, "scale", 3.0))


def test_a_class_attribute_hidden_by_an_object():
    net = Net()
    check(lambda x: net(x), lambda: setattr(net, "scale", 3.0))


def test_a_method_that_is_replaced(monkeypatch):
    net = Net()
    check(lambda x: net(x), lambda: monkeypatch.setattr(Net, "forward", lambda self, x: x * 3))


def test_another_module(monkeypatch):
    check(lambda x: HELPER.scaled(x), lambda: monkeypatch.setattr(HELPER, "factor", 3.0))


def test_an_attribute_of_a_module(monkeypatch):
    check(lambda x: x * HELPER.factor, lambda: monkeypatch.setattr(HELPER, "factor", 3.0))


def test_a_class_of_another_module(monkeypatch):
    check(
        lambda x: x * HELPER.Scale.factor, lambda: monkeypatch.setattr(HELPER.Scale, "factor", 3.0)
    )


def test_an_attribute_that_comes(monkeypatch):
    check(
        lambda x: x * getattr(HELPER, "not_there", 2.0),
        lambda: monkeypatch.setattr(HELPER, "not_there", 3.0, raising=False),
    )


def test_a_function_of_pytorch(monkeypatch):
    check(
        lambda x: torch.nn.functional.relu(x) * 2,
        lambda: monkeypatch.setattr(torch.nn.functional, "relu", lambda x: x * 1.5),
    )


def test_slots():
    item = WithSlots()
    check(lambda x: x * item.factor, lambda: setattr(item, "factor", 3.0))


@pytest.mark.parametrize("kind", [set, collections.deque, list, bytearray, np.array])
def test_containers(kind):
    items = kind([2])
    change = {
        set: lambda: (items.clear(), items.add(3)),
        collections.deque: lambda: (items.clear(), items.append(3)),
    }.get(kind, lambda: items.__setitem__(0, 3))
    check(lambda x: x * float(next(iter(items))), change)


def test_an_object_that_gets_another_dict_or_class():
    class A:
        factor = 2.0

    class B:
        factor = 3.0

    a = A()
    check(lambda x: x * a.factor, lambda: setattr(a, "__class__", B))
    a = A()
    a.factor = 2.0
    check(lambda x: x * a.factor, lambda: setattr(a, "__dict__", {"factor": 3.0}))


def test_an_order_of_items():
    items = {"a": 2.0, "b": 3.0}

    def turn():
        items["a"] = items.pop("a")

    check(lambda x: x * next(iter(items.values())), turn)


def test_minus_zero():
    state = {"zero": 0.0}
    compiled = torch_lazy.compile(lambda x: x / torch.full_like(x, state["zero"]))
    x = torch.ones(1, device="lazy")
    assert [compiled(x).item() for _ in range(8)] == [float("inf")] * 8
    state["zero"] = -0.0
    assert compiled(x).item() == -float("inf")


def test_attributes_that_are_not_read_may_change():
    class State:
        factor = 2.0
        steps = 0

    state = State()
    compiled = torch_lazy.compile(lambda x: x * state.factor)
    x = torch.ones(1, device="lazy")
    for _ in range(12):
        state.steps += 1
        compiled(x)
    assert replayed() >= 8


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x * (1 + next(COUNTER)), "COUNTER is a itertools.count, whose content"),
        (lambda x: x * time.time(), r"it calls time.time \(.*test_observe.py"),
        (lambda x: x * random.random(), "it calls random.Random.random|it calls _random.random"),
        (lambda x: x * np.random.rand(), "numpy.random"),
        (lambda x: (print(end=""), x)[1], "it calls print"),
        (lambda x: x * len(os.listdir("/")), "it calls posix.listdir"),
        (lambda x: x * getattr(LOCAL, "factor", 2), "LOCAL is a _thread._local"),
        (lambda x: x * eval("2"), "it uses code that is made at run time"),
        (lambda x: (torch.manual_seed(0), x)[1], "a generator's state|it calls posix"),
        (lambda x: x * x._version, "a tensor's count of writes"),
        (lambda x: (torch.set_grad_enabled(not torch.is_grad_enabled()), x)[1], "grad mode"),
    ],
)
def test_what_no_check_can_see(function, reason):
    compiled = torch_lazy.compile(function)
    x = torch.ones(1, device="lazy")
    with torch.set_grad_enabled(True), pytest.warns(CompileWarning, match=reason):
        for _ in range(14):
            compiled(x)
    assert replayed() == 0


@pytest.mark.parametrize("read", ["tolist", "numpy", "item", "float", "moved"])
def test_plain_tensors(read):
    host = torch.tensor([2])
    reads = {
        "tolist": lambda t: t.tolist()[0],
        "numpy": lambda t: t.numpy()[0].item(),
        "item": lambda t: t.item(),
        "float": lambda t: float(t),
        "moved": lambda t: t.to(torch.float64).sum().item(),
    }
    for function, arguments in (
        (lambda x: x * reads[read](host), ()),
        (lambda x, t: x * reads[read](t), (host,)),
    ):
        host.fill_(2)
        compiled = torch_lazy.compile(function)
        x = torch.ones(1, device="lazy")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert [compiled(x, *arguments).item() for _ in range(8)] == [2.0] * 8
            host.fill_(3)
            assert compiled(x, *arguments).item() == 3.0


def _train(device, register):
    """Losses of a step, compiled on the device lazy, with a hook that comes after six steps."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    call = torch_lazy.compile(step) if device == "lazy" else step
    x = torch.ones(2, 4, device=device)
    losses = [call(x).item() for _ in range(6)]
    handle = register(model, optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CompileWarning)
        losses += [call(x).item() for _ in range(6)]
        handle.remove()
        losses += [call(x).item() for _ in range(3)]
    return losses


@pytest.mark.parametrize(
    "register",
    [
        lambda m, o: m.weight.register_hook(lambda g: g * 0.5),
        lambda m, o: m.weight.register_post_accumulate_grad_hook(
            lambda p: (p.grad.mul_(0.5), None)[1]
        ),
        lambda m, o: torch.nn.modules.module.register_module_forward_hook(
            lambda module, args, result: result * 0.5
        ),
        lambda m, o: m.register_full_backward_hook(
            lambda m, i, o: (None if i[0] is None else i[0],)
        ),
        lambda m, o: o.register_step_pre_hook(lambda o, a, k: o.param_groups[0].update(lr=0.05)),
        lambda m, o: o.register_step_post_hook(
            lambda o, a, k: o.param_groups[0]["params"][0].data.mul_(0.9)
        ),
    ],
)
def test_hooks_that_come_later(register):
    assert _train("lazy", register) == pytest.approx(_train("cpu", register), rel=1e-4)
    assert replayed() > 0


def test_a_tangent_that_comes_later():
    weight = torch.ones(2, device="lazy")
    compiled = torch_lazy.compile(lambda: weight * 2)
    for _ in range(6):
        compiled()
    from torch.autograd import forward_ad

    with forward_ad.dual_level(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        weight_cell = compiled.function.__closure__[0]
        weight_cell.cell_contents = forward_ad.make_dual(weight, torch.ones(2, device="lazy"))
        tangent = forward_ad.unpack_dual(compiled()).tangent
        assert tangent is not None and tangent.tolist() == [2.0, 2.0]


def test_code_facts():
    def reads(a):
        return getattr(a, "one", None), a.two, a.three

    def reads_any(a, name):
        return getattr(a, name)

    assert {"one", "two", "three"} <= code_facts(reads.__code__).attributes
    assert not code_facts(reads.__code__).any_attribute
    assert code_facts(reads_any.__code__).any_attribute
