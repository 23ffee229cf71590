"""Functions and bindings under PyTorch's names for lazy tensors: steps, syncs, ids, transfers,
graphs, hashes, kept computations, settings.
"""

import inspect
import io
import sys
import threading
import time

import pytest
import torch
from comparing import DEVICE

if DEVICE.type != "lazy":
    pytest.skip("these are about the device lazy", allow_module_level=True)

from lazy_names import (
    PACKAGE,
    bindings,
    computation,
    config,
    count,
    debug,
    lazy,
    metrics,
    run_program,
    ts_backend,
    ts_bindings,
)

import torch_lazy

pytestmark = pytest.mark.usefixtures("nothing_pending")


@pytest.fixture
def settings():
    """Puts settings back that a test changes through bindings."""
    names = ("LTC_FORCE_FALLBACK", "TORCH_LAZY_REUSE_IR", "LTC_ENABLE_SYMBOLIC_SHAPES")
    before = {name: torch_lazy.config.get(name) for name in names}
    yield
    for name, value in before.items():
        torch_lazy.config.set(name, value)


def lazy_tensor(*values):
    return torch.tensor(values).to("lazy")


def is_pending(tensor):
    return torch_lazy.debug.is_pending(tensor)


# ---- Waiting and syncing -------------------------------------------------------------------------


def test_b4_waiting_for_nothing_in_particular():
    assert lazy.wait_device_ops() is None
    assert lazy.wait_device_ops(None) is None
    assert lazy.wait_device_ops([]) is None


def test_b5_a_synced_graph_is_compiled_once():
    a = lazy_tensor(1.0, 2.0)
    lazy.sync_multi([a * 3 + 1], [])
    assert (count("UncachedCompile"), count("CachedCompile")) == (1, 0)
    result = a * 3 + 1
    lazy.sync_multi([result], [])
    assert (count("UncachedCompile"), count("CachedCompile")) == (1, 1)
    assert result.tolist() == [4, 7]


def test_sync_multi_runs_only_what_it_is_given():
    x, y = lazy_tensor(1.0) + 1, lazy_tensor(1.0) + 2
    lazy.sync_multi([x], [])
    assert not is_pending(x)
    assert is_pending(y)
    assert lazy.sync_multi([], []) is None
    lazy.sync_multi((y, y), ["lazy"])
    assert not is_pending(y)
    with pytest.raises(TypeError):
        lazy.sync_multi([1.0], [])


def test_b23_sync_drops_tensors_of_other_devices():
    x = lazy_tensor(1.0) + 1
    lazy.sync_multi([torch.ones(2), x, torch.ones(3)], [])
    assert not is_pending(x)
    lazy.sync_multi([torch.ones(2)], [])


def test_b26_defaults_of_sync_multi():
    x = lazy_tensor(1.0) + 1
    assert bindings._sync_multi(tensors=[x], devices=[]) is None
    assert not is_pending(x)
    for name in ("wait", "sync_ltc_data"):
        assert f"{name}: bool = True" in bindings._sync_multi.__doc__


def test_devices_are_not_mixed():
    x, y = torch.ones(2, device="lazy:0") + 1, torch.ones(2, device="lazy:1") + 1
    with pytest.raises(RuntimeError, match=r"'CPU1' vs 'CPU0|'CPU0' vs 'CPU1"):
        lazy.sync_multi([x, y], [])
    lazy.sync_multi([x], [])
    lazy.sync_multi([y], [])
    assert (x.tolist(), y.tolist()) == ([2, 2], [2, 2])


# ---- Steps and devices ---------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["", "lazy", "lazy:0"])
def test_b13_the_empty_name_is_the_default_device(device):
    x = lazy_tensor(1.0) + 1
    lazy.mark_step(device, wait=True)
    assert not is_pending(x)
    assert count("MarkStep") == 1


def test_a_second_device_has_its_own_step():
    x, y = torch.ones(2, device="lazy:0") + 1, torch.ones(2, device="lazy:1") + 1
    lazy.mark_step("lazy:1", wait=True)
    assert is_pending(x)
    assert not is_pending(y)
    assert x.tolist() == [2, 2]


def test_b14_other_devices_are_refused():
    with pytest.raises(RuntimeError, match="cpu"):
        lazy.mark_step("cpu")
    with pytest.raises(RuntimeError, match="no_such_device"):
        lazy.mark_step("no_such_device")
    assert count("MarkStep") == 0


def test_b17_a_step_without_tensors_is_a_step():
    bindings._mark_step(devices=[])
    assert count("MarkStep") == 1
    x = lazy_tensor(1.0) + 1
    bindings._mark_step("", [], True)
    assert not is_pending(x)
    assert count("MarkStep") == 2
    with pytest.raises(TypeError):
        bindings._mark_step("")


def test_b18_devices_to_wait_for_are_only_logged(capfd):
    assert lazy.wait_device_ops(["lazy:0"]) is None
    assert "Non-empty devices are not supported." in capfd.readouterr().err
    lazy.wait_device_ops([])
    assert "Non-empty" not in capfd.readouterr().err


class Ticker:
    """Counts in another thread whenever Python's lock is given up, and only then."""

    def __enter__(self):
        self.ticks = 0
        self.stop = False
        self.interval = sys.getswitchinterval()
        # From here on nobody takes the lock from a running thread. Set before the thread starts:
        # one that already waits for the lock goes on waiting by the interval it began with.
        sys.setswitchinterval(3600)
        self.thread = threading.Thread(target=self.run)
        self.thread.start()
        return self

    def run(self):
        while not self.stop:
            self.ticks += 1
            time.sleep(0)

    def __exit__(self, *exception):
        sys.setswitchinterval(self.interval)
        self.stop = True
        self.thread.join()


def slow_graph():
    """A recorded chain of products that takes a good part of a second."""
    x = torch.eye(800, device="lazy")
    for _ in range(12):
        x = x @ x
    return x


def test_the_ticker_stands_still_under_pythons_lock():
    with Ticker() as ticker:
        before = ticker.ticks
        sum(range(3_000_000))
        assert ticker.ticks == before


def test_b15_mark_step_gives_up_pythons_lock():
    x = slow_graph()
    with Ticker() as ticker:
        before = ticker.ticks
        bindings._mark_step("", [], wait=True)
        assert ticker.ticks > before
    assert x[0, 0].item() == 1


def test_b16_sync_multi_gives_up_pythons_lock():
    x = slow_graph()
    with Ticker() as ticker:
        before = ticker.ticks
        bindings._sync_multi([x], [])
        assert ticker.ticks > before


def test_b16_waiting_gives_up_pythons_lock():
    with torch_lazy.config.override(**{"async": 1}):
        x = slow_graph()
        bindings._mark_step("", [], wait=False)
        with Ticker() as ticker:
            before = ticker.ticks
            bindings._wait_device_ops([])
            assert ticker.ticks > before
        assert not is_pending(x)


# ---- Ids, transfers, files -----------------------------------------------------------------------


def test_b6_ids_are_unique():
    tensors = [lazy_tensor(float(i)) for i in range(100)]
    ids = [lazy.get_tensor_id(t) for t in tensors]
    assert len(set(ids)) == 100
    assert min(ids) >= 1
    assert [lazy.get_tensor_id(t) for t in tensors] == ids
    newest = max(ids)
    del tensors
    assert lazy.get_tensor_id(lazy_tensor(1.0)) > newest


def test_an_id_survives_a_write():
    x = lazy_tensor(1.0)
    before = lazy.get_tensor_id(x)
    x.add_(1)
    assert lazy.get_tensor_id(x) == before


def test_eager_tensors_have_no_id():
    with pytest.raises(RuntimeError, match="lazy"):
        lazy.get_tensor_id(torch.ones(1))
    with pytest.raises(TypeError):
        lazy.get_tensor_id(1)


def tree(device):
    x = torch.arange(4.0, device=device)
    return {"a": [x + 1, (x * 2,)], "b": x.view(2, 2).t(), "c": x}


def test_b7_to_cpu_keeps_the_tree():
    result, expected = lazy.to_cpu(tree("lazy")), tree("cpu")
    assert list(result) == list(expected)
    assert (type(result["a"]), type(result["a"][1])) == (list, tuple)
    for got, wanted in zip(
        torch.utils._pytree.tree_leaves(result),
        torch.utils._pytree.tree_leaves(expected),
        strict=True,
    ):
        assert got.device.type == "cpu"
        assert torch.equal(got, wanted)
    assert torch.equal(lazy.to_cpu(lazy_tensor(1.0) + 1), torch.tensor([2.0]))


def test_b8_to_cpu_computes_all_leaves_together():
    a = lazy_tensor(1.0, 2.0)
    metrics.reset()
    result = lazy.to_cpu([a + 1, {"x": a * 2}, (a - 3, a)])
    assert count("UncachedCompile") + count("CachedCompile") == 1
    assert count("UncachedCompile") == 1
    assert result[1]["x"].tolist() == [2, 4]


def test_b9_devices_of_to_cpu():
    x = lazy_tensor(1.0) + 1
    assert inspect.signature(lazy.to_cpu).parameters["devices"].default is None
    for devices in ([], ["lazy"], None):
        assert lazy.to_cpu([x], devices)[0].tolist() == [2]
    with pytest.raises(TypeError):
        lazy.to_cpu([x, "text"])


def test_b10_save_writes_cpu_tensors():
    file = io.BytesIO()
    lazy.save({"x": lazy_tensor(1.0, 2.0) + 1, "y": [lazy_tensor(5)]}, file)
    file.seek(0)
    loaded = torch.load(file)
    assert (loaded["x"].device.type, loaded["y"][0].device.type) == ("cpu", "cpu")
    assert (loaded["x"].tolist(), loaded["y"][0].tolist()) == ([2, 3], [5])


def test_save_hands_its_arguments_on(tmp_path):
    lazy.save([lazy_tensor(1.0)], tmp_path / "x.pt", _use_new_zipfile_serialization=False)
    assert torch.load(tmp_path / "x.pt")[0].tolist() == [1]


# ---- Counters ------------------------------------------------------------------------------------


def test_b19_reset_clears_counters_and_metrics():
    lazy_tensor(1.0).add_(1).tolist()
    lazy.mark_step()
    assert "MarkStep" in metrics.counter_names()
    bindings._reset_metrics()
    assert bindings._counter_names() == []
    report = bindings._metrics_report()
    assert "Metric:" not in report
    assert "Counter:" not in report


def test_b20_unknown_and_zero_counters_are_none():
    assert bindings._counter_value("no such counter") is None
    lazy.mark_step()
    assert bindings._counter_value("MarkStep") == 1
    metrics.reset()
    assert metrics.counter_value("MarkStep") is None


# ---- Graphs --------------------------------------------------------------------------------------


def test_b21_a_tensor_with_a_value_is_a_leaf():
    x = lazy_tensor(1.0, 2.0) + 1
    lazy.mark_step(wait=True)
    text, dot = debug.dump_ir([x], "text"), debug.render_ir_graph([x])
    assert (text.count("lazy_tensors::device_data"), dot.count("lazy_tensors::device_data")) == (
        1,
        1,
    )
    assert "aten::" not in text
    assert not is_pending(x)


def test_dumps_of_nothing():
    assert bindings._get_tensors_text([]) == "IR {\n}\n"
    assert bindings._get_tensors_dot([]) == "digraph G {\n}\n"
    assert bindings._get_tensors_backend([]) == ""


def test_dumps_of_a_graph():
    a = lazy_tensor(1.0, 2.0)
    x = (a + a).relu()
    text = debug.dump_ir([x], "text")
    assert text.startswith("IR {\n")
    assert text.endswith("}\n")
    assert text.index("device_data") < text.index("aten::add") < text.index("aten::relu")
    assert "ROOT=0" in text
    dot = debug.render_ir_graph([x])
    assert dot.startswith("digraph G {\n")
    assert "->" in dot
    with pytest.raises(RuntimeError, match=r"^Unrecognized IR format: pictures$"):
        debug.dump_ir([x], "pictures")
    assert is_pending(x)


def test_eager_tensors_have_no_graph():
    for function in (bindings._get_tensors_text, bindings._get_tensors_dot):
        with pytest.raises(RuntimeError, match="lazy"):
            function([torch.ones(1)])
    with pytest.raises(RuntimeError, match="lazy"):
        bindings._get_graph_hash([torch.ones(1)])


def test_b22_backend_text_is_about_what_is_pending():
    assert debug.dump_ir([torch.ones(1)], "backend") == ""
    x = lazy_tensor(1.0) + 1
    assert "add" in debug.dump_ir([torch.ones(1), x], "backend")
    lazy.mark_step(wait=True)
    assert debug.dump_ir([x], "backend") == ""


# ---- Hashes and kept computations ----------------------------------------------------------------


def test_b24_a_hash_is_16_bytes():
    x = lazy_tensor(1.0) + 1
    found = computation.get_graph_hash([x])
    assert type(found) is bytes
    assert len(found) == 16
    assert computation.get_graph_hash([x]) == found
    assert is_pending(x)


def test_hashes_tell_graphs_apart():
    a, b = lazy_tensor(1.0, 2.0), lazy_tensor(3.0, 4.0)
    get = computation.get_graph_hash
    assert get([a + b]) == get([b + a])
    assert get([a + b]) != get([a + a])
    assert get([a + b]) != get([a - b])
    assert get([a * 2]) == get([a * 3])
    x, y = a + b, a - b
    assert get([x, y]) != get([y, x])
    assert get([a + b]) != get([lazy_tensor(1.0) + lazy_tensor(2.0)])


def test_b25_a_synced_graph_is_found_by_its_hash():
    a, b = lazy_tensor(1.0, 2.0), lazy_tensor(3.0, 4.0)
    x = a * b + b
    found = computation.get_graph_hash([x])
    ids, values = computation.get_tensors_ts_device_data_node([x])
    lazy.sync_multi([x], [])
    others = {lazy.get_tensor_id(a): torch.tensor([5.0, 6.0]), lazy.get_tensor_id(b): torch.ones(2)}
    inputs = [others.get(i, v) for i, v in zip(ids, values, strict=True)]
    (result,) = computation.run_cached_graph(found, inputs)
    assert result.device.type == "cpu"
    assert result.tolist() == [6, 7]
    assert x.tolist() == [6, 12]


def test_b34_leaves_are_listed_once_in_order():
    a, b = lazy_tensor(1.0, 2.0), lazy_tensor(3.0, 4.0)
    x = (a * a) + b
    ids, values = computation.get_tensors_ts_device_data_node([x])
    tensors = [(i, v) for i, v in zip(ids, values, strict=True) if i != -1]  # the rest: numbers
    assert [i for i, _ in tensors] == [lazy.get_tensor_id(a), lazy.get_tensor_id(b)]
    assert [v.tolist() for _, v in tensors] == [[1, 2], [3, 4]]
    assert computation.get_tensors_ts_device_data_node([]) == ([], [])
    assert is_pending(x)


def test_b35_a_leaf_has_the_id_of_its_tensor():
    a = lazy_tensor(1.0, 2.0)
    before = lazy.get_tensor_id(a)
    a.mul_(a + 1)
    ids, values = computation.get_tensors_ts_device_data_node([a])
    tensors = [(i, v) for i, v in zip(ids, values, strict=True) if i != -1]
    assert [i for i, _ in tensors] == [before]
    assert tensors[0][1].tolist() == [1, 2]


def test_b36_numbers_are_leaves_without_a_tensor():
    a, b, c = (lazy_tensor(float(i), 1.0) for i in range(3))
    x = torch.addcmul(a, b, c, value=5)
    ids, values = computation.get_tensors_ts_device_data_node([x])
    assert [float(v) for i, v in zip(ids, values, strict=True) if i == -1] == [5]
    by_id = dict(zip(ids, values, strict=True))
    for tensor in (a, b, c):
        assert by_id[lazy.get_tensor_id(tensor)].device.type == "cpu"
        assert by_id[lazy.get_tensor_id(tensor)].tolist() == tensor.tolist()


def test_b37_a_hash_of_another_length_is_refused():
    for wrong in (b"short", "short", b""):
        with pytest.raises(RuntimeError):
            computation.run_cached_graph(wrong, [])


def test_b38_an_evicted_computation_says_so():
    a = lazy_tensor(1.0, 2.0)
    x = a + 1
    found = computation.get_graph_hash([x])
    with torch_lazy.config.override(plan_cache=1):
        lazy.sync_multi([x], [])
        lazy.sync_multi([a.exp()], [])
        with pytest.raises(RuntimeError, match="kicked out of the LRU cache"):
            computation.run_cached_graph(found, [torch.ones(2), 1])
    with pytest.raises(RuntimeError, match="Failed to get computation by hash"):
        computation.run_cached_graph(b"0123456789abcdef", [])


def test_b39_a_result_for_each_distinct_tensor():
    a = lazy_tensor(1.0, 2.0)
    x, y = a + 1, a * 2
    tensors = [x, y, x]
    found = computation.get_graph_hash(tensors)
    _, values = computation.get_tensors_ts_device_data_node(tensors)
    lazy.sync_multi(tensors, [])
    results = computation.run_cached_graph(found, values)
    assert [r.tolist() for r in results] == [[2, 3], [2, 4]]
    assert all(r.device.type == "cpu" for r in results)


def test_inputs_of_a_kept_computation_are_not_written():
    a = lazy_tensor(1.0, 2.0)
    a.add_(1)
    found = computation.get_graph_hash([a])
    ids, values = computation.get_tensors_ts_device_data_node([a])
    lazy.sync_multi([a], [])
    given = torch.tensor([10.0, 20.0])
    inputs = [given if i == lazy.get_tensor_id(a) else v for i, v in zip(ids, values, strict=True)]
    (result,) = computation.run_cached_graph(found, inputs)
    assert (result.tolist(), given.tolist()) == ([11, 21], [10, 20])


def test_b40_the_latest_graph_is_the_one_last_used():
    a = lazy_tensor(1.0, 2.0)
    lazy.sync_multi([a.exp()], [])
    assert "aten::exp" in ts_bindings._get_latest_computation_graph()
    y = a.cos()
    lazy.mark_step(wait=True)
    assert "aten::cos" in ts_bindings._get_latest_computation_graph()
    lazy.sync_multi([a.exp()], [])  # a hit makes it the latest again
    latest = ts_bindings._get_latest_computation_graph()
    assert "aten::exp" in latest
    assert "aten::cos" not in latest
    assert y.device.type == "lazy"


def test_without_a_computation_there_is_no_latest():
    run_program(
        "from lazy_names import ts_bindings\n"
        "try:\n"
        "    ts_bindings._get_latest_computation_graph()\n"
        "except RuntimeError:\n"
        "    raise SystemExit(0)\n"
        "raise SystemExit('no error')\n"
    )


# ---- Settings ------------------------------------------------------------------------------------


def test_b27_the_forced_fallback_is_one_string(settings):
    assert config.get_force_fallback() == ""
    config.set_force_fallback("aten::sub")
    assert config.get_force_fallback() == "aten::sub"
    assert bindings._get_force_fallback() == "aten::sub"
    bindings._set_force_fallback("")
    assert config.get_force_fallback() == ""


def test_the_forced_fallback_does_not_latch(settings):
    a = lazy_tensor(3.0)
    for name, other in (("sub", "mul"), ("mul", "sub")):
        metrics.reset()
        config.set_force_fallback(f"aten::{name}")
        assert ((a - 1).item(), (a * 2).item()) == (2, 6)
        assert metrics.counter_value(f"aten::{name}.Tensor") == 1
        assert metrics.counter_value(f"aten::{other}.Tensor") is None
    metrics.reset()
    config.set_force_fallback("")
    assert (a * 2 - 1).item() == 5
    assert not {"aten::mul.Tensor", "aten::sub.Tensor"} & set(metrics.counter_names())


def test_the_forced_fallback_reaches_in_place_calls(settings):
    a = lazy_tensor(3.0)
    config.set_force_fallback("aten::sub")
    assert a.sub_(1).item() == 2
    assert metrics.counter_value("aten::sub_.Tensor") == 1


def test_the_forced_fallback_comes_from_the_environment():
    output = run_program(
        "import torch\n"
        "from lazy_names import config, metrics\n"
        "x = torch.ones(1).to('lazy') - 1\n"
        "print(config.get_force_fallback(), metrics.counter_value('aten::sub.Tensor'))\n",
        LTC_FORCE_FALLBACK="aten::sub",
    )
    assert output.split() == ["aten::sub", "1"]


def test_b31_symbolic_mode_is_a_flag(settings):
    assert bindings._get_symbolic_shape_mode() is False
    bindings._set_symbolic_shape_mode(True)
    assert bindings._get_symbolic_shape_mode() is True
    bindings._set_symbolic_shape_mode(False)
    assert bindings._get_symbolic_shape_mode() is False


def test_b32_the_default_device_type():
    kind = torch.lazy.real_device().type
    assert bindings._get_default_device_type() == {"cpu": "CPU", "cuda": "CUDA"}[kind]


def test_b33_init_can_be_called_again():
    assert ts_backend.init() is None
    assert ts_bindings._init() is None
    assert torch.ones(1, device="lazy").item() == 1


def test_b33_without_torch_lazy_there_are_no_kernels():
    run_program(
        "import torch\n"
        "try:\n"
        "    torch.ones(1, device='lazy')\n"
        "except NotImplementedError:\n"
        "    pass\n"
        "else:\n"
        "    raise SystemExit('no error')\n"
        "import lazy_names\n"
        "lazy_names.ts_backend.init()\n"
        "assert torch.ones(1, device='lazy').item() == 1\n",
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )


def test_the_closure_queues_setting():
    if PACKAGE != "torch_lazy":
        pytest.skip("torch._lazy reads the environment")
    assert torch_lazy.closure.AsyncClosureHandler(7)._max_waiting == 7
    with torch_lazy.config.override(max_async_queue=3):
        assert torch_lazy.closure.AsyncClosureHandler(7)._max_waiting == 3


def test_all_bindings_are_there():
    assert {n for n in dir(bindings) if not n.startswith("__")} == {
        "_clear_ir_cache",
        "_counter_names",
        "_counter_value",
        "_dump_ir_cache",
        "_get_default_device_type",
        "_get_force_fallback",
        "_get_graph_hash",
        "_get_symbolic_shape_mode",
        "_get_tensor_id",
        "_get_tensors_backend",
        "_get_tensors_dot",
        "_get_tensors_text",
        "_mark_step",
        "_metrics_report",
        "_reset_metrics",
        "_set_force_fallback",
        "_set_reuse_ir",
        "_set_symbolic_shape_mode",
        "_sync_multi",
        "_wait_device_ops",
    }
    assert {n for n in dir(ts_bindings) if not n.startswith("__")} == {
        "_get_latest_computation_graph",
        "_get_tensors_ts_device_data_node",
        "_init",
        "_run_cached_graph",
    }


def test_b78_special_scalars_become_constants():
    """0, 1 and -1 are part of a graph when the setting says so; other numbers stay inputs."""
    x = torch.ones(2, device="lazy")
    torch_lazy.sync()
    with torch_lazy.config.override(handle_special_scalars=True):
        compiled = []
        for number in (1, -1, 5, 6, 1):
            before = torch_lazy.metrics.counter_value("UncachedCompile") or 0
            y = torch.add(x, x, alpha=number)
            torch_lazy.sync([y])
            compiled.append((torch_lazy.metrics.counter_value("UncachedCompile") or 0) - before)
            assert y.tolist() == [1 + number] * 2
    assert compiled == [1, 1, 1, 0, 0]
