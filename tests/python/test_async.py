"""Graphs that run on a thread of their own while the program goes on."""

import os
import signal
import subprocess
import sys
import textwrap
import threading

import pytest
import torch

import torch_lazy
from torch_lazy import config

pytestmark = pytest.mark.usefixtures("nothing_pending")

LONG = 60  # seconds after which a test that hangs has failed


@pytest.fixture
def library():
    with torch.library._scoped_library("torch_lazy_async", "FRAGMENT") as lib:
        yield lib


@pytest.fixture
def asynchronous():
    with config.override(**{"async": 1}):
        yield
        torch_lazy.wait_device_ops()


def define(lib, name, function):
    """A custom operator with a fake kernel: recorded, and called when the graph runs."""
    lib.define(f"{name}(Tensor x) -> Tensor")
    lib.impl(name, function, "CPU")
    lib.impl(name, torch.empty_like, "Meta")
    return getattr(torch.ops.torch_lazy_async, name)


class Slow:
    """An operator that adds one when it is allowed to."""

    def __init__(self, lib):
        self.started, self.allowed = threading.Event(), threading.Event()
        self.operator = define(lib, "slow", self.run)

    def run(self, x):
        self.started.set()
        assert self.allowed.wait(LONG)
        return x + 1

    def __call__(self, x):
        return self.operator(x)


PROGRAM = """
import os, signal, sys, threading, time
import torch
import torch_lazy

# Whoever started the tests may have told them to ignore it, as nohup and shells do.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])

lib = torch.library.Library("torch_lazy_async_program", "FRAGMENT")

def define(name, function):
    lib.define(f"{name}(Tensor x) -> Tensor")
    lib.impl(name, function, "CPU")
    lib.impl(name, torch.empty_like, "Meta")
    return getattr(torch.ops.torch_lazy_async_program, name)

def fail(x):
    raise RuntimeError("this one fails")
"""


def program(text, **environment):
    """A process of its own, asynchronous unless told otherwise."""
    return subprocess.run(
        [sys.executable, "-c", PROGRAM + textwrap.dedent(text)],
        capture_output=True,
        text=True,
        timeout=LONG,
        env={**os.environ, "TORCH_LAZY_ASYNC": "1", **environment},
    )


def output(text, **environment):
    """What it printed; it ended well and said nothing on stderr."""
    result = program(text, **environment)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return result.stdout.split()


def bad_index():
    return torch.arange(3.0, device="lazy")[torch.tensor([9], device="lazy")]


def test_a_step_returns_while_its_graph_runs(asynchronous, library):
    slow = Slow(library)
    done = torch.ones(2, device="lazy") * 3
    torch_lazy.sync([done])
    y = slow(torch.ones(2, device="lazy"))
    later = y * 10
    torch_lazy.mark_step()
    assert slow.started.wait(LONG)
    assert done.tolist() == [3, 3]  # without waiting
    next_step = later + 1
    torch_lazy.mark_step()
    slow.allowed.set()
    assert y.tolist() == [2, 2]
    assert next_step.tolist() == [21, 21]
    assert later.tolist() == [20, 20]


def test_what_is_recorded_while_a_graph_runs_may_overwrite_its_inputs(asynchronous, library):
    slow = Slow(library)
    x = torch.ones(2, device="lazy")
    y = slow(x)
    torch_lazy.mark_step()
    assert slow.started.wait(LONG)
    x.add_(100)
    torch_lazy.mark_step()
    x.mul_(2)
    z = x + y
    torch_lazy.mark_step()
    slow.allowed.set()
    assert y.tolist() == [2, 2]
    assert x.tolist() == [202, 202]
    assert z.tolist() == [204, 204]


def test_tensors_dropped_while_their_graph_runs(asynchronous, library):
    slow = Slow(library)
    x = torch.ones(2, device="lazy")
    y, z = slow(x), x * 5
    torch_lazy.mark_step()
    assert slow.started.wait(LONG)
    del x, y
    slow.allowed.set()
    assert z.tolist() == [5, 5]


def test_upload_and_whole_overwrites_while_a_graph_runs(asynchronous, library):
    slow = Slow(library)
    x = torch.ones(2, device="lazy")
    y = slow(x)
    torch_lazy.mark_step()
    assert slow.started.wait(LONG)
    x.copy_(torch.tensor([8.0, 9.0]))
    assert x.tolist() == [8, 9]
    slow.allowed.set()
    assert y.tolist() == [2, 2]
    assert x.tolist() == [8, 9]


def test_custom_operators_run_on_the_worker(asynchronous, library):
    threads = []

    def note(x):
        threads.append(threading.get_ident())
        return x + 1

    op = define(library, "note", note)
    x = torch.ones(2, device="lazy")
    for _ in range(3):
        x = op(x)
        torch_lazy.mark_step()
    assert x.tolist() == [4, 4]
    assert len(set(threads)) == 1
    assert threads[0] != threading.get_ident()


def test_everything_runs_on_the_callers_thread_where_async_is_off(library):
    threads = []

    def note(x):
        threads.append(threading.get_ident())
        return x + 1

    op = define(library, "note", note)
    with config.override(**{"async": 0}):
        y = op(torch.ones(2, device="lazy"))
        torch_lazy.mark_step()
        assert not torch_lazy._C.is_pending(y)
        z = op(y)
        assert z.tolist() == [3, 3]
    assert threads == [threading.get_ident()] * 2


def test_the_mode_may_change_while_a_graph_runs(asynchronous, library):
    slow = Slow(library)
    y = slow(torch.ones(2, device="lazy"))
    torch_lazy.mark_step()
    assert slow.started.wait(LONG)
    with config.override(**{"async": 0}):
        z = torch.ones(2, device="lazy") * 2
        threading.Timer(0.05, slow.allowed.set).start()
        torch_lazy.mark_step()
        assert z.tolist() == [2, 2]
        assert y.tolist() == [2, 2]


@pytest.mark.parametrize(
    "ask",
    [torch_lazy.mark_step, torch_lazy.sync, torch_lazy.wait_device_ops],
    ids=lambda ask: ask.__name__,
)
def test_an_error_comes_once(asynchronous, ask):
    bad = bad_index()
    torch_lazy.mark_step()
    torch_lazy._C.is_pending(bad)  # asks nothing of the device
    with pytest.raises(IndexError):
        torch_lazy.wait_device_ops() if ask is torch_lazy.wait_device_ops else wait_and(ask)
    for _ in range(2):
        ask()
    torch_lazy.wait_device_ops()
    with pytest.raises(IndexError):
        bad.cpu()


def wait_and(ask):
    """The graph of the failure has been executed when `ask` is called: reading waits for it."""
    while torch_lazy.metrics.metric_data("ExecuteTime") is None:
        torch.ones(1).sum()
    ask()


def test_an_error_that_a_read_has_raised_does_not_come_again(asynchronous):
    bad = bad_index()
    torch_lazy.mark_step()
    with pytest.raises(IndexError):
        bad.cpu()
    torch_lazy.mark_step()
    torch_lazy.wait_device_ops()


def test_an_error_of_a_graph_whose_results_are_gone_comes_all_the_same(asynchronous, library):
    slow = Slow(library)
    first = slow(torch.ones(2, device="lazy"))
    torch_lazy.mark_step()
    assert slow.started.wait(LONG)
    bad = bad_index()
    torch_lazy.mark_step()
    del bad
    slow.allowed.set()
    with pytest.raises(IndexError):
        torch_lazy.wait_device_ops()
    assert first.tolist() == [2, 2]


def test_graphs_behind_a_failed_one(asynchronous, library):
    """They were scheduled before the error was known; what needs the failed value fails like it."""
    slow = Slow(library)
    x = torch.ones(1, device="lazy")
    start = slow(x)
    torch_lazy.mark_step()
    assert slow.started.wait(LONG)
    bad = bad_index()
    torch_lazy.mark_step()
    depends, free = bad + start, start * 7
    torch_lazy.mark_step()
    again = depends * 2
    torch_lazy.mark_step()
    slow.allowed.set()
    with pytest.raises(IndexError):
        torch_lazy.wait_device_ops()
    assert free.tolist() == [14]
    for value in (bad, depends, again):
        with pytest.raises(IndexError):
            value.cpu()
    torch_lazy.mark_step()
    torch_lazy.wait_device_ops()
    assert start.tolist() == [2]


def test_graphs_behind_one_that_failed_and_then_works(asynchronous, library):
    calls = []
    slow = Slow(library)

    def first_fails(x):
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("fails")
        return x * 2

    op = define(library, "first_fails", first_fails)
    start = slow(torch.ones(2, device="lazy"))
    torch_lazy.mark_step()
    assert slow.started.wait(LONG)
    y = op(start)
    torch_lazy.mark_step()
    y.add_(1)
    z = y * 10
    torch_lazy.mark_step()
    y.mul_(3)
    torch_lazy.mark_step()
    slow.allowed.set()
    with pytest.raises(RuntimeError, match="fails"):
        torch_lazy.wait_device_ops()
    assert z.tolist() == [50, 50]
    assert y.tolist() == [15, 15]
    assert len(calls) == 2


def test_a_long_queue(asynchronous, library):
    """More steps than a program may be ahead: recording waits then, with other threads running."""
    slow = Slow(library)
    x = slow(torch.zeros((), device="lazy"))
    torch_lazy.mark_step()
    assert slow.started.wait(LONG)
    releaser = threading.Timer(0.2, slow.allowed.set)
    releaser.start()
    for _ in range(1000):
        x = x + 1
        torch_lazy.mark_step()
    assert x.item() == 1001
    releaser.join()


def test_times_are_measured(asynchronous, library):
    slow = Slow(library)
    measured = torch_lazy.metrics.metric_data
    for _ in range(100):  # until one read came before its value
        slow.started.clear()
        slow.allowed.clear()
        y = slow(torch.ones(2, device="lazy"))
        torch_lazy.mark_step()
        assert slow.started.wait(LONG)
        threading.Timer(0.05, slow.allowed.set).start()
        y.cpu()
        if measured("WaitTime"):
            break
    for name in ("WaitTime", "ExecuteTime"):
        assert measured(name).total_samples >= 1
        assert measured(name).accumulator > 0


def test_an_operator_reads_other_lazy_tensors(asynchronous, library):
    """On the worker, where nothing can wait for the worker."""
    other = torch.ones(2, device="lazy") * 4
    torch_lazy.sync([other])
    op = define(library, "reads", lambda x: x + other.cpu() + (other * 2).cpu())
    y = op(torch.ones(2, device="lazy"))
    torch_lazy.mark_step()
    assert y.tolist() == [13, 13]


# ---- Processes ----------------------------------------------------------------------------------


def test_work_in_flight_is_done_at_exit():
    printed = output("""
        ended = threading.Event()
        def slow(x):
            ended.wait()
            print("effect", flush=True)
            return x + 1
        y = define("slow", slow)(torch.ones(2, device="lazy"))
        torch_lazy.mark_step()
        print("end", flush=True)
        ended.set()
    """)
    assert printed == ["end", "effect"]


def test_many_steps_in_flight_at_exit():
    assert output("""
        x = torch.ones(50, 50, device="lazy")
        for _ in range(200):
            x = (x @ x).tanh()
            torch_lazy.mark_step()
        print("end")
    """) == ["end"]


def test_an_error_that_nobody_saw_is_reported_at_exit():
    result = program("""
        y = torch.arange(3.0, device="lazy")[torch.tensor([9], device="lazy")]
        torch_lazy.mark_step()
    """)
    assert result.returncode == 0
    assert "an error was not raised before the process ended" in result.stderr
    assert "index" in result.stderr
    assert "aten::index" in result.stderr


def test_an_error_of_python_that_nobody_saw_is_reported_at_exit():
    result = program("""
        y = define("fail", fail)(torch.ones(2, device="lazy"))
        torch_lazy.mark_step()
    """)
    assert result.returncode == 0, result.stderr
    assert "an error was not raised before the process ended" in result.stderr
    assert "this one fails" in result.stderr


def test_an_error_that_was_seen_is_not_reported_at_exit():
    assert output("""
        y = torch.arange(3.0, device="lazy")[torch.tensor([9], device="lazy")]
        torch_lazy.mark_step()
        try:
            y.cpu()
        except IndexError:
            print("seen")
    """) == ["seen"]


FORK = """
    import warnings
    warnings.simplefilter("ignore")
    def slow(x):
        time.sleep(0.3)
        return x + 1
    op = define("slow", slow)
    x = torch.arange(4.0, device="lazy")
    y = op(x)
    torch_lazy.mark_step()
    pending = y * 2
    child = os.fork()
    z = op(pending) + 1
    torch_lazy.mark_step()
    ok = y.tolist() == [1, 2, 3, 4] and z.tolist() == [4, 6, 8, 10]
    ok = ok and pending.tolist() == [2, 4, 6, 8]
    if child == 0:
        os._exit(0 if ok else 3)
    print(ok, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize("mode", ["0", "1"])
def test_fork_with_work_in_flight(mode):
    assert output(FORK, TORCH_LAZY_ASYNC=mode) == ["True", "0"]


def test_a_child_that_ends_by_itself():
    """It finishes what it has in flight, and does not wait for a thread that it does not have."""
    assert output("""
        import warnings
        warnings.simplefilter("ignore")
        x = torch.ones(3, device="lazy") * 2
        torch_lazy.mark_step()
        child = os.fork()
        y = x + 1
        torch_lazy.mark_step()
        if child == 0:
            sys.exit(0)
        print(y.tolist() == [3, 3, 3], os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """) == ["True", "0"]


SEND = "signal.raise_signal, [signal.SIGINT]"  # in the timer's own thread
SEND_TO_MAIN = "signal.pthread_kill, [threading.main_thread().ident, signal.SIGINT]"
INTERRUPT = """
    def slow(x):
        if not interrupted.is_set():
            threading.Timer(0.2, {send}).start()
            interrupted.wait({seconds})
        return x + 1
    interrupted = threading.Event()
    y = define("slow", slow)(torch.ones(2, device="lazy"))
    try:
        {wait}
        print("not interrupted")
    except KeyboardInterrupt:
        print("interrupted")
    interrupted.set()
    print(y.tolist() == [2, 2], (y * 2).tolist() == [4, 4])
"""


@pytest.mark.parametrize(
    "wait",
    ["y.cpu()", "torch_lazy.mark_step(wait=True)", "torch_lazy.sync()", "torch_lazy.sync([y])"],
)
def test_an_interrupt_while_waiting(wait):
    printed = output(INTERRUPT.format(wait=wait, send=SEND, seconds=LONG))
    assert printed == ["interrupted", "True", "True"]


def test_an_interrupt_of_an_operator_on_the_callers_thread():
    """The operator itself is interrupted; its call is tried again later."""
    text = INTERRUPT.format(wait="y.cpu()", send=SEND_TO_MAIN, seconds=LONG)
    printed = output(text, TORCH_LAZY_ASYNC="0")
    assert printed == ["interrupted", "True", "True"]


@pytest.mark.parametrize("wait", ["y.cpu()", "torch_lazy.sync([y])"])
def test_a_signal_that_is_ignored_interrupts_nothing(wait):
    printed = output(f"""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    def slow(x):
        threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT]).start()
        time.sleep(0.5)
        return x + 1
    y = define("slow", slow)(torch.ones(2, device="lazy"))
    {wait}
    print(y.tolist() == [2, 2])
    """)
    assert printed == ["True"]


def test_signals_are_handled_while_the_worker_is_busy(asynchronous, library):
    slow = Slow(library)
    seen = []

    def handle(number, frame):
        seen.append(number)
        slow.allowed.set()

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        y = slow(torch.ones(2, device="lazy"))
        torch_lazy.mark_step()
        assert slow.started.wait(LONG)
        threading.Timer(0.1, os.kill, [os.getpid(), signal.SIGUSR1]).start()
        assert y.tolist() == [2, 2]  # the handler runs while this waits
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert seen == [signal.SIGUSR1]
