"""Step closures: in the program's thread or in another one, their order, and what errors do."""

import inspect
import sysconfig
import threading

import pytest
import torch
from comparing import DEVICE

if DEVICE.type != "lazy":
    pytest.skip("these are about the device lazy", allow_module_level=True)

from lazy_names import closure as closures
from lazy_names import count, device_context, lazy, run_program

import torch_lazy

pytestmark = pytest.mark.usefixtures("nothing_pending", "no_closures")

PATIENCE = 60  # seconds; how long to wait for what has to happen


@pytest.fixture
def no_closures():
    """Every test starts without closures and handlers, and leaves none."""
    context = device_context.get_device_context()
    names = ("step_closures", "async_step_closures", "closure_handler", "async_closure_handler")
    for name in names:
        vars(context).pop(name, None)
    yield
    for name in names:
        vars(context).pop(name, None)


def failing_graph():
    """A tensor whose computation is recorded, and fails."""
    index = torch.tensor([7], device="lazy")
    return torch.arange(3.0, device="lazy").index_select(0, index)


# ---- In the program's thread ---------------------------------------------------------------------


def test_b1_closures_run_after_the_sync():
    x = torch.ones(3, device="lazy") + 1
    compiled = []
    lazy.add_step_closure(lambda: compiled.append(count("UncachedCompile")))
    lazy.mark_step()
    assert compiled == [1]
    assert x.tolist() == [2, 2, 2]


def test_b2_mark_step_needs_no_arguments():
    parameters = inspect.signature(lazy.mark_step).parameters
    assert {name: p.default for name, p in parameters.items()} == {"device": "", "wait": False}
    assert lazy.mark_step() is None


def test_b3_a_failed_step_keeps_its_closures():
    ran = []
    broken = failing_graph()
    lazy.add_step_closure(ran.append, (1,))
    with pytest.raises(IndexError, match="out of range"):
        lazy.mark_step(wait=True)
    assert ran == []
    del broken
    lazy.mark_step(wait=True)
    assert ran == [1]


def test_b11_names_of_the_package():
    assert lazy.add_step_closure is closures.add_step_closure
    assert lazy.run_step_closures is closures.run_step_closures
    parameters = inspect.signature(lazy.add_step_closure).parameters
    assert list(parameters) == ["closure", "args", "run_async"]
    assert [parameters[name].default for name in ("args", "run_async")] == [(), False]


def test_b12_closures_run_in_order_and_find_values():
    seen = []
    x = torch.ones(2, device="lazy") + 1
    y = x * 3
    lazy.add_step_closure(lambda t: seen.append(t.sum().device.type), args=(x,))
    lazy.add_step_closure(lambda a, b: seen.append((a[0].item(), b[0].item())), args=(x, y))
    compiled = []
    lazy.add_step_closure(lambda: compiled.append(count("UncachedCompile")))
    lazy.add_step_closure(lambda t: seen.append(t.tolist()), args=(y,))
    lazy.add_step_closure(lambda: compiled.append(count("UncachedCompile")))
    lazy.mark_step()
    assert seen == ["lazy", (2, 6), [6, 6]]
    assert compiled[0] == compiled[1]


def test_the_step_waits_for_its_closures():
    finished = threading.Event()

    def slow():
        assert not finished.wait(0.2)
        finished.set()

    lazy.add_step_closure(slow)
    lazy.mark_step()
    assert finished.is_set()


def test_an_exception_leaves_the_step_and_drops_the_rest():
    ran = []

    def broken():
        ran.append("broken")
        raise RuntimeError("on purpose")

    lazy.add_step_closure(broken)
    lazy.add_step_closure(ran.append, ("after",))
    with pytest.raises(RuntimeError, match="on purpose"):
        lazy.mark_step()
    assert ran == ["broken"]
    lazy.mark_step()
    assert ran == ["broken"]


def test_a_closure_added_by_a_closure_runs_in_the_next_step():
    ran = []

    def first():
        ran.append("first")
        lazy.add_step_closure(ran.append, ("second",))

    lazy.add_step_closure(first)
    lazy.mark_step()
    assert ran == ["first"]
    lazy.mark_step()
    assert ran == ["first", "second"]


def test_arguments_are_those_of_the_moment():
    ran = []
    for i in range(3):
        lazy.add_step_closure(ran.append, (i,))
    lazy.mark_step()
    assert ran == [0, 1, 2]


def test_run_step_closures_without_a_step():
    ran = []
    lazy.add_step_closure(ran.append, (1,))
    context = lazy.run_step_closures()
    assert context is device_context.get_device_context()
    assert ran == [1]
    assert lazy.run_step_closures() is context
    assert ran == [1]


def test_an_optimizers_step_runs_them():
    ran = []
    layer = torch.nn.Linear(2, 2).to("lazy")
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    layer(torch.ones(1, 2, device="lazy")).sum().backward()
    lazy.add_step_closure(lambda p: ran.append(p.shape), (layer.weight,))
    optimizer.step()
    assert ran == [(2, 2)]


def test_an_optimizers_step_inside_a_scope_keeps_them():
    """A step cannot end there; what is recorded runs all the same."""
    ran = []
    layer = torch.nn.Linear(2, 2).to("lazy")
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    layer(torch.ones(1, 2, device="lazy")).sum().backward()
    lazy.add_step_closure(ran.append, (1,))
    with torch_lazy.debug.scope("training"):
        optimizer.step()
        lazy.wait_device_ops()
        assert not torch_lazy.debug.is_pending(layer.weight)
    assert ran == []
    lazy.mark_step()
    assert ran == [1]


def test_a_context_for_each_name_of_a_device():
    context = device_context.get_device_context()
    assert context.device == device_context.get_device_context(context.device).device
    assert device_context.get_device_context() is context
    assert device_context.get_device_context(torch.device("lazy", 1)).device == "lazy:1"
    made = []
    threads = [
        threading.Thread(target=lambda: made.append(device_context.get_device_context("shared")))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 8
    assert len(set(map(id, made))) == 1


# ---- In another thread ---------------------------------------------------------------------------


def test_the_step_does_not_wait_for_asynchronous_closures():
    go_on, finished = threading.Event(), threading.Event()

    def waiting():
        if go_on.wait(PATIENCE):
            finished.set()

    lazy.add_step_closure(waiting, run_async=True)
    lazy.mark_step()
    assert not finished.is_set()
    go_on.set()
    assert finished.wait(PATIENCE)


def test_asynchronous_closures_start_before_the_others():
    started = threading.Event()
    lazy.add_step_closure(lambda: started.wait(PATIENCE))  # would wait in vain if it came first
    lazy.add_step_closure(started.set, run_async=True)
    lazy.mark_step()
    assert started.is_set()


def test_asynchronous_closures_read_tensors():
    x = torch.ones(3, device="lazy") + 1
    read = []
    done = threading.Event()

    def look(t):
        read.append(t.tolist())
        done.set()

    lazy.add_step_closure(look, (x,), run_async=True)
    lazy.mark_step()
    assert done.wait(PATIENCE)
    assert read == [[2, 2, 2]]


@pytest.mark.skipif(
    sysconfig.get_config_var("Py_GIL_DISABLED") == 1, reason="torch._lazy's own code races there"
)
def test_an_asynchronous_exception_comes_with_the_next_closure():
    started = threading.Event()
    ran = []
    threads_before = set(threading.enumerate())

    def broken():
        started.set()
        raise ValueError("on purpose")

    lazy.add_step_closure(broken, run_async=True)
    lazy.mark_step()
    assert started.wait(PATIENCE)
    for thread in set(threading.enumerate()) - threads_before:
        thread.join(PATIENCE)  # the error ends it
    lazy.add_step_closure(ran.append, (1,), run_async=True)
    with pytest.raises(RuntimeError, match="previously raised exception") as caught:
        lazy.mark_step()
    assert isinstance(caught.value.__cause__, ValueError)
    assert str(caught.value) == "Cannot run asynchronous closure due to previously raised exception"
    assert ran == []


def test_asynchronous_closures_work_again_after_an_exception():
    handler = closures.AsyncClosureHandler()
    threads_before = set(threading.enumerate())

    def broken():
        raise ValueError("on purpose")

    handler.run(broken)
    for thread in set(threading.enumerate()) - threads_before:
        thread.join(PATIENCE)
    with pytest.raises(RuntimeError, match="previously raised exception"):
        handler.run(lambda: None)
    done = threading.Event()
    handler.run(done.set)
    assert done.wait(PATIENCE)


def test_a_full_queue_makes_the_program_wait(monkeypatch):
    monkeypatch.setenv("LTC_MAX_ASYNC_QUEUE", "2")
    handler = closures.AsyncClosureHandler(max_queue_size=50)
    entered, go_on = threading.Semaphore(0), threading.Event()
    ran, accepted = [], []

    def waiting(i):
        entered.release()
        go_on.wait(PATIENCE)
        ran.append(i)

    def program():
        for i in range(5):
            handler.run(lambda i=i: waiting(i))
            accepted.append(i)

    thread = threading.Thread(target=program)
    thread.start()
    assert entered.acquire(timeout=PATIENCE)  # one runs, two wait, the fourth finds no room
    thread.join(0.2)
    assert thread.is_alive()
    assert len(accepted) <= 3
    go_on.set()
    thread.join(PATIENCE)
    for _ in range(4):
        assert entered.acquire(timeout=PATIENCE)
    done = threading.Event()
    handler.run(done.set)
    assert done.wait(PATIENCE)
    assert ran == [0, 1, 2, 3, 4]


def test_an_idle_thread_ends_and_comes_back():
    handler = closures.AsyncClosureHandler()
    threads_before = set(threading.enumerate())
    done = threading.Event()
    handler.run(done.set)
    assert done.wait(PATIENCE)
    (thread,) = set(threading.enumerate()) - threads_before
    thread.join(PATIENCE)
    assert not thread.is_alive()
    again = threading.Event()
    handler.run(again.set)
    assert again.wait(PATIENCE)


def test_what_is_queued_at_exit_still_runs():
    output = run_program(
        "import time, torch\n"
        "from lazy_names import lazy\n"
        "for i in range(3):\n"
        "    lazy.add_step_closure(lambda i: (time.sleep(0.05), print(i)), (i,), run_async=True)\n"
        "lazy.mark_step()\n"
    )
    assert output.split() == ["0", "1", "2"]


def test_handlers_run_lists():
    ran = []
    closures.ClosureHandler()([lambda: ran.append(1), lambda: ran.append(2)])
    assert ran == [1, 2]
    done = threading.Event()
    closures.AsyncClosureHandler()([lambda: ran.append(3), done.set])
    assert done.wait(PATIENCE)
    assert ran == [1, 2, 3]
