"""Trains a small character-level GPT twice, in step: on eager PyTorch and on the device "lazy".

The two trainings differ in the name of the device and in nothing else. The text, shakespeare.txt,
is the beginning of William Shakespeare's Coriolanus (1623), which is in the public domain.
"""

import argparse
import math
import os
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from torch_lazy import metrics

HERE = Path(__file__).resolve().parent
LAYERS, WIDTH, HEADS, CONTEXT, BATCH = 3, 128, 4, 48, 16
LEARNING_RATE, WARM_UP, DROPOUT = 4e-3, 20, 0.1


# ---- The model: plain PyTorch --------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.join = nn.Linear(WIDTH, WIDTH)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, -1)).unbind(-3)
        heads = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True
        )
        x = x + self.dropout(self.join(heads.transpose(1, 2).flatten(-2)))
        return x + self.dropout(self.mlp(self.norm2(x)))


class GPT(nn.Module):
    def __init__(self, characters: int) -> None:
        super().__init__()
        self.token = nn.Embedding(characters, WIDTH)
        self.position = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, characters, bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(ids.shape[-1], device=ids.device)
        x = self.token(ids) + self.position(positions)
        return self.head(self.norm(self.blocks(x)))


# ---- The training: the same code for both devices ------------------------------------------------


class Training:
    def __init__(self, device: str, text: torch.Tensor, characters: int, steps: int) -> None:
        torch.manual_seed(0)
        self.device, self.text, self.steps = device, text, steps
        self.model = GPT(characters).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=LEARNING_RATE)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self._rate)
        self.losses: list[float] = []
        self.seconds: list[float] = []

    def run(self) -> Iterator[float]:
        """Yields the loss of every step."""
        for step in range(self.steps):
            torch.manual_seed(step)  # the same batch and the same dropout on both devices
            start = time.perf_counter()
            loss = self._step()
            self.seconds.append(time.perf_counter() - start)
            self.losses.append(loss)
            yield loss

    def _step(self) -> float:
        inputs, targets = self._batch()
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(inputs).flatten(0, 1), targets.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.schedule.step()
        return loss.item()

    def _batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        starts = torch.randint(len(self.text) - CONTEXT, (BATCH, 1))
        window = self.text[starts + torch.arange(CONTEXT + 1)].to(self.device)
        return window[:, :-1], window[:, 1:]

    def _rate(self, step: int) -> float:
        warm = min(1.0, (step + 1) / WARM_UP)
        return warm * (0.55 + 0.45 * math.cos(math.pi * step / self.steps))

    @torch.no_grad()
    def write(self, prompt: torch.Tensor, count: int) -> torch.Tensor:
        """Continues the prompt, which has to be as long as the model's context."""
        torch.manual_seed(0)
        self.model.eval()
        ids = prompt.to(self.device)
        written = []
        for _ in range(count):
            chances = F.softmax(self.model(ids[None])[0, -1] / 0.8, dim=-1)
            written.append(torch.multinomial(chances, 1))
            ids = torch.cat([ids[1:], written[-1]])
        return torch.cat(written).cpu()


# ---- What the user sees --------------------------------------------------------------------------


class Progress:
    """A bar that moves in a terminal; elsewhere a line now and then."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.start = time.monotonic()
        self.moving = sys.stdout.isatty()
        self.every = 1 if self.moving else max(1, total // 5)

    def show(self, done: int, text: str) -> None:
        if done % self.every and done < self.total:
            return
        left = (time.monotonic() - self.start) / done * (self.total - done)
        filled = 20 * done // self.total
        line = f"[{'#' * filled:.<20}] {done:>{len(str(self.total))}}/{self.total}  {text}"
        if self.moving:
            print(f"\r{line}  {left:3.0f} s left ", end="", flush=True)
            if done == self.total:
                print("\r\033[K", end="")
        else:
            print(line, flush=True)


def print_losses(eager: Training, lazy: Training) -> None:
    every = max(1, eager.steps // 8)
    print(f"{'step':>6} {'eager':>10} {'lazy':>10} {'difference':>12}")
    for i in sorted({0, *range(every - 1, eager.steps, every)}):
        a, b = eager.losses[i], lazy.losses[i]
        print(f"{i + 1:6} {a:10.5f} {b:10.5f} {b - a:12.1e}")
    largest = largest_difference(eager, lazy)
    print(f"Largest difference in {eager.steps} steps: {largest:.1e}")
    if largest > 0:
        print(
            "Fused kernels round in another order, and training amplifies that, as it does on any"
        )
        print(
            "other processor. TORCH_LAZY_COMPILER=off: eager's kernels, and no difference at all."
        )
    print()


def largest_difference(eager: Training, lazy: Training) -> float:
    return max(abs(a - b) for a, b in zip(eager.losses, lazy.losses, strict=True))


def print_times(eager: Training, lazy: Training) -> None:
    ratio = statistics.median(b / a for a, b in zip(eager.seconds, lazy.seconds, strict=True))
    print(f"{'time of a step':<24} {'eager':>9} {'lazy':>12}")
    for name, value in (("first", lambda s: s[0]), ("median", statistics.median)):
        a, b = (value(t.seconds) * 1e3 for t in (eager, lazy))
        print(f"  {name:<22} {a:6.1f} ms {b:9.1f} ms")
    print(f"  {'median of lazy / eager':<22} {ratio:21.2f} x\n")


def print_counters(steps: int) -> None:
    counters = metrics.counters()
    captured = sum(n for name, n in counters.items() if name.startswith("lazy::"))
    print(f"What torch-lazy did in {steps} steps (torch_lazy.metrics)")
    print(f"  operators captured     {captured:9,}   {captured // steps:,} in a step")
    print(f"  graphs compiled        {counters.get('UncachedCompile', 0):9,}")
    kinds = ("GraphKernels", "GraphProducts", "GraphCalls")
    kernels, products, calls = (counters.get(kind, 0) for kind in kinds)
    if kernels:
        print(f"    into                 {kernels:9,}   fused kernels")
        print(f"                         {products:9,}   matrix products")
        print(f"                         {calls:9,}   calls of PyTorch's kernels")
    print(f"  graphs reused          {counters.get('CachedCompile', 0):9,}")
    fallbacks = metrics.fallbacks()
    print(f"  executed at once       {sum(f.count for f in fallbacks):9,}")
    for fallback in fallbacks:
        source = fallback.source.removeprefix(f"{HERE.parent}{os.sep}")
        print(f"    {fallback.operator} {fallback.count:,} x, last at {source}")
    print()


def plot(eager: Training, lazy: Training, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    orange, blue, grey = "#f4a261", "#1d4e89", "#555555"
    steps = range(1, eager.steps + 1)
    plt.rcParams.update({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False})
    figure, (top, bottom) = plt.subplots(
        2, 1, figsize=(8, 6.4), sharex=True, height_ratios=(3, 1.3), layout="constrained"
    )
    figure.suptitle("A character-level GPT on eager PyTorch and on torch-lazy", fontsize=14)
    top.plot(steps, eager.losses, color=orange, linewidth=5, alpha=0.75, label="eager")
    top.plot(steps, lazy.losses, color=blue, linewidth=1.2, label="lazy")
    top.set_ylabel("loss")
    top.legend(frameon=False, loc="upper right")
    difference = largest_difference(eager, lazy)
    equal = "equal in every bit" if difference == 0 else f"never more than {difference:.1e} apart"
    top.text(0.5, 0.9, f"losses {equal}", transform=top.transAxes, ha="center", color=grey)

    for training, color in ((eager, orange), (lazy, blue)):
        ms = [s * 1e3 for s in training.seconds]
        median = statistics.median(ms)
        bottom.plot(steps, ms, ".", color=color, markersize=3, alpha=0.5)
        label = f"{training.device.replace('cpu', 'eager')}, median {median:.1f} ms"
        bottom.axhline(median, color=color, linewidth=2, label=label)
    # A few slow steps on a busy machine must not decide the scale.
    times = sorted(eager.seconds + lazy.seconds)
    bottom.set_ylim(0, 1.4e3 * times[int(0.95 * len(times))])
    bottom.legend(frameon=False, loc="lower right", ncols=2)
    bottom.set_ylabel("ms per step")
    bottom.set_xlabel("step")
    for axis in (top, bottom):
        axis.grid(axis="y", color="#e5e5e5", linewidth=0.8)
        axis.set_axisbelow(True)
        axis.margins(x=0.01)
    figure.align_ylabels()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--threads", type=int, default=1, help="threads of PyTorch's kernels")
    parser.add_argument("--out", type=Path, default=HERE.parent / "build/demo/losses.png")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    text = (HERE / "shakespeare.txt").read_text(encoding="utf-8")
    alphabet = sorted(set(text))
    ids = torch.tensor([alphabet.index(c) for c in text])
    eager, lazy = (Training(d, ids, len(alphabet), args.steps) for d in ("cpu", "lazy"))
    metrics.reset()

    size = sum(p.numel() for p in eager.model.parameters())
    print(
        f"A GPT of {LAYERS} layers, width {WIDTH}, {size / 1e6:.2f} million parameters, learns to"
    )
    print(f"write Shakespeare from {len(text):,} characters: {args.steps} steps on eager PyTorch,")
    print("and the same steps on the device lazy.\n")
    progress = Progress(args.steps)
    for step, (a, b) in enumerate(zip(eager.run(), lazy.run(), strict=True), start=1):
        progress.show(step, f"loss: eager {a:.4f}, lazy {b:.4f}")
    print()

    print_losses(eager, lazy)
    print_times(eager, lazy)
    print_counters(args.steps)
    plot(eager, lazy, args.out)
    print(f"Loss plot: {os.path.relpath(args.out)}\n")
    print("What the model on lazy has learned to write:\n")
    speech_end = text.index("\n\n", CONTEXT) + 2
    sample = lazy.write(ids[speech_end - CONTEXT : speech_end], count=240)
    print("    " + "".join(alphabet[i] for i in sample.tolist()).strip().replace("\n", "\n    "))


if __name__ == "__main__":
    main()
