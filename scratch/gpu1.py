import os
import sys
import time

sys.path.insert(0, os.path.join(os.getcwd(), "python"))
import torch

import torch_lazy

print(torch.__version__, torch_lazy._C.real_device())
try:
    exec(open("scratch/t3.py").read())
except Exception:
    import traceback; traceback.print_exc()
REAL=torch_lazy._C.real_device()
import torch.nn as nn


def run(dev, steps=5):
    torch.manual_seed(0)
    m = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Flatten(),
        nn.Linear(8 * 8 * 8, 32),
        nn.LayerNorm(32),
        nn.GELU(),
        nn.Linear(32, 10),
    ).to(dev)
    opt = torch.optim.AdamW(m.parameters(), lr=1e-3)
    out = []
    for i in range(steps):
        x = torch.randn(4, 3, 8, 8).to(dev)
        y = torch.randint(0, 10, (4,)).to(dev)
        loss = nn.functional.cross_entropy(m(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        out.append(loss.detach())
    return [o.item() for o in out]


print(run(REAL))
print(run("lazy"))
from transformers import GPT2Config, GPT2LMHeadModel

cfg = GPT2Config(
    vocab_size=512,
    n_positions=128,
    n_embd=256,
    n_layer=4,
    n_head=8,
    resid_pdrop=0.0,
    embd_pdrop=0.0,
    attn_pdrop=0.0,
)


def gpt(dev):
    torch.manual_seed(0)
    m = GPT2LMHeadModel(cfg).to(dev)
    opt = torch.optim.AdamW(m.parameters(), lr=1e-3)
    x = torch.randint(0, 512, (4, 128)).to(dev)
    ls = []
    t = []
    for _ in range(10):
        s = time.perf_counter()
        opt.zero_grad()
        loss = m(input_ids=x, labels=x).loss
        loss.backward()
        opt.step()
        ls.append(loss.detach())
        torch.cuda.is_available() and torch.cuda.synchronize()
        t.append(time.perf_counter() - s)
    return [l.item() for l in ls], sorted(t)[len(t) // 2] * 1e3


print(gpt(REAL))
print(gpt("lazy"))
print(torch_lazy.metrics.fallbacks())
