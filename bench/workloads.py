"""The models that are timed, each as a training step (or a forward pass) on a device."""

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

    def compile(self, backend: str = "inductor") -> None:
        """Hands all but the optimizer to torch.compile."""
        self.loss = torch.compile(self.loss, backend=backend)


@dataclass
class Forward:
    """A function of tensors on a device, computed without gradients."""

    function: Callable[[], torch.Tensor]

    def step(self) -> torch.Tensor:
        with torch.no_grad():
            return self.function()

    def compile(self, backend: str = "inductor") -> None:
        self.function = torch.compile(self.function, backend=backend)


def pointwise(device: str, rows: int, columns: int) -> Forward:
    """Cheap operators on one large tensor: nothing but memory traffic."""
    torch.manual_seed(0)
    x, bias = torch.randn(rows, columns).to(device), torch.randn(columns).to(device)
    return Forward(lambda: torch.relu(x * 1.5 + bias) * 0.5 - x)


def normalized(device: str, rows: int, columns: int) -> Forward:
    """What stands between the matrix products of a transformer, on one large tensor."""
    torch.manual_seed(0)
    x, *vectors = (torch.randn(*sizes).to(device) for sizes in ((rows, columns), *[(columns,)] * 3))
    bias, weight, shift = vectors

    def function() -> torch.Tensor:
        y = x + nn.functional.gelu(x * 1.5 + bias)
        return torch.softmax(nn.functional.layer_norm(y, (columns,), weight, shift), -1)

    return Forward(function)


def mlp(device: str, width: int, batch: int, layers: int = 8, adam: bool = False) -> Training:
    torch.manual_seed(0)
    blocks = []
    for _ in range(layers - 1):
        blocks += [nn.Linear(width, width), nn.ReLU()]
    model = nn.Sequential(*blocks, nn.Linear(width, width)).to(device)
    inputs = torch.randn(batch, width).to(device)
    targets = torch.randn(batch, width).to(device)
    if adam:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    return Training(model, optimizer, lambda: nn.functional.mse_loss(model(inputs), targets))


def gpt2(
    device: str, layers: int, width: int, heads: int, batch: int, tokens: int, dropout: float = 0.1
) -> Training:
    """GPT-2 of the transformers library."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=256, n_positions=tokens, n_embd=width, n_layer=layers, n_head=heads,
        bos_token_id=0, eos_token_id=0, use_cache=False,
        resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout,
    )  # fmt: skip
    model = GPT2LMHeadModel(config).to(device).train()
    model.loss_type = "ForCausalLM"  # else it warns that it has to guess
    ids = torch.randint(256, (batch, tokens)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    return Training(model, optimizer, lambda: model(input_ids=ids, labels=ids).loss)


def bert(device: str, layers: int, width: int, heads: int, batch: int, tokens: int) -> Training:
    """BERT of the transformers library with its head for masked words, without dropout."""
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=256, hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads,
        intermediate_size=4 * width, max_position_embeddings=tokens,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = BertForMaskedLM(config).to(device).train()
    ids = torch.randint(256, (batch, tokens)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    return Training(model, optimizer, lambda: model(input_ids=ids, labels=ids).loss)


class BasicBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Identity()
        if stride > 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


def resnet18(device: str, batch: int, size: int, classes: int = 10) -> Training:
    """The layers of ResNet-18, on small images."""
    torch.manual_seed(0)
    layers = [
        nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2, padding=1),
    ]
    channels = 64
    for width in (64, 128, 256, 512):
        layers += [
            BasicBlock(channels, width, stride=1 if width == 64 else 2),
            BasicBlock(width, width, stride=1),
        ]
        channels = width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)]
    model = nn.Sequential(*layers).to(device).train()
    images = torch.randn(batch, 3, size, size).to(device)
    labels = torch.randint(classes, (batch,)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    return Training(model, optimizer, lambda: nn.functional.cross_entropy(model(images), labels))


TINY = {
    "MLP 8x16": lambda device: mlp(device, width=16, batch=16),
    "GPT-2 12x24": lambda device: gpt2(device, 12, 24, heads=2, batch=4, tokens=16),
}

REAL = {
    "MLP 8x512": lambda device: mlp(device, width=512, batch=128),
    "GPT-2 4x256": lambda device: gpt2(device, 4, 256, heads=4, batch=4, tokens=128),
}

COMPILED = {
    "gelu, norm, softmax 4096x1024": lambda device: normalized(device, 4096, 1024),
    "MLP 8x512, AdamW": lambda device: mlp(device, width=512, batch=128, adam=True),
    "GPT-2 4x256, no dropout": lambda device: gpt2(
        device, 4, 256, heads=4, batch=4, tokens=128, dropout=0.0
    ),
    "GPT-2 4x256, dropout 0.1": lambda device: gpt2(device, 4, 256, heads=4, batch=4, tokens=128),
    "BERT 4x256": lambda device: bert(device, 4, 256, heads=4, batch=8, tokens=64),
    "ResNet-18 64x64": lambda device: resnet18(device, batch=8, size=64),
}
