"""Random programs as the bodies of compiled functions, called a few times with changing arguments
and compared with eager: results, arguments, and what shares memory.

    python tests/python/compiled_programs.py --count 1000 --seed 0
"""

import argparse
import contextlib
import random
import sys
import warnings

import torch
from comparing import DEVICE, Raised, aliasing, outcome
from program_generator import ProgramGenerator
from random_programs import Machine, Snapshot, is_comparable, minimise, state_difference

import torch_lazy

CALLS = 6
ARGUMENTS = {
    "t91": "torch.randint(-3, 4, [2, 3], generator=g).to(torch.float32)",
    "t92": "torch.randn([4], generator=g)",
    "t93": "torch.randint(0, 4, [3], generator=g)",
    "t94": "torch.randn([3, 2], generator=g).requires_grad_()",
}
NOT_IN_FUNCTIONS = ("read(", "sync(", "mark_step(", "del ")


def generate(seed):
    machine = Machine(torch.device("cpu"))
    machine.env.update(arguments(seed, torch.device("cpu")))
    length = random.Random(seed).randint(3, 20)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lines = list(ProgramGenerator(seed, machine.env).grow(length))
    return [line for line in lines if not line.startswith(NOT_IN_FUNCTIONS)]


def arguments(seed, device):
    """Other numbers for each seed, the same for all devices; t95 shares memory with t91."""
    g = torch.Generator().manual_seed(seed)
    made = {name: eval(text, {"torch": torch, "g": g}) for name, text in ARGUMENTS.items()}
    moved = {
        name: x.detach().to(device).requires_grad_(x.requires_grad) for name, x in made.items()
    }
    moved["t95"] = moved["t91"][0]
    return moved


def function_of(lines, device, grad):
    names = ", ".join([*ARGUMENTS, "t95"])
    body = "\n".join(f"    {line}" for line in lines)
    guard = "" if grad else "@torch.no_grad()\n"
    text = (
        f"{guard}def program({names}):\n{body}\n"
        f"    return {{k: v for k, v in locals().items() if isinstance(v, torch.Tensor)}}\n"
    )
    environment = {"torch": torch, "device": device}
    exec(text, environment)
    return environment["program"]


def state(results, given):
    tensors = {**{f"given {k}": v for k, v in given.items()}, **results}
    for name, x in list(tensors.items()):
        grad = outcome(lambda x: x.grad if x.is_leaf else None, x)
        if isinstance(grad, torch.Tensor):
            tensors[f"{name}.grad"] = grad
    shared = aliasing(tensors.values())
    snapshots = {name: outcome(Snapshot, x) for name, x in tensors.items()}
    for name, snapshot in snapshots.items():
        if not isinstance(snapshot, Raised):
            del snapshot.layout["version"]  # a replay counts all writes to a tensor as one
            if name.endswith(".grad"):
                snapshot.nbytes = None
                del snapshot.layout["stride"]
    return snapshots, dict(zip(tensors, shared, strict=True))


def run_program(lines, seed=0):
    """The first difference between eager and compiled calls, as text; None when there is none."""
    grad = seed % 2 == 0
    eager = function_of(lines, torch.device("cpu"), grad)
    compiled = torch_lazy.compile(function_of(lines, DEVICE, grad))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for call in range(CALLS):
            outcomes = []
            for function, device in ((eager, torch.device("cpu")), (compiled, DEVICE)):
                given = arguments(seed * CALLS + call, device)
                torch.manual_seed(call)
                results = outcome(lambda f=function, g=given: f(**g))
                outcomes.append((results, given))
            (want, want_given), (have, have_given) = outcomes
            if isinstance(want, Raised):
                return None  # when errors are raised is for random_programs.py
            if isinstance(have, Raised):
                return f"call {call}: raises {have!r}\n{have.where}"
            found = state_difference(
                f"call {call}", state(want, want_given), state(have, have_given)
            )
            if found:
                return found
    return None


def test_seed(seed):
    """None, or the report of a minimal failing program."""
    lines = generate(seed)
    found = is_comparable(lines) and run_program(lines, seed)
    if not found:
        return None
    lines = minimise(lines, seed, run_program)
    return f"# seed {seed}: {run_program(lines, seed) or found}\n" + "\n".join(lines)


test_seed.__test__ = False


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    failures = 0
    for seed in range(options.seed, options.seed + options.count):
        with contextlib.redirect_stderr(None):
            failure = test_seed(seed)
        if failure:
            failures += 1
            print(failure, flush=True)
    replayed = torch_lazy.metrics.counter_value("Replayed")
    print(f"{options.count} programs, {failures} differ, {replayed} calls replayed")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
