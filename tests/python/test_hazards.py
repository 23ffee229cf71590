"""What several threads and forks must not do: hang, lose a tensor, leave threads. Each program runs
in a process of its own, which a hang cannot take the tests with.
"""

import os
import resource
import subprocess
import sys
import textwrap

import pytest

LONG = 900  # seconds; each program takes a few, more on a busy machine

PROGRAM = """
import os, sys, threading, time, warnings
warnings.simplefilter("ignore")
import torch
import torch_lazy
torch.set_num_threads(1)

def in_threads(*functions):
    errors = []
    def work(function):
        try:
            function()
        except BaseException as error:
            errors.append(error)
    threads = [threading.Thread(target=work, args=[f]) for f in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
"""


def output(text, preexec_fn=None, **environment):
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM + textwrap.dedent(text)],
        capture_output=True,
        text=True,
        timeout=LONG,
        preexec_fn=preexec_fn,
        env={**os.environ, **environment},
    )
    assert result.returncode == 0, (result.returncode, result.stderr[-2000:])
    return result.stdout.split()


# ---- Errors of Python ----------------------------------------------------------------------------

RAISE = """
    library = torch.library.Library("hazards", "DEF")
    library.define("boom(Tensor x) -> Tensor")

    @torch.library.impl(library, "boom", "CPU")
    def boom(x):
        raise KeyError("boom")

    @torch.library.impl(library, "boom", "Meta")
    def boom_meta(x):
        return torch.empty_like(x)

    bad = torch.ops.hazards.boom(torch.ones(3, device="lazy"))
    for _ in range(3):
        try:
            bad.tolist()
        except KeyError:
            pass
    raised = 0
    done = False

    def fail():
        global raised, done
        for _ in range(2000):
            try:
                {use}
            except KeyError:
                raised += 1
        done = True

    def look():
        while not done:
            torch.lazy.memory_allocated()  # takes the graph lock with Python's

    in_threads(fail, look)
    print(raised)
"""


@pytest.mark.parametrize(
    "use",
    [
        "bad + 1",
        "bad.tolist()",
        "torch_lazy.sync([bad])",
        "torch_lazy.computation.get_graph_hash([bad])",
        "bad.nonzero()",
    ],
)
def test_raising_while_another_thread_has_pythons_lock(use):
    assert output(RAISE.format(use=use)) == ["2000"]


# ---- Forks ---------------------------------------------------------------------------------------

FORK = """
    stop = False
    x = torch.ones(4, device="lazy")

    @torch_lazy.compile
    def replayed(y):
        return (y * 2).sum()

    def compute():
        y = torch.ones(8, 8, device="lazy")
        number = 0
        while not stop:
            number += 1
            z = (y @ y + number % 7).relu()
            z.nonzero()  # executed at once
            z.sum().item()
            replayed(z)
            (z[: number % 8] + 1).exp().sum().item()  # new graphs, and new plans for them
            torch_lazy.mark_step()

    def fork():
        global stop
        for _ in range(150):
            child = os.fork()
            if child == 0:
                y = (x + 1) * 2
                torch_lazy.mark_step()
                ok = y.tolist() == [4.0] * 4 and x.nonzero().shape == (4, 1)
                torch_lazy.metrics.counters()
                os._exit(0 if ok else 1)
            deadline = time.monotonic() + 300
            while True:
                pid, status = os.waitpid(child, os.WNOHANG)
                if pid:
                    break
                if time.monotonic() > deadline:
                    os.kill(child, 9)
                    os.waitpid(child, 0)
                    stop = True
                    raise RuntimeError("a child hangs")
                time.sleep(0.001)
            if status:
                stop = True
                raise RuntimeError(f"a child ended with {status}")
        stop = True

    in_threads(compute, compute, fork)
    print("ended")
"""


@pytest.mark.parametrize("mode", ["0", "1"])
@pytest.mark.parametrize("compiler", ["off", "on"])
def test_forks_while_threads_compute(mode, compiler):
    environment = {"TORCH_LAZY_ASYNC": mode, "TORCH_LAZY_COMPILER": compiler}
    assert output(FORK, **environment) == ["ended"]


def test_workers_of_a_loader_while_a_thread_computes():
    assert output("""
        class Numbers(torch.utils.data.Dataset):
            def __len__(self):
                return 8
            def __getitem__(self, i):
                return torch.full((2,), float(i))

        stop = False

        def compute():
            y = torch.ones(8, 8, device="lazy")
            while not stop:
                (y @ y).nonzero().sum().item()

        def load():
            global stop
            try:
                for _ in range(10):
                    loader = torch.utils.data.DataLoader(Numbers(), batch_size=2, num_workers=2)
                    total = sum(batch.to("lazy").sum().item() for batch in loader)
                    assert total == 56
            finally:
                stop = True

        in_threads(compute, load)
        print("ended")
    """) == ["ended"]


# ---- Replays -------------------------------------------------------------------------------------

# Replays long enough for the other thread to meet them. Eager gives one of the orders: no write of
# either thread is lost.
RACE = """
    n = 1 << 18
    w = torch.zeros(n, device="lazy")
    x = torch.ones(n, device="lazy")

    @torch_lazy.compile
    def step(x):
        w.mul_(1.0).add_(x.exp().log().round())
        return w.sum()

    for _ in range(20):
        step(x)
    calls = 0
    done = False
    writes = 60

    def write():
        global done
        try:
            for i in range(writes):
                {write}
        finally:
            done = True

    def replay():
        global calls
        while not done and calls < 200:  # where nothing is replayed they pile up
            calls += 1
            step(x)

    in_threads(write, replay)
    same = (w == {total}).all().item()
    print("right" if same else f"{{w[:3].tolist()}} after {{calls}}")
"""


@pytest.mark.parametrize(
    "write,total",
    [
        ("w.add_(1)", "20 + calls + writes"),
        ("w.add_(1); w[:5].tolist()", "20 + calls + writes"),
        ("w.add_(1); torch_lazy.mark_step()", "20 + calls + writes"),
        ("w.add_(1); w.nonzero() if i % 4 == 0 else None", "20 + calls + writes"),
        ("w[:2].tolist()", "20 + calls"),
    ],
)
def test_a_replay_and_writes_of_another_thread(write, total):
    assert output(RACE.format(write=write, total=total)) == ["right"]


def test_a_replay_and_gradients_that_another_thread_removes():
    assert output("""
        model = torch.nn.Linear(256, 256).to("lazy")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        x = torch.ones(64, 256, device="lazy")

        @torch_lazy.compile
        @torch.no_grad()
        def step(x):  # without backward, which writes gradients while others read them
            loss = model(x).square().mean()
            for p in model.parameters():
                p.grad = p * loss
            optimizer.step()
            return loss

        for _ in range(20):
            expected = step(x).item()
        before = torch_lazy.metrics.counters().get("Replayed", 0)
        assert before >= 10
        done = False

        def remove():
            global done
            kept = []
            for i in range(200):
                kept = [p.grad for p in model.parameters()]
                if i % 3 == 0:
                    for p in model.parameters():
                        p.grad = None
                if i % 5 == 0:
                    [g.sum().item() for g in kept if g is not None]
                time.sleep(0.0005)
            done = True

        def replay():
            while not done:
                loss = step(x).item()
                assert abs(loss - expected) < 1e-4 * abs(expected), (loss, expected)

        in_threads(remove, replay)
        assert all(torch.isfinite(p).all().item() for p in model.parameters())
        assert torch_lazy.metrics.counters()["Replayed"] > before
        print("ended")
    """) == ["ended"]


def test_two_threads_call_one_compiled_function():
    assert output("""
        w = torch.zeros(1 << 16, device="lazy")

        @torch_lazy.compile
        def step(x):
            w.add_(x)
            return x * 2

        x = torch.ones(1 << 16, device="lazy")
        for _ in range(20):
            step(x)

        def call():
            for _ in range(100):
                assert (step(x) == 2).all().item()

        in_threads(call, call)
        print((w == 220).all().item())
    """) == ["True"]


# ---- Compilation in the background ---------------------------------------------------------------

NEW_GRAPHS = """
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 8), torch.nn.Tanh()
    ).to("lazy")
    most = 0
    for size in range(1, 61):
        x = torch.ones(size, 8, device="lazy")
        for _ in range(3):
            y = torch.softmax(model(x).square(), 1).sum()
            torch_lazy.mark_step()
            assert abs(y.item() - size) < 1e-3
        most = max(most, len(os.listdir("/proc/self/task")))
    print(most)
"""


def test_new_graphs_do_not_make_ever_more_threads(tmp_path):
    (most,) = output(NEW_GRAPHS, TORCH_LAZY_COMPILER="on", TORCH_LAZY_CACHE_DIR=str(tmp_path))
    # This one, the worker, the pool, and as many helpers of one that compiles.
    assert int(most) <= 2 + 2 * os.cpu_count()


def refuse_threads():
    """No thread gets a stack so large. (A limit of threads does not bind root.)"""
    resource.setrlimit(resource.RLIMIT_STACK, (1 << 46, resource.RLIM_INFINITY))


@pytest.mark.parametrize("mode", ["0", "1"])
def test_no_thread_to_be_had(mode, tmp_path):
    """Every step works, and the process ends."""
    (most,) = output(
        NEW_GRAPHS,
        preexec_fn=refuse_threads,
        TORCH_LAZY_ASYNC=mode,
        TORCH_LAZY_COMPILER="on",
        TORCH_LAZY_CACHE_DIR=str(tmp_path),
        OMP_NUM_THREADS="1",
    )
    assert int(most) == 1
