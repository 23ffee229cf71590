"""The pure C++ examples: built out of tree with find_package(TorchLazy), run on both devices."""

import os
import pathlib
import subprocess

import pytest
import torch

import torch_lazy

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "cpp"


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    build = tmp_path_factory.mktemp("example")
    prefixes = [torch_lazy.cmake_prefix_path, torch.utils.cmake_prefix_path]
    configure = [
        "cmake",
        "-S",
        str(EXAMPLE),
        "-B",
        str(build),
        "-G",
        "Ninja",
        "-DCMAKE_BUILD_TYPE=Release",
        "-DCMAKE_PREFIX_PATH=" + ";".join(prefixes),
    ]
    subprocess.run(configure, check=True, capture_output=True, text=True)
    subprocess.run(["cmake", "--build", str(build)], check=True, capture_output=True, text=True)
    return build


def run(program, device, **settings):
    # No Python in the process, and none of its variables.
    environment = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"} | settings
    return subprocess.run(
        [str(program), device], check=True, capture_output=True, text=True, env=environment
    )


@pytest.mark.slow
def test_training_gives_the_cpus_losses(programs):
    on_cpu = run(programs / "train", "cpu").stdout.split()
    assert len(on_cpu) >= 5
    assert float(on_cpu[-1]) < float(on_cpu[0])
    eagers = run(programs / "train", "lazy", TORCH_LAZY_COMPILER="off")
    assert eagers.stdout.split() == on_cpu
    # The process ends while kernels are compiled on another thread.
    expected = pytest.approx([float(loss) for loss in on_cpu], rel=1e-3)
    for _ in range(3):
        compiled = run(programs / "train", "lazy", TORCH_LAZY_CACHE_DIR="off")
        assert [float(loss) for loss in compiled.stdout.split()] == expected


@pytest.mark.slow
def test_an_extracted_graph_gives_the_models_results(programs):
    on_cpu = run(programs / "extract_graph", "cpu").stdout.splitlines()
    extracted = run(programs / "extract_graph", "lazy", TORCH_LAZY_COMPILER="off")
    assert len(set(on_cpu)) == 5
    assert extracted.stdout.splitlines() == on_cpu
    # The graph ran by its hash: nothing was recorded, nothing compiled.
    assert not [name for name in extracted.stderr.split() if name != "CachedCompile"]


@pytest.mark.slow
def test_an_unknown_device_is_refused(programs):
    result = subprocess.run([str(programs / "train"), "nonsense"], capture_output=True, text=True)
    assert result.returncode != 0
    assert "nonsense" in result.stderr
