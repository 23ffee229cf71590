"""Runs random programs in two threads at once on the device, and compares them with eager.

    python tests/python/random_threads.py --count 2000 --seed 0

Disciplined pairs: each thread runs a program of its own, both read shared constants, call compiled
functions and hand each other tensors at barriers, often before their values are computed. Eager's
result is determined, and is compared as in random_programs.py.

Races: both threads change one tensor, without any order, by writes, views, operators that are
executed at once and replays. The result is that of one of the orders, and nothing raises.
"""

import argparse
import itertools
import random
import re
import sys
import threading
import warnings

import torch
from comparing import COMPILED, DEVICE, Raised
from random_programs import Machine, generate, is_comparable, state_difference, value_difference

if DEVICE.type == "lazy":
    import torch_lazy

# Random numbers come from one generator: which thread draws first decides.
DRAWS = re.compile(r"rand|uniform_|normal|bernoulli|dropout|multinomial|exponential_|seed|poisson")
PARTS = 4  # of a program, with an exchange between them
LONG = 600  # seconds that a thread may take


def compiled(function):
    return torch_lazy.compile(function) if DEVICE.type == "lazy" else function


# ---- Disciplined pairs ---------------------------------------------------------------------------


def machine_of(device, number, constants):
    """One thread's machine: its own state, and functions over it that may be replayed."""
    machine = Machine(device)
    state = torch.full((5,), float(number), device=device)
    machine.env["constants"] = [c.to(device) for c in constants]

    def step(x):
        state.mul_(0.5).add_(x)
        return state * 2

    machine.env["step"] = compiled(step) if device.type == "lazy" else step
    machine.env["own"] = lambda: state * 1  # a replay counts its writes as one
    return machine


def extra_lines(rng):
    """What the generator does not know: constants of both threads, and compiled functions."""
    number = rng.randint(0, 3)
    yield f"read(step(torch.full((5,), {number}.0, device=device)))"
    yield f"x{number} = constants[{number % 2}] + own()"
    yield f"x{number} = (constants[0] @ constants[0].outer(constants[1]))[:5]"
    yield "read(own())"
    yield "mark_step()"


def parts_of(seed, thread):
    """The program of one thread, in parts: lines that eager runs without an error."""
    rng = random.Random(seed * 2 + thread)
    lines = [line for line in generate(seed * 2 + thread) if not DRAWS.search(line)]
    constants = [torch.arange(5.0), torch.ones(5)]
    trial = machine_of(torch.device("cpu"), thread, constants)
    parts = [[] for _ in range(PARTS)]
    for i, line in enumerate(lines):
        if not isinstance(trial.run(line), Raised):
            parts[i * PARTS // len(lines)].append(line)
    for part in parts:
        for _ in range(rng.randint(1, 6)):
            line = rng.choice(list(extra_lines(rng)))
            # At its beginning or end: a line between others could change what they raise.
            part.insert(0 if rng.random() < 0.5 else len(part), line)
    return parts


def run_part(machine, part):
    results = []
    for line in part:
        result = machine.run(line)
        if isinstance(result, Raised):
            return [*results, (line, result)]
        results.append(result)
    return results


def gift(machine, rng):
    """A tensor for the other thread, not computed yet: a copy, so that it shares no memory."""
    tensors = sorted(n for n, x in machine.variables().items() if not x.requires_grad)
    return machine.env[rng.choice(tensors)].clone() if tensors else None


def take(machine, number, tensor):
    if tensor is not None:
        machine.env[f"gift{number}"] = tensor
        machine.run(f"gift{number}.add_(1) if gift{number}.dtype != torch.bool else None")


def run_alone(machines, programs, seed):
    """Both programs, one part after the other: what eager gives."""
    results = [[], []]
    for number in range(PARTS):
        for thread in range(2):
            results[thread].append(run_part(machines[thread], programs[thread][number]))
        gifts = [gift(machines[t], random.Random(seed + number)) for t in range(2)]
        for thread in range(2):
            take(machines[thread], number, gifts[1 - thread])
    return results


def run_together(machines, programs, seed):
    results = [[], []]
    gifts = [None, None]
    barrier = threading.Barrier(2, timeout=LONG)
    errors = []

    def work(thread):
        try:
            for number in range(PARTS):
                results[thread].append(run_part(machines[thread], programs[thread][number]))
                gifts[thread] = gift(machines[thread], random.Random(seed + number))
                barrier.wait()
                take(machines[thread], number, gifts[1 - thread])
                barrier.wait()
        except BaseException as error:
            errors.append(error)
            barrier.abort()

    run_threads(lambda: work(0), lambda: work(1))
    if errors:
        raise errors[0]
    return results


def run_threads(*functions):
    threads = [threading.Thread(target=f, daemon=True) for f in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    if any(thread.is_alive() for thread in threads):
        raise RuntimeError("the threads hang")


def run_pair(seed):
    """The first difference from eager, as text; None when there is none."""
    programs = [parts_of(seed, thread) for thread in range(2)]
    if not all(is_comparable(part) for parts in programs for part in parts):
        return None
    constants = [torch.arange(5.0), torch.ones(5)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        eager = [machine_of(torch.device("cpu"), t, constants) for t in range(2)]
        expected = run_alone(eager, programs, seed)
        device = [machine_of(DEVICE, t, constants) for t in range(2)]
        actual = run_together(device, programs, seed)
        for thread in range(2):
            for number in range(PARTS):
                want, have = expected[thread][number], actual[thread][number]
                for line, a, b in zip(programs[thread][number], want, have, strict=False):
                    if isinstance(b, tuple):
                        return f"thread {thread}, {line}: raises {b[1]!r}\n{b[1].where}"
                    found = value_difference(a, b)
                    if found:
                        return f"thread {thread}, {line}: {found}"
            found = state_difference(
                f"thread {thread}", eager[thread].state(seed), device[thread].state(seed)
            )
            if found:
                return found
    return None


# ---- Races ---------------------------------------------------------------------------------------

CHANGES = {
    "add": lambda x, k: x.add_(k),
    "multiply": lambda x, k: x.mul_(k),
    "set": lambda x, k: x.fill_(k),
    "negate": lambda x, k: x.neg_(),
}


class Ways:
    """Ways to make one change to the whole of a tensor."""

    def __init__(self, x):
        self.x = x
        self.replayed = {}
        for name, change in CHANGES.items():
            for k in range(1, 4):
                function = compiled(lambda change=change, k=k: change(x, k).sum())
                for _ in range(3):
                    function()
                self.replayed[name, k] = function
        x.fill_(1)

    def run(self, way, name, k):
        x, change = self.x, CHANGES[name]
        if way == "replay":
            self.replayed[name, k]()
        elif way == "view":
            change(x.view(2, -1).t(), k)
        elif way == "at once":
            with torch.no_grad():
                change(x, k)
                x.nonzero()
        elif way == "read":
            change(x, k)
            x[0].item()
        elif way == "step" and DEVICE.type == "lazy":
            change(x, k)
            torch_lazy.mark_step()
        else:
            change(x, k)


WAYS = ["write", "view", "replay", "replay", "at once", "read", "step"]


def orders(a, b):
    """All programs that two threads' changes can be together."""
    for places in itertools.combinations(range(len(a) + len(b)), len(a)):
        first, second = iter(a), iter(b)
        yield [next(first) if i in places else next(second) for i in range(len(a) + len(b))]


def run_race(seed, rounds=6):
    """What is wrong after some rounds of racing changes to one tensor; None: nothing is."""
    rng = random.Random(seed)
    x = torch.ones(rng.choice([2, 64, 1 << 14]), dtype=torch.int64, device=DEVICE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ways = Ways(x)
        for _ in range(rounds):
            before = x[0].item()
            changes = [
                [
                    (rng.choice(WAYS), rng.choice(list(CHANGES)), rng.randint(1, 3))
                    for _ in range(rng.randint(1, 4))
                ]
                for _ in range(2)
            ]
            start = threading.Barrier(2, timeout=LONG)
            errors = []

            def work(part, start=start, errors=errors):
                try:
                    start.wait()
                    for change in part:
                        ways.run(*change)
                except BaseException as error:
                    errors.append(error)

            run_threads(*[lambda part=part: work(part) for part in changes])
            if errors:
                return f"{changes}: {errors[0]!r}"
            possible = set()
            for order in orders(*changes):
                value = torch.tensor(before)
                for _, name, k in order:
                    CHANGES[name](value, k)
                possible.add(value.item())
            found = set(x.tolist())
            if len(found) != 1 or not found <= possible:
                return f"{changes} from {before}: {sorted(found)[:4]} instead of {possible}"
            if not -(2**31) < found.pop() < 2**31:
                x.fill_(1)
    return None


# ---- Program -------------------------------------------------------------------------------------


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=200, help="how many of each kind")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    failures = 0
    for seed in range(arguments.seed, arguments.seed + arguments.count):
        for run in (run_pair, run_race):
            found = run(seed)
            if found:
                failures += 1
                print(f"{run.__name__}({seed}): {found}", flush=True)
    kind = "compiled" if COMPILED else "operator by operator"
    print(f"{arguments.count} pairs and {arguments.count} races, {kind}: {failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
