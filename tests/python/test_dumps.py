"""Text and dot of graphs, in the form of PyTorch's Lazy Tensor Core; scopes and source lines."""

import os
import re
import subprocess
import sys

import pytest
import torch

import torch_lazy
from torch_lazy import _C, config, debug

DATA = "lazy_tensors::device_data(), device=CPU0"


def text(*tensors):
    """The lines of a dump between its braces, without the indentation."""
    lines = debug.graph_text(tensors).split("\n")
    assert (lines[0], lines[-2:]) == ("IR {", ["}", ""])
    assert all(line.startswith("  %") for line in lines[1:-2])
    return [line.strip() for line in lines[1:-2]]


@pytest.fixture
def x():
    """Data that is there: a leaf of graphs."""
    x = torch.ones(2, 3).to("lazy")
    torch_lazy.sync()
    return x


# ---- Text ----------------------------------------------------------------------------------------


def test_nothing():
    assert debug.graph_text([]) == "IR {\n}\n"
    assert debug.graph_dot([]) == "digraph G {\n}\n"


def test_data_is_one_leaf(x):
    assert text(x) == [f"%0 = [Float[2,3]] {DATA}, ROOT=0"]


def test_the_last_operand_comes_first_and_numbers_are_leaves(x):
    assert text((x * 2.5 + 1).relu()) == [
        f"%0 = [Long[]] {DATA}, value=1",
        f"%1 = [Long[]] {DATA}, value=1",
        f"%2 = [Double[]] {DATA}, value=2.5",
        f"%3 = [Float[2,3]] {DATA}",
        "%4 = [Float[2,3]] aten::mul(%3, %2)",
        "%5 = [Float[2,3]] aten::add(%4, %1, %0)",
        "%6 = [Float[2,3]] aten::relu(%5), ROOT=0",
    ]


def test_a_list_of_tensors_is_one_node(x):
    assert text(torch.cat([x, x.exp()])) == [
        f"%0 = [Float[2,3]] {DATA}",
        "%1 = [Float[2,3]] aten::exp(%0)",
        "%2 = [] lazy_tensors::tensor_list(%0, %1)",
        "%3 = [Float[4,3]] aten::cat(%2), dim=0, ROOT=0",
    ]


def test_absent_elements_of_a_list(x):
    index = torch.tensor([0, 1]).to("lazy")
    torch_lazy.sync()
    assert text(x[:, index]) == [
        f"%0 = [Long[2]] {DATA}",
        "%1 = [] lazy_tensors::tensor_list(null, %0)",
        f"%2 = [Float[2,3]] {DATA}",
        "%3 = [Float[2,2]] aten::index(%2, %1), ROOT=0",
    ]


def test_several_outputs(x):
    largest, places = torch.max(x, 1)
    assert text(largest + 1, places) == [
        f"%0 = [Long[]] {DATA}, value=1",
        f"%1 = [Long[]] {DATA}, value=1",
        f"%2 = [Float[2,3]] {DATA}",
        "%3 = [Float[2], Long[2]] aten::max(%2), num_outputs=2, dim=1, keepdim=0, ROOT=1",
        "%4 = [Float[2]] aten::add(%3.0, %1, %0), ROOT=0",
    ]


def test_the_last_place_among_the_roots_counts(x):
    y = x.exp()
    assert text(y, x, y)[-1] == "%1 = [Float[2,3]] aten::exp(%0), ROOT=2"


@pytest.mark.parametrize(
    "call, line",
    [
        (lambda x: x.sum((0, 1), keepdim=True), "aten::sum(%0), dim=0 1, keepdim=1, dtype=null"),
        (lambda x: torch.softmax(x, -1), "aten::_softmax(%0), dim=-1, half_to_float=0"),
        (
            lambda x: torch.div(x, x, rounding_mode="floor"),
            "aten::div(%0, %0), rounding_mode=floor",
        ),
        (
            lambda x: x.to(torch.float64),
            "aten::_to_copy(%0), dtype=Double, layout=null, device=null, pin_memory=null, "
            "non_blocking=0, memory_format=null",
        ),
        (
            lambda x: torch.native_layer_norm(x, [3], None, None, 1e-5)[0],
            "aten::native_layer_norm(%0), num_outputs=3, normalized_shape=3, eps=1e-05",
        ),
        (lambda x: x.clamp(min=0.5), "aten::clamp(%1, %0)"),
    ],
)
def test_attributes(x, call, line):
    last = text(call(x))[-1]
    assert last.split("] ", 1)[1] == line + ", ROOT=0"


def test_views_have_lines_of_their_own(x):
    assert text(torch.mm(x, x.t())) == [
        f"%0 = [Float[2,3]] {DATA}",
        "%1 = [Float[3,2]] lazy_tensors::view(%0), size=3 2, stride=1 3, storage_offset=0",
        "%2 = [Float[2,2]] aten::mm(%0, %1), ROOT=0",
    ]
    assert text(x.exp().t())[-1] == (
        "%2 = [Float[3,2]] lazy_tensors::view(%1), size=3 2, stride=1 3, storage_offset=0, ROOT=0"
    )


def test_writes(x):
    y = x.exp()
    y[1].mul_(3)
    assert text(y) == [
        f"%0 = [Long[]] {DATA}, value=3",
        f"%1 = [Float[2,3]] {DATA}",
        "%2 = [Float[2,3]] aten::exp(%1)",
        "%3 = [Float[3]] lazy_tensors::view(%2), size=3, stride=1, storage_offset=3",
        "%4 = [Float[3]] aten::mul_(%3, %0), writes=0",
        "%5 = [Float[2,3]] lazy_tensors::view(%4), size=2 3, stride=3 1, storage_offset=0, ROOT=0",
    ]


def test_memory_without_content():
    assert text(torch.empty(2, device="lazy")) == [
        "%0 = [Float[2]] lazy_tensors::undefined(), device=CPU0, ROOT=0"
    ]


def test_what_was_read_keeps_its_graph_until_the_step_ends(x):
    y = (x * 2.5).t().exp()
    before = text(y)
    assert len(before) == 5
    assert y.tolist() == (torch.ones(3, 2) * 2.5).exp().tolist()
    assert text(y) == before
    assert text(y.t())[:-1] == [line.removesuffix(", ROOT=0") for line in before]
    # What is recorded on top of it starts from its value.
    assert text(y + 1)[-2:] == [
        f"%2 = [Float[3,2]] {DATA}",
        "%3 = [Float[3,2]] aten::add(%2, %1, %0), ROOT=0",
    ]
    torch_lazy.mark_step()
    assert text(y) == [f"%0 = [Float[3,2]] {DATA}, ROOT=0"]


def test_what_is_being_computed_is_data(x):
    with config.override(**{"async": True}):
        y = x.exp()
        torch_lazy.mark_step()
        assert text(y) == [f"%0 = [Float[2,3]] {DATA}, ROOT=0"]
        assert text(y.neg()) == [
            f"%0 = [Float[2,3]] {DATA}",
            "%1 = [Float[2,3]] aten::neg(%0), ROOT=0",
        ]
        torch_lazy.wait_device_ops()


def test_devices():
    assert text(torch.ones(2, device="cpu").to("lazy:1")) == [
        f"%0 = [Float[2]] {DATA.replace('CPU0', 'CPU1')}, ROOT=0"
    ]


def test_a_removed_operator(x):
    library = torch.library.Library("test_dumps", "DEF")
    library.define("twice(Tensor x, int n) -> Tensor")
    library.impl("twice", lambda x, n: x * n, "CPU")
    library.impl("twice", lambda x, n: torch.empty_like(x), "Meta")
    y = torch.ops.test_dumps.twice(x, 2)
    assert text(y)[-1] == "%1 = [Float[2,3]] test_dumps::twice(%0), n=2, ROOT=0"
    library._destroy()
    assert text(y)[-1] == "%1 = [Float[2,3]] test_dumps::twice(%0), argument=2, ROOT=0"


# ---- Dot -----------------------------------------------------------------------------------------


def test_dot(x):
    largest, places = torch.max(x, 1)
    assert debug.graph_dot([largest + places, largest.exp()]).split("\n") == [
        "digraph G {",
        r'  node0 [label="lazy_tensors::device_data\nLong[]\ndevice=CPU0\nvalue=1"]',
        r'  node1 [label="lazy_tensors::device_data\nFloat[2,3]\ndevice=CPU0"]',
        r'  node2 [label="aten::max\nFloat[2]\nnum_outputs=2\ndim=1\nkeepdim=0"]',
        r'  node3 [label="aten::add\nFloat[2]\nROOT=0"]',
        r'  node4 [label="aten::exp\nFloat[2]\nROOT=1"]',
        '  node2 -> node4 [label="o=0"]',
        '  node2 -> node3 [label="i=0,o=0"]',
        '  node2 -> node3 [label="i=1,o=1"]',
        '  node0 -> node3 [label="i=2"]',
        "  node1 -> node2",
        "}",
        "",
    ]


@pytest.mark.parametrize("last, shown", [(2, "2"), (10, "10..."), (1000, "10...")])
def test_dot_shortens_values_of_64_characters(x, last, shown):
    sizes = [1] * 31 + [last]
    dot = debug.graph_dot([x.exp()[0, 0].expand(sizes)])
    assert r"\nsize=" + "1 " * 31 + shown + r"\n" in dot
    assert f"size={' '.join(map(str, sizes))}, stride=" in text(x.exp()[0, 0].expand(sizes))[-1]


# ---- Scopes and source lines ---------------------------------------------------------------------


def test_scope_and_location(x):
    with config.override(ir_debug=True), debug.scope("model"):
        with debug.scope("layer"):
            y = x.exp()
        with debug.scope("layer"):
            y = y.softmax(0)
            assert debug.current_scope() == "model.1/layer.2"
    exp, softmax = text(y)[1:]
    assert exp.startswith(
        "%1 = [Float[2,3]] aten::exp(%0), scope=model.1/layer.1, "
        "location=test_scope_and_location@test_dumps.py:"
    )
    assert "scope=model.1/layer.2, location=" in softmax
    assert softmax.endswith(", dim=0, half_to_float=0, ROOT=0")
    assert debug.current_scope() == ""


def test_neither_unless_asked_for(x):
    with debug.scope("model"):
        y = x.exp()
    assert "scope" not in text(y)[-1]
    assert "location" not in text(y)[-1]


@pytest.mark.parametrize("name", ["TORCH_LAZY_SOURCE_LINES", "LTC_ENABLE_SOURCE_INFO"])
def test_source_lines(x, name):
    _C.set_setting(name, "1")
    try:
        y = x.exp()
    finally:
        _C.set_setting(name, "0")
    assert ", location=test_source_lines@test_dumps.py:" in text(y)[-1]


def test_scopes_close_when_an_error_leaves_them():
    with pytest.raises(KeyError), debug.scope("a"), debug.scope("b"):
        raise KeyError
    assert debug.current_scope() == ""
    with pytest.raises(RuntimeError, match="no scope is open"):
        _C.pop_scope()


def test_scopes_start_again_after_a_step():
    _C.reset_scopes()
    with debug.scope("a"):
        pass
    with debug.scope("a"):
        assert debug.current_scope() == "a.2"
        with pytest.raises(RuntimeError, match=r"a\.2"):
            _C.reset_scopes()
    _C.reset_scopes()
    with debug.scope("a"):
        assert debug.current_scope() == "a.1"


def test_a_step_must_not_end_inside_a_scope(x):
    with debug.scope("a"):
        y = x.exp()
        with pytest.raises(RuntimeError, match=r"inside the scope a\.\d+"):
            torch_lazy.mark_step()
    assert not debug.is_pending(y)
    torch_lazy.mark_step()
    with debug.scope("a"):
        assert debug.current_scope() == "a.1"


def test_frames_are_pythons_innermost_first():
    def inner():
        return _C.source_frames()

    frames = inner()
    assert [name for name, _, _ in frames[:2]] == [
        "inner",
        "test_frames_are_pythons_innermost_first",
    ]
    assert frames[0][1] == __file__
    assert frames[0][2] == inner.__code__.co_firstlineno + 1


def test_the_first_frame_of_the_users(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import torch_lazy\n"
        "def outer():\n"
        "    return torch_lazy._C.first_user_frame()\n"
        "print(outer())\n"
    )
    result = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, env=os.environ, check=True
    )
    assert result.stdout == f"{script} <module> 4\n"


# ---- Saved graphs --------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path):
    """Returns the reports about graphs that ran since the last call, without the empty lines around
    them."""
    path = tmp_path / "graphs.txt"

    def reports():
        content = path.read_text() if path.exists() else ""
        path.unlink(missing_ok=True)
        assert content == "" or content.endswith("\n## END_GRAPH\n\n\n")
        return content.split("\n## END_GRAPH\n\n\n")[:-1]

    torch_lazy.sync()
    before = _C.get_setting("LTC_SAVE_TENSORS_FILE")
    _C.set_setting("LTC_SAVE_TENSORS_FILE", str(path))
    yield reports
    _C.set_setting("LTC_SAVE_TENSORS_FILE", before)


def run_a_step(x):
    y = x.exp()
    torch_lazy.mark_step()
    return y


def test_every_graph_is_saved_also_when_it_is_known(x, saved):
    y = run_a_step(x)
    (first,) = saved()
    y = run_a_step(x)
    (second,) = saved()
    assert first.split("Hashes: ")[1] == second.split("Hashes: ")[1]
    torch_lazy.mark_step()
    assert saved() == []
    y.neg().tolist()
    assert len(saved()) == 1


def test_a_report_has_frames_hash_and_graph(x, saved):
    run_a_step(x)
    (report,) = saved()
    step = torch_lazy.mark_step.__code__
    found = re.fullmatch(
        r"\[ScheduleSyncTensorsGraph\]\nPython Stacktrace:\n((?:  .* \(.*:\d+\)\n)+)\n"
        r"Hashes: \([0-9a-f]{17,32}\)\n\n## BEGIN_GRAPH\n(.*)",
        report,
        re.DOTALL,
    )
    assert found, report
    frames = found[1].splitlines()
    assert re.fullmatch(rf"  mark_step \({re.escape(step.co_filename)}:\d+\)", frames[0])
    line = run_a_step.__code__.co_firstlineno + 2
    assert frames[1] == f"  run_a_step ({__file__}:{line})"
    assert frames[2].startswith("  test_a_report_has_frames_hash_and_graph (")
    assert found[2] == (
        f"IR {{\n  %0 = [Float[2,3]] {DATA}\n  %1 = [Float[2,3]] aten::exp(%0), ROOT=0\n}}\n"
    )


@pytest.mark.parametrize(
    "form, start", [("dot", "digraph G {\n"), ("backend", "graph("), ("text", "IR {\n")]
)
def test_formats_of_saved_graphs(x, saved, form, start):
    _C.set_setting("LTC_SAVE_TENSORS_FMT", form)
    try:
        run_a_step(x)
    finally:
        _C.set_setting("LTC_SAVE_TENSORS_FMT", "text")
    (report,) = saved()
    graph = report.split("## BEGIN_GRAPH\n")[1]
    assert graph.startswith(start)
    assert "aten::exp" in graph


def test_the_environment_is_read_when_the_first_graph_runs(tmp_path):
    program = (
        "import os, torch, torch_lazy\n"
        "x = torch.ones(2, device='lazy')\n"
        "os.environ['LTC_SAVE_TENSORS_FILE'] = 'first.txt'\n"
        "os.environ['LTC_SAVE_TENSORS_FMT'] = 'jpeg'\n"
        "torch_lazy.mark_step()\n"
        "os.environ['LTC_SAVE_TENSORS_FILE'] = 'second.txt'\n"
        "x.exp().tolist()\n"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith("LTC_")}
    result = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
        check=True,
    )
    assert result.stderr.count("Invalid save graph format: jpeg") == 1
    assert os.listdir(tmp_path) == ["first.txt"]
    content = (tmp_path / "first.txt").read_text()
    assert content.count("## BEGIN_GRAPH\nIR {") == 2
    assert "aten::ones" in content and "aten::exp" in content
