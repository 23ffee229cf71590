"""torch_lazy.compile: what a call is recognised by, what it returns, and what an error leaves."""

import dataclasses
import signal
import sys
import threading

import numpy as np
import pytest
import torch
from comparing import replayed
from torch import nn
from torch.nn import functional as F

import torch_lazy
from torch_lazy import CompileWarning

compile_module = sys.modules["torch_lazy.compile"]

pytestmark = [
    pytest.mark.usefixtures("nothing_pending"),
    pytest.mark.filterwarnings("error::torch_lazy.CompileWarning"),
]


# ---- Results -------------------------------------------------------------------------------------


@dataclasses.dataclass
class Output:
    loss: torch.Tensor
    parts: dict
    steps: int = 1


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    value: torch.Tensor


def test_dataclasses_as_results():
    def function(x):
        return Output(x.sum(), {"twice": x * 2, "inner": [Frozen(x - 1)]}, steps=3), x + 1

    f = torch_lazy.compile(function)
    for i in range(6):
        x = torch.full((2,), float(i))
        out, more = f(x.to("lazy"))
        assert type(out) is Output
        assert out.steps == 3
        assert out.loss.item() == 2 * i
        assert torch.equal(out.parts["twice"].cpu(), x * 2)
        (frozen,) = out.parts["inner"]
        assert type(frozen) is Frozen
        assert torch.equal(frozen.value.cpu(), x - 1)
        assert torch.equal(more.cpu(), x + 1)
    assert replayed() == 4


class Plain:
    pass


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: np.ones(3), "a ndarray that is another one in each call"),
        (lambda: Plain(), "a Plain that is another one in each call"),
        (lambda: {1, 2}, "a set that is another one in each call"),
    ],
)
def test_other_objects_as_results(make, text):
    f = torch_lazy.compile(lambda x: (x * 2, make()))
    x = torch.ones(2, device="lazy")
    with pytest.warns(CompileWarning, match=text):
        for _ in range(8):
            y, other = f(x)
            assert y[0].item() == 2
            assert type(other) is type(make())
    assert replayed() == 0


def test_constants_as_results():
    f = torch_lazy.compile(lambda x: (x * 2, torch.float64, float("nan"), -0.0, None))
    x = torch.ones(2, device="lazy")
    for _ in range(6):
        _, dtype, nan, zero, nothing = f(x)
        assert dtype is torch.float64
        assert nan != nan
        assert str(zero) == "-0.0"
        assert nothing is None


# ---- Errors leave no recorder --------------------------------------------------------------------


def step_of():
    model = nn.Linear(4, 4).to("lazy")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), x)
        loss.backward()
        optimizer.step()
        return loss

    return step, optimizer


POINTS = [
    "StepsOnDevice",
    "HostReads",
    "Shape",
    "_collect",
    "reach_of",
    "graph_behind",
    "_state_obstacle",
    "_result_obstacle",
]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize("point", POINTS)
def test_an_error_at_each_point(point, at, error, monkeypatch):
    step, optimizer = step_of()
    compiled = torch_lazy.compile(step)
    x = torch.ones(2, 4, device="lazy")
    original = getattr(compile_module, point)
    calls = 0

    def failing(*args, **kwargs):
        nonlocal calls
        calls += 1
        if calls == at:
            raise error("injected")
        return original(*args, **kwargs)

    monkeypatch.setattr(compile_module, point, failing)
    kept = []  # the traceback keeps all that the call had
    for _ in range(4):
        try:
            compiled(x)
        except (ValueError, KeyboardInterrupt) as caught:
            kept.append(caught)
        assert not torch_lazy._C.is_recording()
        assert optimizer.param_groups[0]["capturable"] is False
        assert type(optimizer.param_groups[0]["lr"]) is float
        torch_lazy.mark_step()
        assert torch_lazy._C.pending_nodes() == 0
    monkeypatch.undo()
    for _ in range(4):
        compiled(x)
    assert replayed() > 0


def test_an_error_of_the_recorders_end(monkeypatch):
    """What was recorded fails when it runs."""
    f = torch_lazy.compile(lambda x, i: x[i] * 2)
    x = torch.ones(3, device="lazy")
    kept = []
    for _ in range(3):
        with pytest.raises(IndexError) as caught:
            f(x, torch.tensor([7], device="lazy"))
        kept.append(caught)
        assert not torch_lazy._C.is_recording()
    y = x + 1
    torch_lazy.mark_step()
    assert not torch_lazy._C.is_pending(y)


def test_an_interrupt_while_recording():
    model = nn.Linear(4, 4).to("lazy")
    main = threading.main_thread().ident

    def step(x):
        for _ in range(3):
            x = model(x)
        signal.pthread_kill(main, signal.SIGINT)
        return model(x)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with torch.no_grad(), pytest.raises(KeyboardInterrupt):
            torch_lazy.compile(step)(torch.ones(2, 4, device="lazy"))
    finally:
        signal.signal(signal.SIGINT, before)
    assert not torch_lazy._C.is_recording()
