"""Every optimizer of torch.optim against eager, with the options that PyTorch's database lists."""

import copy

import pytest
import torch
from comparing import COMPILED, DEVICE, difference
from torch import nn
from torch.testing._internal.common_optimizers import optim_db

OPTIMIZERS = {
    info.optim_cls.__name__: info for info in optim_db if info.optim_cls.__name__ != "SparseAdam"
}


def model_for(info):
    """Muon takes matrices only."""
    bias = info.optim_cls.__name__ != "Muon"
    return nn.Sequential(nn.Linear(4, 5, bias=bias), nn.Tanh(), nn.Linear(5, 2, bias=bias))


def to(device, kwargs):
    return {
        k: v.to(device) if isinstance(v, torch.Tensor) else copy.copy(v) for k, v in kwargs.items()
    }


def run(info, kwargs, device, steps=4):
    """Losses and the state after training with a changing learning rate."""
    torch.manual_seed(0)
    # LBFGS divides by differences of gradients: other rounding needs room there.
    wide = COMPILED and info.optim_cls.__name__ == "LBFGS"
    dtype = torch.float64 if wide else torch.float32
    model = model_for(info).to(device, dtype)
    optimizer = info.optim_cls(model.parameters(), **to(device, kwargs))
    batches = [torch.randn(6, 4).to(device, dtype) for _ in range(steps)]
    losses = []
    for number, batch in enumerate(batches):

        def closure(batch=batch):
            optimizer.zero_grad()
            loss = model(batch).square().sum()
            loss.backward()
            return loss

        losses.append(optimizer.step(closure).detach().clone())
        for group in optimizer.param_groups:
            if not isinstance(group["lr"], torch.Tensor):
                group["lr"] *= 0.9 + 0.01 * number
    state = optimizer.state_dict()["state"]
    # Counters of steps and the like stay on the CPU, whatever the device: they are moved.
    for entry in state.values():
        for key, value in entry.items():
            if isinstance(value, torch.Tensor) and value.dim() == 0:
                entry[key] = value.to(device)
    return losses, list(model.parameters()), state


def variants(info):
    """The default differs: foreach on the device, a plain loop on the CPU. So it is said."""
    if "foreach" in info.supported_impls:
        yield {"foreach": False}
        yield {"foreach": True}
    else:
        yield {}
    if "fused" in info.supported_impls:
        yield {"fused": True}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer(name):
    info = OPTIMIZERS[name]
    inputs = info.optim_inputs_func(device="cpu")
    for given in inputs:
        for flags in variants(info):
            kwargs = given.kwargs | flags
            if flags.get("fused") and "cpu" not in info.supports_fused_on:
                continue
            try:
                expected = run(info, kwargs, "cpu")
            except (RuntimeError, ValueError) as error:
                with pytest.raises(type(error)):
                    run(info, kwargs, DEVICE)
                continue
            found = difference(expected, run(info, kwargs, DEVICE))
            assert found is None, f"{given.desc} {kwargs}: {found}"


CAPTURABLE = [
    name
    for name, info in OPTIMIZERS.items()
    if "capturable" in info.optim_cls.__init__.__code__.co_varnames
]


@pytest.mark.skipif(DEVICE.type == "cpu", reason="eager refuses capturable=True on the CPU")
@pytest.mark.parametrize("name", CAPTURABLE)
@pytest.mark.parametrize("foreach", [False, True])
def test_capturable(name, foreach):
    """Counters of steps are tensors on the device; the numbers are those of the plain optimizer."""
    info = OPTIMIZERS[name]
    expected = run(info, {"foreach": foreach}, "cpu")
    actual = run(info, {"foreach": foreach, "capturable": True}, DEVICE)
    found = difference(expected[:2], actual[:2], close=(1e-5, 1e-6))
    assert found is None, found


def test_a_changing_number_needs_no_compilation():
    """1,000 steps with other learning rates and betas each: one compilation per structure."""
    if DEVICE.type != "lazy":
        pytest.skip("there is nothing to compile")
    import torch_lazy

    parameters = [
        nn.Parameter(torch.ones(3, device=DEVICE)),
        nn.Parameter(torch.ones(2, 2, device=DEVICE)),
    ]
    optimizer = torch.optim.AdamW(parameters, lr=0.1)

    def step(number):
        for p in parameters:
            p.grad = p.detach() * (0.5 + number)
        group = optimizer.param_groups[0]
        group["lr"] = 0.1 / (1 + number)
        group["betas"] = (0.9 - number * 1e-4, 0.99 - number * 1e-4)
        group["weight_decay"] = 0.01 + number * 1e-4
        optimizer.step()

    for number in range(3):
        step(number)
    torch_lazy.metrics.reset()
    for number in range(1000):
        step(number)
    assert torch_lazy.metrics.counter_value("UncachedCompile") is None
    assert torch_lazy.metrics.counter_value("CachedCompile") >= 1000
