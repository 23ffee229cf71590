"""Runs random programs on eager and on the device, compares them bit by bit, and prints a minimal
program that differs.

    python tests/python/random_programs.py --count 20000 --seed 0 --jobs 2

Compared: every read, at its line, and at the end every variable: values, dtype, size, strides,
offset, requires_grad, gradient, version, and which variables share memory. Where eager raises, the
device raises too: at the line or, when the error depends on values, at a sync or read right after
it; the program ends there.
"""

import argparse
import ast
import contextlib
import multiprocessing
import os
import random
import re
import sys
import warnings

import torch
import torch.utils.checkpoint
from comparing import COMPILED, DEVICE, Raised, aliasing, bits_differ, layout_of, on_cpu, outcome
from program_generator import ProgramGenerator

if DEVICE.type == "lazy":
    import torch_lazy

torch.set_num_threads(1)  # children are forked: there must be no threads


class Snapshot:
    """A tensor as it was: layout and values."""

    def __init__(self, x):
        self.layout = layout_of(x) | {"leaf": x.is_leaf, "version": x._version}
        self.nbytes = x.untyped_storage().nbytes()
        self.values = on_cpu(x).clone()

    def difference(self, other):
        wrong = [
            f"{k} {other.layout[k]} instead of {self.layout[k]}"
            for k in self.layout
            if self.layout[k] != other.layout[k]
        ]
        if wrong:
            return ", ".join(wrong)
        if self.nbytes != other.nbytes:
            return f"storage of {other.nbytes} bytes instead of {self.nbytes}"
        if bits_differ(self.values, other.values).any():
            return f"{other.values.tolist()} instead of {self.values.tolist()}"
        return None


def value_difference(expected, actual):
    if isinstance(expected, Snapshot) and isinstance(actual, Snapshot):
        return expected.difference(actual)
    if isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
        return next(filter(None, map(value_difference, expected, actual)), None)
    if isinstance(expected, Raised) and isinstance(actual, Raised):
        return None if expected.type is actual.type else f"{actual!r} instead of {expected!r}"
    same = type(expected) is type(actual) and (
        expected == actual or (expected != expected and actual != actual)
    )
    if COMPILED and isinstance(expected, float) and isinstance(actual, float):
        same = same or abs(expected - actual) <= 1e-3 * max(1.0, abs(expected))
    return None if same else f"{actual!r} instead of {expected!r}"


def state_difference(when, want, have):
    """The first difference between two states: snapshots by name, and what shares memory."""
    (values, shared), (have_values, have_shared) = want, have
    if set(values) != set(have_values):
        return f"{when}: variables {sorted(have_values)} instead of {sorted(values)}"
    for name in values:
        found = value_difference(values[name], have_values[name])
        if found:
            return f"{when}, {name}: {found}"
    if shared != have_shared:
        return f"{when}: aliasing {have_shared} instead of {shared}"
    return None


class Machine:
    """Runs lines on one device."""

    def __init__(self, device):
        self.lazy = device.type == "lazy"
        self.reads = []
        self.env = {
            "torch": torch,
            "device": device,
            "read": self.read,
            "sync": torch_lazy.sync if self.lazy else lambda tensors=None: None,
            "mark_step": torch_lazy.mark_step if self.lazy else lambda: None,
        }
        torch.manual_seed(0)

    def read(self, value):
        self.reads.append(Snapshot(value) if isinstance(value, torch.Tensor) else value)

    def run(self, line):
        """The values that the line read, or the error that it raised."""
        self.reads = []
        try:
            exec(line, self.env)
        except Exception as error:
            return Raised(error)
        return self.reads

    def late_error(self):
        """Whether a sync raises or, when the graph was cut and has failed already, a read does."""
        if isinstance(outcome(self.env["sync"]), Raised):
            return True
        return any(isinstance(outcome(on_cpu, x), Raised) for x in self.variables().values())

    def variables(self):
        return {n: x for n, x in self.env.items() if isinstance(x, torch.Tensor)}

    def state(self, order):
        """Snapshots of variables and gradients, taken in a random order, and their aliasing."""
        tensors = dict(sorted(self.variables().items()))
        for name, x in list(tensors.items()):
            # Asking a view that was overwritten behind autograd's back raises, in eager too.
            grad = outcome(lambda x: x.grad if x.is_leaf else None, x)
            if isinstance(grad, torch.Tensor):
                tensors[f"{name}.grad"] = grad
        shared = dict(zip(tensors, aliasing(tensors.values()), strict=True))
        names = random.Random(order).sample(list(tensors), len(tensors))
        snapshots = {name: outcome(Snapshot, tensors[name]) for name in names}
        for name, snapshot in snapshots.items():
            if name.endswith(".grad"):
                # How it was accumulated is autograd's affair, and it replays views on this device.
                del snapshot.layout["version"]
                snapshot.nbytes = None
                sizes, strides = snapshot.layout["size"], snapshot.layout["stride"]
                snapshot.layout["stride"] = [
                    s for n, s in zip(sizes, strides, strict=True) if n != 1
                ]
        return snapshots, shared


def run_program(lines, order=0):
    """The first difference between eager and the device, as text; None when there is none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        eager = Machine(torch.device("cpu"))
        # Eager first, whole: random numbers come from the one generator of the CPU.
        expected = [eager.run(line) for line in lines]
        device = Machine(DEVICE)
        for number, (line, want) in enumerate(zip(lines, expected, strict=True), 1):
            have = device.run(line)
            if isinstance(want, Raised):
                if not isinstance(have, Raised):
                    # What nothing holds is never computed, and raises nothing: hold it, look again.
                    if isinstance(ast.parse(line).body[0], ast.Expr):
                        device.run(f"held = ({line})")
                    if device.late_error():
                        return None
                    return f"line {number}: no error, eager raises {want!r}"
                if want.type is not have.type:
                    return f"line {number}: {have!r} instead of {want!r}"
                continue
            if isinstance(have, Raised):
                return f"line {number}: raises {have!r}\n{have.where}"
            found = value_difference(want, have)
            if found:
                return f"line {number}: {found}"
        return state_difference("at the end", eager.state(order), device.state(order))


def generate(seed, longest=40):
    machine = Machine(torch.device("cpu"))
    length = random.Random(seed).randint(5, longest)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(ProgramGenerator(seed, machine.env).grow(length))


def in_child(lines, order):
    """run_program in a process of its own: a crash is a difference too."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def work():
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
            sender.send(run_program(lines, order))

    child = context.Process(target=work)
    child.start()
    sender.close()
    try:
        found = receiver.recv()
    except EOFError:
        found = None
    child.join()
    return f"the process died with {child.exitcode}" if child.exitcode else found


def kind_of(found):
    """A difference without names and numbers."""
    return found and re.sub(r"t?[-\d.]+", "", found)[:60]


def minimise(lines, order, check):
    """Removes lines while the program still differs in the same way."""
    kind = kind_of(check(lines, order))
    size = max(len(lines) // 2, 1)
    while True:
        start, removed = 0, False
        while start < len(lines):
            shorter = lines[:start] + lines[start + size :]
            if shorter and kind_of(check(shorter, order)) == kind:
                lines, removed = shorter, True
            else:
                start += size
        if size == 1 and not removed:
            return lines
        size = max(size // 2, 1)


def runnable(lines, found, seed):
    """The program as a file that runs by itself."""
    return "\n".join(
        [
            f"# seed {seed}: {found}",
            "import torch, torch.utils.checkpoint, torch_lazy",
            'device = torch.device("lazy")  # compare with "cpu"',
            "read, sync, mark_step = print, torch_lazy.sync, torch_lazy.mark_step",
            "torch.manual_seed(0)",
            *lines,
            *[f"print({name!r}, {name})" for name in variables_of(lines)],
        ]
    )


def variables_of(lines):
    machine = Machine(torch.device("cpu"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for line in lines:
            machine.run(line)
    return list(machine.variables())


def is_comparable(lines):
    """In compiled runs the last bit of a float, seen as another dtype, may be anything."""
    return not (COMPILED and any(".view(torch." in line for line in lines))


def test_seed(seed, check=run_program):
    """None, or the report of a minimal failing program."""
    lines = generate(seed)
    found = is_comparable(lines) and check(lines, seed)
    if not found:
        return None
    lines = minimise(lines, seed, check)
    return runnable(lines, check(lines, seed) or f"not again: {found}", seed)


test_seed.__test__ = False  # not for pytest: test_random_programs.py is


def run_seed(seed):
    lines = generate(seed)
    return run_program(lines, seed) if is_comparable(lines) else None


def worker(seeds, results, run):
    for seed in seeds:
        results.send(("done", seed, run(seed)))
    results.send(("end", None, None))


def run_seeds(seeds, jobs, report, run=run_seed):
    """Runs the seeds in processes of their own: one that dies costs only its program."""
    context = multiprocessing.get_context("fork")
    running = {}

    def start(part):
        if part:
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=worker, args=(part, sender, run))
            process.start()
            sender.close()
            running[receiver] = [process, list(part)]

    for job in range(jobs):
        start(seeds[job::jobs])
    while running:
        for receiver in multiprocessing.connection.wait(list(running)):
            process, part = running[receiver]
            try:
                what, seed, found = receiver.recv()
            except EOFError:
                process.join()
                del running[receiver]
                if part:
                    report(part[0], f"the process died with {process.exitcode}")
                    start(part[1:])
                continue
            if what == "end":
                process.join()
                del running[receiver]
            else:
                part.remove(seed)
                report(seed, found)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=1000, help="how many programs")
    parser.add_argument("--seed", type=int, default=0, help="the first program's seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument(
        "--failures", type=int, default=5, help="how many failing programs to minimise and print"
    )
    parser.add_argument("--show", action="store_true", help="print the program of --seed and stop")
    arguments = parser.parse_args()
    if arguments.show:
        print("\n".join(generate(arguments.seed)))
        return 0
    failures, done = [], 0

    def report(seed, found):
        nonlocal done
        done += 1
        if found:
            failures.append((seed, found))
            print(f"seed {seed}: {found}", flush=True)
        if done % 1000 == 0:
            print(f"{done} programs, {len(failures)} differ", flush=True)

    run_seeds(range(arguments.seed, arguments.seed + arguments.count), arguments.jobs, report)
    for seed, _ in failures[: arguments.failures]:
        print("\n" + (test_seed(seed, in_child) or f"seed {seed}: did not fail again"), flush=True)
    print(f"{done} programs, {len(failures)} differ")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
