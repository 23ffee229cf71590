"""torch-lazy in the place of PyTorch's lazy tensors: torch._lazy, unchanged, and its bindings."""

import importlib.metadata
import os
import pathlib
import subprocess
import sys

import pytest
from comparing import DEVICE

if DEVICE.type != "lazy":
    pytest.skip("these are about the device lazy", allow_module_level=True)

from lazy_names import IS_DROP_IN, run_program

if IS_DROP_IN:
    pytest.skip("this file puts torch-lazy in place itself", allow_module_level=True)

HERE = pathlib.Path(__file__).parent

IS_INSTALLED = any(
    point.name == "torch_lazy" for point in importlib.metadata.entry_points(group="torch.backends")
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "file",
    [
        "test_closures.py",
        "test_extract_compiled_graph.py",
        "test_ir_cache.py",
        "test_lazy_api.py",
        "test_upstream.py",
    ],
)
def test_pytorchs_names_pass_the_same_tests(file):
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / file)],
        env={**os.environ, "TORCH_LAZY_DROP_IN": "1"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert " passed" in result.stdout


def test_every_binding_is_replaced_and_put_back():
    run_program("""
import torch, torch_lazy

def functions():
    return {
        f"{module.__name__}.{name}": getattr(module, name)
        for module in (torch._C._lazy, torch._C._lazy_ts_backend)
        for name in dir(module)
        if not name.startswith("__")
    }

guarded = functions()
torch_lazy.undo_patches()
stock = functions()
torch_lazy.patches.apply()
assert len(stock) == 24
torch_lazy.install_as_torch_lazy()
ours = functions()
assert list(ours) == list(stock)
assert all(ours[name] is not stock[name] for name in stock)
assert ours["torch._C._lazy._mark_step"] is torch_lazy._C._lazy._mark_step
torch_lazy.install_as_torch_lazy()  # once is enough
assert functions() == ours
torch_lazy.undo_patches()
assert functions() == stock
torch_lazy.patches.apply()
assert [n for n in stock if functions()[n] is not stock[n]] == ["torch._C._lazy_ts_backend._init"]
torch_lazy.install_as_torch_lazy()
assert functions() == ours
""")


PROGRAM = """
import torch
import torch._lazy
import torch._lazy.metrics
import torch._lazy.ts_backend

torch._lazy.ts_backend.init()
torch._lazy.ts_backend.init()
assert torch._lazy.metrics.counter_names() == []

def train(device):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    model = model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = model(torch.randn(3, 4).to(device)).square().mean()
        loss.backward()
        optimizer.step()
        if device == "lazy":
            torch._lazy.add_step_closure(lambda loss: losses.append(loss.item()), (loss.detach(),))
            torch._lazy.mark_step()
        else:
            losses.append(loss.item())
    state = model.state_dict()
    return losses, torch._lazy.to_cpu(state) if device == "lazy" else state

(losses, state), (expected_losses, expected_state) = train("lazy"), train("cpu")
assert losses == expected_losses
assert all(torch.equal(state[name], expected_state[name]) for name in expected_state)
assert torch._lazy.metrics.counter_value("MarkStep") >= 4
torch._lazy.wait_device_ops()
"""


@pytest.mark.parametrize(
    "first_line",
    [
        "import torch_lazy; torch_lazy.install_as_torch_lazy()",
        "import os; os.environ['TORCH_LAZY_DROP_IN'] = '1'; import torch_lazy",
        pytest.param(
            "import os; os.environ['TORCH_LAZY_DROP_IN'] = '1'",
            marks=pytest.mark.skipif(not IS_INSTALLED, reason="needs the entry point"),
        ),
    ],
    ids=["by a call", "by the setting", "by the setting, torch alone"],
)
def test_an_unchanged_program(first_line):
    run_program(first_line + "\n" + PROGRAM)


def test_pytorchs_backend_cannot_start_beside_torch_lazy():
    """It would take the device's operators away."""
    run_program("""
import torch, torch_lazy, torch._lazy.ts_backend
try:
    torch._lazy.ts_backend.init()
except RuntimeError as error:
    assert "install_as_torch_lazy" in str(error)
else:
    raise SystemExit("no error")
assert (torch.ones(2, device="lazy") + 1).tolist() == [2, 2]
torch_lazy.install_as_torch_lazy()
torch._lazy.ts_backend.init()
assert (torch.ones(2, device="lazy") + 1).tolist() == [2, 2]
""")


def test_closures_of_both_names_are_the_same():
    run_program("""
import torch, torch_lazy
torch_lazy.install_as_torch_lazy()
import torch._lazy
ran = []
torch._lazy.add_step_closure(ran.append, (1,))
torch_lazy.add_step_closure(ran.append, (2,))
torch_lazy.mark_step()
assert ran == [1, 2]
torch_lazy.add_step_closure(ran.append, (3,))
torch._lazy.mark_step()
assert ran == [1, 2, 3]
assert torch._lazy.device_context.get_device_context() is (
    torch_lazy.device_context.get_device_context()
)
""")


def test_pytorchs_test_tools_start_the_device():
    run_program("""
import torch, torch_lazy
torch_lazy.install_as_torch_lazy()
from torch.testing._internal.common_device_type import LazyTestBase
LazyTestBase.setUpClass()
assert torch.ones(1, device=LazyTestBase.get_primary_device()).item() == 1
""")


def test_resetting_a_storage_is_harmless():
    run_program("""
import torch, torch_lazy
torch_lazy.install_as_torch_lazy()
x = torch.ones(2, device="lazy") + 1
torch._C._unsafe_reset_storage(x)
assert x.tolist() == [2, 2]
""")
