"""The table of settings: environment, second names, values that are strings."""

import os
import re
import subprocess
import sys

import pytest

from torch_lazy import _C, config

NAMES_OF_THE_ORIGINAL = [
    "TORCH_LAZY_IR_DEBUG",
    "TORCH_LAZY_HANDLE_SPECIAL_SCALARS",
    "TORCH_LAZY_ALL_NUMBERS_SPECIAL_SCALARS",
    "TORCH_LAZY_PARAM_ALIASING",
    "TORCH_LAZY_REUSE_IR",
    "TORCH_LAZY_USE_THREAD_POOL",
    "TORCH_LAZY_ENABLE_DEVICE_DATA_CACHE",
    "TORCH_LAZY_COMPILATION_CACHE_SIZE",
    "TORCH_LAZY_DEVICE_DATA_CACHE_SIZE",
    "TORCH_LAZY_IO_THREAD_POOL_SIZE",
    "TORCH_LAZY_METRICS_SAMPLES",
    "TORCH_LAZY_TRIM_GRAPH_CHECK_FREQUENCY",
    "TORCH_LAZY_TRIM_GRAPH_SIZE",
    "TORCH_LAZY_METRICS_PERCENTILES",
    "TORCH_LAZY_SHAPE_CACHE_SIZE",
    "TORCH_LAZY_TS_TENSOR_UPDATE_SYNC",
    "TORCH_LAZY_TS_CUDA",
    "LTC_ENABLE_DYNAMIC_SHAPES",
    "LTC_ENABLE_SYMBOLIC_SHAPES",
    "LTC_FORCE_FALLBACK",
    "LTC_SAVE_TENSORS_FILE",
    "LTC_SAVE_TENSORS_FMT",
    "LTC_EXPERIMENTAL",
    "LTC_ENABLE_SOURCE_INFO",
    "LTC_TS_CUDA",
    "LTC_MAX_ASYNC_QUEUE",
]


def run(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A new process, whose environment has no settings but these."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("TORCH_LAZY_", "LTC_"))}
    return subprocess.run(
        [sys.executable, "-c", f"from torch_lazy import _C\n{program}"],
        capture_output=True,
        text=True,
        env=env | environment,
    )


def values(*names: str, **environment: str) -> list[str]:
    """Settings in a new process with this environment."""
    result = run(f"print(*map(repr, map(_C.get_setting, {names})), sep='\\n')", **environment)
    assert result.returncode == 0, result.stderr
    return [line.strip("'") for line in result.stdout.splitlines()]


def test_every_setting_has_its_default_and_a_meaning():
    result = run("for row in _C.settings(): print(row[0], repr(row[1]), repr(row[2]))")
    rows = [line.split(maxsplit=2) for line in result.stdout.splitlines()]
    assert len(rows) == len(config.table())
    for name, value, default in rows:
        assert value == default, name
    for row in config.table():
        assert re.fullmatch(r"[A-Z].*\.", row.meaning), row


@pytest.mark.parametrize("name", NAMES_OF_THE_ORIGINAL)
def test_names_of_the_original(name):
    value = _C.get_setting(name)
    _C.set_setting(name, value)
    assert _C.get_setting(name) == value
    assert name in {row.name for row in config.table()}


def test_environment():
    assert values(
        "TORCH_LAZY_ASYNC",
        "TORCH_LAZY_REUSE_IR",
        "LTC_FORCE_FALLBACK",
        "TORCH_LAZY_BACKEND",
        "LTC_MAX_ASYNC_QUEUE",
        TORCH_LAZY_ASYNC="0",
        TORCH_LAZY_REUSE_IR="off",
        LTC_FORCE_FALLBACK="aten::sub",
        TORCH_LAZY_BACKEND="/a path/lib.so",
        LTC_MAX_ASYNC_QUEUE="5",
    ) == ["0", "0", "aten::sub", "/a path/lib.so", "5"]


@pytest.mark.parametrize("value", ["1", "0", "", "yes"])
def test_some_switch_on_by_being_there(value):
    assert values(
        "LTC_ENABLE_DYNAMIC_SHAPES",
        "LTC_ENABLE_SYMBOLIC_SHAPES",
        "TORCH_LAZY_DEVICE",
        LTC_ENABLE_DYNAMIC_SHAPES=value,
        LTC_ENABLE_SYMBOLIC_SHAPES=value,
        LTC_TS_CUDA=value,
    ) == ["1", "1", "cuda"]


def test_source_info_says_what_it_means():
    assert values("TORCH_LAZY_SOURCE_LINES", LTC_ENABLE_SOURCE_INFO="1") == ["1"]
    assert values("TORCH_LAZY_SOURCE_LINES", LTC_ENABLE_SOURCE_INFO="0") == ["0"]


def test_the_first_name_counts_when_both_are_there():
    assert values(
        "TORCH_LAZY_PLAN_CACHE",
        "TORCH_LAZY_COMPILATION_CACHE_SIZE",
        "TORCH_LAZY_DEVICE",
        "TORCH_LAZY_ASYNC",
        TORCH_LAZY_PLAN_CACHE="5",
        TORCH_LAZY_COMPILATION_CACHE_SIZE="6",
        TORCH_LAZY_DEVICE="cpu",
        LTC_TS_CUDA="",
        TORCH_LAZY_USE_THREAD_POOL="1",
    ) == ["5", "5", "cpu", "1"]


@pytest.mark.parametrize(
    "name, value, expected",
    [
        ("TORCH_LAZY_ASYNC", "maybe", "1 or 0"),
        ("TORCH_LAZY_DEVICE", "tpu", "cpu or cuda"),
        ("TORCH_LAZY_TRACE_STEPS", "-1", "zero or more"),
        ("LTC_MAX_ASYNC_QUEUE", "many", "a whole number"),
        ("TORCH_LAZY_METRICS_PERCENTILES", "2", "between 0 and 1"),
    ],
)
def test_wrong_values(name, value, expected):
    before = _C.get_setting(name)
    with pytest.raises(ValueError, match=rf"{name} is '{value}', expected .*{expected}"):
        _C.set_setting(name, value)
    assert _C.get_setting(name) == before


def malformed():
    """A value that each setting refuses, where there is one."""
    for row in config.table():
        try:
            _C.set_setting(row.name, "no such value")
        except ValueError:
            yield row.name
        else:
            _C.set_setting(row.name, row.value)


def test_a_malformed_variable_is_ignored_with_a_warning():
    names = [name for name in malformed() if name != "LTC_TS_CUDA" and "SHAPES" not in name]
    assert len(names) > 20
    program = "for row in _C.settings(): print(row[0], repr(row[1]), repr(row[2]))"
    result = run(f"import torch\n{program}", **dict.fromkeys(names, "no such value"))
    assert result.returncode == 0, result.stderr
    for name, value, default in (line.split(maxsplit=2) for line in result.stdout.splitlines()):
        assert value == default, name
    for name in names:
        warnings = [line for line in result.stderr.splitlines() if f"setting {name} is" in line]
        assert len(warnings) == 1, name
        assert re.search(r"expected .*; the environment's value is ignored", warnings[0])


def test_experiments():
    program = "print(*map(_C.experiment_enabled, ('a', 'b', 'ab')))"
    assert run(program, LTC_EXPERIMENTAL="a:ab").stdout == "True False True\n"
    assert run(program).stdout == "False False False\n"


# ---- Saved graphs: read when the first graph runs ------------------------------------------------


def test_files_for_graphs_may_be_named_after_the_import():
    program = (
        "import os\n"
        "print(repr(_C.get_setting('LTC_SAVE_TENSORS_FILE')))\n"
        "os.environ['LTC_SAVE_TENSORS_FILE'] = 'a.txt'\n"
        "os.environ['LTC_SAVE_TENSORS_FMT'] = 'dot'\n"
        "print(_C.get_setting('LTC_SAVE_TENSORS_FILE'), _C.get_setting('LTC_SAVE_TENSORS_FMT'))\n"
        "_C.set_setting('LTC_SAVE_TENSORS_FILE', 'b.txt')\n"
        "print(_C.get_setting('LTC_SAVE_TENSORS_FILE'))\n"
    )
    assert run(program).stdout == "''\na.txt dot\nb.txt\n"


def test_an_unknown_format_is_reported_and_means_text():
    program = "_C.set_setting(name, 'pdf')\nprint(_C.get_setting(name))"
    result = run(f"name = 'LTC_SAVE_TENSORS_FMT'\n{program}")
    assert "Invalid save graph format: pdf" in result.stderr
    assert result.stdout == "text\n"
