"""One thread per test process (pytest -n 2 uses the cores), fixed seeds, and summaries."""

import collections
import contextlib
import gc
import os

import pytest

# Eager's bits, which most tests compare with; `make test-compiled` sets it to force.
os.environ.setdefault("TORCH_LAZY_COMPILER", "off")

import torch
from comparing import DEVICE

if DEVICE.type == "lazy":
    import torch_lazy

torch.set_num_threads(1)


def pytest_collection_finish():
    """Hundreds of thousands of objects of the modules that tests import, which stay: what thousands
    of tests collect need not look at them."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def fixed_seed():
    torch.manual_seed(0)


@pytest.fixture
def nothing_pending():
    """For tests that count, or that run all that is recorded: what earlier tests left is run."""
    gc.collect()
    if DEVICE.type == "lazy":
        with contextlib.suppress(Exception):  # theirs
            torch_lazy.sync()
        torch_lazy.metrics.reset()


def pytest_terminal_summary(terminalreporter):
    """What tests noted about themselves; it travels in their reports, also under xdist."""
    calls = [
        report
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", None) == "call"
    ]
    models = [
        value for report in calls for name, value in report.user_properties if name == "model"
    ]
    if models:
        terminalreporter.section("models trained on eager and on the device")
        for model, how in sorted(models):
            terminalreporter.write_line(f"{model:<16}{how}")
    operators_summary(terminalreporter, calls)


def operators_summary(terminalreporter, calls):
    """Totals of test_opinfo.py per kind."""
    statuses = ("equal", "close", "layout", "refused", "failed", "eager refuses", "not run")
    totals = collections.defaultdict(collections.Counter)
    for report in calls:
        for name, value in report.user_properties:
            if name == "opinfo":
                kind, status = value
                totals[kind][status if report.passed else "failed"] += 1
    if not totals:
        return
    terminalreporter.section("operators compared with eager")
    head = "".join(f"{s:>{max(9, len(s) + 2)}}" for s in statuses)
    terminalreporter.write_line(f"{'kind':<24}{'total':>7}{head}{'passed':>9}")
    for kind, counts in totals.items():
        total = sum(counts.values()) - counts["eager refuses"] - counts["not run"]
        passed = counts["equal"] + counts["close"] + counts["layout"]
        row = "".join(f"{counts[s]:>{max(9, len(s) + 2)}}" for s in statuses)
        percent = 100 * passed / max(total, 1)
        terminalreporter.write_line(f"{kind:<24}{total:>7}{row}{percent:>8.2f}%")
