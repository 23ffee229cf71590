"""What PyTorch's own tests of its lazy tensors ask for, in our words, and where torch-lazy does it
otherwise on purpose, what it does. Closures, reuse and extraction have files of their own.
"""

import contextlib
import functools
import pathlib
import re
import warnings

import pytest
import torch
from comparing import DEVICE, Copier
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

if DEVICE.type != "lazy":
    pytest.skip("these are about the device lazy", allow_module_level=True)

from lazy_names import (
    IS_DROP_IN,
    bindings,
    config,
    count,
    ir_cache,
    lazy,
    metrics,
    run_program,
    ts_bindings,
)

import torch_lazy

pytestmark = pytest.mark.usefixtures("nothing_pending")


# ---- Counters and reports ------------------------------------------------------------------------


def test_importing_counts_nothing():
    assert run_program("from lazy_names import metrics; print(metrics.counter_names())") == "[]\n"


SAVING_PROGRAM = """
import os, sys
import torch
from lazy_names import lazy

def run_linear():
    model = torch.nn.Linear(5, 5).to("lazy")
    output = model(torch.randn(1, 5).to("lazy"))
    lazy.mark_step()

def asks_for_frames():
    os.environ["LTC_SAVE_TENSORS_FILE"] = sys.argv[1]
    run_linear()

asks_for_frames()
"""


def test_b41_saved_graphs_show_who_asked_for_them(tmp_path):
    """The variable is set by the program, before the first sync; frames come innermost first."""
    program, saved = tmp_path / "program.py", tmp_path / "graphs.txt"
    program.write_text(SAVING_PROGRAM)
    run_program(program, saved)
    text = saved.read_text()
    mark_step = r"mark_step \(.*/_lazy/__init__.py" if IS_DROP_IN else r"mark_step \(.*/step.py"
    frames = (
        rf"Python Stacktrace:.*{mark_step}:\d+\).*"
        r"run_linear \(.*program.py:9\).*asks_for_frames \(.*program.py:13\)"
    )
    assert re.search(frames, text, re.DOTALL), text
    assert text.startswith("[ScheduleSyncTensorsGraph]\n")
    assert re.search(r"\nHashes: \([0-9a-f]+\)\n", text)
    graph = text[text.index("## BEGIN_GRAPH") : text.index("## END_GRAPH")]
    assert "aten::addmm" in graph or "aten::linear" in graph


def test_b41_every_sync_saves_its_graph(tmp_path):
    saved = tmp_path / "graphs.txt"
    run_program(
        "import torch\n"
        "from lazy_names import lazy\n"
        "a = torch.ones(2).to('lazy')\n"
        "for _ in range(3):\n"
        "    x = a + 1\n"
        "    lazy.mark_step()\n"
        "lazy.sync_multi([a * 2], [])\n",
        LTC_SAVE_TENSORS_FILE=str(saved),
        LTC_SAVE_TENSORS_FMT="dot",
    )
    text = saved.read_text()
    assert text.count("[ScheduleSyncTensorsGraph]") == 4
    assert text.count("digraph G {") == 4
    assert text.count("aten::add") == 3


# ---- Types are known while recording -------------------------------------------------------------


def test_types_that_do_not_go_together_are_refused_at_once():
    x = torch.ones(2, 2, dtype=torch.float16).to("lazy")
    layer = torch.nn.Linear(2, 2, bias=False, dtype=torch.float32).to("lazy")
    with pytest.raises(RuntimeError, match="dtype"):
        layer(x)


@pytest.mark.parametrize("bias", [False, True])
def test_a_result_has_its_type_before_its_value(bias):
    x = torch.ones(2, 2, dtype=torch.float16).to("lazy")
    result = torch.nn.Linear(2, 2, bias=bias, dtype=torch.float16).to("lazy")(x)
    assert result.dtype == torch.float16
    assert torch_lazy.debug.is_pending(result)


def test_cpu_and_lazy_do_not_mix():
    with pytest.raises(RuntimeError, match="not a lazy tensor"):
        torch.tensor([1], device="cpu") + torch.tensor([1], device="lazy")


# ---- Random numbers ------------------------------------------------------------------------------


def test_generators_give_the_numbers_of_the_cpu():
    """A generator of one's own is what counts, whatever the global seed is."""

    def draw():
        first, second = torch.Generator().manual_seed(2023), torch.Generator().manual_seed(2024)
        return (
            torch.tensor(1.0).uniform_(generator=first),
            torch.tensor(1.0).normal_(generator=second),
        )

    torch.manual_seed(1)
    expected = draw()
    torch.manual_seed(2)
    with torch.device("lazy"):
        drawn = draw()
    lazy.mark_step()
    assert all(t.device.type == "lazy" for t in drawn)
    assert [t.item() for t in drawn] == [t.item() for t in expected]


def test_seeds_do_not_recompile():
    """On purpose unlike PyTorch, which compiles for every new seed and shows the generator in the
    graph: the numbers are drawn while recording, and are data."""

    def draw(seed, device):
        t = torch.tensor(1.0, device=device)
        t.uniform_(-1, 1, generator=torch.Generator().manual_seed(seed))
        return t * 2

    for i, seed in enumerate((1, 2, 1)):
        x = draw(seed, "lazy")
        lazy.mark_step(wait=True)
        assert (count("UncachedCompile"), count("CachedCompile")) == (1, i)
        assert x.item() == draw(seed, "cpu").item()
    graph = ts_bindings._get_latest_computation_graph()
    assert "aten::mul" in graph
    assert "Generator" not in graph


# ---- Views ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("reset_storage", [False, True])
def test_a_model_made_on_the_device_has_no_second_tensors(reset_storage):
    """On purpose unlike PyTorch, which syncs two tensors unless the storage is reset: a view and
    its base are one buffer here, and there is nothing to reset."""
    if reset_storage and not IS_DROP_IN:
        pytest.skip("torch._C._unsafe_reset_storage is for torch._lazy's tensors")

    def run(device):
        with torch.device(device):
            layer = torch.nn.Linear(4, 2, bias=False)
            torch.nn.init.constant_(layer.weight, 0.5)
            if device == "lazy":
                if reset_storage:
                    torch._C._unsafe_reset_storage(layer.weight)
                lazy.mark_step(wait=True)
                assert count("SyncedTensorsWithIR") == 1
            return torch.ones(4) @ layer.weight.transpose(0, 1)

    assert torch.equal(run("lazy").cpu(), run("cpu"))


def test_a_model_made_on_the_device_has_the_weights_of_the_cpu():
    """Its random numbers are drawn at once: there is nothing left to compute."""

    def weights(device):
        torch.manual_seed(2023)
        with torch.device(device):
            return torch.nn.Linear(4, 2).weight.detach()

    ours = weights("lazy")
    assert not torch_lazy.debug.is_pending(ours)
    assert torch.equal(ours.cpu(), weights("cpu"))


def test_views_stay_views_over_a_step():
    def run(x, mark_step):
        y = x.view(2, 2)
        y.add_(1)
        z = x + x
        mark_step()
        y.add_(1)
        return x, z

    x = torch.rand(4)
    ours = run(x.clone().to("lazy"), lazy.mark_step)
    expected = run(x.clone(), lambda: None)
    assert [t.tolist() for t in ours] == [t.tolist() for t in expected]


def test_a_view_of_a_new_tensor():
    x = torch.tensor([[1, 2, 3, 4, 5]], device="lazy").view(-1)
    assert x.tolist() == [1, 2, 3, 4, 5]
    assert x.shape == (5,)


# ---- Operators -----------------------------------------------------------------------------------


@functools.cache
def kernels():
    """Functions that are kernels of PyTorch's lazy tensors, as its own header lists them."""
    include = pathlib.Path(torch.__file__).parent / "include" / "torch" / "csrc" / "lazy"
    header = (include / "generated" / "LazyNativeFunctions.h").read_text()
    return set(re.findall(r"^static .*?\b(\w+)\(", header, re.MULTILINE))


OPERATORS = [
    op
    for op in op_db
    if kernels() & {op.name, f"{op.name}_symint"} and torch.float in op.supported_dtypes("cpu")
]
NOT_COMPUTED = {"new_empty_strided", "empty_strided", "empty"}  # whatever was in memory
NOT_RECORDED = {"empty_strided", "empty"}
EXECUTED = {
    "nonzero": "aten::nonzero",  # its size is in the data
    "bernoulli": "aten::bernoulli_",  # numbers are drawn while recording, from data here
}
RECORDED_AS = {"svd": "_linalg_svd", "norm_nuc": "_linalg_svd", "logdet": "_linalg_slogdet"}


def test_the_list_of_operators_is_found():
    assert len(kernels()) > 150
    assert len(OPERATORS) > 100


def samples_of(op, limit):
    torch.manual_seed(42)
    samples = list(op.sample_inputs("cpu", torch.float, requires_grad=False))
    return samples[:: max(1, len(samples) // limit)][:limit]


def call(op, sample, device):
    """Functions that get no tensor make one on the default device."""
    has_tensors = any(isinstance(x, torch.Tensor) for x in pytree.tree_leaves(sample))
    default = contextlib.nullcontext() if has_tensors else torch.device(device)
    torch.manual_seed(7)
    with warnings.catch_warnings(), default:
        warnings.simplefilter("ignore")
        return op(sample[0], *sample[1], **sample[2])


@pytest.fixture
def mark_step_for_torch_testing(monkeypatch):
    """PyTorch's database calls torch._lazy.mark_step() after random operators on lazy."""
    if not IS_DROP_IN:
        monkeypatch.setattr(torch, "_lazy", torch_lazy, raising=False)


def name_of(op):
    return op.formatted_name


@pytest.mark.usefixtures("mark_step_for_torch_testing")
@pytest.mark.parametrize("reuse_ir", [False, True], ids=["new", "reused"])
@pytest.mark.parametrize("op", OPERATORS, ids=name_of)
def test_operators_give_eagers_values(op, reuse_ir):
    with torch_lazy.config.override(reuse_ir=reuse_ir):
        for sample in samples_of(op, limit=5):
            sample = (sample.input, sample.args, sample.kwargs)
            lazy.mark_step()
            ours = Copier("lazy")(sample)
            expected, actual = call(op, sample, "cpu"), call(op, ours, "lazy")
            lazy.mark_step()
            leaves = [t for t in pytree.tree_leaves(expected) if isinstance(t, torch.Tensor)]
            results = [t for t in pytree.tree_leaves(actual) if isinstance(t, torch.Tensor)]
            assert len(results) == len(leaves)
            for got, wanted in zip(results, leaves, strict=True):
                assert got.device.type == "lazy"
                if op.name in NOT_COMPUTED:
                    assert (got.shape, got.stride()) == (wanted.shape, wanted.stride())
                else:
                    torch.testing.assert_close(got.cpu(), wanted, rtol=0, atol=1e-4, equal_nan=True)
    ir_cache.reset()


@pytest.mark.usefixtures("mark_step_for_torch_testing")
@pytest.mark.parametrize("op", OPERATORS, ids=name_of)
def test_operators_are_recorded(op):
    """Of the operators that PyTorch's lazy tensors record, only those that need data are executed
    at once here; the others are counted under PyTorch's names. clamp is recorded too, where
    PyTorch's test wants it executed."""
    (sample,) = samples_of(op, limit=1)
    ours = Copier("lazy")((sample.input, sample.args, sample.kwargs))
    call(op, ours, "lazy")  # a call that was never seen may be executed, to see how results lie
    lazy.mark_step(wait=True)
    metrics.reset()
    result = call(op, ours, "lazy")
    names = {name.split(".")[0] for name in metrics.counter_names()}
    executed = {name for name in names if name.startswith("aten::")}
    assert executed == ({EXECUTED[op.name]} if op.name in EXECUTED else set())
    if op.name not in EXECUTED and op.name not in NOT_RECORDED:
        suffix = "_symint" if f"{op.name}_symint" in kernels() else ""
        counted_as = RECORDED_AS.get(op.formatted_name, op.name + suffix)
        aliases = {f"lazy::{alias.name}" for alias in op.aliases}
        assert names & {f"lazy::{counted_as}", *aliases}
    lazy.mark_step(wait=True)
    assert result is not None


def test_counters_have_pytorchs_names():
    """`lazy::` and the name of the function without its overload; in-place calls count alike."""
    a = torch.ones(2, 2).to("lazy")
    metrics.reset()
    x = (a + a).mul_(2).relu().sum()
    names = {name for name in metrics.counter_names() if name.startswith("lazy::")}
    assert names == {"lazy::add", "lazy::mul", "lazy::relu", "lazy::sum"}
    assert x.item() == 16


# ---- Dynamic shapes ------------------------------------------------------------------------------


@pytest.fixture
def symbolic_mode():
    before = bindings._get_symbolic_shape_mode()
    bindings._set_symbolic_shape_mode(True)
    yield
    bindings._set_symbolic_shape_mode(before)


def test_nonzero_has_its_true_size_in_the_end(symbolic_mode):
    x = torch.tensor([[0, 1.0, 2.0], [3.0, 0, 0]], requires_grad=True).to("lazy")
    result = torch.nonzero(x).cpu()
    assert result.shape == (3, 2)
    assert result.tolist() == [[0, 1], [0, 2], [1, 0]]


def test_pooling_to_a_size(symbolic_mode):
    pool = torch.nn.AdaptiveAvgPool3d(2)
    x = torch.rand(2, 3, 4, 5, 6)
    result = pool.to("lazy")(x.to("lazy"))
    assert result.shape == (2, 3, 2, 2, 2)
    torch.testing.assert_close(result.cpu(), pool(x))


# ---- Training ------------------------------------------------------------------------------------


def test_repeated_training_steps_hit_the_cache():
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 10)
    ).to("lazy")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    compiled = []
    for _ in range(5):
        optimizer.zero_grad(set_to_none=True)
        target = torch.randint(10, (2,)).to("lazy")
        loss = torch.nn.functional.cross_entropy(model(torch.rand(2, 1, 8, 8).to("lazy")), target)
        loss.backward()
        optimizer.step()
        lazy.mark_step()
        compiled.append(count("UncachedCompile"))
    assert compiled[1] == compiled[-1]  # the second step still makes the momentum buffers
    assert count("CachedCompile") >= 3
    assert config.get_force_fallback() == ""
