"""Counters, metrics and the report, as a program sees them."""

import re
import threading

import pytest
import torch

import torch_lazy
from torch_lazy import config, metrics

pytestmark = pytest.mark.usefixtures("nothing_pending")


def test_reset_clears_counters_and_metrics():
    (torch.ones(3, device="lazy") * 2).nonzero()
    torch_lazy.mark_step()
    assert metrics.counter_names() != []
    metrics.reset()
    assert metrics.counter_names() == []
    assert metrics.metric_names() == []
    assert metrics.fallbacks() == []
    report = metrics.metrics_report()
    assert "Metric:" not in report
    assert report == "Backend: aten\n"


def test_a_counter_is_none_while_it_is_unknown_or_zero():
    assert metrics.counter_value("no such counter") is None
    torch.ones(3, device="lazy").exp()
    assert metrics.counter_value("lazy::exp") == 1
    metrics.reset()
    assert metrics.counter_value("lazy::exp") is None


def test_report():
    x = torch.ones(3, device="lazy")
    torch_lazy.mark_step()
    (x * 2).nonzero()
    report = metrics.metrics_report()
    # Metrics, counters, the backend, what was executed at once; the first two sorted.
    parts = re.fullmatch(
        r"((?:Metric: .*\n(?:  .*\n)+)*)((?:Counter: .*\n  Value: \d+\n)+)Backend: aten\n"
        r"Executed at once: aten::nonzero, 1 times, last at .*test_metrics.py:\d+ test_report\n",
        report,
    )
    assert parts, report
    for part, kind in ((parts[1], "Metric"), (parts[2], "Counter")):
        names = re.findall(rf"^{kind}: (.*)$", part, re.MULTILINE)
        assert names == sorted(names)
    assert "Counter: MarkStep\n  Value: 1\n" in parts[2]
    assert "Counter: aten::nonzero\n  Value: 1\n" in parts[2]


def test_report_of_some_names():
    (torch.ones(3, device="lazy") * 2).nonzero()
    assert metrics.metrics_report(counter_names=["lazy::mul", "nothing"]) == (
        "Counter: aten::nonzero\n  Value: 1\nCounter: lazy::mul\n  Value: 1\n"
    )
    assert (
        metrics.metrics_report(metric_names=["nothing"]) == "Counter: aten::nonzero\n  Value: 1\n"
    )


def test_sizes_of_graphs_and_times():
    x = torch.ones(2, 5).to("lazy")
    torch_lazy.sync()
    metrics.reset()
    for _ in range(3):
        y = (x * 3).exp()
        torch_lazy.mark_step(wait=True)
    assert (metrics.counter_value("UncachedCompile"), y.device.type) == (1, "lazy")
    sizes = metrics.metric_data("TensorsGraphSize")
    assert [sample.value for sample in sizes.samples] == [2, 2, 2]
    assert (sizes.total_samples, sizes.accumulator) == (3, 6)
    assert metrics.metric_data("CompileTime").total_samples == 1
    assert metrics.metric_data("ExecuteTime").total_samples == 3
    for name in ("CompileTime", "ExecuteTime"):
        data = metrics.metric_data(name)
        assert 0 < data.accumulator < 60e9
        assert data.accumulator == pytest.approx(sum(sample.value for sample in data.samples))
        stamps = [sample.timestamp_ns for sample in data.samples]
        assert stamps == sorted(stamps)
    report = metrics.metrics_report(metric_names=["TensorsGraphSize", "ExecuteTime"])
    time = r"(?:\d\ds)?(?:\d\d\dms)?\d\d\d\.\d\d\dus"
    percentiles = "; ".join(f"{p}%=V" for p in (1, 5, 10, 20, 50, 80, 90, 95, 99))
    assert re.fullmatch(
        "Metric: ExecuteTime\n  TotalSamples: 3\n"
        rf"  Accumulator: (?:{time})\n  ValueRate: (?:{time}) / second\n  Rate: [\d.e+]+ / second\n"
        rf"  Percentiles: {percentiles.replace('V', f'(?:{time})')}\n"
        "Metric: TensorsGraphSize\n  TotalSamples: 3\n"
        r"  Accumulator: 6\.00\n  ValueRate: [\d.]+ / second\n  Rate: [\d.e+]+ / second\n"
        rf"  Percentiles: {percentiles.replace('V', re.escape('2.00'))}\n",
        report,
    ), report


def test_an_unknown_metric_has_no_data():
    assert metrics.metric_data("no such metric") is None
    assert "no such metric" not in metrics.metric_names()


def test_percentiles_must_lie_between_0_and_1():
    with pytest.raises(ValueError, match="between 0 and 1"):
        config.set("metrics_percentiles", "0.5:1.5")


def test_threads_count_together():
    def work():
        for _ in range(50):
            torch.ones(2, device="lazy").sin()
            metrics.metrics_report()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert metrics.counter_value("lazy::sin") == 200
