"""torch_lazy.load_exported: programs of torch.export against the modules they were made from."""

import copy
import warnings

import pytest
import torch
from comparing import COMPILED, replayed
from torch import nn
from torch.export import Dim, export, save

import torch_lazy

CLOSE = {"rtol": 1e-4, "atol": 1e-5} if COMPILED else {"rtol": 1.3e-6, "atol": 1e-6}


@pytest.fixture(params=["cpu", "lazy"])
def device(request):
    return request.param


def assert_same(actual, expected, device):
    assert actual.device.type == device
    assert not actual.requires_grad
    torch.testing.assert_close(actual.cpu(), expected.detach(), **CLOSE)


def check(module, program, calls, device):
    """Calls of the program give what calls of the module give."""
    run = torch_lazy.load_exported(program)
    before = replayed()
    for inputs in calls:
        assert_same(run(*(x.to(device) for x in inputs)), module(*inputs), device)
    assert replayed() - before >= len(calls) - 1
    return run


def test_a_program(device):
    module = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
    program = export(module, (torch.randn(3, 4),))
    check(module, program, [(torch.randn(3, 4),) for _ in range(4)], device)


@pytest.mark.parametrize("decomposed", [False, True])
def test_a_file_of_convolutions_and_batch_norm(tmp_path, device, decomposed):
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()).eval()
    module[1].running_mean.uniform_(-1, 1)
    program = export(module, (torch.randn(2, 3, 6, 6),))
    if decomposed:
        program = program.run_decompositions()
    save(program, tmp_path / "program.pt2")
    check(module, tmp_path / "program.pt2", [(torch.randn(2, 3, 6, 6),) for _ in range(4)], device)


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(3), persistent=False)
        self.scale = torch.tensor([1.0, 2.0, 3.0])

    def forward(self, x):
        self.calls.add_(1)
        self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return (x - self.mean) * self.scale + self.calls


@pytest.mark.parametrize("decomposed", [False, True])
def test_buffers_are_changed(device, decomposed):
    module = Counter()
    program = export(copy.deepcopy(module), (torch.randn(2, 3),))
    if decomposed:
        program = program.run_decompositions()
    run = check(module, program, [(torch.randn(2, 3),) for _ in range(5)], device)
    state = run.state_dict()
    assert state["calls"].item() == 5
    torch.testing.assert_close(state["mean"], module.mean, **CLOSE)
    assert program.state_dict["calls"].item() == 0  # another load begins anew


def test_inputs_are_changed(device):
    class Add(nn.Module):
        def forward(self, x, y):
            x.add_(y)
            return x * 2

    x, y = torch.randn(3), torch.randn(3)
    run = torch_lazy.load_exported(export(Add(), (x.clone(), y)).run_decompositions())
    for _ in range(3):
        ours = x.clone().to(device)
        assert_same(run(ours, y.to(device)), (x + y) * 2, device)
        assert_same(ours, x + y, device)


class Trees(nn.Module):
    def forward(self, batch, *, mask, power=2, name=None):
        with torch.no_grad():
            total = batch["a"] + batch["b"][0]
        return {"total": total**power, "parts": [total * mask, (total.shape[0], None)]}


def test_trees_of_inputs_and_results(device):
    def batch(device="cpu"):
        torch.manual_seed(2)
        a, b, mask = (torch.randn(4, 2).to(device) for _ in range(3))
        return ({"a": a, "b": [b]},), {"mask": mask, "power": 2, "name": None}

    args, kwargs = batch()
    dims = {"batch": {"a": {0: Dim("n")}, "b": [{0: Dim("n")}]}, "mask": {0: Dim("n")}}
    run = torch_lazy.load_exported(
        export(Trees(), args, kwargs, dynamic_shapes=dims | {"power": None, "name": None})
    )
    expected = Trees()(*args, **kwargs)
    for _ in range(3):
        args, kwargs = batch(device)
        actual = run(*args, **dict(reversed(kwargs.items())))
        assert list(actual) == ["total", "parts"]
        assert_same(actual["total"], expected["total"], device)
        assert_same(actual["parts"][0], expected["parts"][0], device)
        assert actual["parts"][1] == (4, None)


def test_wrong_inputs_are_told():
    args = ({"a": torch.randn(4, 2), "b": [torch.randn(4, 2)]},)
    kwargs = {"mask": torch.randn(4, 2), "power": 2, "name": None}
    run = torch_lazy.load_exported(export(Trees(), args, kwargs))
    (batch,) = args
    run(*args, **kwargs)
    for wrong, error, message in (
        ((batch, batch), TypeError, "structure"),
        (({"a": batch["a"]},), TypeError, "structure"),
        (({"a": 3, "b": [batch["a"]]},), TypeError, "batch_a .*is a tensor"),
        (({"a": batch["a"].double(), "b": batch["b"]},), TypeError, "dtype torch.float32"),
        (({"a": batch["a"][0], "b": batch["b"]},), ValueError, "2 dimensions"),
        (({"a": batch["a"][:3], "b": batch["b"]},), ValueError, "size 0 of batch_a .*is 4.*got 3"),
    ):
        with pytest.raises(error, match=message):
            run(*wrong, **kwargs)
    with pytest.raises(TypeError, match="keyword arguments"):
        run(*args, mask=kwargs["mask"])
    with pytest.raises(ValueError, match="power = 2, but got 3"):
        run(*args, **(kwargs | {"power": 3}))
    run(*args, **kwargs)


class Pairs(nn.Module):
    def forward(self, x, y, z):
        return x.sum(0) + y.view(-1, 2, 3).sum((0, 1)) + z.sum(0)


def test_dynamic_sizes_and_their_constraints(device):
    rows, half = Dim("rows", min=2, max=20), Dim("half", min=1, max=10)
    program = export(
        Pairs(),
        (torch.randn(4, 3), torch.randn(8, 3), torch.randn(6, 3)),
        dynamic_shapes=({0: rows}, {0: 2 * rows}, {0: 2 * half}),
    )
    sizes = ((3, 6, 4), (5, 10, 8), (3, 6, 4), (20, 40, 20), (2, 4, 2))
    calls = [tuple(torch.randn(n, 3) for n in counts) for counts in sizes]
    run = torch_lazy.load_exported(program)
    for inputs in calls:
        assert_same(run(*(x.to(device) for x in inputs)), Pairs()(*inputs), device)
    for counts, message in (
        ((3, 7, 4), r"size 0 of y .*is 2\*s.* = 3.*got 7"),
        ((21, 42, 4), "size 0 of x .*between 2 and 20, but got 21"),
        ((1, 2, 4), "size 0 of x .*between 2 and 20, but got 1"),
        ((3, 6, 5), r"size 0 of z .*is 2\*s.*got 5"),
        ((3, 6, 22), "size 0 of z .*between 2 and 20, but got 22"),
    ):
        with pytest.raises(ValueError, match=message):
            run(*(torch.randn(n, 3).to(device) for n in counts))


def test_what_cannot_be_recorded_still_runs(device):
    class Draw(nn.Module):
        def forward(self, x):
            return torch.bernoulli(x) + x

    run = torch_lazy.load_exported(export(Draw(), (torch.rand(4),)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(6):
            x = torch.rand(4)
            difference = (run(x.to(device)).cpu() - x).round()
            assert set(difference.tolist()) <= {0.0, 1.0}
    assert [w.category for w in caught].count(torch_lazy.CompileWarning) == 1


def test_files_that_are_none(tmp_path):
    program = export(nn.Linear(2, 2), (torch.randn(1, 2),))
    save(program, tmp_path / "good.pt2")
    content = (tmp_path / "good.pt2").read_bytes()
    for name, damaged in (
        ("cut.pt2", content[: len(content) // 2]),
        ("empty.pt2", b""),
        ("other.pt2", b"something else" * 100),
    ):
        (tmp_path / name).write_bytes(damaged)
        with pytest.raises(ValueError, match=f"{name} is damaged, or no file of torch.export.save"):
            torch_lazy.load_exported(tmp_path / name)
    with pytest.raises(FileNotFoundError, match="no file"):
        torch_lazy.load_exported(tmp_path / "missing.pt2")
    with pytest.raises(TypeError, match="takes an ExportedProgram"):
        torch_lazy.load_exported(nn.Linear(2, 2))
