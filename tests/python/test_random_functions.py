"""A few random compiled functions; random_functions.py runs as many as you like."""

import dataclasses

import function_changes
import function_sources
import pytest
import random_functions
from comparing import Raised
from function_generator import Fragment, generate

PROGRAMS = 60
PART = 10


@pytest.mark.usefixtures("nothing_pending")
@pytest.mark.parametrize("first", range(0, PROGRAMS, PART))
def test_functions(first):
    for seed in range(first, first + PART):
        failure = random_functions.test_seed(seed)
        assert failure is None, f"\n{failure}"


@pytest.mark.usefixtures("nothing_pending")
def test_replays_are_tested():
    """Were nothing replayed, or nothing changed, nothing would be tested."""
    reports = [
        random_functions.run_program(generate(seed), effect=True)
        for seed in range(100, 130)
        if generate(seed).calls < 100
    ]
    assert sum(report.replays > 0 for report in reports) >= len(reports) / 4
    assert sum(report.effect for report in reports) >= len(reports) / 2


def test_a_difference_is_found_and_minimised(monkeypatch):
    """The tester can fail: a compiled function that keeps its first number is found out."""

    class Stale:
        def __init__(self, function):
            self.function = function

        def __call__(self, *args):
            namespace = self.function.__globals__
            self.kept = getattr(self, "kept", namespace["s0"])
            namespace["s0"], now = self.kept, namespace["s0"]
            try:
                return self.function(*args)
            finally:
                namespace["s0"] = now

    monkeypatch.setattr(random_functions.torch_lazy, "compile", Stale)
    source = next(row for row in function_sources.SOURCES if row.kind == "global")
    program = next(
        program
        for program in map(generate, range(10_000))
        if len(program.fragments) > 1 and program.target == "function" and program.calls < 60
    )
    changed = dataclasses.replace(
        program.fragments[0],
        source=source,
        home="main",
        values=(1.5, 2.5),
        use="x = x * $e",
        in_net=False,
        value_layers=(),
        statement_layers=(),
    )
    program = dataclasses.replace(
        program,
        base="function",
        change=None,
        beside=False,
        fragments=(changed, *program.fragments[1:]),
    )
    assert random_functions.run_program(program).found
    program = random_functions.minimise(program)
    assert program.fragments == (changed,)
    assert random_functions.run_program(program).found


def lone(source, kind):
    """A program with nothing but a value of this source."""
    fragment = Fragment(
        source,
        "main",
        function_sources.VALUES[kind][0],
        function_sources.USES[kind][0],
    )
    program = dataclasses.replace(
        generate(0), base="function", change=None, fragments=(fragment,), target="function"
    )
    program = dataclasses.replace(program, result="x", sizes=(4,), beside=False, looks=())
    return dataclasses.replace(program, calls=20, change_at=5, again_after=0, reads=True)


@pytest.mark.parametrize("source", function_sources.SOURCES, ids=lambda source: source.kind)
def test_sources(source):
    """Each change of each source is one that results show."""
    program = lone(source, source.types[0])
    outcomes = [
        random_functions.run_side(program, compiled=False, changes=changes)
        for changes in (True, False)
    ]
    for outcome in outcomes:
        assert not outcome.stopped
        assert not isinstance(outcome.results[-1], Raised), outcome.results[-1]
    if source.change and "not cleared" not in source.kind:
        assert random_functions.outcome_difference(*outcomes)


@pytest.mark.parametrize("change", function_changes.CHANGES, ids=lambda change: change.kind)
def test_changes(change):
    """Each change of a model or an optimizer can be made."""
    base = {"grads": "gradients", "model": "inference"}.get(change.needs, "training")
    program = dataclasses.replace(
        lone(function_sources.SOURCES[0], "float"),
        base=base,
        change=change,
        fragments=(),
        optimizer=change.optimizer or "sgd",
        groups=1,
        again_after=2,
    )
    outcome = random_functions.run_side(program, compiled=False)
    assert not outcome.stopped
    assert not isinstance(outcome.results[-1], Raised), outcome.results[-1]
