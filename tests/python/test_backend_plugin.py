"""Backends as plug-ins: the example and a bad one, built out of tree and run in own processes."""

import contextlib
import fcntl
import json
import os
import pathlib
import subprocess
import sys
import textwrap

import pytest
import torch
from backend_programs import OPERATORS

import torch_lazy

ROOT = pathlib.Path(__file__).parents[2]
BUILD = ROOT / "build" / "test-backends"
PROGRAMS = pathlib.Path(__file__).parent / "backend_programs.py"


def build(source, name):
    """Configures and builds a project against the installed package, and only that."""
    prefixes = [torch_lazy.cmake_prefix_path, torch.utils.cmake_prefix_path]
    configure = ["cmake", "-S", ROOT / source, "-B", BUILD / name, "-G", "Ninja"]
    configure += ["-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_PREFIX_PATH=" + ";".join(prefixes)]
    for command in (configure, ["cmake", "--build", BUILD / name]):
        result = subprocess.run(command, capture_output=True, text=True)
        assert result.returncode == 0, result.stdout + result.stderr
    return BUILD / name


@pytest.fixture(scope="module")
def built():
    """Kept between test runs; one process builds at a time."""

    @contextlib.contextmanager
    def locked():
        BUILD.mkdir(parents=True, exist_ok=True)
        with open(BUILD / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def get(source, name):
        with locked():
            return build(source, name)

    return get


@pytest.fixture(scope="module")
def example(built):
    return built("examples/backend", "example") / "libloops_backend.so"


@pytest.fixture(scope="module")
def bad(built):
    return built("tests/backend", "bad") / "libbad_backend.so"


def run(*arguments, check=True, **environment):
    result = subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **{k: str(v) for k, v in environment.items()}},
    )
    assert not check or result.returncode == 0, result.stdout + result.stderr
    return result


def script(code, **options):
    prelude = "import os, torch, torch_lazy\n"
    return run("-c", prelude + textwrap.dedent(code), **options)


# ---- The example ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def operator_report(example):
    return json.loads(run(PROGRAMS, "operators", TORCH_LAZY_BACKEND=example).stdout)


@pytest.mark.slow
@pytest.mark.parametrize("name", OPERATORS)
def test_operators_of_the_example(operator_report, name):
    row = operator_report[name]
    assert row["error"] is None, row["error"]
    assert row["samples"] > 0
    assert row["executed"] >= row["samples"]


@pytest.mark.slow
@pytest.mark.parametrize("model", ["mlp", "transformer"])
def test_models_through_the_example(example, model):
    report = json.loads(run(PROGRAMS, model, TORCH_LAZY_BACKEND=example).stdout)
    for optimizer, row in report.items():
        assert row["executed"] > 50, (optimizer, row)
        assert row["lazy"] == pytest.approx(row["eager"], rel=1e-4), optimizer
        assert row["lazy"][-1] < row["lazy"][0], (optimizer, row)


@pytest.mark.slow
def test_a_cpp_program_without_python_uses_the_backend(example, built):
    program = built("examples/cpp", "cpp") / "train"
    environment = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"}

    def losses(device, **more):
        result = subprocess.run(
            [program, device], capture_output=True, text=True, env={**environment, **more}
        )
        return result, [float(word) for word in result.stdout.split()]

    _, expected = losses("cpu")
    result, actual = losses("lazy", TORCH_LAZY_BACKEND=str(example))
    assert actual == pytest.approx(expected, rel=1e-3), result.stderr
    result, _ = losses("lazy", TORCH_LAZY_BACKEND="/nowhere.so")
    assert result.returncode != 0
    assert "the backend '/nowhere.so' was not found" in result.stderr


def test_loading_from_python(example):
    script(
        f"""
        assert torch_lazy.backend_name() == "aten"
        x = torch.ones(3, device="lazy") + 1  # tensors exist already
        torch_lazy.sync()
        torch_lazy.load_backend({str(example)!r})
        assert torch_lazy.backend_name() == "loops"
        assert "LoopsBackend: 0 instructions" in torch_lazy._C.backend_metrics()
        assert (x * 2).tolist() == [4, 4, 4]
        assert "LoopsBackend: 1 instructions" in torch_lazy._C.backend_metrics()

        y = x * 3
        try:
            torch_lazy.load_backend({str(example)!r})
        except RuntimeError as e:
            assert "1 recorded operations have not run" in str(e), e
        else:
            raise AssertionError("accepted")
        assert y.tolist() == [6, 6, 6]
        """
    )


def test_what_a_backend_shows_of_itself(example):
    script(
        """
        x = torch.ones(2, 3, device="lazy")
        torch_lazy.sync()
        y = (x * 2).cos() + x
        text = torch_lazy._C._lazy._get_tensors_backend([y])
        assert text.startswith("backend loops, 1 nodes:\\n%1 = mul %0, #0 over 2x3\\n"), text
        assert "backend aten, 1 nodes:\\ngraph(" in text, text
        assert text.endswith("backend loops, 1 nodes:\\n%2 = add %0, %1, #0 over 2x3\\n"), text
        torch_lazy.mark_step()
        torch_lazy.wait_device_ops()
        report = torch_lazy.metrics.metrics_report()
        assert "Backend: loops\\nLoopsBackend: 2 instructions executed\\n" in report, report
        assert torch_lazy._C._lazy._get_default_device_type() == "CPU"
        """,
        TORCH_LAZY_BACKEND=example,
    )


def package(folder, name, value):
    """An installed package that offers a backend."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[torch_lazy.backends]\n{name} = {name}_package:LIB\n")
    (folder / f"{name}_package.py").write_text(f"LIB = {value}\n")


def test_packages_offer_backends(example, tmp_path):
    package(tmp_path, "loops", repr(str(example)))
    package(tmp_path, "called", f"lambda: {str(example)!r}")
    package(tmp_path, "gone", "'/nowhere.so'")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    script(
        """
        assert {"called", "gone", "loops"} <= set(torch_lazy.installed_backends())
        assert torch_lazy.backend_name() == "loops"
        torch_lazy.load_backend("called")
        assert (torch.ones(2, device="lazy") * 2).tolist() == [2, 2]
        for name, message in {
            "gone": "the library of backend 'gone', /nowhere.so, does not exist",
            "unheard_of": "no installed Python package offers a backend of that name",
        }.items():
            try:
                torch_lazy.load_backend(name)
            except RuntimeError as e:
                assert message in str(e), e
            else:
                raise AssertionError(name)
        """,
        TORCH_LAZY_BACKEND="loops",
        PYTHONPATH=path,
    )


# ---- Mistakes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ("interface", "was compiled for interface 999"),
        ("version", "of torch-lazy 0.0.7"),
        ("torch version", "for PyTorch 1.2.3"),
        ("nothing", "is empty"),
        ("creation", "failed in its creation: bad creation"),
        ("no backend", "it gave no backend"),
    ],
)
def test_a_library_that_does_not_fit_is_refused(bad, mistake, message):
    script(
        f"""
        try:
            torch_lazy.load_backend({str(bad)!r})
        except RuntimeError as e:
            assert {message!r} in str(e) and "libbad_backend.so" in str(e), e
        else:
            raise AssertionError("accepted")
        assert torch_lazy.backend_name() == "aten"
        assert (-torch.ones(2, device="lazy")).tolist() == [-1, -1]
        """,
        TORCH_LAZY_BAD=mistake,
    )


def test_files_that_are_no_backends_are_refused(bad, tmp_path):
    text = tmp_path / "text.so"
    text.write_text("no library")
    cases = {
        str(tmp_path / "missing.so"): "was not found: there is no such file",
        str(tmp_path): "was not found: there is no such file",
        str(text): "cannot be loaded",
        str(bad.parent / "libno_backend.so"): "does not export torch_lazy_backend_v1",
    }
    script(
        f"""
        for path, message in {cases!r}.items():
            try:
                torch_lazy.load_backend(path)
            except RuntimeError as e:
                assert message in str(e) and path in str(e), e
            else:
                raise AssertionError(path)
        assert (-torch.ones(2, device="lazy")).tolist() == [-1, -1]
        """
    )


def test_a_setting_that_names_no_backend_is_an_error_at_the_first_run():
    result = script(
        """
        x = torch.ones(2, device="lazy") + 1
        x.tolist()
        """,
        TORCH_LAZY_BACKEND="/nowhere.so",
        check=False,
    )
    assert result.returncode != 0
    assert "RuntimeError: torch-lazy: the backend '/nowhere.so' was not found" in result.stderr


MISTAKES = {
    "takes": "backend 'bad' failed in takes() of aten::neg(Float[2]): bad takes",
    "compile": "backend 'bad' failed in compile() of aten::neg(Float[2]): bad compile",
    "no executable": "it gave no executable",
    "run": "backend 'bad' failed in run() of aten::neg(Float[2]): bad run",
    "run with IndexError": "bad index",
    "number of slots": "backend 'bad' left 1 slots where there were 2",
    "number of results": "gave no data for result 0 of aten::neg(Float[2]). Expected number of "
    "outputs: 1, got 0",
    "size": "backend 'bad' gave 12 bytes for result 0 of aten::neg(Float[2]), where 8 were",
    "shape": "aten::neg gave Float[1, 2] where Float[2] was promised",
    "dtype": "aten::neg gave Int[2] where Float[2] was promised",
    "alias": "backend 'bad' gave memory that another value uses for result 0 of aten::neg",
}


def test_mistakes_while_running_are_errors_and_the_device_stays_usable(bad):
    script(
        f"""
        x = torch.ones(2, device="lazy")
        for mistake, message in {MISTAKES!r}.items():
            untouched = x.exp()
            bad = -x
            os.environ["TORCH_LAZY_BAD"] = mistake
            error = IndexError if "IndexError" in mistake else RuntimeError
            try:
                torch_lazy.mark_step(wait=True)
            except error as e:
                assert message in str(e), (mistake, e)
                assert "backend 'bad'" in str(e) and "aten::neg" in str(e), (mistake, e)
            else:
                raise AssertionError(mistake)
            torch_lazy.mark_step(wait=True)  # told once
            os.environ["TORCH_LAZY_BAD"] = ""
            if error is RuntimeError:  # of the others eager's class says that they are final
                assert bad.tolist() == [-1, -1], mistake
            assert torch.equal(untouched.cpu(), torch.ones(2).exp()), mistake
            assert (-x).tolist() == [-1, -1], mistake

        os.environ["TORCH_LAZY_BAD"] = "wait"
        try:
            torch_lazy.wait_device_ops()
        except RuntimeError as e:
            assert "backend 'bad' failed in wait(): bad wait" in str(e), e
        else:
            raise AssertionError("wait")
        os.environ["TORCH_LAZY_BAD"] = ""
        torch_lazy.wait_device_ops()
        """,
        TORCH_LAZY_BACKEND=bad,
    )
