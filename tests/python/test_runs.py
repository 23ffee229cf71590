"""What happens around a run: values that die meanwhile, operators that use lazy tensors themselves,
failures, constants from the CPU, the state of the process."""

import threading

import pytest
import torch

import torch_lazy

X = torch.arange(10.0)


@pytest.fixture
def library():
    with torch.library._scoped_library("torch_lazy_runs", "FRAGMENT") as lib:
        yield lib


def define(lib, name, function):
    """A custom operator with a fake kernel: recorded, and called when the graph runs."""
    lib.define(f"{name}(Tensor x) -> Tensor")
    lib.impl(name, function, "CPU")
    lib.impl(name, torch.empty_like, "Meta")
    return getattr(torch.ops.torch_lazy_runs, name)


def bad_index(count=1):
    return X.to("lazy")[torch.full((count,), 99, device="lazy")]


def test_tensors_dropped_by_another_thread_while_a_graph_runs():
    stop = threading.Event()

    def drop():
        while not stop.is_set():
            a = torch.ones(300, device="lazy")
            pending = [a * i for i in range(100)]
            del pending

    dropper = threading.Thread(target=drop)
    dropper.start()
    try:
        x = torch.eye(64, device="lazy") * 2
        for _ in range(50):
            results = [x @ x for _ in range(5)]
            torch_lazy.mark_step()
            assert results[4][0, 0].item() == 4
    finally:
        stop.set()
        dropper.join()


def test_results_dropped_by_an_operator_of_the_same_run(library):
    bag = []

    def drop(x):
        bag.clear()
        return x * 2

    op = define(library, "drop", drop)
    for _ in range(5):
        y = op(torch.ones(1000, device="lazy"))
        bag.extend(torch.ones(1000, device="lazy") * i for i in range(50))
        later = [torch.ones(3, device="lazy") + i for i in range(5)]
        torch_lazy.mark_step()
        assert y.sum().item() == 2000
        assert [t.sum().item() for t in later] == [3, 6, 9, 12, 15]


def test_a_failing_operator_that_drops_its_consumers(library):
    bag = []

    def fail(x):
        bag.clear()
        raise ValueError("no")

    op = define(library, "fail", fail)
    other = torch.ones(2, device="lazy") * 3
    bag.append(op(torch.ones(2, device="lazy")) * 2)
    with pytest.raises(Exception, match="no"):
        torch_lazy.mark_step(wait=True)
    torch_lazy.mark_step()
    assert other.tolist() == [3, 3]
    assert torch_lazy._C.pending_nodes() == 0


def test_a_step_marked_inside_a_run(library):
    made = []

    def mark(x):
        made.append(root + 1)
        torch_lazy.mark_step()
        return x + 1

    op = define(library, "mark", mark)
    start = torch.ones(4, device="lazy") * 15
    root = start + 0
    y = op(start)
    torch_lazy.mark_step()
    assert y.tolist() == [16] * 4
    assert made[0].tolist() == [16] * 4


def test_a_library_removed_before_its_operator_ran():
    with torch.library._scoped_library("torch_lazy_gone", "DEF") as lib:
        lib.define("op(Tensor x) -> Tensor")
        lib.impl("op", lambda x: x + 1, "CPU")
        lib.impl("op", torch.empty_like, "Meta")
        y = torch.ops.torch_lazy_gone.op.default(torch.ones(2, device="lazy"))
    with pytest.raises(RuntimeError, match=r"torch_lazy_gone::op.*removed before it could run"):
        y.cpu()


def test_what_reads_a_failed_value_fails_too():
    y = bad_index()
    for read in (y.cpu, (lambda: y + 1), (lambda: torch.zeros(1, device="lazy").add_(y)), y.neg_):
        with pytest.raises(IndexError, match=r"out of bounds|out of range"):
            torch_lazy.sync([read()])
    y.fill_(3)
    assert y.tolist() == [3]


@pytest.mark.parametrize("count", range(1, 11))
def test_a_tensor_overwritten_by_a_failed_value_raises(count):
    b = torch.ones(count, device="lazy") + 1
    b.copy_(bad_index(count))
    for _ in range(2):
        with pytest.raises(IndexError):
            b.cpu()


@pytest.mark.parametrize(
    "index",
    [(torch.arange(100) % 10)[53:56], torch.tensor([3]).expand(3), torch.arange(9)[::2]],
    ids=["slice", "expanded", "strided"],
)
def test_cpu_indices_that_do_not_lie_plainly(index):
    assert torch.equal(X.to("lazy")[index].cpu(), X[index])


def test_a_cpu_mask_that_is_a_slice():
    mask = (torch.arange(20) % 3 == 0)[5:15]
    eager, lazy = X.clone(), X.to("lazy")
    eager[mask] = 7
    lazy[mask] = 7
    assert torch.equal(lazy.cpu(), eager)


def test_the_default_dtype_of_the_call_is_in_force_when_it_runs():
    def frequencies(device):
        torch.set_default_dtype(torch.bfloat16)
        try:
            return 1.0 / (10000 ** (torch.arange(0, 8, 2, device=device) / 8))
        finally:
            torch.set_default_dtype(torch.float32)

    expected, lazy = frequencies("cpu"), frequencies("lazy")
    assert lazy.dtype == torch.bfloat16
    assert torch.equal(lazy.cpu(), expected)
    assert torch.get_default_dtype() == torch.float32


def test_a_partially_overlapping_copy_is_refused_at_the_call():
    b = torch.ones(4, device="lazy")
    with pytest.raises(RuntimeError, match="single memory location"):
        b[1:].copy_(b[:-1])


def test_many_writes_with_readers_in_between():
    x = torch.ones(4, dtype=torch.int64, device="lazy")
    y = torch.zeros((), dtype=torch.int64, device="lazy")
    for _ in range(6000):
        y = y + x.sum()
        x.add_(1)
    assert y.item() == sum(4 * (i + 1) for i in range(6000))
    assert x.tolist() == [6001] * 4


def test_dumps_do_not_wait_for_themselves():
    class Mode(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            torch_lazy._C.pending_nodes()
            return func(*args, **(kwargs or {}))

    y = torch.ones(2, device="lazy") * torch.tensor(2.0)
    with Mode():
        assert "value=2" in torch_lazy.debug.graph_text(y)
