"""Programs that test_backend_plugin.py runs in processes of their own, through a plug-in.

    python backend_programs.py operators|mlp|transformer

Each prints one line of JSON. "executed" is what the example backend counted.
"""

import json
import re
import sys

import torch
from torch import nn
from torch.testing._internal.common_methods_invocations import op_db

import torch_lazy

# Names in PyTorch's database of operators for what the example backend takes.
OPERATORS = (
    "add",
    "addmm",
    "clone",
    "div",
    "exp",
    "maximum",
    "mm",
    "mul",
    "neg",
    "nn.functional.relu",
    "sqrt",
    "sub",
    "sum",
    "tanh",
    "where",
)


def executed() -> int:
    """Instructions that the example backend has executed."""
    return int(re.search(r"LoopsBackend: (\d+)", torch_lazy._C.backend_metrics())[1])


def to(device, value):
    if isinstance(value, torch.Tensor):
        return value.detach().to(device).requires_grad_(value.requires_grad)
    if isinstance(value, (list, tuple)):
        return type(value)(to(device, element) for element in value)
    if isinstance(value, dict):
        return {key: to(device, element) for key, element in value.items()}
    return value


def tensors_of(value):
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [tensor for element in value for tensor in tensors_of(element)]
    return []


def outcome(op, sample, device):
    """Results and gradients of one sample."""
    inputs, args, kwargs = (to(device, v) for v in (sample.input, sample.args, sample.kwargs))
    result = op(inputs, *args, **kwargs)
    leaves = [t for t in tensors_of([inputs, args, kwargs]) if t.requires_grad]
    results = tensors_of(result)
    grads = []
    if leaves and all(t.requires_grad for t in results):
        weights = [(torch.arange(t.numel()) % 7 + 1.0).reshape(t.shape).to(device) for t in results]
        total = sum((t * w).sum() for t, w in zip(results, weights, strict=True))
        grads = torch.autograd.grad(total, leaves, allow_unused=True)
    return [t.detach().cpu() for t in [*results, *(g for g in grads if g is not None)]]


def operators():
    report = {}
    for op in op_db:
        if op.name not in OPERATORS or op.variant_test_name not in ("", "no_rounding_mode"):
            continue
        before, samples, error = executed(), 0, None
        for sample in op.sample_inputs("cpu", torch.float32, requires_grad=True):
            samples += 1
            try:
                expected = outcome(op, sample, "cpu")
                actual = outcome(op, sample, "lazy")
                # Sums are added up in another order than eager's.
                torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-4)
            except Exception as e:
                error = f"{sample}: {e}"
                break
        report[op.name] = {"samples": samples, "executed": executed() - before, "error": error}
    return report


class Block(nn.Module):
    """A transformer block, written out."""

    def __init__(self, width=16, heads=2):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (
            t.reshape(batch, length, self.heads, -1).transpose(1, 2)
            for t in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        scores = q @ k.transpose(-1, -2) / (width // self.heads) ** 0.5
        mask = torch.ones(length, length, device=x.device).tril() == 0
        scores = torch.where(mask, torch.full_like(scores, -1e9), scores)
        weights = (scores - scores.amax(-1, keepdim=True)).exp()
        weights = weights / weights.sum(-1, keepdim=True)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))
        return x + self.down(torch.tanh(self.up(self.norm2(x))))


def train(make_model, make_optimizer, data, target, device, steps=5):
    torch.manual_seed(0)
    model = make_model().to(device)
    optimizer = make_optimizer(model.parameters())
    data, target = data.to(device), target.to(device)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = ((model(data) - target) ** 2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def model(make_model, shape, target_shape):
    data, target = torch.randn(shape), torch.randn(target_shape)
    report = {}
    for name, make_optimizer in {
        "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=False),
        "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    }.items():
        before = executed()
        report[name] = {
            "eager": train(make_model, make_optimizer, data, target, "cpu"),
            "lazy": train(make_model, make_optimizer, data, target, "lazy"),
            "executed": executed() - before,
        }
    return report


def mlp():
    def make():
        return nn.Sequential(
            nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4)
        )

    return model(make, (16, 8), (16, 4))


def transformer():
    return model(Block, (2, 6, 16), (2, 6, 16))


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    program = {"operators": operators, "mlp": mlp, "transformer": transformer}[sys.argv[1]]
    print(json.dumps(program()))
