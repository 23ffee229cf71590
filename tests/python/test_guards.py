"""What a compiled function refers to changes between calls: each change is seen by the next call,
and what has not changed is not looked through again.
"""

import collections
import copy
import gc
import subprocess
import sys
import sysconfig
import weakref

import pytest
import torch
from comparing import replayed
from torch import nn

import torch_lazy

pytestmark = [
    pytest.mark.usefixtures("nothing_pending"),
    pytest.mark.filterwarnings("error::torch_lazy.CompileWarning"),
]

CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def call_until_replayed(f, *args):
    """Calls until a replay has given a result: after two recordings, were all known before."""
    for _ in range(6):
        before = replayed()
        result = f(*args)
        if replayed() > before:
            return result
    raise AssertionError(f"not replayed: {f.cache_info()}")


def test_a_class_that_hides_what_its_base_has():
    """Also where the class is PyTorch's and its base is not."""

    class Base:
        def __init__(self):
            self.factor = 0.0

    def own_init(self):
        self.factor = 2.0

    kind = type("Derived", (Base,), {"__init__": own_init, "__module__": "torch.somewhere"})

    @torch_lazy.compile
    def f(x):
        return x * kind().factor

    x = torch.ones(3, device="lazy")
    assert call_until_replayed(f, x).tolist() == [2, 2, 2]


# ---- Dicts ---------------------------------------------------------------------------------------

CHANGES = {
    "an item": lambda d: d.__setitem__("a", 5.0),
    "an equal item": lambda d: d.__setitem__("a", float("1")),
    "a new item": lambda d: d.__setitem__("c", 7.0),
    "del": lambda d: d.__delitem__("a"),
    "pop": lambda d: d.pop("a"),
    "popitem": lambda d: d.popitem(),
    "clear": lambda d: d.clear(),
    "clear and fill": lambda d: (d.clear(), d.update(a=8.0, b=9.0)),
    "update": lambda d: d.update(a=3.0, c=4.0),
    "or": lambda d: d.__ior__({"b": 6.0}),
    "setdefault": lambda d: d.setdefault("c", 4.0),
    "and back": lambda d: (d.__setitem__("a", 5.0), d.__setitem__("a", 1.0)),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(
    "kind", [dict, collections.OrderedDict, lambda d: collections.defaultdict(float, d)]
)
def test_dicts(kind, change):
    numbers = kind({"a": 1.0, "b": 2.0})

    def eager(x):
        return x * numbers.get("a", 0.5) + numbers.get("b", 0.25) + numbers.get("c", 0.0)

    f = torch_lazy.compile(eager)
    x = torch.arange(3.0)
    for _ in range(2):
        torch.testing.assert_close(call_until_replayed(f, x.to("lazy")).cpu(), eager(x))
        CHANGES[change](numbers)
        torch.testing.assert_close(f(x.to("lazy")).cpu(), eager(x))
        torch.testing.assert_close(call_until_replayed(f, x.to("lazy")).cpu(), eager(x))
        numbers.clear()
        numbers.update(a=1.0, b=2.0)


class Counted:
    """A key that counts how often it is looked for."""

    looked_for = 0

    def __hash__(self):
        Counted.looked_for += 1
        return 1


@pytest.mark.skipif(
    bool(sysconfig.get_config_var("Py_GIL_DISABLED")), reason="each item is checked in every call"
)
def test_an_unchanged_dict_is_not_looked_through():
    numbers = {Counted(): float(i) for i in range(10)}
    f = torch_lazy.compile(lambda x: x * sum(numbers.values()))
    g = torch_lazy.compile(lambda x: x - sum(numbers.values()))
    x = torch.ones(2, device="lazy")
    for function in (f, g):
        call_until_replayed(function, x)
        function(x)
    Counted.looked_for = 0
    for _ in range(3):
        assert f(x).tolist() == [45.0, 45.0]
        assert g(x).tolist() == [-44.0, -44.0]
    assert Counted.looked_for == 0
    # A change that leaves all as it was is no change.
    numbers["more"] = 1.0
    del numbers["more"]
    before = torch_lazy.metrics.counters()["Replayed"]
    for function in (f, g):
        function(x)
        function(x)
    assert torch_lazy.metrics.counters()["Replayed"] == before + 4


class Settings:
    def __init__(self):
        self.scale = 1.0
        self.shift = 0.0


def test_attributes_that_one_line_sets_many_times():
    """Python sets attributes in quicker ways where a line has often been run."""
    settings = Settings()
    f = torch_lazy.compile(lambda x: x * settings.scale + settings.shift)
    x = torch.ones(1, device="lazy")
    for i in range(60):
        settings.scale = float(i // 3 % 2)
        assert f(x).item() == settings.scale + settings.shift
    assert replayed() >= 30
    vars(settings)["scale"] = 6.0
    assert f(x).item() == call_until_replayed(f, x).item() == 6.0
    settings.shift = 2.0
    assert f(x).item() == call_until_replayed(f, x).item() == 8.0
    settings.__dict__.update(scale=7.0)
    assert f(x).item() == call_until_replayed(f, x).item() == 9.0
    settings.more = 1
    del settings.more
    assert call_until_replayed(f, x).item() == 9.0


def test_globals():
    space = {"scale": 2.0}
    exec(
        "def function(x):\n    return x * scale\ndef set(x):\n    global scale\n    scale = x",
        space,
    )
    f = torch_lazy.compile(space["function"])
    x = torch.ones(1, device="lazy")
    for i in range(40):
        space["set"](float(i // 8))
        space["another"] = i
        assert f(x).item() == float(i // 8)
    assert replayed() >= 20


# ---- Modules and optimizers ----------------------------------------------------------------------


def model():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Tanh(), nn.Linear(4, 2)))


class Trainer:
    def __init__(self, device):
        self.model = model().to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01, capturable=True)
        if device == "cpu":
            self.optimizer.param_groups[0]["capturable"] = False

    def step(self, x):
        self.optimizer.zero_grad()
        loss = self.model(x).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss


def load(trainer):
    doubled = {name: value * 2 for name, value in trainer.model.state_dict().items()}
    trainer.model.load_state_dict(doubled)


def assign(trainer):
    doubled = {name: value * 2 for name, value in trainer.model.state_dict().items()}
    trainer.model.load_state_dict(doubled, assign=True)


def replace_parameter(trainer):
    first = trainer.model[0]
    first.weight = nn.Parameter(first.weight.detach() * 0.5)


def other_rate(trainer):
    trainer.optimizer.param_groups[0]["lr"] = 0.05


def new_state(trainer):
    trainer.optimizer.state.clear()


def other_state(trainer):
    trainer.optimizer.state = collections.defaultdict(dict)


def other_dict(trainer):
    first = trainer.model[0]
    first._parameters = dict(first._parameters)
    replace_parameter(trainer)


def load_optimizer(trainer):
    trainer.optimizer.load_state_dict(copy.deepcopy(trainer.optimizer.state_dict()))


def new_optimizer(trainer):
    trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.1)


def freeze(trainer):
    del trainer.optimizer.param_groups[0]["params"][0]


def without_bias(trainer):
    del trainer.model[0].bias
    trainer.model[0].bias = None


def new_layer(trainer):
    trainer.model[1].add_module("2", nn.Tanh())


def new_attribute(trainer):
    trainer.model[0].note = "new"


@pytest.mark.parametrize(
    "change",
    [
        load,
        assign,
        replace_parameter,
        other_rate,
        new_state,
        other_state,
        other_dict,
        load_optimizer,
        new_optimizer,
        freeze,
        without_bias,
        new_layer,
        new_attribute,
    ],
    ids=lambda change: change.__name__,
)
def test_training(change):
    ours, eager = Trainer("lazy"), Trainer("cpu")
    step = torch_lazy.compile(ours.step)
    data = torch.randn(14, 3, 4)
    for i, x in enumerate(data):
        if i == 6:
            assert replayed() >= 2
            change(ours)
            change(eager)
        torch.testing.assert_close(step(x.to("lazy")).cpu(), eager.step(x), **CLOSE)
    for a, b in zip(ours.model.parameters(), eager.model.parameters(), strict=True):
        torch.testing.assert_close(a.cpu(), b, **CLOSE)
    before = replayed()
    for x in data[:4]:
        step(x.to("lazy"))
    assert replayed() > before


# ---- Tensors that stay, but change ---------------------------------------------------------------


class Averages(nn.Module):
    """State that its function writes; `shape` ends with two equal sizes."""

    def __init__(self, shape, device):
        super().__init__()
        for i, name in enumerate("abc"):
            value = torch.arange(16.0).mul(0.1).add(i).reshape(shape)
            self.register_buffer(name, value.to(device))
        self.weight = nn.Parameter(torch.ones(shape, device=device))

    def forward(self, x):
        self.weight.grad = None
        loss = (self.weight * self.a * x).sum()
        loss.backward()
        with torch.no_grad():
            self.a.mul_(0.5).add_(self.weight.grad)
            self.b.add_(self.a)
            self.c.add_(self.b * 0.1)
            self.weight.sub_(self.b, alpha=0.01)
        return loss.detach()


def other_data(m):
    m.b.data = m.b.data * 3
    m.weight.data = m.weight.data + 1


def data_again_and_again(m):
    for _ in range(8):  # new tensors at addresses that old ones had
        m.b.data = m.b.data * 1.1


def other_strides(m):
    m.b.data = m.b.data.mT.contiguous().mT


def transposed(m):
    m.b.transpose_(-1, -2)


def set_to_another(m):
    m.b.set_((m.b * 2).detach())


def part_of_more(m):
    m.b.set_(torch.stack([m.b, m.b + 1])[1])


def swapped(m):
    torch.utils.swap_tensors(m.b, m.b * 0.5)


def swapped_with_each_other(m):
    torch.utils.swap_tensors(m.b, m.c)


def written(m):
    m.b.mul_(0.25)
    m.weight.data.add_(1)


def written_through_a_view(m):
    m.b.flatten()[3:5].fill_(2)


def shared(m):
    m.c.data = m.b.data


def shared_with_the_parameter(m):
    m.c.data = m.weight.data


def resized(m):
    shape = m.b.shape
    m.b.resize_(2, 16).fill_(3)
    m.b.resize_(shape)


def with_gradient(m):
    m.b.requires_grad_()
    m.b.requires_grad_(False)


def frozen_and_back(m):
    m.weight.requires_grad_(False)
    m.weight.requires_grad_(True)


def held_gradient(m):
    m.held = m.weight.grad


def other_gradient(m):
    m.weight.grad = torch.full_like(m.weight, 5)


@pytest.mark.parametrize("shape", [(4, 4), (1, 2, 1, 2, 2, 2)], ids=["2d", "6d"])
@pytest.mark.parametrize(
    "change",
    [
        other_data,
        data_again_and_again,
        other_strides,
        transposed,
        set_to_another,
        part_of_more,
        swapped,
        swapped_with_each_other,
        written,
        written_through_a_view,
        shared,
        shared_with_the_parameter,
        resized,
        with_gradient,
        frozen_and_back,
        held_gradient,
        other_gradient,
    ],
    ids=lambda change: change.__name__,
)
def test_tensors_that_change(change, shape):
    ours, eager = Averages(shape, "lazy"), Averages(shape, "cpu")
    step = torch_lazy.compile(ours.forward)
    for i in range(14):
        x = torch.tensor(1.0 + 0.1 * i)
        if i in (5, 10):
            assert replayed() >= 2
            change(ours)
            change(eager)
            torch.testing.assert_close(ours.b.cpu(), eager.b, **CLOSE)
        before = [tensor._version for tensor in (ours.a, ours.b, ours.c)]
        torch.testing.assert_close(step(x.to("lazy")).cpu(), eager(x), **CLOSE)
        for name in ("a", "b", "c", "weight"):
            torch.testing.assert_close(
                getattr(ours, name).detach().cpu(), getattr(eager, name).detach(), **CLOSE
            )
        after = [tensor._version for tensor in (ours.a, ours.b, ours.c)]
        assert all(new > old for old, new in zip(before, after, strict=True))


class Accumulating(nn.Module):
    """Gradients that stay, and grow with each call."""

    def __init__(self, device):
        super().__init__()
        for i, name in enumerate("abc"):
            self.register_parameter(name, nn.Parameter(torch.full((3, 3), i + 1.0, device=device)))
        self.register_buffer("mean", torch.zeros(3, 3, device=device))

    def forward(self, x):
        loss = (self.a * x + self.b * x.mT + self.c * self.a).sum()
        loss.backward()
        with torch.no_grad():
            for parameter in self.parameters():
                self.mean.lerp_(parameter.grad, 0.5)
                parameter.sub_(parameter.grad, alpha=0.01)
        return loss.detach()


def exchanged_gradients(m):
    m.a.grad, m.c.grad = m.c.grad, m.a.grad


def gradient_of_two(m):
    m.c.grad = m.a.grad


def gradient_that_is_state(m):
    m.b.grad = m.mean


def gradients_in_one_memory(m):
    memory = torch.stack([m.b.grad, m.c.grad])
    m.b.grad, m.c.grad = memory[0], memory[1]


def gradient_of_other_strides(m):
    m.c.grad = m.c.grad.mT.contiguous().mT


def gradient_with_other_data(m):
    m.b.grad.data = m.b.grad.data * 3


def gradient_removed(m):
    m.c.grad = None


def gradient_written(m):
    m.b.grad.mul_(0.5)
    m.c.grad[1].zero_()


def parameter_without_gradient(m):
    m.c = nn.Parameter(m.c.detach() + 1)


@pytest.mark.parametrize(
    "change",
    [
        exchanged_gradients,
        gradient_of_two,
        gradient_that_is_state,
        gradients_in_one_memory,
        gradient_of_other_strides,
        gradient_with_other_data,
        gradient_removed,
        gradient_written,
        parameter_without_gradient,
    ],
    ids=lambda change: change.__name__,
)
def test_gradients_that_change(change):
    ours, eager = Accumulating("lazy"), Accumulating("cpu")
    step = torch_lazy.compile(ours.forward)
    for i in range(14):
        x = torch.arange(9.0).reshape(3, 3).add(i).mul(0.01)
        if i in (5, 10):
            assert replayed() >= 2
            change(ours)
            change(eager)
        names = [name for name, _ in eager.named_parameters()]
        before = [getattr(ours, name)._version for name in names]
        torch.testing.assert_close(step(x.to("lazy")).cpu(), eager(x), **CLOSE)
        for name, version in zip(names, before, strict=True):
            mine, other = getattr(ours, name), getattr(eager, name)
            torch.testing.assert_close(mine.detach().cpu(), other.detach(), **CLOSE)
            torch.testing.assert_close(mine.grad.cpu(), other.grad, **CLOSE)
            assert mine._version > version
        torch.testing.assert_close(ours.mean.cpu(), eager.mean, **CLOSE)


def test_versions_of_views_and_of_tensors_that_are_swapped():
    """Each write is counted by the tensor that is there, and by all that share its memory."""
    state = nn.Module()
    state.register_buffer("a", torch.ones(4, device="lazy"))
    f = torch_lazy.compile(lambda: state.a.mul_(2).sum())
    call_until_replayed(f)
    for _ in range(3):
        view = state.a[1:]
        others = state.a * 0.5
        before = state.a._version
        call_until_replayed(f)
        assert view._version == state.a._version > before
        del view  # tensors with views cannot be swapped
        torch.utils.swap_tensors(state.a, others)
        old, new = others._version, state.a._version
        call_until_replayed(f)
        assert state.a._version > new
        assert others._version == old


def test_state_that_two_functions_write():
    ours, eager = Averages((4, 4), "lazy"), Averages((4, 4), "cpu")
    step = torch_lazy.compile(ours.forward)
    decay = torch_lazy.compile(lambda: ours.b.mul_(0.9).sum())
    for i in range(20):
        x = torch.tensor(1.0 + 0.1 * i)
        torch.testing.assert_close(step(x.to("lazy")).cpu(), eager(x), **CLOSE)
        if i % 3:
            torch.testing.assert_close(decay().cpu(), eager.b.mul_(0.9).sum(), **CLOSE)
    torch.testing.assert_close(ours.c.cpu(), eager.c, **CLOSE)
    assert replayed() > 20


def test_many_functions_of_one_module():
    layer = nn.Linear(2, 2, bias=False).to("lazy").requires_grad_(False)

    def function(i):
        return torch_lazy.compile(lambda x: layer(x) * i, cache_size=1)

    functions = [function(i) for i in range(12)]
    x = torch.ones(1, 2, device="lazy")

    def all_see(value):
        layer.weight = nn.Parameter(torch.full_like(layer.weight, value), requires_grad=False)
        for i, f in enumerate(functions):
            if f is not None:
                assert f(x).tolist() == [[2 * value * i] * 2]
                assert call_until_replayed(f, x).tolist() == [[2 * value * i] * 2]

    all_see(1.0)
    functions[::3] = [None] * 4  # collected
    gc.collect()
    all_see(2.0)
    functions[1].cache_clear()
    functions[2](torch.ones(3, 2, device="lazy"))  # its one signature is another one now
    all_see(3.0)
    dead = [weakref.ref(f) for f in functions if f is not None]
    functions[:] = [None] * 12
    gc.collect()
    assert all(f() is None for f in dead)
    layer.note = "nobody looks"
    del layer.note
    functions[:] = [function(i) for i in range(12)]
    all_see(4.0)


def test_a_module_that_dies_before_its_function():
    models = {"model": model().to("lazy").requires_grad_(False)}
    f = torch_lazy.compile(lambda x: models["model"](x))
    x = torch.ones(1, 4, device="lazy")
    call_until_replayed(f, x)
    first = weakref.ref(models["model"])
    for _ in range(3):
        models["model"] = nn.Linear(4, 1).to("lazy").requires_grad_(False)
        call_until_replayed(f, x)
        torch.testing.assert_close(f(x), models["model"](x))
    gc.collect()
    assert first() is None


def test_a_change_after_many_checks():
    """The checks at calls 8, 16, 32, ... are no attempts that failed."""
    numbers = [1.0]
    f = torch_lazy.compile(lambda x: x * numbers[0])
    x = torch.ones(1, device="lazy")
    for _ in range(70):
        f(x)
    numbers[0] = 2.0
    assert f(x).item() == 2.0
    assert call_until_replayed(f, x).item() == 2.0


# ---- Processes of their own ----------------------------------------------------------------------

SCRIPT = """
import atexit
import torch, torch_lazy
from torch import nn

class Late:
    def __del__(self):
        layer.note = 3  # while Python shuts down
        del layer.note

layer = nn.Linear(2, 2, bias=False).to("lazy").requires_grad_(False)
late = Late()
f = torch_lazy.compile(lambda x: layer(x))
x = torch.ones(1, 2, device="lazy")
for value in (1.0, 2.0):
    for _ in range(6):
        layer.weight = layer.weight
        assert torch.equal(f(x), layer(x))
    layer.weight = nn.Parameter(layer.weight * 2, requires_grad=False)
    assert torch.equal(f(x), layer(x))
assert torch_lazy.metrics.counter_value("Replayed") >= 4
atexit.register(lambda: setattr(layer, "note", f(x)))
kept = [f]
kept.append(kept)
"""

NO_PLACES = """
import torch, _testcapi
try:
    for _ in range(9):
        _testcapi.add_dict_watcher(0)
    raise SystemExit("there was place for all")
except RuntimeError as error:
    assert "no more dict watcher" in str(error), error
"""


def run(script):
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_the_end_of_python():
    run(SCRIPT)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.11 has no watchers of dicts")
def test_others_have_taken_all_watchers():
    pytest.importorskip("_testcapi", reason="Python was built without its test modules")
    run(NO_PLACES + SCRIPT)
