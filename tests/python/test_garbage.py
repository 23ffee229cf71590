"""What was there before torch.compile works is set aside from the garbage collector, and back."""

import gc
import subprocess
import sys

import pytest
import torch
from torch import nn

from torch_lazy import garbage


class Same(nn.Module):
    def forward(self, x):
        return torch.ops.torch_lazy_test_garbage.same(x)


@pytest.fixture
def counts():
    """Objects set aside when an operator is asked for its shape: first while it is traced."""
    seen = []

    def shape(x):
        seen.append(gc.get_freeze_count())
        if x.dim() == 0:
            raise ValueError("no shape")
        return torch.empty_like(x)

    library = torch.library.Library("torch_lazy_test_garbage", "FRAGMENT")
    library.define("same(Tensor x) -> Tensor")
    library.impl("same", shape, "Meta")
    library.impl("same", lambda x: x.clone(), "CPU")
    torch._dynamo.reset()
    garbage.watch_compilations()
    yield seen
    library._destroy()
    torch._dynamo.reset()


def test_what_was_there_is_set_aside_while_a_function_is_compiled(counts):
    torch.compile(Same(), backend="torch_lazy")(torch.ones(2))
    assert counts[0] > 0
    assert gc.get_freeze_count() == 0


def test_a_compilation_that_fails_takes_it_back(counts):
    with pytest.raises(Exception, match="no shape"):
        torch.compile(Same(), backend="torch_lazy")(torch.tensor(1.0))
    assert counts[0] > 0
    assert gc.get_freeze_count() == 0


def test_after_a_reset_it_goes_on_with_the_next_graph(counts):
    torch._dynamo.reset()
    torch.compile(Same(), backend="torch_lazy")(torch.ones(2))
    assert counts[0] == 0
    counts.clear()
    torch.compile(Same(), backend="torch_lazy")(torch.ones(2, 3))
    assert counts[0] > 0
    assert gc.get_freeze_count() == 0


def test_what_the_program_has_set_aside_stays_there(counts):
    gc.freeze()
    try:
        torch.compile(Same(), backend="torch_lazy")(torch.ones(2))
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()


@pytest.mark.parametrize("chosen", [False, True])
def test_other_backends_are_left_alone_until_this_one_is_chosen(chosen):
    code = f"""
import gc
import torch

def backend(module, inputs):
    assert (gc.get_freeze_count() > 0) is {chosen}
    return module

if {chosen}:
    torch.compile(lambda x: x, backend="torch_lazy")
torch.compile(lambda x: x + 1, backend=backend)(torch.ones(2))
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
