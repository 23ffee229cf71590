"""Programs of thousands of calls between reads: what they cost is counted, not timed."""

import time

import pytest
import torch
from comparing import DEVICE

pytestmark = pytest.mark.skipif(DEVICE.type != "lazy", reason="counts what torch-lazy does")

if DEVICE.type == "lazy":
    import torch_lazy

COUNT = 3000


def visited(program):
    """Nodes that were looked at to choose those that run, beside the chosen ones."""
    torch_lazy.metrics.reset()
    with torch_lazy.config.override(max_nodes=0):
        program()
    return torch_lazy.metrics.counter_value("NodesVisited") or 0


def test_slice_writes(nothing_pending):
    x = torch.zeros(COUNT, 2, device="lazy")

    def program():
        for i in range(COUNT):
            x[i] = float(i)
        assert x.sum().item() == COUNT * (COUNT - 1)

    assert visited(program) <= 4 * COUNT


def test_slices_in_order_cost_what_those_in_disorder_cost():
    """The numbers of buffers and offsets count up together, which a hash must tell apart."""
    count = 8000

    def seconds(order):
        base = torch.zeros(count, device="lazy")
        start = time.process_time()
        for i in order:
            base[i : i + 1].fill_(i)
        assert base.sum().item() > 0
        return time.process_time() - start

    disorder = [i * 4001 % count for i in range(count)]
    times = [(seconds(range(count)), seconds(disorder)) for _ in range(3)]
    assert min(t[0] for t in times) < 4 * min(t[1] for t in times)


def test_slices_read_and_written(nothing_pending):
    x = torch.zeros(COUNT, 2, device="lazy")

    def program():
        old = []
        for i in range(COUNT):
            old.append(x[i] + 1)
            x[i] += float(i)
        assert x.sum().item() == COUNT * (COUNT - 1)
        assert torch.stack(old).sum().item() == 2 * COUNT

    assert visited(program) <= 8 * COUNT


def test_reads_of_many_pending_values(nothing_pending):
    """A read does not look at what is recorded beside what it needs."""

    def program():
        x = torch.zeros(2, device="lazy")
        values = [x + i for i in range(COUNT)]
        assert sum(int(value[0].item()) for value in values[::10]) == sum(range(0, COUNT, 10))

    assert visited(program) <= 4 * COUNT


def test_reads_of_many_written_buffers(nothing_pending):
    """Readers of what a write replaces are found near the write."""

    def program():
        buffers = [torch.full((2,), float(i), device="lazy") for i in range(COUNT)]
        doubles = []
        for buffer in buffers:
            doubles.append(buffer * 2)
            buffer.add_(1)
        read = [int(buffer[0].item()) for buffer in buffers[::10]]
        assert read == list(range(1, COUNT + 1, 10))
        assert int(doubles[10][0].item()) == 20

    assert visited(program) <= 8 * COUNT


def test_readers_far_from_their_writes(nothing_pending):
    """All readers first, then all writes, then one read of everything."""

    def program():
        buffers = [torch.full((2,), float(i), device="lazy") for i in range(COUNT)]
        doubles = [buffer * 2 for buffer in buffers]
        for buffer in buffers:
            buffer.add_(1)
        assert torch.stack(buffers).sum().item() == COUNT * (COUNT + 1)
        assert torch.stack(doubles).sum().item() == 2 * COUNT * (COUNT - 1)

    assert visited(program) <= 30 * COUNT


def test_many_views_of_one_value():
    x = torch.arange(2.0 * COUNT, device="lazy").view(COUNT, 2) * 2
    rows = [x[i] + 1 for i in range(COUNT)]
    expected = torch.arange(2.0 * COUNT).view(COUNT, 2) * 2 + 1
    assert torch.equal(torch.stack(rows).cpu(), expected)


@pytest.mark.parametrize("sizes", [(7,), (7, 300, 40)], ids=["equal", "mixed"])
def test_many_values_in_one_arena(sizes):
    """More values than are placed pair by pair: none lies in another that is still needed."""
    count = 2500

    def program(device):
        torch.manual_seed(0)
        base = [torch.randn(size).to(device) for size in sizes]
        values = [base[i % len(sizes)] * (i + 1) for i in range(count)]
        # Every value meets one from far away, so that many live at the same time.
        sums = [values[i] + values[(i + len(sizes) * 400) % (count // 3 * 3)] for i in range(2400)]
        products = [
            (a * b).sum()
            for a, b in zip(sums, sums[:: -len(sizes)][: len(sums)], strict=False)
            if a.shape == b.shape
        ]
        return torch.stack(products).cpu()

    with torch_lazy.config.override(compiler="force", max_nodes=0):
        for _ in range(2):
            torch.testing.assert_close(program("lazy"), program("cpu"))


def test_long_chains():
    """Neither recording, running nor freeing recurses along a chain."""
    x = torch.zeros(2, device="lazy")
    with torch_lazy.config.override(max_nodes=0):
        for _ in range(20000):
            x = x + 1
        assert x.tolist() == [20000, 20000]
        for _ in range(20000):
            x = x + 1
        del x
        torch_lazy.sync()
