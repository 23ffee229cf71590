"""Numbers do not compile: learning rates and all others may change in every step."""

import math
from collections.abc import Iterator

import torch
from report import Row
from torch import nn

from torch_lazy import metrics

STEPS = 1000


def numbers() -> Iterator[Row]:
    torch.set_num_threads(1)
    before = _compilations()
    _train(steps=20, change=False)
    structures = _compilations() - before
    _train(steps=STEPS, change=True)
    yield Row(
        "numbers",
        "graphs compiled in 20 equal steps",
        structures,
        "",
        note="the first step also makes the optimizer's state",
    )
    yield Row(
        "numbers",
        f"more in {STEPS:,} steps, all numbers new",
        _compilations() - before - structures,
        "",
        target=0,
        note=f"counter UncachedCompile: {before + structures}, then {_compilations()}",
    )


def _compilations() -> int:
    return metrics.counter_value("UncachedCompile") or 0


def _train(steps: int, change: bool) -> None:
    """AdamW with clipping; with `change`, every number is another one in every step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)).to("lazy")
    inputs, targets = torch.randn(8, 16).to("lazy"), torch.randn(8, 4).to("lazy")
    optimizer = torch.optim.AdamW(model.parameters())
    group = optimizer.param_groups[0]
    for step in range(steps):
        t = step / steps if change else 0.0
        group["lr"] = 1e-3 * (1 + math.cos(t))
        group["betas"] = (0.8 + 0.15 * t, 0.9 + 0.09 * t)
        group["weight_decay"] = 0.01 + 0.1 * t
        group["eps"] = 1e-8 * (1 + t)
        optimizer.zero_grad()
        outputs = nn.functional.leaky_relu(model(inputs), 0.01 + 0.2 * t)
        loss = (0.7 + 0.2 * t) * nn.functional.mse_loss(outputs + 0.3 * (1 + t), targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.6 + t)
        optimizer.step()
