"""What TorchDynamo and AOTAutograd leave out for our backend, and for no other."""

import gc
import os
import subprocess
import sys
import threading

import pytest
import torch
import torch._dynamo
from torch._dynamo import symbolic_convert
from torch._dynamo.variables.higher_order_ops import LocalMapWrappedHigherOrderVariable
from torch._functorch import aot_autograd
from torch._logging._internal import trace_log

from torch_lazy import dynamo_backend, dynamo_shortcuts

ORIGINALS = {
    (symbolic_convert, "get_funcname"): symbolic_convert.get_funcname,
    (LocalMapWrappedHigherOrderVariable, "should_wrap_in_hop"): vars(
        LocalMapWrappedHigherOrderVariable
    )["should_wrap_in_hop"],
    (aot_autograd, "AOTConfig"): aot_autograd.AOTConfig,
}
NOTHING = {"objects aside": False, "get_funcname": False, "should_wrap_in_hop": False}
TRACING = dict.fromkeys(NOTHING, True)  # what is left out by TorchDynamo


def left_out():
    found = {name: vars(owner)[name] is not value for (owner, name), value in ORIGINALS.items()}
    return {"objects aside": gc.get_freeze_count() > 0, **found}


@pytest.fixture(autouse=True)
def nothing_set_aside():
    """As in a program; conftest.py freezes what tests import."""
    gc.unfreeze()
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture
def seen():
    """What is left out when the operator `torch_lazy_test_shortcuts.see` is traced."""
    dynamo_shortcuts.take_shortcuts_for(dynamo_backend.backend)
    library = torch.library.Library("torch_lazy_test_shortcuts", "FRAGMENT")
    library.define("see(Tensor x) -> Tensor")
    seen = []

    def see(x):
        seen.append((threading.current_thread().name, left_out()))
        return torch.empty_like(x)

    library.impl("see", see, "Meta")
    library.impl("see", torch.clone, "CPU")
    before = left_out()
    yield seen
    assert left_out() == before
    library._destroy()


def see(x):
    return torch.ops.torch_lazy_test_shortcuts.see(x)


def new_function():
    """TorchDynamo keeps what it has compiled by code."""
    scope = {"see": see}
    exec("def function(x): return see(x) + 1", scope)
    return scope["function"]


@pytest.mark.parametrize("backend", ["torch_lazy", dynamo_backend.backend], ids=["name", "itself"])
def test_for_our_backend(seen, backend, monkeypatch):
    monkeypatch.setattr(trace_log, "handlers", [])  # pytest reads all logs
    torch.compile(new_function(), backend=backend)(torch.ones(2))
    states = [state for _, state in seen]
    assert states[0] == {**TRACING, "AOTConfig": False}  # in TorchDynamo
    assert states[1] == {**TRACING, "AOTConfig": True}  # in AOTAutograd


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_not_for_others(seen, backend):
    torch.compile(new_function(), backend=backend)(torch.ones(2))
    assert seen
    assert all(state == {**NOTHING, "AOTConfig": False} for _, state in seen)


def test_not_for_others_on_other_threads(seen):
    def run(backend):
        barrier.wait()
        for _ in range(5):
            torch.compile(new_function(), backend=backend)(torch.ones(2))

    names = ["torch_lazy", "eager"]
    barrier = threading.Barrier(len(names))
    threads = [threading.Thread(target=run, args=(name,), name=name) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ours, others = (
        [state["get_funcname"] for thread, state in seen if thread == name] for name in names
    )
    assert any(ours)
    assert others == [False] * 5


def test_after_a_reset_from_the_second_compilation_on(seen):
    torch._dynamo.reset()
    for expected in (False, True):
        seen.clear()
        torch.compile(new_function(), backend="torch_lazy")(torch.ones(2))
        assert seen[0][1]["get_funcname"] is expected


def test_an_error_of_anothers_callback_keeps_nothing(seen):
    def fails(compilation):
        raise ValueError("not ours")

    before = left_out()
    torch._dynamo.reset()
    torch._dynamo.on_compile_end(fails)
    dynamo_shortcuts.take_shortcuts_for(dynamo_backend.backend)
    handler = torch._dynamo.callback_handler
    try:
        with (
            pytest.raises(ValueError, match="not ours"),
            handler.install_callbacks(torch._dynamo.callback.CallbackTrigger.DYNAMO, "0/0"),
        ):
            dynamo_shortcuts._under_way.enter_context(dynamo_shortcuts.garbage_aside())
        assert left_out() == before
    finally:
        handler._CompilationCallbackHandler__pending_callbacks_counter = 0  # PyTorch leaves it at 1
        torch._dynamo.reset()


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("fails_in", ["TorchDynamo", "AOTAutograd"])
def test_errors_leave_all_as_it_was(enabled, frozen, fails_in):
    def state():
        return gc.isenabled(), gc.get_freeze_count() > 0

    def fails(x):
        during.append(state())
        if len(during) == (1 if fails_in == "TorchDynamo" else 2):
            raise ValueError("no shape")
        return torch.empty_like(x)

    library = torch.library.Library("torch_lazy_test_shortcuts", "FRAGMENT")
    library.define("fails(Tensor x) -> Tensor")
    library.impl("fails", fails, "Meta")
    during = []
    was = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    (gc.freeze if frozen else gc.unfreeze)()
    others = left_out()
    try:
        torch._dynamo.reset()
        dynamo_shortcuts.take_shortcuts_for(dynamo_backend.backend)
        function = torch.compile(
            lambda x: torch.ops.torch_lazy_test_shortcuts.fails(x), backend="torch_lazy"
        )
        with pytest.raises(Exception, match="no shape"):
            function(torch.ones(2, requires_grad=True))
        assert during == [(enabled, True), (False, True)][: len(during)]
        assert state() == (enabled, frozen)
        assert left_out() == others
    finally:
        gc.unfreeze()
        (gc.enable if was else gc.disable)()
        library._destroy()


def test_local_map_is_still_seen(seen):
    from torch.distributed.tensor.experimental._func_map import _local_map_wrapped

    should_wrap = LocalMapWrappedHigherOrderVariable.should_wrap_in_hop
    with LocalMapWrappedHigherOrderVariable.enable():
        assert should_wrap(_local_map_wrapped)
        with dynamo_shortcuts._no_import_of_local_map():
            assert LocalMapWrappedHigherOrderVariable.should_wrap_in_hop is not should_wrap
            assert LocalMapWrappedHigherOrderVariable.should_wrap_in_hop(_local_map_wrapped)
            assert not LocalMapWrappedHigherOrderVariable.should_wrap_in_hop(see)


# ---- Fresh processes -----------------------------------------------------------------------------

FUNCTION = """
import sys, torch
from torch._dynamo import funcname_cache
def helper(x):
    return x.sin()
def function(x):
    return helper(x) + 1
def run(backend):
    torch._dynamo.reset_code_caches()
    torch.compile(function, backend=backend)(torch.ones(2, requires_grad=True)).sum().backward()
"""


def run(code, **settings):
    arguments = [sys.executable, "-c", FUNCTION + code]
    environment = {**os.environ, **settings}
    return subprocess.run(
        arguments, check=True, timeout=300, env=environment, capture_output=True, text=True
    ).stderr


def test_from_the_first_compilation_on():
    run("""
part = "torch.distributed.tensor.experimental._func_map"
run("torch_lazy")
assert not funcname_cache.cache
assert part not in sys.modules
run("aot_eager")
assert funcname_cache.cache
assert part in sys.modules
""")


@pytest.mark.parametrize("logs", ["trace_call,aot_joint_graph,aot_graphs", "+dynamo,+aot"])
def test_logs_are_those_of_other_backends(logs):
    def messages(backend):
        log = run(f"run({backend!r})", TORCH_LOGS=logs)
        return [
            line.partition("]")[2]
            for line in log.splitlines()
            if "TRACE FX call" in line or "graph" in line.lower()
        ]

    ours = messages("torch_lazy")
    assert ours
    assert len(ours) == len(messages("aot_eager"))


def test_traces_have_the_graphs(tmp_path):
    run("run('torch_lazy')", TORCH_TRACE=str(tmp_path))
    (trace,) = tmp_path.iterdir()
    text = trace.read_text()
    assert all(name in text for name in ["aot_joint_graph", "aot_forward_graph", "aot_backward"])
