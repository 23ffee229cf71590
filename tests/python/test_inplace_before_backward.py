"""What a program may change in place between forward and backward is what it may in eager."""

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.usefixtures("nothing_pending")


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Parameter(torch.randn(1, 2, 3, 8)) for _ in range(3))

    def forward(self, x):
        return nn.functional.scaled_dot_product_attention(x + self.query, self.key, self.value)


MODULES = {
    "Linear": (lambda: nn.Linear(8, 8), (4, 8)),
    "Linear of rows": (lambda: nn.Linear(8, 8), (2, 3, 8)),
    "Linear without bias": (lambda: nn.Linear(8, 8, bias=False), (2, 3, 8)),
    "Bilinear": (lambda: Twice(nn.Bilinear(8, 8, 4)), (4, 8)),
    "Conv1d": (lambda: nn.Conv1d(3, 4, 3), (2, 3, 9)),
    "Conv2d": (lambda: nn.Conv2d(3, 4, 3), (2, 3, 9, 9)),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(3, 4, 3), (2, 3, 5, 5)),
    "BatchNorm": (lambda: nn.BatchNorm2d(3), (4, 3, 5, 5)),
    "LayerNorm": (lambda: nn.LayerNorm(8), (4, 8)),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), (3, 4, 5)),
    "InstanceNorm": (lambda: nn.InstanceNorm1d(4, affine=True), (3, 4, 5)),
    "RMSNorm": (lambda: nn.RMSNorm(8), (4, 8)),
    "PReLU": (lambda: nn.PReLU(), (4, 8)),
    "Embedding": (lambda: nn.Embedding(9, 4), "indices"),
    "GRU": (lambda: First(nn.GRU(8, 4)), (3, 2, 8)),
    "LSTM": (lambda: First(nn.LSTM(8, 4)), (3, 2, 8)),
    "Attention": (Attention, (1, 2, 3, 8)),
    "MultiheadAttention": (lambda: Thrice(nn.MultiheadAttention(8, 2)), (3, 2, 8)),
    "TransformerEncoderLayer": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0),
        (3, 2, 8),
    ),
    "ReLU": (nn.ReLU, (4, 8)),
    "GELU": (nn.GELU, (4, 8)),
    "Softmax": (lambda: nn.Softmax(-1), (4, 8)),
    "MaxPool2d": (lambda: nn.MaxPool2d(2), (2, 3, 6, 6)),
    "AvgPool2d": (lambda: nn.AvgPool2d(2), (2, 3, 6, 6)),
    "Upsample": (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), (2, 3, 6, 6)),
}


class Twice(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x, x)


class Thrice(Twice):
    def forward(self, x):
        return self.inner(x, x, x)[0]


class First(Twice):
    def forward(self, x):
        return self.inner(x)[0]


def outcome(device, name, input_wants, frozen, changed):
    """Which tensor cannot be changed: the error, or the gradients."""
    torch.manual_seed(0)
    make, shape = MODULES[name]
    module = make()
    x = torch.randint(9, (5,)) if shape == "indices" else torch.randn(shape)
    module.to(device)
    x = x.to(device)
    if x.is_floating_point():
        x.requires_grad_(input_wants)
    parameters = list(module.parameters())
    for i in frozen:
        if i < len(parameters):
            parameters[i].requires_grad_(False)
    tensors = [x, *parameters]
    if changed >= len(tensors) or not any(t.requires_grad for t in tensors):
        return None
    y = module(x * 1 if x.requires_grad else x)
    with torch.no_grad():
        tensors[changed].zero_()
    try:
        y.square().sum().backward()
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error)
        return "refused"
    return [t.grad is not None for t in tensors]


@pytest.mark.parametrize("name", MODULES)
def test_the_same_changes_are_refused(name):
    different = []
    for input_wants in (True, False):
        for frozen in ((), (0,), (1,), (0, 1)):
            for changed in range(5):
                case = (name, input_wants, frozen, changed)
                lazy, eager = outcome("lazy", *case), outcome("cpu", *case)
                if name == "LSTM" and eager == "refused":
                    continue  # the CPU's fused layer saves everything, which no other device has
                if lazy != eager:
                    different.append(case[1:])
    assert not different
