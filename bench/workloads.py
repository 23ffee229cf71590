"""The models that are timed, each as a training step on a device."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Training:
    """A model, its optimizer and one batch on a device; `step` is what a user's loop does."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[[], torch.Tensor]

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.loss().backward()
        self.optimizer.step()


def mlp(device: str, width: int, batch: int, layers: int = 8) -> Training:
    torch.manual_seed(0)
    blocks = []
    for _ in range(layers - 1):
        blocks += [nn.Linear(width, width), nn.ReLU()]
    model = nn.Sequential(*blocks, nn.Linear(width, width)).to(device)
    inputs = torch.randn(batch, width).to(device)
    targets = torch.randn(batch, width).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    return Training(model, optimizer, lambda: nn.functional.mse_loss(model(inputs), targets))


def gpt2(device: str, layers: int, width: int, heads: int, batch: int, tokens: int) -> Training:
    """GPT-2 of the transformers library, dropout and all."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=256, n_positions=tokens, n_embd=width, n_layer=layers, n_head=heads,
        bos_token_id=0, eos_token_id=0, use_cache=False,
    )  # fmt: skip
    model = GPT2LMHeadModel(config).to(device).train()
    model.loss_type = "ForCausalLM"  # else it warns that it has to guess
    ids = torch.randint(256, (batch, tokens)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    return Training(model, optimizer, lambda: model(input_ids=ids, labels=ids).loss)


TINY = {
    "MLP 8x16": lambda device: mlp(device, width=16, batch=16),
    "GPT-2 12x24": lambda device: gpt2(device, 12, 24, heads=2, batch=4, tokens=16),
}

REAL = {
    "MLP 8x512": lambda device: mlp(device, width=512, batch=128),
    "GPT-2 4x256": lambda device: gpt2(device, 4, 256, heads=4, batch=4, tokens=128),
}
