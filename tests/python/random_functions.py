"""Calls random Python functions, compiled and as they are, while things change between the calls;
a difference without an error is a replay that should not have been.

    python tests/python/random_functions.py --programs 2000 --seed 0 --jobs 2

Each program is a package that is imported twice under two names: once for eager on the CPU, once
for torch_lazy.compile. Compared: results of each call, and at the end (sometimes in between) all
that the package's modules hold: parameters, gradients, optimizers' state, Python values.
"""

import argparse
import collections
import concurrent.futures
import contextlib
import contextvars
import faulthandler
import importlib
import io
import itertools
import logging
import math
import os
import pathlib
import random
import shutil
import sys
import tempfile
import types
import warnings

os.environ.setdefault("TORCH_LAZY_COMPILER", "off")

import numpy as np
import torch
import torch.autograd.forward_ad as forward_ad
from comparing import Raised, replayed
from function_generator import Writer, generate, shown, smaller
from random_programs import run_seeds

import torch_lazy

numbers = itertools.count()
"""Names of packages: no two alike, since Python keeps traces of names."""


class Outcome:
    """What one side of a program gave."""

    def __init__(self):
        self.results = []
        self.states = {}
        self.stopped = None
        """An error of the program itself, between calls: nothing more to compare."""
        self.replayed = 0


# ---- State ---------------------------------------------------------------------------------------

_PLAIN = (int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.Size)


class Frozen:
    """Copies what objects hold into lists and dicts that can be compared."""

    def __init__(self, package, folder):
        self.package = package
        self.folder = folder
        self.seen = {}

    def __call__(self, value):
        if type(value) in _PLAIN:
            if type(value) is str:
                return value.replace(self.folder, "").replace(self.package, "")
            return value
        if isinstance(value, (torch.device, pathlib.Path, logging.Logger)):
            return type(value).__name__
        if id(value) in self.seen:
            return "seen"
        self.seen[id(value)] = value
        if isinstance(value, torch.Tensor):
            return self.tensor(value)
        if isinstance(value, (np.ndarray, np.generic)):
            return value.tolist()
        if isinstance(value, torch.optim.Optimizer):
            return self.optimizer(value)
        inside = self.container(value)
        own = self.attributes(value)
        if inside is None and own is None:
            return type(value).__name__
        return [type(value).__name__, inside, own]

    def tensor(self, x):
        if x.device.type == "meta":
            return "meta"
        grad = self.tensor(x.grad) if x.is_leaf and x.grad is not None else None
        return [on_cpu(x), x.requires_grad, grad, self.attributes(x)]

    def optimizer(self, optimizer):
        state = optimizer.state_dict()
        groups = [
            {k: self(v) for k, v in group.items() if k != "capturable"}
            for group in state["param_groups"]
        ]
        own = {
            k: self(v)
            for k, v in vars(optimizer).items()
            if k not in ("state", "param_groups") and not k.startswith("_")
        }
        return [groups, {k: self(v) for k, v in state["state"].items()}, own]

    def container(self, value):
        if isinstance(value, dict):
            return [[self.key(k), self(v)] for k, v in value.items()]
        if isinstance(value, (list, tuple, collections.deque)):
            return [self(v) for v in value]
        if isinstance(value, (set, frozenset)):
            return sorted(repr(v) for v in value if isinstance(v, _PLAIN))
        if isinstance(value, bytearray):
            return list(value)
        if isinstance(value, io.StringIO):
            return value.getvalue()
        if isinstance(value, contextvars.ContextVar):
            return self(value.get(None))
        if isinstance(value, itertools.count):
            return repr(value)
        if isinstance(value, types.FunctionType) and value.__module__.startswith(self.package):
            cells = [c.cell_contents for c in value.__closure__ or () if c != types.CellType()]
            return [self(value.__defaults__), self(value.__kwdefaults__), self(cells)]
        if isinstance(value, types.MethodType):
            return [self(value.__self__)]
        return None

    def key(self, key):
        return key if isinstance(key, _PLAIN) else type(key).__name__

    def attributes(self, value):
        if isinstance(value, type):
            if not value.__module__.startswith(self.package):
                return None
            return {
                k: self(v)
                for k, v in vars(value).items()
                if not k.startswith("__") and "Abc" not in type(v).__name__ and k != "_abc_impl"
            }
        found = {}
        with contextlib.suppress(Exception):
            found.update(object.__getattribute__(value, "__dict__"))
        for base in type(value).__mro__:
            for name in base.__dict__.get("__slots__", ()):
                with contextlib.suppress(Exception):
                    found[name] = object.__getattribute__(value, name)
        skipped = ("_hook", "__", "_is_full")
        return {
            k: self(v)
            for k, v in found.items()
            if isinstance(k, str)
            and not any(part in k for part in skipped)
            and (not isinstance(v, types.ModuleType))
        } or None


def on_cpu(x):
    return x.detach().cpu().clone()


def state_of(package, folder, modules):
    frozen = Frozen(package, folder)
    state = {}
    for name, module in modules.items():
        skipped = ("DEVICE", "FOLDER", "part")
        state[name] = {
            k: frozen(v)
            for k, v in vars(module).items()
            if not k.startswith("__")
            and k not in skipped
            and not isinstance(v, types.ModuleType)
            and not str(getattr(v, "__module__", "")).startswith("torch.")
        }
    return state


# ---- Running -------------------------------------------------------------------------------------


def run_side(program, compiled, changes=True):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return run_package(program, compiled, changes)


def run_package(program, compiled, changes):
    package = f"generated_{next(numbers)}"
    folder = tempfile.mkdtemp()
    writer = Writer(program)
    actions, each, undos = writer.actions()
    outcome = Outcome()
    device = "lazy" if compiled else "cpu"
    for path, text in writer.files(device, folder).items():
        path = os.path.join(folder, package, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(text)
    sys.path.insert(0, folder)
    namespace = {}
    before = replayed()
    try:
        torch.set_default_dtype(torch.float64)  # a last bit must not grow into a difference
        torch.manual_seed(7)
        modules = {
            "inner": importlib.import_module(f"{package}.deep.inner"),
            "helper": importlib.import_module(f"{package}.helper"),
            "main": importlib.import_module(f"{package}.main"),
        }
        namespace.update(vars(modules["main"]))
        for name in [n for n in namespace if n[0] in "svta" and n[1:2].isdigit()]:
            del namespace[name]  # the driver does not hold what the program holds
        namespace.pop("model", None)
        net = modules[program.net]
        namespace.update(modules, Net=getattr(net, "Net", None), Act=getattr(net, "Act", None))
        target = modules["main"].target
        function = torch_lazy.compile(target) if compiled else target
        beside = modules["main"].beside if program.beside else None
        if beside and compiled:
            beside = torch_lazy.compile(beside)
        drive(
            program,
            (function, beside),
            writer,
            namespace,
            outcome,
            actions if changes else {},
            each,
            lambda: state_of(package, folder, modules),
        )
    finally:
        for undo in undos:
            with contextlib.suppress(Exception):
                exec(undo, namespace)
        torch.set_grad_enabled(True)
        torch.set_default_dtype(torch.float32)
        sys.path.remove(folder)
        for name in [n for n in sys.modules if n.partition(".")[0] == package]:
            del sys.modules[name]
        shutil.rmtree(folder, ignore_errors=True)
    outcome.replayed = replayed() - before
    return outcome


def drive(program, functions, writer, namespace, outcome, actions, each, state):
    function, beside = functions
    device = namespace["DEVICE"]
    kept = []
    for call in range(program.calls):
        try:
            exec(actions.get(call, ""), namespace)
            arguments = [eval(text, namespace) for _, text in writer.arguments]
        except Exception as error:
            outcome.stopped = f"before call {call}: {type(error).__name__}: {error}"
            break
        generator = torch.Generator().manual_seed(call)
        size = program.sizes[call % len(program.sizes)]
        x = torch.randn(size, 6, generator=generator).to(device)
        y = torch.rand(size, 6, generator=generator).to(device)
        torch.manual_seed(call)
        random.seed(call)
        np.random.seed(call)
        try:
            result = called(function, x, y, arguments, program, namespace)
            if beside:
                result = [result, beside(x)]
            if program.reads:
                result = values(result)
            kept.append(result)
            if each:
                exec(each, namespace)
        except Exception as error:
            kept.append(Raised(error))
            break
        del arguments
        if call in program.looks:
            outcome.states[call] = state()
    for result in kept:
        try:
            outcome.results.append(result if isinstance(result, Raised) else values(result))
        except Exception as error:
            outcome.results.append(Raised(error))
    if outcome.stopped is None and not isinstance(outcome.results[-1], Raised):
        outcome.states["the end"] = state()


def called(function, x, y, arguments, program, namespace):
    def call():
        if program.keywords and not arguments:
            return function(x, y=y)
        return function(x, y, *arguments)

    if not namespace.get("IN_THREAD"):
        return call()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


def values(result):
    if isinstance(result, torch.Tensor):
        tangent = forward_ad.unpack_dual(result).tangent if forward_ad._current_level >= 0 else None
        return on_cpu(result) if tangent is None else [on_cpu(result), on_cpu(tangent)]
    if isinstance(result, (list, tuple)):
        return [values(item) for item in result]
    if isinstance(result, dict):
        return {key: values(item) for key, item in result.items()}
    if isinstance(result, types.SimpleNamespace):
        return values(vars(result))
    return torch.from_numpy(result.copy()) if isinstance(result, np.ndarray) else result


# ---- Comparing -----------------------------------------------------------------------------------


def difference(want, have, path):
    """The first difference as text; None: there is none."""
    if isinstance(want, torch.Tensor) and isinstance(have, torch.Tensor):
        if want.shape != have.shape:
            return f"{path}: size {tuple(have.shape)} instead of {tuple(want.shape)}"
        a, b = want.double(), have.double()
        if not torch.allclose(a, b, rtol=1e-5, atol=1e-7, equal_nan=True):
            return f"{path}: {have.flatten()[:6].tolist()} instead of {want.flatten()[:6].tolist()}"
        return None
    if isinstance(want, Raised) and isinstance(have, Raised):
        return None
    if isinstance(have, Raised):
        return f"{path}: raises {have!r}\n{have.where}"
    if isinstance(want, Raised):
        return f"{path}: {have!r} instead of {want!r}"
    if isinstance(want, (list, tuple)) and isinstance(have, (list, tuple)):
        if len(want) != len(have):
            return f"{path}: {len(have)} items instead of {len(want)}"
        pairs = [(f"{path}[{i}]", a, b) for i, (a, b) in enumerate(zip(want, have, strict=True))]
    elif isinstance(want, dict) and isinstance(have, dict):
        if list(want) != list(have):
            return f"{path}: {list(have)} instead of {list(want)}"
        pairs = [(f"{path}.{key}", want[key], have[key]) for key in want]
    else:
        return None if _alike(want, have) else f"{path}: {have!r} instead of {want!r}"
    for where, a, b in pairs:
        found = difference(a, b, where)
        if found:
            return found
    return None


def _alike(want, have):
    if isinstance(want, torch.Tensor) or isinstance(have, torch.Tensor):
        # A count of steps, which may be a tensor or not.
        numbers = [x for x in (want, have) if isinstance(x, (float, int)) or torch.is_tensor(x)]
        return len(numbers) == 2 and float(want) == float(have)
    if isinstance(want, float) and isinstance(have, float):
        return math.isclose(want, have, rel_tol=1e-6, abs_tol=1e-9) or want != want
    return type(want) is type(have) and want == have


def outcome_difference(want, have):
    if want.stopped != have.stopped:
        return f"{have.stopped} instead of {want.stopped}"
    for call, (a, b) in enumerate(zip(want.results, have.results, strict=False)):
        found = difference(a, b, f"result of call {call}")
        if found:
            return found
    if len(want.results) != len(have.results):
        return f"{len(have.results)} calls instead of {len(want.results)}"
    for when in want.states:
        found = difference(want.states[when], have.states.get(when), f"state at {when}")
        if found:
            return found
    return None


def is_silent(found):
    return found is not None and ": raises" not in found


class Report:
    """Of one program."""

    def __init__(self, kind, found, replays, effect):
        self.kind, self.found, self.replays, self.effect = kind, found, replays, effect


def run_program(program, effect=False):
    want = run_side(program, compiled=False)
    have = run_side(program, compiled=True)
    has_effect = None
    if effect:
        unchanged = run_side(program, compiled=False, changes=False)
        has_effect = outcome_difference(want, unchanged) is not None
    return Report(program.kind, outcome_difference(want, have), have.replayed, has_effect)


def minimise(program):
    """A program with less in it that still differs."""
    silent = is_silent(run_program(program).found)
    while True:
        for candidate in smaller(program):
            try:
                found = run_program(candidate).found
            except Exception:
                continue  # one that cannot be
            if found and is_silent(found) == silent:
                program = candidate
                break
        else:
            return program


def test_seed(seed):
    """None, or the report of a minimal program whose compiled function differs."""
    program = generate(seed)
    report = run_program(program)
    if not report.found:
        return None
    program = minimise(program)
    return f"# seed {seed}, {program.kind}: {run_program(program).found}\n{shown(program)}"


test_seed.__test__ = False


# ---- Command line --------------------------------------------------------------------------------


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--programs", type=int, default=1000, help="how many")
    parser.add_argument("--seed", type=int, default=0, help="the first program's seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument(
        "--minimise", type=int, default=5, help="how many to minimise and print, one of a kind"
    )
    parser.add_argument("--effects", action="store_true", help="count changes that change results")
    parser.add_argument("--show", action="store_true", help="print the program of --seed and stop")
    options = parser.parse_args()
    if options.show:
        print(shown(generate(options.seed)))
        return 0
    kinds = collections.defaultdict(list)
    failures = {}

    def run(seed):
        faulthandler.dump_traceback_later(120, exit=True)
        try:
            with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
                return run_program(generate(seed), options.effects)
        finally:
            faulthandler.cancel_dump_traceback_later()

    def report(seed, result):
        if isinstance(result, str):
            result = Report(generate(seed).kind, f"{seed}: raises {result}", 0, None)
        kinds[result.kind].append(result)
        if result.found:
            failures.setdefault(result.kind, seed)
            print(
                f"seed {seed}, {result.kind}, {result.replays} replays: {result.found}",
                flush=True,
            )

    run_seeds(range(options.seed, options.seed + options.programs), options.jobs, report, run)
    summary(kinds, options.effects)
    for seed in list(failures.values())[: options.minimise]:
        print("\n" + (test_seed(seed) or f"seed {seed}: did not differ again"), flush=True)
    return 1 if failures else 0


def summary(kinds, effects):
    head = f"{'kind':<45}{'programs':>9}{'replayed':>9}{'silent':>8}{'errors':>8}"
    print(head + (f"{'effect':>8}" if effects else ""))
    rows = [*sorted(kinds.items()), ("all", list(itertools.chain(*kinds.values())))]
    for kind, reports in rows:
        silent = sum(is_silent(r.found) for r in reports)
        errors = sum(r.found is not None for r in reports) - silent
        line = (
            f"{kind:<45}{len(reports):>9}{sum(r.replays > 0 for r in reports):>9}"
            f"{silent:>8}{errors:>8}"
        )
        print(line + (f"{sum(bool(r.effect) for r in reports):>8}" if effects else ""))


if __name__ == "__main__":
    sys.exit(main())
