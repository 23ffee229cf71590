"""The package around the core: importing, torch.lazy, steps, settings, patches, torch.compile."""

import ast
import importlib.metadata
import os
import pathlib
import subprocess
import sys

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import torch_lazy
from torch_lazy import config, debug, metrics, patches

# ---- Importing -----------------------------------------------------------------------------------

IS_INSTALLED = any(
    point.name == "torch_lazy" for point in importlib.metadata.entry_points(group="torch.backends")
)


@pytest.mark.parametrize(
    ("autoload", "program"),
    [
        pytest.param(
            "1",
            "import torch; assert torch.ones(1, device='lazy').item() == 1",
            marks=pytest.mark.skipif(not IS_INSTALLED, reason="needs the entry point"),
        ),
        ("1", "import torch_lazy, torch; assert torch.ones(1, device='lazy').item() == 1"),
        (
            "0",
            "import sys, torch; assert 'torch_lazy' not in sys.modules\n"
            "import torch_lazy; assert torch.ones(1, device='lazy').item() == 1",
        ),
    ],
    ids=["torch alone", "torch_lazy first", "without autoload"],
)
def test_import(autoload, program):
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": autoload}
    subprocess.run([sys.executable, "-W", "error", "-c", program], env=environment, check=True)


def test_public_names():
    for name in torch_lazy.__all__:
        assert hasattr(torch_lazy, name), name
    assert os.path.isabs(torch_lazy.cmake_prefix_path)
    assert all(os.path.isabs(path) for path in torch_lazy.include_paths())
    if IS_INSTALLED:
        assert torch_lazy.__version__ == importlib.metadata.version("torch-lazy")
    with pytest.raises(AttributeError, match="nothing_like_this"):
        torch_lazy.nothing_like_this  # noqa: B018


def test_stubs_name_everything_compiled():
    stubs = pathlib.Path(torch_lazy.__file__).with_name("_C.pyi").read_text()
    named = [n for n in ast.parse(stubs).body if isinstance(n, (ast.FunctionDef, ast.ClassDef))]
    stubbed = {node.name for node in named if not node.name.startswith("_")}
    assert stubbed == {name for name in vars(torch_lazy._C) if not name.startswith("_")}


# ---- The device module ---------------------------------------------------------------------------


def test_device_module():
    assert torch.get_device_module("lazy") is torch.lazy
    assert torch.lazy.is_available()
    assert torch.lazy.is_initialized()
    assert (torch.lazy.device_count(), torch.lazy.current_device()) == (1, 0)
    torch.lazy.set_device(0)
    torch.lazy.set_device("lazy:0")
    with torch.lazy.device(torch.device("lazy")):
        pass
    with pytest.raises(RuntimeError, match="no device lazy:3"):
        torch.lazy.set_device(3)
    with pytest.raises(ValueError, match="expected a lazy device"):
        torch.lazy.set_device("cpu")
    assert torch.lazy.real_device().type in ("cpu", "cuda")
    properties = torch.lazy.get_device_properties("lazy")
    assert properties.name == torch.lazy.get_device_name(0)
    assert properties.total_memory > 0
    assert torch.bfloat16 in torch.lazy.get_amp_supported_dtype()


def test_synchronize_runs_what_is_recorded():
    x = torch.ones(4, device="lazy") + 1
    assert debug.is_pending(x)
    torch.lazy.synchronize()
    assert not debug.is_pending(x)
    assert debug.pending_nodes() == 0


def test_random_state():
    torch.manual_seed(3)
    expected = torch.randn(4)
    torch.lazy.manual_seed(3)
    state = torch.lazy.get_rng_state()
    assert torch.equal(torch.randn(4, device="lazy").cpu(), expected)
    torch.lazy.set_rng_state(state)
    assert torch.equal(torch.randn(4, device="lazy").cpu(), expected)
    assert torch.lazy.initial_seed() == 3
    with torch.random.fork_rng(device_type="lazy"):
        first = torch.randn(2, device="lazy").cpu()
    assert torch.equal(torch.randn(2, device="lazy").cpu(), first)


def test_memory():
    torch.lazy.synchronize()
    before = torch.lazy.memory_allocated()
    x = torch.ones(1 << 20, device="lazy")
    torch.lazy.synchronize()
    assert torch.lazy.memory_allocated() - before == 4 << 20
    assert torch.lazy.max_memory_allocated() >= 4 << 20
    del x
    torch.lazy.synchronize()
    assert torch.lazy.memory_allocated() == before
    torch.lazy.reset_peak_memory_stats()
    assert torch.lazy.max_memory_allocated() == before
    assert torch.lazy.memory_stats()["allocated_bytes.all.current"] == before
    torch.lazy.empty_cache()


def test_streams_and_events():
    start, end = (torch.lazy.Event(enable_timing=True) for _ in range(2))
    start.record()
    with torch.lazy.stream(torch.lazy.Stream()):
        x = torch.ones(4, device="lazy") + 1
    end.record(torch.lazy.current_stream())
    assert not debug.is_pending(x)
    assert start.elapsed_time(end) > 0
    y = x + 1
    event = torch.lazy.current_stream().record_event()
    assert not event.query()
    event.synchronize()
    assert event.query()
    assert not debug.is_pending(y)
    with pytest.raises(RuntimeError, match="enable_timing"):
        start.elapsed_time(torch.lazy.Event())


# ---- Steps ---------------------------------------------------------------------------------------


def test_sync_of_given_tensors():
    x, y = torch.ones(2, device="lazy") + 1, torch.ones(2, device="lazy") + 2
    torch_lazy.sync([x, torch.ones(2)])
    assert not debug.is_pending(x)
    assert debug.is_pending(y)
    torch_lazy.sync()
    assert not debug.is_pending(y)


def test_mark_step():
    x = torch.ones(2, device="lazy") + 1
    steps = metrics.counter_value("MarkStep") or 0
    torch_lazy.mark_step()
    assert not debug.is_pending(x)
    torch_lazy.mark_step("lazy:0", wait=True)
    assert metrics.counter_value("MarkStep") == steps + 2
    torch_lazy.wait_device_ops()
    with pytest.raises(RuntimeError, match="cpu"):
        torch_lazy.mark_step("cpu")


def train_step(device):
    layer = torch.nn.Linear(2, 2).to(device)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    layer(torch.ones(1, 2, device=device)).sum().backward()
    optimizer.step()
    return layer


def test_optimizer_ends_the_step():
    assert not debug.is_pending(train_step("lazy").weight)
    with config.override(step_on_optimizer=False):
        assert debug.is_pending(train_step("lazy").weight)
    steps = metrics.counter_value("MarkStep")
    train_step("cpu")
    assert metrics.counter_value("MarkStep") == steps


# ---- Settings, metrics, graphs -------------------------------------------------------------------


def test_settings():
    names = {row.name for row in config.table()}
    assert "TORCH_LAZY_STEP_ON_OPTIMIZER" in names
    before = config.get("max_nodes")
    with config.override(max_nodes=123, check=False):
        assert config.get("TORCH_LAZY_MAX_NODES") == "123"
    assert config.get("max_nodes") == before
    with pytest.raises(ValueError, match="no setting"):
        config.set("no_such_setting", 1)
    with pytest.raises(ValueError, match="whole number"), config.override(max_nodes="many"):
        pass


def test_metrics():
    metrics.reset()
    x = torch.ones(3, device="lazy") + 1
    x.nonzero()
    assert metrics.counter_value("lazy::add") == 1
    assert metrics.counter_value("nothing") is None
    assert metrics.counters()["lazy::add"] == 1
    assert "lazy::add" in metrics.metrics_report()
    (fallback,) = metrics.fallbacks()
    assert (fallback.operator, fallback.count) == ("aten::nonzero", 1)
    assert "test_package.py" in fallback.source


def test_graphs(tmp_path):
    x = torch.ones(3, device="lazy") + 1
    assert "add" in debug.graph_text(x)
    assert debug.graph_dot([x]).startswith("digraph")
    debug.save_graph(x, tmp_path / "graph.dot")
    debug.save_graph(x, tmp_path / "graph.txt")
    assert (tmp_path / "graph.dot").read_text().startswith("digraph")
    assert debug.tensor_id(x) == debug.tensor_id(x[:1])
    assert debug.tensor_id(x) != debug.tensor_id(x.clone())


def test_drawing_says_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="Graphviz"):
        debug.save_graph(torch.ones(1, device="lazy"), tmp_path / "graph.svg")


# ---- Other libraries' arrays ---------------------------------------------------------------------


def test_numpy_is_refused_as_eager_refuses():
    with pytest.raises(TypeError, match="can't convert lazy:0 device type tensor to numpy"):
        torch.ones(2, device="lazy").numpy()


def test_dlpack():
    x = torch.arange(3.0).to("lazy") + 1
    assert torch.from_dlpack(torch_lazy.to_dlpack(x)).tolist() == [1, 2, 3]
    if torch.lazy.real_device().type == "cpu":
        source = torch.arange(3.0)
        lazy = torch_lazy.from_dlpack(source)
        assert lazy.device.type == "lazy"
        assert (lazy + 1).tolist() == [1, 2, 3]
        assert torch_lazy._C.to_real(lazy).data_ptr() == source.data_ptr()
    with pytest.raises(TypeError, match="device lazy"):
        torch_lazy.to_dlpack(torch.ones(2))


# ---- Patches -------------------------------------------------------------------------------------


def test_patches_are_undone_and_applied_again():
    def state():
        return (
            torch.is_autocast_enabled,
            torch._C.clear_autocast_cache,
            torch.Tensor.__deepcopy__,
            torch.storage.TypedStorage.__reduce__,
            torch.UntypedStorage.__new__,
            torch.utils._foreach_utils._get_foreach_kernels_supported_devices(),
            len(torch.serialization._package_registry),
        )

    patched = state()
    patches.apply()  # once is enough
    assert state() == patched
    torch_lazy.undo_patches()
    try:
        plain = state()
        assert all(a != b for a, b in zip(patched, plain, strict=True))
        assert torch.UntypedStorage([1, 2]).tolist() == [1, 2]
        assert (torch.ones(2, device="lazy") + 1).tolist() == [2, 2]
    finally:
        patches.apply()
    assert state()[-2:] == patched[-2:]


def test_a_missing_patch_point_is_a_warning(monkeypatch):
    torch_lazy.undo_patches()
    try:
        with monkeypatch.context() as context:
            context.setattr(patches, "PATCHES", (patches.autocast_state, missing))
            with pytest.warns(UserWarning, match="missing applies.*Not available now: Something"):
                patches.apply()
        assert torch.amp.is_autocast_available("lazy")
    finally:
        torch_lazy.undo_patches()
        patches.apply()


def missing():
    """Something."""
    patches._replace(torch, "no_such_function_in_torch", lambda original: original)


def product_in_region(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return x @ x


def type_outside_of_a_region(x):
    return x.double() if torch.is_autocast_enabled() else x


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_patches_do_not_disturb_torchscript():
    x = torch.ones(2, 2)
    assert torch.jit.script(product_in_region)(x).dtype == torch.bfloat16
    assert torch.jit.script(type_outside_of_a_region)(x).dtype == torch.float32


def trained(device, **options):
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)).to(device)
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.1, **options)
    for _ in range(3):
        optimizer.zero_grad()
        network(torch.randn(2, 4).to(device)).square().sum().backward()
        optimizer.step()
    return torch.cat([p.detach().cpu().flatten() for p in network.parameters()])


@pytest.mark.parametrize("option", ["foreach", "fused", "capturable"])
def test_optimizer_implementations(option):
    torch.testing.assert_close(trained("lazy", **{option: True}), trained("cpu"))


def test_foreach_is_the_default():
    metrics.reset()
    trained("lazy")
    assert any(name.startswith("lazy::_foreach") for name in metrics.counter_names())


# ---- torch.compile and checkpointing -------------------------------------------------------------


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compile(backend):
    torch._dynamo.reset()

    def function(x, weight):
        zeros = torch.zeros(3, device="lazy")  # no index, as users write it
        return torch.relu(x @ weight + zeros).sum(0)

    compiled = torch.compile(function, backend=backend, fullgraph=True)
    for rows in (2, 2, 5):
        x = torch.randn(rows, 3)
        weight = torch.randn(3, 3)
        gradients = []
        for device, f in (("lazy", compiled), ("cpu", lambda x, w: torch.relu(x @ w).sum(0))):
            w = weight.to(device).requires_grad_()
            f(x.to(device), w).sum().backward()
            gradients.append(w.grad.cpu())
        torch.testing.assert_close(*gradients)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0


def test_compile_of_an_optimizer():
    torch._dynamo.reset()
    for device in ("cpu", "lazy"):
        layer = torch.nn.Linear(2, 2).to(device)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        layer(torch.ones(1, 2, device=device)).sum().backward()
        before = layer.bias.tolist()
        torch.compile(optimizer.step, backend="eager")()
        assert layer.bias.tolist() == pytest.approx([b - 0.1 for b in before])


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("autocast", [True, False])
def test_checkpoint(reentrant, autocast):
    def run(device):
        torch.manual_seed(0)
        block = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5)).to(device)
        x = torch.randn(3, 4).to(device).requires_grad_()
        with torch.autocast(device, dtype=torch.bfloat16, enabled=autocast):
            y = checkpoint(block, x, use_reentrant=reentrant)
        y.float().square().sum().backward()
        return x.grad.cpu(), block[0].weight.grad.cpu(), torch.rand(1)

    for got, expected in zip(run("lazy"), run("cpu"), strict=True):
        assert torch.equal(got, expected)


def test_default_device():
    with torch.device("lazy"):
        layer = torch.nn.Linear(2, 2)
        assert layer.weight.device.type == "lazy"
        assert layer(torch.ones(1, 2)).device.type == "lazy"
