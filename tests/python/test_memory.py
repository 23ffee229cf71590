"""Memory that a long program needs: what one step needs, however many there are."""

import gc
import os

import pytest
import torch
from torch import nn

import torch_lazy
from torch_lazy import config

pytestmark = pytest.mark.usefixtures("nothing_pending")

MIB = 1 << 20


@pytest.fixture(params=[0, 1], ids=["sync", "async"])
def mode(request):
    with config.override(**{"async": request.param}):
        yield
        torch_lazy.wait_device_ops()


def resident():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def usage():
    """Resident bytes, and bytes of lazy tensors and recorded nodes, which have to be the same."""
    gc.collect()
    torch_lazy.sync()
    torch_lazy.wait_device_ops()
    return resident(), (torch_lazy._C.memory_allocated(), torch_lazy._C.pending_nodes())


class Training:
    def __init__(self):
        self.model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).to("lazy")
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def step(self, batch, read):
        self.optimizer.zero_grad()
        x = torch.ones(batch, 4).to("lazy")
        loss = self.model(x).square().mean()
        loss.backward()
        self.optimizer.step()
        if read:
            loss.item()


def grown(step, settled, end):
    """By how much more is resident after `end` steps than after `settled`; the rest is equal."""
    for i in range(settled):
        step(i)
    before, live_before = usage()
    for i in range(settled, end):
        step(i)
    after, live_after = usage()
    assert live_after == live_before
    return after - before


@pytest.mark.slow
def test_ten_thousand_steps(mode):
    training = Training()
    more = grown(lambda i: training.step(3, read=i % 10 == 0), 2_000, 10_000)
    assert more < 4 * MIB, f"{more / MIB:.1f} MiB more"


@pytest.mark.slow
def test_ten_thousand_steps_with_changing_shapes(mode):
    """Caches forget; what they hold has a limit."""
    with config.override(plan_cache=16, layout_cache=512, trace_steps=512):
        training = Training()
        more = grown(lambda i: training.step(1 + i * 7 % 1009, read=i % 10 == 0), 2_000, 10_000)
    assert more < 8 * MIB, f"{more / MIB:.1f} MiB more"


def test_graphs_that_never_come_again(mode):
    """Compiled graphs are forgotten when they hold too much, long before there are too many."""

    def step(i):
        x = torch.ones(i + 1, device="lazy")
        for k in range(1_500):
            x = x + 1 if (i + k) % 3 else x.sin()
        x.sum().item()

    evicted = torch_lazy.metrics.counter_value("PlanCacheEvicted") or 0
    with config.override(plan_cache_bytes=4 * MIB, trace_steps=512):
        more = grown(step, 20, 80)
    assert torch_lazy.metrics.counter_value("PlanCacheEvicted") - evicted > 60
    assert more < 12 * MIB, f"{more / MIB:.1f} MiB more"


@pytest.mark.slow
def test_ten_thousand_steps_whose_results_nobody_reads(mode):
    x = torch.ones(100, device="lazy")

    def step(i):
        x.add_(1)
        x.sum() * i
        torch_lazy.mark_step()

    more = grown(step, 2_000, 10_000)
    assert more < 4 * MIB, f"{more / MIB:.1f} MiB more"


@pytest.mark.slow
def test_many_failures(mode):
    """Errors keep nothing alive once they are gone."""

    def step(i):
        x = torch.arange(100.0, device="lazy")
        y = x[torch.tensor([1000 if i % 2 else 1], device="lazy")] + 1
        try:
            torch_lazy.mark_step(wait=True)
            y.cpu()
        except IndexError:
            assert i % 2
        else:
            assert not i % 2

    more = grown(step, 1_000, 5_000)
    assert more < 4 * MIB, f"{more / MIB:.1f} MiB more"


@pytest.mark.slow
def test_many_memory_errors(mode):
    x = torch.ones(100, device="lazy")

    def step(i):
        y = torch.empty(100, device="lazy")
        y[:50].copy_(x[:50])
        with config.override(fault="allocate:0"):
            try:
                torch_lazy.mark_step(wait=True)
            except torch.OutOfMemoryError:
                torch_lazy.mark_step()
        assert y[3].item() == 1

    more = grown(step, 1_000, 5_000)
    assert more < 4 * MIB, f"{more / MIB:.1f} MiB more"
