"""Training steps of the models of test_models.py, compiled: recorded, replayed, same as eager."""

import copy
import functools

import pytest
import torch
from comparing import COMPILED, replayed
from test_models import AMPLIFYING, DATA_DEPENDENT, MODELS

import torch_lazy

STEPS = 7
OPTIMIZERS = {
    "adamw": functools.partial(torch.optim.AdamW, lr=2e-3, weight_decay=0.01),
    "fused": functools.partial(torch.optim.AdamW, lr=2e-3, weight_decay=0.01, fused=True),
    "momentum": functools.partial(torch.optim.SGD, lr=1e-2, momentum=0.9),
}

# What they compute or draw decides what they do next: these are not replayed.
CUT = DATA_DEPENDENT | {"bart", "deberta", "opt", "wav2vec2", "whisper"}

# Under torch.compile they leave out a read that only serves to warn or to drop a mask.
SAY_COMPILING = {"bert", "roberta", "distilbert", "electra", "gpt2", "llama", "qwen2", "gpt_neox"}


def train(model, make_optimizer, batches, device, wrap):
    torch.manual_seed(7)
    optimizer = make_optimizer(model.parameters())
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1 + step))

    @wrap
    def step(batch):
        loss = model(**batch).loss
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss, norm

    losses = []
    for batch in batches:
        batch = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in batch.items()}
        losses.append([x.item() for x in step(batch)])
        schedule.step()
    return losses


def check(name, optimizer, record_property):
    model_class, config_class, config, make_batch = MODELS[name]
    torch.manual_seed(0)
    model = model_class(config_class(**config)).train()
    generator = torch.Generator().manual_seed(1)
    batches = [make_batch(generator) for _ in range(STEPS)]
    on_device = copy.deepcopy(model).to("lazy")
    expected = train(model, OPTIMIZERS[optimizer], batches, "cpu", lambda f: f)
    torch_lazy.metrics.reset()
    compiled = torch_lazy.compile(is_compiling=name in SAY_COMPILING)
    actual = train(on_device, OPTIMIZERS[optimizer], batches, "lazy", compiled)
    count = replayed()
    record_property("model", (f"compiled {name}", f"{count} of {STEPS} steps replayed"))
    steps = 1 if COMPILED and name in AMPLIFYING else STEPS
    for one, other in zip(actual[:steps], expected[:steps], strict=True):
        assert one == pytest.approx(other, rel=2e-3)
    assert count >= 2 or name in CUT


@pytest.mark.usefixtures("nothing_pending")
@pytest.mark.filterwarnings("ignore::torch_lazy.CompileWarning")
@pytest.mark.parametrize("name", MODELS)
def test_training(name, record_property):
    # A difference in the last bit, as AdamW's step count in float32 makes, grows by orders there.
    check(name, "momentum" if name in AMPLIFYING else "adamw", record_property)


@pytest.mark.usefixtures("nothing_pending")
@pytest.mark.parametrize("optimizer", ["fused", "momentum"])
@pytest.mark.parametrize("name", ["gpt2", "vit", "t5"])
def test_optimizers(name, optimizer, record_property):
    check(name, optimizer, record_property)
