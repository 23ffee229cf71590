"""Errors at every place where one can come: the device stays usable, what has nothing to do with
the error keeps its value, and another try gives eager's bits."""

import contextlib
import copy
import itertools

import pytest
import torch
import torch.nn.functional as F
from comparing import bits_differ
from torch import nn

import torch_lazy
from torch_lazy import config

pytestmark = pytest.mark.usefixtures("nothing_pending", "no_fault_left")

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
}
batch_sizes = itertools.count(2)  # each one needs plans of its own: nothing is compiled yet


@pytest.fixture
def no_fault_left():
    yield
    config.set("fault", "")
    torch_lazy._C.discard_pending()


@pytest.fixture(params=[0, 1], ids=["sync", "async"])
def mode(request):
    with config.override(**{"async": request.param}):
        yield request.param
        torch_lazy.wait_device_ops()


@pytest.fixture
def library():
    with torch.library._scoped_library("torch_lazy_faults", "FRAGMENT") as lib:
        yield lib


def same(expected, actual):
    return all(
        a.shape == b.shape and not bits_differ(a, b.cpu()).any()
        for a, b in zip(expected, actual, strict=True)
    )


class Bystanders:
    """A tensor that was computed before, and an alias of a part of it."""

    def __init__(self):
        self.base = torch.arange(6.0, device="lazy") * 2
        self.part = self.base[2:4]
        torch_lazy.sync([self.base])

    def check(self):
        assert self.base.tolist() == [0, 2, 4, 6, 8, 10]
        assert self.part.tolist() == [4, 6]
        x = torch.arange(4.0, device="lazy").reshape(2, 2)
        assert (x @ x).tolist() == [[2, 3], [6, 11]]


class Training:
    """Steps in parts; each but `record` can be called again after an error."""

    def __init__(self, device, optimizer, batch):
        generator = torch.Generator().manual_seed(1)
        self.device = device
        self.model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
        with torch.no_grad():
            for p in self.model.parameters():
                p.copy_(torch.randn(p.shape, generator=generator))
        self.model.to(device)
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())
        self.inputs = torch.randn(batch, 4, generator=generator)
        self.targets = torch.arange(batch) % 3

    def parts(self):
        return self.upload, self.record, self.run, self.read

    def step(self):
        for part in self.parts():
            part()

    def upload(self):
        self.x, self.y = self.inputs.to(self.device), self.targets.to(self.device)

    def record(self):
        self.optimizer.zero_grad()
        self.loss = F.cross_entropy(self.model(self.x), self.y)
        self.loss.backward()
        self.optimizer.step()

    def run(self):
        if self.device == "lazy":
            torch_lazy.mark_step(wait=True)

    def read(self):
        self.seen = self.loss.item()

    def tensors(self):
        """Loss, parameters, gradients and the optimizer's state, on the CPU."""
        parameters = list(self.model.parameters())
        state = [s for p in parameters for s in self.optimizer.state[p].values()]
        found = [self.loss, *parameters, *(p.grad for p in parameters), *state]
        return [torch.tensor(self.seen), *(t.detach().cpu() for t in found)]

    def save(self):
        return copy.deepcopy((self.model.state_dict(), self.optimizer.state_dict()))

    def load(self, saved):
        model, optimizer = copy.deepcopy(saved)
        self.model.load_state_dict(model)
        self.optimizer.load_state_dict(optimizer)


def check_error(error, stage, part):
    assert "torch-lazy: fault on request" in str(error)
    assert isinstance(error, torch.OutOfMemoryError) == (stage == "allocate")
    if stage != "allocate":
        assert f"stage {stage}" in str(error)
    if stage == "execute" or (stage == "allocate" and part in ("run", "read")):
        assert "raised by aten::" in str(error)
        assert "[" in str(error)  # shapes


def faulted_step(training, stage, position):
    """One step with an error in it, and what the user does about it. False: it did not come."""
    bystanders = Bystanders()
    saved = training.save()
    raised = 0
    config.set("fault", f"{stage}:{position}")
    for part in training.parts():
        try:
            part()
        except RuntimeError as error:
            raised += 1
            check_error(error, stage, part.__name__)
            bystanders.check()
            if part == training.record:
                training.load(saved)
            part()
    came = config.get("fault") == ""
    config.set("fault", "")
    assert raised == int(came)
    bystanders.check()
    return came


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("stage", ["capture", "compile", "allocate", "execute", "read"])
def test_a_training_step_with_an_error_at_every_position(mode, stage, optimizer):
    with config.override(step_on_optimizer=0):
        for position in itertools.count():
            batch = next(batch_sizes) if stage == "compile" else 5
            eager, lazy = (Training(d, optimizer, batch) for d in ("cpu", "lazy"))
            eager.step()
            lazy.step()
            eager.step()
            came = faulted_step(lazy, stage, position)
            assert same(eager.tensors(), lazy.tensors()), f"after an error at {stage}:{position}"
            eager.step()
            lazy.step()
            assert same(eager.tensors(), lazy.tensors()), f"a step after {stage}:{position}"
            if not came:
                break
        assert position > 0, "no error came at all"


@pytest.mark.parametrize("stage", ["compile", "allocate", "execute"])
def test_an_error_in_the_step_that_an_optimizer_ends(mode, stage):
    """The update is recorded all the same: it is not for the user to make it again."""
    for position in itertools.count():
        batch = next(batch_sizes)
        eager, lazy = (Training(d, "sgd", batch) for d in ("cpu", "lazy"))
        for training in (eager, lazy):
            training.upload()
        eager.record()
        eager.read()
        config.set("fault", f"{stage}:{position}")
        try:
            lazy.record()
            lazy.read()
            torch_lazy.wait_device_ops()
        except RuntimeError as error:
            check_error(error, stage, "run")
        came = config.get("fault") == ""
        config.set("fault", "")
        lazy.read()
        assert same(eager.tensors(), lazy.tensors()), f"after an error at {stage}:{position}"
        if not came:
            break
    if stage != "allocate":  # all memory of such a step is the kernels' own
        assert position > 0, "no error came at all"


def writes(device):
    """In-place writes, also into values that are still wanted, views, and fresh memory."""
    x = torch.arange(12.0, device=device).reshape(3, 4)
    before = x + 0
    old = x.clone()
    row = x[1]
    row.mul_(3)
    y = torch.empty(3, 4, device=device).copy_(x).add_(1)
    x.t()[2:].sub_(y.t()[:2])
    z = torch.zeros(5, device=device)
    z[1:4].copy_(x[:, 1])
    w = torch.empty(4, device=device)
    w[:2] = 7
    w[2:] = z[2]
    kept = x.detach()
    x = x.exp()
    kept.zero_()
    return [before, old, row, x, y, z, w, kept]


@pytest.mark.parametrize("stage", ["compile", "allocate", "execute", "read"])
@pytest.mark.parametrize("first", range(8))
def test_in_place_writes_with_an_error_at_every_position(mode, stage, first):
    """Read in another order each time: parts of the graph run before others."""
    expected = writes("cpu")
    order = [(first + 3 * i) % len(expected) for i in range(len(expected))]
    for position in itertools.count():
        results = writes("lazy")
        bystanders = Bystanders()
        extra = torch.ones(next(batch_sizes), device="lazy") + results[order[0]][..., :1].sum()
        raised = 0
        config.set("fault", f"{stage}:{position}")
        for i in order:
            for attempt in range(2):
                try:
                    actual = results[i].cpu()
                    break
                except RuntimeError as error:
                    assert attempt == 0
                    raised += 1
                    assert "fault on request" in str(error)
                    bystanders.check()
            assert same([expected[i]], [actual]), f"{i} with an error at {stage}:{position}"
        came = config.get("fault") == ""
        config.set("fault", "")
        assert raised == int(came)
        assert same(expected, results), f"after an error at {stage}:{position}"
        assert bool((extra.cpu() == 1 + expected[order[0]][..., :1].sum()).all())
        if not came:
            break


# ---- Operators that fail by themselves ----------------------------------------------------------


class Failing:
    """Custom operators in Python: x * 2 and, in place, x += 1. The calls named fail."""

    def __init__(self, library, at=(), error=RuntimeError):
        self.calls = 0
        self.at = set(at)
        self.error = error
        library.define("double(Tensor x) -> Tensor")
        library.impl("double", self.double, "CPU")
        library.impl("double", torch.empty_like, "Meta")
        library.define("increment(Tensor(a!) x) -> ()")
        library.impl("increment", self.increment, "CPU")
        library.impl("increment", lambda x: None, "Meta")

    def count(self):
        self.calls += 1
        if self.calls - 1 in self.at:
            raise self.error(f"call {self.calls - 1} fails")

    def double(self, x):
        self.count()
        return x * 2

    def increment(self, x):
        self.count()
        x.add_(1)


def double(x):
    return torch.ops.torch_lazy_faults.double(x)


def increment(x):
    torch.ops.torch_lazy_faults.increment(x)


def fails(function, message="fails"):
    with pytest.raises(RuntimeError, match=message):
        function()


def run():
    torch_lazy.mark_step(wait=True)


def test_a_failed_operator_waits_and_the_rest_runs(mode, library):
    failing = Failing(library, at=[0])
    x = torch.arange(3.0, device="lazy")
    y = double(x)
    z = y + 1
    other = x * 3
    with pytest.raises(RuntimeError, match=r"(?s)call 0 fails"):
        run()
    assert torch_lazy._C.is_pending(y)
    run()
    assert not torch_lazy._C.is_pending(other)
    assert torch_lazy._C.is_pending(y)
    assert torch_lazy._C.is_pending(z)
    assert failing.calls == 1
    assert other.tolist() == [0, 3, 6]
    assert failing.calls == 1
    assert z.tolist() == [1, 3, 5]
    assert y.tolist() == [0, 2, 4]
    assert failing.calls == 2
    run()
    assert failing.calls == 2


def test_computing_from_a_waiting_value_tries_again(mode, library):
    failing = Failing(library, at=[0])
    y = double(torch.arange(3.0, device="lazy"))
    fails(run)
    z = y - 1
    run()
    assert failing.calls == 2
    assert z.tolist() == [-1, 1, 3]
    assert y.tolist() == [0, 2, 4]


def test_reading_tries_again(mode, library):
    failing = Failing(library, at=[0])
    y = double(torch.arange(3.0, device="lazy"))
    fails(y.cpu)
    assert y.tolist() == [0, 2, 4]
    assert failing.calls == 2


def test_a_second_failure_is_final(mode, library):
    failing = Failing(library, at=[0, 1])
    x = torch.arange(3.0, device="lazy") + 1
    written = torch.ones(3, device="lazy") * 5
    overwritten = torch.ones(3, device="lazy")
    y = double(x)
    z = y + 1
    written.add_(y)
    overwritten.copy_(y)
    fails(run)
    fails(y.cpu)
    assert failing.calls == 2
    for value in (y, z, overwritten):
        fails(value.cpu)
        fails(lambda value=value: torch_lazy.sync([value + 1]))
    assert failing.calls == 2
    assert written.tolist() == [5, 5, 5]
    assert x.tolist() == [1, 2, 3]
    overwritten.fill_(2)
    assert overwritten.tolist() == [2, 2, 2]
    run()


def test_a_write_to_a_waiting_buffer_takes_its_place_in_the_order(mode, library):
    Failing(library, at=[0])
    x = torch.arange(3.0, device="lazy")
    increment(x)
    fails(run)
    x.mul_(10)
    run()
    assert x.tolist() == [10, 20, 30]


def test_a_waiting_reader_sees_the_old_value_of_what_is_overwritten(mode, library):
    Failing(library, at=[0])
    x = torch.arange(3.0, device="lazy")
    y = double(x)
    fails(run)
    x.add_(100)
    run()
    assert x.tolist() == [100, 101, 102]
    x.zero_()
    run()
    assert y.tolist() == [0, 2, 4]
    assert x.tolist() == [0, 0, 0]


def test_a_waiting_value_that_nobody_wants_any_more_is_forgotten(mode, library):
    failing = Failing(library, at=[0])
    y = double(torch.ones(3, device="lazy"))
    fails(run)
    del y
    run()
    assert failing.calls == 1
    assert torch_lazy._C.pending_nodes() == 0


def test_two_failures_in_one_step_come_one_after_the_other(mode, library):
    failing = Failing(library, at=[0, 1])
    x = torch.ones(2, device="lazy")
    y, z = double(x), double(x + 1)
    fails(run, "call 0")
    fails(run, "call 1")
    assert y.tolist() == [2, 2]
    assert z.tolist() == [4, 4]
    assert failing.calls == 4


def half_a_write(library):
    """An operator that adds one to its argument; the first time it fails in the middle."""
    calls = []

    def write(x):
        calls.append(1)
        x[:1].add_(1)
        if len(calls) == 1:
            raise RuntimeError("fails")
        x[1:].add_(1)

    library.define("half(Tensor(a!) x) -> ()")
    library.impl("half", write, "CPU")
    library.impl("half", lambda x: None, "Meta")
    return torch.ops.torch_lazy_faults.half


def test_an_operator_that_wrote_a_part_before_it_failed(mode, library):
    """A write that failed has not happened, so trying again does not write twice."""
    half = half_a_write(library)
    x = torch.zeros(2, device="lazy") + 5
    torch_lazy.sync([x])
    half(x)
    fails(run)
    assert x.tolist() == [6, 6]


def test_a_buffer_whose_write_failed_for_good_keeps_its_last_value(mode, library):
    def write(x):
        x[:1].add_(1)
        raise RuntimeError("fails")

    library.define("never(Tensor(a!) x) -> ()")
    library.impl("never", write, "CPU")
    library.impl("never", lambda x: None, "Meta")
    x = torch.zeros(2, device="lazy") + 5
    torch_lazy.sync([x])
    torch.ops.torch_lazy_faults.never(x)
    fails(run)
    fails(x.cpu)
    assert x.tolist() == [5, 5]


def test_a_value_that_a_failed_write_would_have_replaced_is_what_it_was(mode, library):
    """Another operator that waits still reads it."""
    Failing(library, at=[0])
    half = half_a_write(library)
    x = torch.full((2,), 5.0, device="lazy")
    torch_lazy.sync([x])
    y = double(x)
    fails(run)
    half(x)
    fails(run)
    assert y.tolist() == [10, 10]
    assert x.tolist() == [6, 6]


def test_a_scatter_that_fails_half_way(mode):
    """A kernel of PyTorch that writes until it finds a wrong index leaves what eager leaves."""

    def scatter(x):
        index = torch.tensor([0, 9], device=x.device)
        x.scatter_add_(0, index, torch.ones(2, device=x.device))

    x, eager = torch.zeros(3, device="lazy"), torch.zeros(3)
    torch_lazy.sync([x])
    fails(lambda: scatter(eager), "out of bounds")
    scatter(x)
    fails(run, "out of bounds")
    assert x.tolist() == eager.tolist()


def test_an_error_of_python_names_its_operator(mode, library):
    Failing(library, at=[0])
    y = double(torch.ones(2, 3, device="lazy"))
    with pytest.raises(RuntimeError, match=r"(?s)fails.*double.*\[2,3\]") as raised:
        run()
    assert raised.type is RuntimeError
    assert y.cpu().sum().item() == 12


FINAL = {
    "index": lambda x, bad: x[bad],
    "embedding": lambda x, bad: F.embedding(bad, x[:, None]),
    "nll_loss": lambda x, bad: F.nll_loss(x[None], bad),
}


@pytest.mark.parametrize("operator", FINAL)
def test_errors_that_tell_of_a_mistake_are_final_at_once(mode, operator):
    x, bad = torch.arange(3.0, device="lazy"), torch.tensor([9], device="lazy")
    written = torch.ones(1, device="lazy") * 3
    value = FINAL[operator](x, bad)
    written.add_(value.sum())
    with pytest.raises(IndexError, match="out of"):
        run()
    assert torch_lazy._C.pending_nodes() == 0
    for _ in range(2):
        with pytest.raises(IndexError, match="out of"):
            value.cpu()
    assert written.tolist() == [3]
    run()


def mixed(device):
    """A program of custom operators: fresh results, writes, views, a value read before a write."""
    x = torch.arange(6.0, device=device)
    a = double(x)
    part = x[1:4]
    increment(part)
    b = double(part) + a[:3]
    increment(x)
    c = double(x.reshape(2, 3).t())
    increment(a)
    a.mul_(2)
    increment(c)
    return [x, a, part, b, c, double(c - 1)]


def results_of(failing, first, second, steps):
    """Runs `mixed` with one or two failing calls, until none fails any more."""
    failing.calls, failing.at = 0, {first}
    results = mixed("lazy")
    for number in range(2 * len(results)):
        if number == 1 and second is not None:
            failing.at.add(failing.calls + second)
        try:
            if steps:
                torch_lazy.mark_step()
            results[(number * 5 + first) % len(results)].cpu()
        except RuntimeError as error:
            assert "fails" in str(error)
    failing.at = set()
    return results


@pytest.mark.parametrize("steps", [True, False], ids=["steps", "reads"])
def test_custom_operators_of_which_one_call_fails(mode, library, steps):
    failing = Failing(library)
    expected = mixed("cpu")
    for first in range(failing.calls):
        assert same(expected, results_of(failing, first, None, steps)), first


def test_a_result_that_is_larger_than_memory(mode):
    x = torch.ones(2, device="lazy")
    y = x[:1].expand(1 << 43) * 2
    other = x + 1
    with pytest.raises(RuntimeError, match=r"(?s)allocate.*raised by aten::mul"):
        run()
    assert other.tolist() == [2, 2]
    with pytest.raises(RuntimeError, match="allocate"):
        y[0].item()
    del y
    run()
    assert torch_lazy._C.pending_nodes() == 0


# ---- Kernels of PyTorch that fail while their indices are wrong ---------------------------------


class Indices:
    """The index tensors of calls, in program order; their memory can be spoilt and mended."""

    def __init__(self, device):
        self.device = device
        self.real = []

    def next(self, size):
        index = torch.arange(size, device=self.device)
        if self.device == "lazy":
            torch_lazy.sync([index])
            self.real.append(torch_lazy._C.to_real(index))
        else:
            self.real.append(index)
        return index

    def spoil(self, *numbers):
        for i, index in enumerate(self.real):
            index.copy_(torch.arange(len(index)) + (1000 if i in numbers else 0))


def indexed(indices, states=None):
    """Reads and writes by index: views, chains of writes, values that are read before a write.

    What tensors are on the way goes to `states`.
    """

    def take(x):
        return x.gather(0, indices.next(len(x)))

    def add(x, y):
        x.copy_(x.scatter_add(0, indices.next(len(x)), y))
        note()

    def note():
        if states is not None:
            states.extend(t.clone() for t in (x, a, x[1:4], *results))

    results = []
    x = torch.arange(6.0, device=indices.device)
    a = take(x)
    part = x[1:4]
    note()
    add(part, a[:3])
    b = take(part) + a[3:]
    add(x, a)
    before = x * 2
    x.mul_(3)
    note()
    add(x, take(before))
    c = take(x.reshape(2, 3).t().reshape(6)) - 1
    results += [x, a, part, b, before, c]
    note()
    a.add_(c)
    add(c, a)
    return results


def attempt(results, order, steps):
    """Reads what can be read; values that came."""
    came = {}
    for i in order:
        try:
            if steps:
                torch_lazy.mark_step()
            came[i] = results[i].cpu()
        except RuntimeError as error:
            assert "out of bounds" in str(error)
            assert "raised by aten::" in str(error)
        with contextlib.suppress(RuntimeError):  # of what ran as well, and was not asked for
            torch_lazy.wait_device_ops()
    return came


@pytest.mark.parametrize("steps", [True, False], ids=["steps", "reads"])
@pytest.mark.parametrize("turn", range(6))
def test_kernels_that_fail_once_or_twice_at_every_position(mode, turn, steps):
    """A call that failed twice has failed for good: what it would have written is what it was."""
    eager, states = Indices("cpu"), []
    expected = indexed(eager, states)
    count = len(eager.real)
    for first, second in itertools.product(range(count), [None, *range(count)]):
        indices = Indices("lazy")
        results = indexed(indices)
        indices.spoil(first)
        early = attempt(results, [turn], steps)
        indices.spoil(*[second] * (second is not None))
        early |= attempt(results, [(turn + 2) % len(results)], steps)
        indices.spoil()
        late = attempt(results, range(len(results)), steps)
        what = f"calls {first} and {second} failed"
        if first != second:
            assert len(late) == len(results), what
        for i, value in [*early.items(), *late.items()]:
            allowed = [expected[i]] if first != second else [expected[i], *states]
            assert any(same([want], [value]) for want in allowed), f"{what}: result {i}: {value}"


@pytest.mark.slow
def test_a_read_tries_once():
    """Many times, since it is a matter of when the worker is done."""
    indices = Indices("lazy")
    index = indices.next(3)
    with config.override(**{"async": 1}):
        for _ in range(30_000):
            y = torch.arange(3.0, device="lazy").gather(0, index)
            indices.spoil(0)
            fails(y.cpu, "out of bounds")
            torch_lazy.wait_device_ops()
            indices.spoil()
            assert y.tolist() == [0, 1, 2]
