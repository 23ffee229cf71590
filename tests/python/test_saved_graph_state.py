"""save_graph leaves the program as it was, bit by bit, and files continue where it is."""

import argparse
import array
import collections
import copy
import ctypes
import os
import queue
import random
import signal
import threading
import time
import types
import weakref

import numpy as np
import pytest
import test_saved_graph
import torch
from torch import nn

import torch_lazy
from torch_lazy import program_state

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


# ---- State of all kinds --------------------------------------------------------------------------

STATE: dict = {}


class Described:
    def __init__(self):
        self.count = 0

    def __get__(self, item, owner=None):
        self.count += 1
        return self.count


class Odd:
    """Its double underscores are the program's own code."""

    described = Described()
    gets = 0

    def __getitem__(self, i):
        STATE["gets"] = STATE.get("gets", 0) + 1
        return i

    def __len__(self):
        return 3


class Other(Odd):
    pass


class Loud(dict):
    """Watches who writes into it."""

    writes = 0

    def __setitem__(self, key, value):
        self.writes += 1
        super().__setitem__(key, value)


class Borg:
    pass


def with_a_default(x=(1,)):
    return x


def make_states():
    """Functions that change something, and what shows it."""
    states = {}

    def state(look):
        def add(change):
            states[change.__name__] = (change, look)
            return change

        return add

    namespace, parsed = types.SimpleNamespace(n=0), argparse.Namespace(n=0)

    @state(lambda: (vars(namespace), vars(parsed)))
    def namespaces():
        namespace.n += 1
        namespace.more = 1
        parsed.n += 1

    user_dict, user_list = collections.UserDict(n=0), collections.UserList([0])
    chain, loud = collections.ChainMap({"n": 0}, {"m": 1}), Loud(n=0)

    @state(lambda: (dict(user_dict), list(user_list), dict(chain), dict(loud), loud.writes))
    def wrapped_containers():
        user_dict["n"] += 1
        user_list.append(1)
        chain["n"] += 1
        chain["k"] = 2
        loud["n"] += 1
        loud["m"] = 2

    ordered = collections.OrderedDict(a=1, b=2)
    default, counter = collections.defaultdict(int), collections.Counter()

    @state(lambda: (list(ordered.items()), dict(default), dict(counter), default.default_factory))
    def dictionaries():
        ordered.move_to_end(next(iter(ordered)))
        default["k"] += 1
        default.default_factory = list
        counter["a"] += 1

    numbers, bytes_, c_number = array.array("d", [0.0]), bytearray(b"\0"), ctypes.c_int(0)
    view = memoryview(bytes_)
    fields = type("Fields", (ctypes.Structure,), {"_fields_": [("n", ctypes.c_int)]})()

    @state(lambda: (list(numbers), bytes(bytes_), c_number.value, fields.n))
    def buffers():
        numbers[0] += 1
        numbers.append(2.0)
        view[0] = 7
        c_number.value += 1
        fields.n += 1

    seen_through = types.MappingProxyType({"l": [0]})
    values = {"l": [0]}.values()
    append = [0].append

    @state(lambda: (list(seen_through["l"]), list(values), list(append.__self__)))
    def what_is_behind_views():
        seen_through["l"].append(1)
        next(iter(values)).append(1)
        append(1)

    fifo, heap = queue.Queue(), queue.PriorityQueue()

    @state(lambda: (fifo.qsize(), fifo.unfinished_tasks, heap.qsize()))
    def queues():
        fifo.put(1)
        heap.put(1)

    local = threading.local()
    local.n = 0

    @state(lambda: local.n)
    def of_a_thread():
        local.n += 1

    class Key:
        n = 0

    key = Key()
    weak, refs = weakref.WeakKeyDictionary({key: [0]}), weakref.ref(key)
    dead = weakref.proxy(Key())

    @state(lambda: (list(weak[key]), key.__dict__))
    def weak_references():
        weak[key].append(1)
        refs().n = 5
        STATE.setdefault("dead", dead)

    legacy, generator = np.random.RandomState(3), np.random.default_rng(3)
    bits, python, own = np.random.PCG64(3), random.Random(3), torch.Generator("lazy")

    @state(
        lambda: (
            [str(g.get_state()) for g in (legacy,)],
            str(generator.bit_generator.state),
            str(bits.state),
            python.getstate(),
            own.get_state().tolist(),
        )
    )
    def generators():
        legacy.rand()
        generator.random()
        bits.random_raw()
        python.random()
        torch.rand(3, generator=own, device="lazy")

    objects, grid = np.array([[0], None], dtype=object), np.zeros((2, 3))

    @state(lambda: (objects[0], grid.tolist(), grid.flags.writeable))
    def arrays():
        objects[0].append(1)
        grid.flags.writeable = True
        grid.shape = (3, 2)
        grid[0] += 1
        grid.flags.writeable = False

    odd, borg = Odd(), Borg()
    shared = borg.__dict__

    @state(lambda: (dict(STATE), vars(Odd)["described"].count, type(odd), len(odd), Odd.gets))
    def classes():
        odd[0]
        odd.described  # noqa: B018
        odd.__class__ = Other
        Odd.gets += 1
        Odd.__len__ = lambda self: 4

    @state(lambda: borg.__dict__ is shared)
    def replaced_attributes():
        borg.__dict__ = {"n": 1}

    @state(lambda: (with_a_default(), with_a_default.__dict__))
    def functions():
        with_a_default.__defaults__ = ((2,),)
        with_a_default.n = 1

    name = "sought_" + "after"

    @state(lambda: [k for k in globals() if k.startswith("sought_")])
    def global_names():
        globals()["sought_for"] = 1
        globals()[name] = 1

    @state(lambda: (os.environ.get("TORCH_LAZY_TEST"), os.environ["PATH"]))
    def environment():
        os.environ["TORCH_LAZY_TEST"] = "1"
        os.environ["PATH"] += ":/x"

    @state(lambda: (test_saved_graph.CLOSE["rtol"], hasattr(test_saved_graph, "added")))
    def another_module():
        import test_saved_graph as imported

        imported.added = 1
        imported.CLOSE["rtol"] = 5

    @state(
        lambda: (
            torch.get_default_dtype(),
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            torch.get_float32_matmul_precision(),
            torch.is_autocast_enabled("lazy"),
            torch.is_anomaly_enabled(),
            torch.get_num_threads(),
            torch.backends.mkldnn.is_available() and torch._C._get_mkldnn_enabled(),
            torch.get_default_device(),
            torch._tensor_str.PRINT_OPTS.precision,
            torch_lazy.config.get("max_nodes"),
        )
    )
    def settings():
        torch.set_default_dtype(torch.float64)
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.set_float32_matmul_precision("medium")
        torch.set_autocast_enabled("lazy", True)
        torch.autograd.set_detect_anomaly(True)
        torch.set_num_threads(torch.get_num_threads() + 1)
        torch._C._set_mkldnn_enabled(False)
        torch.set_default_device("meta")
        torch.set_printoptions(precision=2)
        torch_lazy.config.set("max_nodes", 77)

    @state(torch.is_grad_enabled)
    def grad_mode():
        torch._C._set_grad_enabled(False)

    parameter = torch.ones(3).to("lazy").requires_grad_()
    buffer, hidden = torch.zeros(3).to("lazy"), parameter * 2

    def history():
        (gradient,) = torch.autograd.grad(hidden.sum(), parameter, retain_graph=True)
        return (
            (buffer.requires_grad, buffer.grad_fn, buffer.tolist(), buffer._version),
            (hidden.requires_grad, hidden.tolist(), gradient.tolist()),
        )

    @state(history)
    def histories():
        buffer.copy_(parameter * 3)
        hidden.mul_(parameter)

    @state(
        lambda: (
            len(parameter._backward_hooks or ()),
            len(parameter._post_accumulate_grad_hooks or ()),
        )
    )
    def tensor_hooks():
        parameter.register_hook(lambda g: g * 2)
        parameter.register_post_accumulate_grad_hook(lambda p: None)

    linear = nn.Linear(3, 3).to("lazy")

    @state(lambda: (type(linear), sorted(linear._parameters), linear.training))
    def parametrization():
        if type(linear) is nn.Linear:
            nn.utils.parametrizations.weight_norm(linear)
        linear.eval()

    modules = nn.modules.module

    @state(lambda: (len(modules._global_forward_hooks), len(linear._forward_hooks)))
    def module_hooks():
        modules.register_module_forward_hook(lambda *_: None)
        linear.register_forward_hook(lambda *_: None)

    jagged = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)

    @state(lambda: jagged.values().tolist())
    def nested_tensors():
        jagged.mul_(2)

    coo, csr = torch.eye(3).to_sparse(), torch.eye(3).to_sparse_csr()
    more = torch.ones(3, 3).to_sparse()

    @state(lambda: (coo.to_dense().tolist(), coo._nnz(), coo.is_coalesced(), csr.values().tolist()))
    def sparse_tensors():
        coo.mul_(2)
        coo.add_(more)
        csr.mul_(2)

    host, base = torch.zeros(2), torch.zeros(4).to("lazy")
    part = base[1:3]

    @state(lambda: (host.tolist(), host.untyped_storage().nbytes(), base.tolist(), part.tolist()))
    def memory():
        host.resize_(64)
        host.fill_(3)
        part._base.add_(1)

    return states


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", make_states())
def test_state_of_all_kinds_is_put_back(tmp_path, name):
    change, look = make_states()[name]
    before = copy.deepcopy(look())

    def f(x):
        change()
        return x * 2

    try:
        torch_lazy.save_graph(f, tmp_path / "f.graph", [torch.ones(3, device="lazy")])
    except RuntimeError as error:
        assert "cannot be saved" in str(error)
    assert look() == before
    state = program_state.ProgramState(change)
    try:
        change()
        assert look() != before, "the test cannot fail"
    finally:
        state.restore()
    assert look() == before


def test_a_hook_that_was_registered_inside_does_not_run(tmp_path):
    parameter = torch.ones(3).to("lazy").requires_grad_()

    def f(x):
        parameter.register_hook(lambda g: g * 100)
        parameter.register_post_accumulate_grad_hook(lambda p: p.grad.mul_(100))
        return x * 2

    with pytest.warns(torch_lazy.CompileWarning), pytest.raises(RuntimeError):
        torch_lazy.save_graph(f, tmp_path / "f.graph", [torch.ones(3)])
    (parameter * 2).sum().backward()
    assert parameter.grad.tolist() == [2, 2, 2]
    parameter.register_hook(lambda g: g * 10)
    (parameter * 2).sum().backward()
    assert parameter.grad.tolist() == [22, 22, 22]


@pytest.mark.parametrize("part", [slice(1, None), slice(None), 1], ids=["part", "whole", "row"])
def test_a_function_that_adds_to_a_graph_from_outside_is_refused(tmp_path, part):
    parameter = torch.ones(3).to("lazy").requires_grad_()
    table = torch.zeros(2, 3).to("lazy")

    def f(x):
        table[part].copy_(parameter * x)
        return x * 2

    with pytest.raises(RuntimeError, match=r"adds to its graph of autograd; .* torch.no_grad"):
        torch_lazy.save_graph(f, tmp_path / "f.graph", [torch.ones(3)])
    assert table.grad_fn is None and not table.requires_grad
    assert table.tolist() == [[0, 0, 0], [0, 0, 0]]
    assert list(tmp_path.iterdir()) == []


def test_a_loaded_graph_that_is_called(tmp_path):
    training = Training("lazy")
    torch_lazy.save_graph(training.step, tmp_path / "step.graph", [batches()[0]])
    graph = torch_lazy.load_graph(tmp_path / "step.graph")
    before = {name: value.tolist() for name, value in graph.state.items()}
    with pytest.raises(RuntimeError, match="cannot be run while a function is recorded"):
        torch_lazy.save_graph(lambda x: graph(x)[0], tmp_path / "f.graph", [batches()[0]])
    assert {name: value.tolist() for name, value in graph.state.items()} == before
    graph(batches()[0])
    assert {name: value.tolist() for name, value in graph.state.items()} != before


def test_who_waits_for_a_queue_goes_on(tmp_path):
    """A queue that is empty again has room for those who wait since it was full."""
    waiting, started = queue.Queue(maxsize=1), threading.Event()

    def produce():
        waiting.put("lost")
        started.set()
        waiting.put("kept")

    producer = threading.Thread(target=produce, daemon=True)

    def f(x):
        if not started.is_set():
            producer.start()
            started.wait()
            while not waiting.not_full._waiters:
                time.sleep(0.001)
        return x * waiting.maxsize

    with pytest.warns(torch_lazy.CompileWarning), pytest.raises(RuntimeError, match="cannot be"):
        torch_lazy.save_graph(f, tmp_path / "f.graph", [torch.ones(3)])
    producer.join(timeout=60)
    assert not producer.is_alive()
    assert waiting.get(timeout=60) == "kept"


class Interrupting(random.Random):
    """Ctrl-C is pressed while it is put back."""

    left = 0

    def setstate(self, state):
        if self.left > 0:
            self.left -= 1
            signal.raise_signal(signal.SIGINT)
        super().setstate(state)


@pytest.mark.parametrize("times", [1, 3])
def test_an_interrupt_while_things_are_put_back(tmp_path, monkeypatch, times):
    training = Training("lazy")
    training.step(batches()[0].to("lazy"))
    interrupting = Interrupting(3)

    def step(x):
        interrupting.random()
        return training.step(x)

    restore, interrupts = program_state.TensorState.restore, [times]

    def interrupted(tensor):
        if tensor.tensor is training.model[0].weight and interrupts[0] > 0:
            interrupts[0] -= 1
            signal.raise_signal(signal.SIGINT)
        restore(tensor)

    monkeypatch.setattr(program_state.TensorState, "restore", interrupted)
    before, drawn = training.snapshot(), interrupting.getstate()
    interrupting.left = times
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises((KeyboardInterrupt, RuntimeError)) as error:
            torch_lazy.save_graph(step, tmp_path / "f.graph", [batches()[0]])
    finally:
        signal.signal(signal.SIGINT, handler)
    assert interrupts == [0] and isinstance(error.value, KeyboardInterrupt)
    assert_same(before, training.snapshot())
    assert interrupting.getstate() == drawn
