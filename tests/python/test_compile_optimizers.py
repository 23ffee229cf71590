"""torch_lazy.compile: optimizers of PyTorch in compiled functions, and what is left of them."""

import pickle
import sys
import warnings

import pytest
import torch
from comparing import replayed
from torch import nn
from torch.nn import functional as F

import torch_lazy

pytestmark = pytest.mark.usefixtures("nothing_pending")

OPTIMIZERS = {
    "sgd": (torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.01}),
    "sgd_single": (torch.optim.SGD, {"foreach": False, "nesterov": True, "momentum": 0.9}),
    "sgd_fused": (torch.optim.SGD, {"fused": True}),
    "adam": (torch.optim.Adam, {"weight_decay": 0.1}),
    "adam_single": (torch.optim.Adam, {"foreach": False}),
    "adam_fused": (torch.optim.Adam, {"fused": True}),
    "adamw": (torch.optim.AdamW, {}),
    "adamw_single": (torch.optim.AdamW, {"foreach": False, "amsgrad": True}),
    "adamw_fused": (torch.optim.AdamW, {"fused": True}),
    "adamax": (torch.optim.Adamax, {}),
    "adamax_single": (torch.optim.Adamax, {"foreach": False}),
    "nadam": (torch.optim.NAdam, {"decoupled_weight_decay": True, "weight_decay": 0.1}),
    "nadam_single": (torch.optim.NAdam, {"foreach": False}),
    "radam": (torch.optim.RAdam, {}),
    "radam_single": (torch.optim.RAdam, {"foreach": False}),
    "adadelta": (torch.optim.Adadelta, {}),
    "adadelta_single": (torch.optim.Adadelta, {"foreach": False}),
    "rmsprop": (torch.optim.RMSprop, {"momentum": 0.5, "centered": True}),
    "rmsprop_single": (torch.optim.RMSprop, {"foreach": False}),
    "rprop": (torch.optim.Rprop, {}),
    "asgd": (torch.optim.ASGD, {}),
    "asgd_single": (torch.optim.ASGD, {"foreach": False}),
    "muon": (torch.optim.Muon, {}),
}
TRACED = {
    "adagrad": (torch.optim.Adagrad, {"lr_decay": 0.1}),
    "adafactor": (torch.optim.Adafactor, {}),
    "lbfgs": (torch.optim.LBFGS, {"max_iter": 2}),
}


def train(name, device, compiled, steps=14):
    torch.manual_seed(7)
    model = nn.Linear(6, 5, bias=False).to(device)  # Muon takes matrices
    kind, options = {**OPTIMIZERS, **TRACED}[name]
    optimizer = kind(model.parameters(), lr=0.05, **options)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: 1 / (1 + 0.3 * i))

    def closure(x):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), x[:, :5])
        loss.backward()
        return loss

    def step(x):
        if kind is torch.optim.LBFGS:
            return optimizer.step(lambda: closure(x))
        loss = closure(x)
        optimizer.step()
        return loss

    step = torch_lazy.compile(step) if compiled else step
    losses = []
    generator = torch.Generator().manual_seed(3)
    for _ in range(steps):
        losses.append(step(torch.randn(4, 6, generator=generator).to(device)).item())
        schedule.step()
    return losses, model.weight.detach().cpu(), optimizer


@pytest.mark.parametrize("name", [*OPTIMIZERS, *TRACED])
def test_optimizers_under_a_schedule(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", torch_lazy.CompileWarning)
        losses, weight, optimizer = train(name, "lazy", True)
    replays = replayed()
    expected, expected_weight, plain = train(name, "cpu", False)
    torch.testing.assert_close(losses, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(weight, expected_weight, rtol=1e-3, atol=1e-4)
    if name in OPTIMIZERS:
        assert replays >= 8
    # It is the optimizer that it would be without compile.
    for ours, theirs in zip(optimizer.param_groups, plain.param_groups, strict=True):
        assert {k: v for k, v in ours.items() if k != "params"} == {
            k: v for k, v in theirs.items() if k != "params"
        }


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_checkpoints(name):
    """state_dict is that of an optimizer which was never compiled, and eager goes on from it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", torch_lazy.CompileWarning)
        _, _, optimizer = train(name, "lazy", True)
    _, _, traced = train(name, "lazy", False)
    _, _, plain = train(name, "cpu", False)
    ours, theirs = optimizer.state_dict(), traced.state_dict()
    assert ours["param_groups"] == theirs["param_groups"]
    for index, state in theirs["state"].items():
        assert list(ours["state"][index]) == list(state)
        for key, value in state.items():
            mine = ours["state"][index][key]
            assert type(mine) is type(value)
            if isinstance(value, torch.Tensor):
                assert (mine.device, mine.dtype) == (value.device, value.dtype), key
                torch.testing.assert_close(mine.cpu(), value.cpu(), rtol=1e-3, atol=1e-4)
    kind, _ = OPTIMIZERS[name]
    loaded = kind(plain.param_groups[0]["params"], lr=0.05)
    on_cpu = pickle.loads(
        pickle.dumps(
            torch.utils._pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.cpu(), ours)
        )
    )
    loaded.load_state_dict(on_cpu)
    loaded.step()


@pytest.mark.parametrize("name", ["adam", "adam_single", "nadam", "radam", "rmsprop", "rprop"])
def test_steps_in_and_out_of_a_compiled_function(name):
    """The same optimizer steps in compiled calls and in plain ones, before, between and after."""

    def run(device):
        torch.manual_seed(7)
        model = nn.Linear(6, 5, bias=False).to(device)
        kind, options = OPTIMIZERS[name]
        optimizer = kind(model.parameters(), lr=0.05, **options)

        def step(x):
            optimizer.zero_grad()
            F.mse_loss(model(x), x[:, :5]).backward()
            optimizer.step()

        compiled = torch_lazy.compile(step) if device == "lazy" else step
        generator = torch.Generator().manual_seed(3)
        for i in range(20):
            x = torch.randn(4, 6, generator=generator).to(device)
            (step if i % 7 < 2 else compiled)(x)
        return model.weight.detach().cpu()

    lazy = run("lazy")
    assert replayed() > 0
    torch.testing.assert_close(lazy, run("cpu"), rtol=1e-3, atol=1e-4)


def test_a_step_that_is_given_up_reads_no_counts(monkeypatch):
    """It goes on counting on the device, without capturable in the groups between calls."""
    model = nn.Linear(6, 5).to("lazy")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    calls = iter(range(100))

    @torch_lazy.compile
    def step(x):
        optimizer.zero_grad()
        (model(x) * (next(calls) + 1)).sum().backward()
        optimizer.step()

    with pytest.warns(torch_lazy.CompileWarning):
        for _ in range(8):
            step(torch.ones(4, 6, device="lazy"))
            assert optimizer.param_groups[0]["capturable"] is False
    monkeypatch.setattr(sys.modules["torch.optim.adam"], "_get_value", None)
    step(torch.ones(4, 6, device="lazy"))
    assert {t["step"].device.type for t in optimizer.state_dict()["state"].values()} == {"cpu"}
