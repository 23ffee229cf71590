"""save_graph leaves the program as it was, bit by bit, and files continue where it is."""

import copy
import random
import signal
import threading

import numpy as np
import pytest
import torch
from torch import nn

import torch_lazy

pytestmark = pytest.mark.usefixtures("nothing_pending")
CLOSE = {"rtol": 2e-3, "atol": 2e-5}

OPTIMIZERS = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    ("Adam", {"lr": 1e-2, "amsgrad": True}),
    ("Adam", {"lr": 1e-2, "foreach": False}),
    ("Adam", {"lr": 1e-2, "fused": True}),
    ("AdamW", {"lr": 1e-2}),
    ("Adamax", {"lr": 1e-2}),
    ("Adadelta", {"lr": 0.5}),
    ("ASGD", {"lr": 0.1}),
    ("Muon", {"lr": 1e-2}),
    ("NAdam", {"lr": 1e-2}),
    ("NAdam", {"lr": 1e-2, "foreach": False}),
    ("RAdam", {"lr": 1e-2}),
    ("RMSprop", {"lr": 1e-2, "momentum": 0.9, "centered": True}),
    ("Rprop", {"lr": 1e-2}),
    ("Rprop", {"lr": 1e-2, "foreach": False}),
]
NOT_SAVED = [
    ("Adagrad", {"lr": 0.1, "initial_accumulator_value": 0.3}, "which is on the cpu"),
    ("Adafactor", {"lr": 1e-2}, "reads a number"),
]


class Training:
    """A model, its optimizer and a step, on a device."""

    def __init__(self, device, name="AdamW", options=None):
        torch.manual_seed(3)
        bias = name != "Muon"
        self.model = nn.Sequential(
            nn.Linear(4, 8, bias=bias), nn.Dropout(0.0), nn.Tanh(), nn.Linear(8, 2, bias=bias)
        ).to(device)
        self.optimizer = getattr(torch.optim, name)(
            self.model.parameters(), **(options or {"lr": 1e-2})
        )
        self.device = device

    def step(self, x):
        self.optimizer.zero_grad()
        y = self.model(x)
        loss = y.square().mean() + y.sum() * 0.1
        loss.backward()
        self.optimizer.step()
        return loss

    def snapshot(self):
        """Values, and the objects themselves."""
        gradients = [p.grad for p in self.model.parameters()]
        state = self.optimizer.state
        tensors = [v for s in state.values() for v in s.values() if torch.is_tensor(v)]
        values = [*self.model.state_dict().values(), *tensors]
        values += [g for g in gradients if g is not None]
        return (
            [v.detach().cpu().clone() for v in values],
            [id(g) for g in gradients],
            [id(p) for p in state],
            [(k, id(v)) for s in state.values() for k, v in s.items()],
            copy.deepcopy(self.optimizer.state_dict()["param_groups"]),
            torch.get_rng_state(),
        )


def batches(count=6):
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(5, 4, generator=generator) for _ in range(count)]


def assert_same(a, b):
    assert len(a[0]) == len(b[0])
    assert all(torch.equal(x, y) for x, y in zip(a[0], b[0], strict=True))
    assert a[1:5] == b[1:5]
    assert torch.equal(a[5], b[5])


@pytest.mark.parametrize("trained", [0, 2])
@pytest.mark.parametrize("name, options", OPTIMIZERS, ids=str)
def test_optimizers_begin_with_the_state_that_they_make(tmp_path, name, options, trained):
    lazy, eager = Training("lazy", name, options), Training("cpu", name, options)
    xs = batches()
    for x in xs[:trained]:
        lazy.step(x.to("lazy"))
        eager.step(x)
    before = lazy.snapshot()
    torch_lazy.save_graph(lazy.step, tmp_path / "step.graph", [xs[0]])
    assert_same(before, lazy.snapshot())
    graph = torch_lazy.load_graph(tmp_path / "step.graph")
    for x in xs:
        torch.testing.assert_close(graph(x)[0].cpu(), eager.step(x).detach(), **CLOSE)
    for x in xs:  # nor has the live one noticed
        last = lazy.step(x.to("lazy"))
    eager = Training("cpu", name, options)
    for x in [*xs[:trained], *xs]:
        expected = eager.step(x)
    torch.testing.assert_close(last.detach().cpu(), expected.detach(), **CLOSE)


@pytest.mark.parametrize("trained", [0, 2])
@pytest.mark.parametrize("name, options, reason", NOT_SAVED, ids=str)
def test_what_cannot_be_saved_changes_nothing(tmp_path, name, options, reason, trained):
    lazy = Training("lazy", name, options)
    for x in batches()[:trained]:
        lazy.step(x.to("lazy"))
    before = lazy.snapshot()
    with pytest.raises(RuntimeError, match=reason), pytest.warns(torch_lazy.CompileWarning):
        torch_lazy.save_graph(lazy.step, tmp_path / "step.graph", [batches()[0]])
    assert_same(before, lazy.snapshot())
    assert list(tmp_path.iterdir()) == []


def test_a_first_step_unlike_the_others_is_refused(tmp_path):
    options = {"lr": 0.1, "momentum": 0.9, "dampening": 0.5}
    lazy, eager = Training("lazy", "SGD", options), Training("cpu", "SGD", options)
    before = lazy.snapshot()
    with pytest.raises(RuntimeError, match="call it once before it is saved"):
        torch_lazy.save_graph(lazy.step, tmp_path / "step.graph", [batches()[0]])
    assert_same(before, lazy.snapshot())
    xs = batches()
    lazy.step(xs[0].to("lazy"))
    eager.step(xs[0])
    torch_lazy.save_graph(lazy.step, tmp_path / "step.graph", [xs[0]])
    graph = torch_lazy.load_graph(tmp_path / "step.graph")
    for x in xs:
        torch.testing.assert_close(graph(x)[0].cpu(), eager.step(x).detach(), **CLOSE)


def test_gradients_that_accumulate(tmp_path):
    def make(device):
        torch.manual_seed(1)
        model = nn.Linear(4, 2).to(device)

        def step(x):
            loss = model(x).square().mean()
            loss.backward()
            return model.weight.grad.clone()

        return model, step

    (model, step), (_, eager_step) = make("lazy"), make("cpu")
    xs = batches()
    for first in (True, False):
        gradients = [p.grad for p in model.parameters()]
        values = [None if g is None else g.cpu().clone() for g in gradients]
        torch_lazy.save_graph(step, tmp_path / "step.graph", [xs[0]])
        assert all(p.grad is g for p, g in zip(model.parameters(), gradients, strict=True))
        for gradient, value in zip(gradients, values, strict=True):
            assert gradient is None or torch.equal(gradient.cpu(), value)
        graph = torch_lazy.load_graph(tmp_path / "step.graph")
        if first:
            torch.testing.assert_close(graph(xs[0])[0].cpu(), eager_step(xs[0]), **CLOSE)
            step(xs[0].to("lazy"))
    for x in xs[1:]:
        torch.testing.assert_close(graph(x)[0].cpu(), eager_step(x), **CLOSE)


def test_a_tensor_that_is_overwritten_as_a_whole(tmp_path):
    """The graph does not read what is overwritten, and so does not say whose memory it is."""
    last = torch.zeros(3, device="lazy")
    mean = torch.ones(3, device="lazy")

    def f(x):
        with torch.no_grad():
            y = x + last
            last.copy_(x * 2)
            mean.copy_(mean)
            last.copy_(last + 1)
            mean.fill_(0.5)
            return y + mean

    torch_lazy.save_graph(f, tmp_path / "f.graph", [torch.zeros(3)])
    graph = torch_lazy.load_graph(tmp_path / "f.graph")
    for i in range(4):
        x = torch.full((3,), float(i))
        expected = f(x.to("lazy")).cpu()
        assert torch.equal(graph(x)[0].cpu(), expected), i
    assert sorted(t.cpu()[0].item() for t in graph.state.values()) == [0.5, 7.0]


@pytest.mark.parametrize("where", ["folder", "directory", "file"])
def test_a_path_that_cannot_be_written(tmp_path, where):
    training = Training("lazy")
    training.step(batches()[0].to("lazy"))
    before = training.snapshot()
    path = {
        "folder": tmp_path / "missing" / "f.graph",
        "directory": tmp_path / "f.graph",
        "file": tmp_path / "f.txt" / "f.graph",
    }[where]
    (tmp_path / "f.txt").write_text("")
    if where == "directory":
        path.mkdir()
        (path / "x").write_text("")
    with pytest.raises(RuntimeError, match=r"cannot write .*: "):
        torch_lazy.save_graph(training.step, path, [batches()[0]])
    assert_same(before, training.snapshot())
    left = {p.name for p in tmp_path.rglob("*")}
    assert left <= {"f.txt", "f.graph", "x"}, "a temporary file is left"


def test_an_existing_file_is_replaced(tmp_path):
    path = tmp_path / "f.graph"
    for i in (1, 2):
        torch_lazy.save_graph(lambda x, i=i: x + i, path, [torch.ones(2)])
        assert torch_lazy.load_graph(path)(torch.ones(2))[0].tolist() == [1 + i, 1 + i]
    assert [p.name for p in tmp_path.iterdir()] == ["f.graph"]


@pytest.mark.parametrize("call", [1, 2, 3])
def test_a_function_that_fails(tmp_path, call):
    training = Training("lazy")
    calls = []

    def step(x):
        loss = training.step(x)
        calls.append(1)
        if len(calls) == call:
            raise ZeroDivisionError("on purpose")
        return loss

    before = training.snapshot()
    with pytest.raises((ZeroDivisionError, RuntimeError)):
        torch_lazy.save_graph(step, tmp_path / "f.graph", [batches()[0]])
    assert_same(before, training.snapshot())
    assert calls == []
    training.step(batches()[0].to("lazy")).item()


@pytest.mark.parametrize("stage", ["capture", "compile", "allocate", "execute", "read"])
@pytest.mark.parametrize("position", [0, 3, 11, 40])
def test_a_fault_at_any_stage(tmp_path, stage, position):
    training = Training("lazy")
    training.step(batches()[0].to("lazy"))
    before = training.snapshot()
    torch_lazy.config.set("fault", f"{stage}:{position}")
    try:
        torch_lazy.save_graph(training.step, tmp_path / "f.graph", [batches()[0]])
    except RuntimeError as error:
        assert "fault" in str(error)
    finally:
        torch_lazy.config.set("fault", "")
    assert_same(before, training.snapshot())
    assert {p.name for p in tmp_path.iterdir()} <= {"f.graph"}


def test_an_interrupt(tmp_path):
    training = Training("lazy")
    reached = threading.Event()

    def step(x):
        loss = training.step(x)
        if not reached.is_set():
            reached.set()
            signal.raise_signal(signal.SIGINT)
        return loss

    before = training.snapshot()
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            torch_lazy.save_graph(step, tmp_path / "f.graph", [batches()[0]])
    finally:
        signal.signal(signal.SIGINT, handler)
    assert_same(before, training.snapshot())


# ---- Everything else that a function can change --------------------------------------------------

COUNT = 0
HISTORY = []


class Settings:
    total = 0


class Slotted:
    __slots__ = ("unset", "value")


class Keeper(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.seen = {"a": 1}
        self.names = {"x"}
        self.slotted = Slotted()
        self.slotted.value = 1
        self.array = np.zeros(3)
        self.host = torch.zeros(2)
        self.generator = torch.Generator()

    def forward(self, x):
        global COUNT
        COUNT += 1
        HISTORY.append(COUNT)
        Settings.total += 1
        self.calls = getattr(self, "calls", 0) + 1
        self.seen["a"] += 1
        self.seen[COUNT] = 2
        self.names.add(str(COUNT))
        self.slotted.value += 1
        self.slotted.unset = 3
        self.array += 1
        self.host += 1
        random.random()
        np.random.rand()
        torch.rand(3)
        torch.rand(3, generator=self.generator)
        self.norm.weight.requires_grad_(False)
        return self.norm(x)


def test_python_state_is_put_back(tmp_path):
    keeper = Keeper().to("lazy")
    buffers = {k: v.cpu().clone() for k, v in keeper.state_dict().items()}

    def visible():
        return (
            COUNT,
            list(HISTORY),
            Settings.total,
            hasattr(keeper, "calls"),
            dict(keeper.seen),
            set(keeper.names),
            keeper.slotted.value,
            hasattr(keeper.slotted, "unset"),
            keeper.array.tolist(),
            keeper.host.tolist(),
            random.getstate(),
            np.random.get_state()[1].tolist(),
            torch.get_rng_state().tolist(),
            keeper.generator.get_state().tolist(),
            keeper.norm.weight.requires_grad,
        )

    before = visible()
    with (
        pytest.raises(RuntimeError, match="cannot be saved"),
        pytest.warns(torch_lazy.CompileWarning),
    ):
        torch_lazy.save_graph(keeper, tmp_path / "f.graph", [batches()[0]])
    assert visible() == before
    for key, value in keeper.state_dict().items():
        assert torch.equal(value.cpu(), buffers[key]), key


def test_what_autograd_saved_before_is_still_good(tmp_path):
    training = Training("lazy")
    loss = training.model(batches()[0].to("lazy")).square().mean()
    torch_lazy.save_graph(training.step, tmp_path / "f.graph", [batches()[0]])
    loss.backward()
    eager = Training("cpu")
    eager.model(batches()[0]).square().mean().backward()
    for a, b in zip(training.model.parameters(), eager.model.parameters(), strict=True):
        torch.testing.assert_close(a.grad.cpu(), b.grad, **CLOSE)


def test_recordings_of_a_compiled_function_stay(tmp_path):
    training = Training("lazy")
    step = torch_lazy.compile(training.step)
    for x in batches(4):
        step(x.to("lazy"))
    replayed = [row["calls"] for row in step.cache_info()]
    before = training.snapshot()
    torch_lazy.save_graph(step, tmp_path / "f.graph", [batches()[0]])
    assert_same(before, training.snapshot())
    assert [row["calls"] for row in step.cache_info()] == replayed
    counter = torch_lazy.metrics.counters().get("Replayed", 0)
    step(batches()[0].to("lazy"))
    assert torch_lazy.metrics.counters()["Replayed"] == counter + 1


def test_dropout_and_batch_norm(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5)).to("lazy")
    plain = copy.deepcopy(model)

    def f(x, model=model):
        return model(x).square().mean().detach()

    buffers = {k: v.cpu().clone() for k, v in model.state_dict().items()}
    torch_lazy.save_graph(f, tmp_path / "f.graph", [batches()[0]])
    for key, value in model.state_dict().items():
        assert torch.equal(value.cpu(), buffers[key]), key
    graph = torch_lazy.load_graph(tmp_path / "f.graph")
    torch.manual_seed(5)
    ours = [graph(x)[0].item() for x in batches(3)]
    torch.manual_seed(5)
    assert ours == pytest.approx([f(x.to("lazy"), plain).item() for x in batches(3)], rel=1e-4)
