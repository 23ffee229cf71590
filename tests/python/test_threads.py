"""Capture, reads, steps and training from several threads at once."""

import concurrent.futures
import contextlib
import os
import queue
import random
import threading
import time

import pytest
import torch
from comparing import COMPILED, DEVICE, difference
from torch import nn

if DEVICE.type == "lazy":
    import torch_lazy

pytestmark = pytest.mark.usefixtures("nothing_pending")

THREADS = 8


def in_threads(function, count=THREADS):
    """Results of function(0), function(1), ... from threads that start together."""
    start = threading.Barrier(count)

    def work(number):
        start.wait()
        return function(number)

    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        return list(pool.map(work, range(count)))


def step():
    if DEVICE.type == "lazy":
        torch_lazy.mark_step()


def sync(tensors=None):
    if DEVICE.type == "lazy":
        torch_lazy.sync(tensors)


def trained(number, device, synchronise=lambda i: None):
    generator = torch.Generator().manual_seed(number)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator))
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for i in range(8):
        optimizer.zero_grad()
        x = torch.randn(3, 4, generator=generator).to(device)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        synchronise(i)
        if i % 2:
            losses.append(loss.item())
    return losses, list(model.parameters())


def test_training():
    """Each thread trains its own model; the steps of one thread run what others have recorded."""
    expected = [trained(number, "cpu") for number in range(THREADS)]
    actual = in_threads(
        lambda number: trained(number, DEVICE, lambda i: step() if i % 3 == number % 3 else None)
    )
    # Optimizers use foreach on the device, a loop on the CPU.
    found = difference(expected, actual, close=(1e-5, 1e-6))
    assert found is None, found


def test_capture_reads_and_syncs():
    def work(number):
        total = 0.0
        x = torch.full((4, 4), float(number), device=DEVICE)
        for i in range(60):
            y = (x + i).t()[1:]
            y.mul_(2)
            x = x + y.sum() * 0
            if i % 5 == 0:
                total += x.sum().item()
            if i % 7 == number % 7:
                sync([x])
            if i % 11 == number:
                step()
        return total, x

    expected = [
        (16.0 * 12 * number, torch.full((4, 4), float(number))) for number in range(THREADS)
    ]
    found = difference(expected, in_threads(work))
    assert found is None, found


def test_readers_of_one_tensor():
    """All threads ask for the same pending values at once; they are the same for all."""
    for _ in range(20):
        x = torch.arange(12.0, device=DEVICE).reshape(3, 4)
        y = x.exp().cumsum(1)
        x.add_(1)
        views = [y[i % 3] if i % 2 else x[i % 3] for i in range(THREADS)]
        expected = torch.arange(12.0).reshape(3, 4)
        result = in_threads(lambda number, views=views: views[number].tolist())
        later, before = (expected + 1).tolist(), expected.exp().cumsum(1).tolist()
        wanted = [before[i % 3] if i % 2 else later[i % 3] for i in range(THREADS)]
        if COMPILED:
            torch.testing.assert_close(torch.tensor(result), torch.tensor(wanted))
        else:
            assert result == wanted


def test_writers_of_different_parts():
    """Threads write to disjoint rows of one tensor, while others read and sync."""
    x = torch.zeros(THREADS, 5, device=DEVICE)

    def work(number):
        row = x[number]
        for i in range(40):
            row.add_(number)
            if i % 10 == 3:
                sync([x])
            if i % 10 == 7:
                assert row[0].item() == number * (i + 1)

    in_threads(work)
    assert x.tolist() == [[40.0 * number] * 5 for number in range(THREADS)]


def test_tensors_pass_between_threads():
    """One thread records, another goes on with the tensor, a third one frees it."""
    first, second = queue.Queue(), queue.Queue()

    def record():
        for i in range(50):
            first.put(torch.full((3,), float(i), device=DEVICE) * 2)
        first.put(None)

    def work():
        while (x := first.get()) is not None:
            second.put(x + 1)
        second.put(None)

    def read():
        results = []
        while (x := second.get()) is not None:
            results.append(x[0].item())
        return results

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        jobs = [pool.submit(f) for f in (record, work, read)]
    assert jobs[2].result() == [2.0 * i + 1 for i in range(50)]
    assert all(job.exception() is None for job in jobs)


def test_backward_from_threads():
    """Threads accumulate into the same parameters, one after the other."""
    weight = torch.ones(4, device=DEVICE, requires_grad=True)
    lock = threading.Lock()

    def work(number):
        loss = (weight * number).sum()
        with lock:
            loss.backward()

    in_threads(work)
    assert weight.grad.tolist() == [float(sum(range(THREADS)))] * 4


def test_many_short_threads():
    """State that belongs to a thread goes with it."""

    def work(number):
        return (torch.ones(2, device=DEVICE) * number).sum().item()

    for _ in range(15):
        assert in_threads(work) == [2.0 * number for number in range(THREADS)]


def test_errors_stay_in_their_thread():
    if DEVICE.type != "lazy":
        pytest.skip("eager raises at the call")

    def work(number):
        x = torch.arange(3.0, device=DEVICE)
        if number % 2 == 0:
            return (x * number).tolist()
        with pytest.raises(IndexError):
            x[torch.tensor([7], device=DEVICE)].tolist()
        return "raised"

    assert in_threads(work) == [
        "raised" if n % 2 else [0.0, 1.0 * n, 2.0 * n] for n in range(THREADS)
    ]


def bad(x):
    """A call that fails when it runs."""
    return x[torch.tensor([100], device=DEVICE)].sum()


def call_that_is(known):
    """A training step that is replayed when it is `known`, else recorded."""
    model = nn.Linear(8, 8).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    @torch_lazy.compile
    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        optimizer.step()
        return loss

    x = torch.ones(8, 8, device=DEVICE) * 1
    for _ in range(8 if known else 0):
        step(x)
    before = model.weight.detach().cpu()

    def call():
        step(x)
        assert not torch.equal(model.weight.detach().cpu(), before)

    return call


def marked_step():
    y = torch.ones(3, device=DEVICE) + 1
    torch_lazy.mark_step()
    assert y.tolist() == [2, 2, 2]


INNOCENT = {
    "replay": lambda: call_that_is(known=True),
    "recording": lambda: call_that_is(known=False),
    "mark_step": lambda: marked_step,
}


@pytest.fixture(params=["0", "1"], ids=["sync", "async"])
def pending_error(request):
    """What another thread has recorded and will read, and how it ends: two calls that fail."""
    if DEVICE.type != "lazy":
        pytest.skip("eager raises at the call")
    recorded, go_on = threading.Event(), threading.Event()

    def work():
        x = torch.ones(8, 8, device=DEVICE) * 1
        first, good, second = bad(x), x.sum(), bad(x + 1)
        recorded.set()
        assert go_on.wait(60)
        with pytest.raises(IndexError, match="raised by aten::index"):
            first.item()
        with pytest.raises(IndexError, match="raised by aten::index"):
            second.item()
        return good.item()

    with (
        torch_lazy.config.override(**{"async": request.param}),
        concurrent.futures.ThreadPoolExecutor(1) as pool,
    ):

        def start():
            future = pool.submit(work)
            assert recorded.wait(60)
            return future, go_on

        yield start
        go_on.set()
        torch_lazy.sync()


@pytest.mark.parametrize("mine", [False, True], ids=["alone", "with_own"])
@pytest.mark.parametrize("kind", INNOCENT)
def test_an_error_of_another_thread_is_left_to_it(pending_error, kind, mine):
    """Who runs what all threads have recorded sees neither their errors nor less of its own."""
    call = INNOCENT[kind]()
    x = torch.ones(3, device=DEVICE)
    future, go_on = pending_error()
    y = x + 2 if mine else None
    call()
    go_on.set()
    assert future.result(60) == 64
    assert not mine or y.tolist() == [3, 3, 3]


@pytest.mark.parametrize("kind", ["replay", "recording"])
def test_an_own_error_is_raised_beside_another_threads(pending_error, kind):
    call = INNOCENT[kind]()
    x = torch.ones(3, device=DEVICE)
    future, go_on = pending_error()
    mine = bad(x)
    asynchronous = torch_lazy.config.get("async") == "1"
    with pytest.raises(IndexError, match=r"(?s)raised by aten::index.*Float\[3\].*not to the code"):
        for _ in range(2 if asynchronous else 1):  # what fails may do so after the first has begun
            call()
    call()
    go_on.set()
    assert future.result(60) == 64
    del mine


@pytest.mark.parametrize("asynchronous", ["0", "1"], ids=["sync", "async"])
def test_an_unread_error_is_raised_in_the_next_run_of_its_thread(asynchronous):
    if DEVICE.type != "lazy":
        pytest.skip("eager raises at the call")
    call = call_that_is(known=True)
    recorded, go_on = threading.Event(), threading.Event()

    def work():
        x = torch.ones(8, 8, device=DEVICE)
        result = bad(x)
        recorded.set()
        assert go_on.wait(60)
        with pytest.raises(IndexError, match=r"(?s)raised by aten::index.*same thread"):
            (x + 1).sum().item()
        del result
        return (x + 1).sum().item()

    with (
        torch_lazy.config.override(**{"async": asynchronous}),
        concurrent.futures.ThreadPoolExecutor(1) as pool,
    ):
        future = pool.submit(work)
        assert recorded.wait(60)
        call()
        go_on.set()
        assert future.result(60) == 128
        torch_lazy.sync()


def test_modes_belong_to_a_thread():
    def work(number):
        with torch.no_grad() if number % 2 else torch.enable_grad():
            w = torch.ones(2, device=DEVICE, requires_grad=True)
            return (w * 2).requires_grad

    assert in_threads(work) == [number % 2 == 0 for number in range(THREADS)]


class Shared:
    """Tensors that all threads use: a constant one, and counters with a lock each."""

    def __init__(self):
        self.constant = torch.arange(16.0, device=DEVICE).reshape(4, 4) + 1
        self.locks = [threading.Lock() for _ in range(3)]
        self.counters = torch.zeros(3, 2, dtype=torch.int64, device=DEVICE)
        self.counts = [0, 0, 0]

    def use(self, pick, number):
        """Integers below 2**24, so that floats are exact in any order."""
        i = pick.randrange(3)
        row = self.counters[i]
        with self.locks[i]:
            row.add_(number)
            self.counts[i] += number
            expected = self.counts[i]
            snapshot = row + 0
        if pick.random() < 0.3:
            assert snapshot.tolist() == [expected] * 2
        if pick.random() < 0.3:
            eager = torch.arange(16.0).reshape(4, 4) + 1
            assert torch.equal((self.constant.t() * number).cpu(), eager.t() * number)


class Mirror:
    """A tensor of one thread on the device, and what eager makes of the same calls."""

    def __init__(self, number):
        self.pair = [torch.arange(8.0, device=d).reshape(2, 4) + number for d in ("cpu", DEVICE)]
        self.kept = []

    def each(self, function):
        self.pair = [function(x) for x in self.pair]

    def use(self, pick):
        value = pick.randrange(7)
        change = pick.choice(
            [
                lambda x: x + value,
                lambda x: x.add_(value),
                lambda x: (x[1].sub_(value), x)[1],
                lambda x: x.t().contiguous().t() % 1000,
                lambda x: (x[:, ::2].copy_(x[:, 1::2]), x)[1],
                lambda x: torch.cat([x[1:], x[:1]]),
                lambda x: (x @ x.t() @ x) % 97,
            ]
        )
        self.each(change)
        if pick.random() < 0.1:
            self.kept.append(tuple(x + value for x in self.pair))
        if len(self.kept) > 5:
            eager, lazy = self.kept.pop(pick.randrange(len(self.kept)))
            assert torch.equal(lazy.cpu(), eager)

    def check(self):
        eager, lazy = self.pair
        assert torch.equal(lazy.cpu(), eager)
        for eager, lazy in self.kept:
            assert torch.equal(lazy.cpu(), eager)


@pytest.mark.slow
def test_everything_at_once_for_a_while():
    """TORCH_LAZY_TEST_SECONDS of recording, syncing and reading, on shared and own tensors."""
    end = time.monotonic() + float(os.environ.get("TORCH_LAZY_TEST_SECONDS", "60"))
    shared = Shared()

    def work(number):
        pick = random.Random(number)
        mirror = Mirror(number)
        turns = 0
        while time.monotonic() < end:
            turns += 1
            mirror.use(pick)
            if pick.random() < 0.3:
                shared.use(pick, number)
            chance = pick.random()
            if chance < 0.02:
                step()
            elif chance < 0.05:
                sync([mirror.pair[1], shared.counters] if chance < 0.03 else [mirror.pair[1]])
            elif chance < 0.08:
                mirror.check()
            elif chance < 0.085:
                mirror = Mirror(number)
        mirror.check()
        return turns

    with contextlib.ExitStack() as stack:
        if DEVICE.type == "lazy":
            stack.enter_context(torch_lazy.config.override(**{"async": 1}))
        assert all(turns > 0 for turns in in_threads(work))
        assert shared.counters.tolist() == [[count] * 2 for count in shared.counts]
