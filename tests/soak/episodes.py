"""The worker of soak.py. An episode is a few steps of one kind, whose results are compared with
eager's. Threads run episodes of random kinds, until the time is over."""

import contextlib
import copy
import faulthandler
import gc
import json
import os
import random
import resource
import shutil
import signal
import sys
import threading
import time
import traceback
import warnings

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

import torch_lazy
from torch_lazy import config

STAGES = ("capture", "compile", "allocate", "execute", "read")
CLOSE = {"rtol": 1e-7, "atol": 1e-9}
MIB = 1 << 20


class FaultSeen(Exception):
    """An error on request came where the episode cannot go on."""


def is_fault(error):
    """On request, or of `memory`: whoever runs what all threads have recorded gets the error."""
    return "fault on request" in str(error) or "you tried to allocate" in str(error)


class Turns:
    """Many at a time, or one alone. A function is not recorded while another thread computes, so
    one that is to be replayed later needs some calls alone."""

    def __init__(self):
        self.condition = threading.Condition()
        self.inside = 0
        self.alone = False

    @contextlib.contextmanager
    def taken(self, alone=False):
        with self.condition:
            if alone:
                self.condition.wait_for(lambda: not self.alone)
                self.alone = True
                self.condition.wait_for(lambda: not self.inside)
            else:
                self.condition.wait_for(lambda: not self.alone)
                self.inside += 1
        try:
            yield
        finally:
            with self.condition:
                if alone:
                    self.alone = False
                else:
                    self.inside -= 1
                self.condition.notify_all()


class Life:
    """What all threads share."""

    def __init__(self, options):
        self.options = options
        self.folder = options["folder"]
        self.cache = os.environ["TORCH_LAZY_CACHE_DIR"]
        self.end = time.monotonic() + options["seconds"]
        self.lock = threading.Lock()
        self.episodes = {}
        self.problems = []
        self.resident = []
        self.most_threads = 0
        self.forking = threading.Lock()
        self.turns = Turns()

    def over(self):
        return time.monotonic() > self.end or len(self.problems) > 5

    def count(self, kind, fault):
        with self.lock:
            row = self.episodes.setdefault(kind, [0, 0])
            row[0] += 1
            row[1] += fault


def say(**message):
    print(json.dumps(message), flush=True)


def same(want, have, what):
    """Equal within the rounding of float64; a read is made again after an error on request."""
    for attempt in range(20):
        try:
            have = have.detach().cpu()
            break
        except RuntimeError as error:
            if not is_fault(error) or attempt == 19:
                raise
    torch.testing.assert_close(have, want.detach(), **CLOSE, msg=lambda m: f"{what}: {m}")


# ---- Episodes ------------------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self, rng):
        super().__init__()
        self.width = rng.choice((5, 8, 13))
        self.first, self.second = nn.Linear(6, self.width), nn.Linear(self.width, 3)
        self.norm = nn.BatchNorm1d(self.width)
        self.scale = 1.0

    def forward(self, x):
        return self.second(self.norm(torch.tanh(self.first(x)) * self.scale)).tanh()


def pair(rng):
    """The same model and optimizer for eager and for the device."""
    eager = Net(rng)
    lazy = copy.deepcopy(eager).to("lazy")
    make = rng.choice(
        (
            lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, foreach=False),
            lambda p: torch.optim.Adam(p, lr=0.01, foreach=False),
            lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
        )
    )
    return [(model, make(model.parameters())) for model in (eager, lazy)]


def step_of(model, optimizer):
    def step(x, y):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        if model.training:
            loss.backward()
            optimizer.step()
        return loss.detach()

    return step


def batch(rng, size):
    generator = torch.Generator().manual_seed(rng.randrange(1 << 30))
    return torch.randn(size, 6, generator=generator), torch.rand(size, 3, generator=generator)


def same_state(sides):
    (eager, optimizer), (lazy, lazy_optimizer) = sides
    for (name, want), have in zip(
        eager.state_dict().items(), lazy.state_dict().values(), strict=True
    ):
        same(want, have, name)
    state, lazy_state = optimizer.state_dict()["state"], lazy_optimizer.state_dict()["state"]
    for key in state:
        for name, want in state[key].items():
            if isinstance(want, torch.Tensor):
                same(want.double(), lazy_state[key][name].double(), f"state {name}")


def replays(rng, life):
    steps(rng, life, compiled=True)


def traces(rng, life):
    steps(rng, life, compiled=False)


def steps(rng, life, compiled):
    sides = pair(rng)
    eager, lazy = (step_of(*side) for side in sides)
    if compiled:
        lazy = torch_lazy.compile(lazy)
    kept = None
    alone = 5 if rng.random() < 0.8 else 0
    size = rng.choice((2, 3, 7))
    for i in range(rng.randrange(20, 80)):
        if rng.random() < 0.03:
            size = rng.randrange(2, 40)
            alone = 3
        if rng.random() < 0.06:
            kept = change_of(rng, sides, kept)
            alone = 2
        alone -= 1
        x, y = batch(rng, size)
        want = eager(x, y)
        # An error in the middle of a step: how far it has come depends on the stage.
        with recording(), life.turns.taken(alone=compiled and alone > 0):
            have = lazy(x.to("lazy"), y.to("lazy"))
        if rng.random() < 0.3:
            same(want, have, f"loss {i}")
    same_state(sides)


def change_of(rng, sides, kept):
    """Something that happens to a model between two steps, on both sides."""
    what = rng.randrange(6)
    (eager, _), (lazy, _) = sides
    if what == 3:
        return copy.deepcopy(eager.state_dict())
    if what == 4 and kept:
        eager.load_state_dict(kept)
        lazy.load_state_dict(kept)
    for model, optimizer in sides:
        if what == 0:
            model.train(not model.training)
        elif what == 1:
            for group in optimizer.param_groups:
                group["lr"] = 0.02 if group["lr"] != 0.02 else 0.005
        elif what == 2:
            model.scale = 1.5 - model.scale / 2
        elif what == 5:
            optimizer.state.clear()
    return kept


def shapes(rng, life):
    """Ever new sizes: new graphs, new kernels."""
    for _ in range(10):
        a, b = rng.randrange(1, 300), rng.randrange(1, 60)
        x = torch.rand(a, b, dtype=torch.float64)
        with recording():
            z = x.to("lazy")
            z = (z @ z.t()).tanh().sum(0) * z.exp().mean(1)
            z[: a // 2].mul_(2)
        want = (x @ x.t()).tanh().sum(0) * x.exp().mean(1)
        want[: a // 2].mul_(2)
        same(want, z, f"{a} x {b}")


@contextlib.contextmanager
def recording():
    """An error on request in here leaves nothing to compare."""
    try:
        yield
    except RuntimeError as error:
        if is_fault(error):
            raise FaultSeen from None
        raise


def faults(rng, life):
    """Sets one for whichever thread comes by."""
    config.set("fault", f"{rng.choice(STAGES)}:{rng.randrange(60)}")
    time.sleep(rng.random() * 0.2)
    config.set("fault", "")


def memory(rng, life):
    """A size that no machine has."""
    with recording():
        x = torch.ones(4, device="lazy")
        try:
            torch.empty(1 << 48, device="lazy").fill_(1).sum().item()
        except RuntimeError as error:
            if not (isinstance(error, torch.OutOfMemoryError) or "memory" in str(error)):
                raise
        else:
            raise AssertionError("no error for 2 PiB")
    same(torch.full((4,), 2.0, dtype=x.dtype), x + 1, "after an out-of-memory error")


def forks(rng, life):
    """A child computes, with what it has inherited and anew, and ends."""
    with recording():
        x = torch.arange(6.0, device="lazy") * 2
        same(torch.arange(6.0) * 2, x, "before a fork")
    with life.forking:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                config.set("fault", "")
                y = (x + 1).tolist()
                z = torch.ones(3, 3, device="lazy")
                code = 0 if y == [1, 3, 5, 7, 9, 11] and (z @ z).sum().item() == 27 else 2
            finally:
                os._exit(code)
    code = wait_for(child)
    assert code == 0, f"a forked child ended with {code}"


def wait_for(child, seconds=30):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, signal.SIGUSR1)
    time.sleep(1)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "a hang"


class Numbers(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, i):
        return torch.full((6,), float(i)), torch.full((3,), i / 24)


def loaders(rng, life):
    """Workers are forked while other threads compute."""
    sides = pair(rng)
    eager, lazy = (step_of(*side) for side in sides)
    loader = DataLoader(Numbers(), batch_size=4, num_workers=2, timeout=40)
    for i, (x, y) in enumerate(loader):
        want = eager(x, y)
        with recording():
            have = lazy(x.to("lazy"), y.to("lazy"))
        same(want, have, f"loss {i}")


def folders(rng, life):
    """What happens to the folder of kernels."""
    what = rng.randrange(4)
    if what == 0:
        shutil.rmtree(life.cache, ignore_errors=True)
    elif what == 1:  # read-only; root may write all the same
        with contextlib.suppress(OSError):
            os.chmod(life.cache, 0o500)
            time.sleep(0.2)
            os.chmod(life.cache, 0o700)
    elif what == 2:  # full: no file may grow beyond 512 bytes
        most = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (512, most[1]))
        time.sleep(0.2)
        resource.setrlimit(resource.RLIMIT_FSIZE, most)
    else:  # damaged
        with contextlib.suppress(OSError):
            for name in os.listdir(life.cache)[:3]:
                path = os.path.join(life.cache, name)
                if os.path.isfile(path):
                    with open(path, "r+b") as file:
                        file.truncate(rng.randrange(1 + os.path.getsize(path)))


def shared(rng, life):
    """All threads read one tensor and write into parts of their own."""
    with recording():
        part = life.shared[rng.randrange(len(life.shared))]
        view = part["tensor"][part["row"]]
        with part["lock"]:
            view.add_(1)
            part["count"] += 1
            want = part["count"]
            have = view
            same(torch.full((8,), float(want)), have, "a row that only one thread writes")


def wrong(rng, life):
    """A test of the soak itself; not part of it."""
    same(torch.ones(2), torch.ones(2, device="lazy") * 2, "a wrong value")


KINDS = {
    "replays": (replays, 10),
    "traces": (traces, 3),
    "shapes": (shapes, 3),
    "faults": (faults, 2),
    "memory": (memory, 1),
    "forks": (forks, 1),
    "loaders": (loaders, 1),
    "folders": (folders, 1),
    "shared": (shared, 4),
    "wrong": (wrong, 0),
}

# ---- Life ----------------------------------------------------------------------------------------


def run(episode, rng, life):
    if episode in (replays, traces):  # a turn for each step
        episode(rng, life)
    else:
        with life.turns.taken():
            episode(rng, life)


def live(life, number):
    rng = random.Random(f"{life.options['seed']} {number}")
    kinds = life.options["only"] or list(KINDS)
    weights = [KINDS[kind][1] or len(kinds) == 1 for kind in kinds]
    while not life.over():
        kind = rng.choices(kinds, weights)[0]
        fault = False
        try:
            with warnings.catch_warnings():
                run(KINDS[kind][0], rng, life)
        except FaultSeen:
            fault = True
        except Exception as error:
            if is_fault(error):
                fault = True
            else:
                text = traceback.format_exc(limit=-4)
                life.problems.append(f"{kind}, thread {number}: {text}")
        life.count(kind, fault)


def resident():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // MIB


def threads():
    return len(os.listdir("/proc/self/task"))


def watch(life):
    """Samples memory and threads; a line every tenth of the time."""
    began = time.monotonic()
    seconds = life.options["seconds"]
    said = -seconds
    while not life.over():
        passed = time.monotonic() - began
        life.most_threads = max(life.most_threads, threads())
        if passed > seconds * (len(life.resident) + 1) / 10:
            life.resident.append(resident())
        if passed > said + max(5, seconds / 30):
            said = passed
            count = sum(row[0] for row in life.episodes.values())
            say(
                progress=f"{passed:6.0f} s  {count} episodes  {resident()} MiB  "
                f"{threads()} threads  {len(life.problems)} problems"
            )
        time.sleep(0.1)
    life.resident.append(resident())


def judge(life, before):
    """What is wrong when all is over."""
    gc.collect()
    config.set("fault", "")
    for _ in range(3):
        with contextlib.suppress(RuntimeError):
            torch_lazy.sync()
            break
    torch_lazy.wait_device_ops()
    problems = life.problems
    if threading.active_count() > 1:
        problems.append(f"threads left: {threading.enumerate()}")
    # Loaders have a thread per worker; autograd, the device and the compiler have some.
    most = before + 3 * life.options["threads"] + 16
    if life.most_threads > most:
        problems.append(f"{life.most_threads} threads at once, {most} expected at most")
    left = torch_lazy._C.memory_allocated()
    if left:
        problems.append(f"{left} bytes of tensors that nobody holds")
    middle, last = life.resident[3:7], life.resident[7:]
    if life.options["seconds"] >= 300 and max(last) > max(middle) * 1.05 + 16:
        problems.append(f"memory grows: {life.resident} MiB")


def main():
    options = json.loads(sys.stdin.readline())
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    torch.set_num_threads(1)  # a forked child of a program with OpenMP threads hangs by itself
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(options["seed"])
    warnings.simplefilter("ignore", torch_lazy.CompileWarning)
    life = Life(options)
    rows = torch.zeros(8, 8, device="lazy")
    life.shared = [
        {"tensor": rows, "row": i, "lock": threading.Lock(), "count": 0} for i in range(8)
    ]
    (torch.ones(2, device="lazy") + 1).tolist()
    before = threads()
    workers = [
        threading.Thread(target=live, args=(life, number)) for number in range(options["threads"])
    ]
    for worker in workers:
        worker.start()
    watch(life)
    for worker in workers:
        worker.join()
    del life.shared, rows
    judge(life, before)
    counters = {
        name: torch_lazy.metrics.counter_value(name) for name in ("Replayed", "ReplayRecorded")
    }
    say(
        report={
            "episodes": life.episodes,
            "problems": life.problems,
            "resident": life.resident,
            "threads": threads(),
            "most_threads": life.most_threads,
            "counters": counters,
        }
    )


if __name__ == "__main__":
    main()
