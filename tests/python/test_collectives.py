"""Collectives of two ranks on lazy tensors, executed at once, against the CPU's."""

import json
import os
import pathlib
import subprocess
import sys

import collective_programs
import pytest
import torch

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="this PyTorch was built without collectives"
)

LONG = 120  # seconds after which ranks that wait for each other have failed


@pytest.fixture(scope="module")
def wrong(tmp_path_factory):
    """What went wrong, by rank and program; all programs run in one pair of processes."""
    file = tmp_path_factory.mktemp("collectives") / "store"
    here = pathlib.Path(__file__).parent
    ranks = [
        subprocess.Popen(
            [sys.executable, str(here / "collective_programs.py"), str(rank), str(file)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        said = [rank.communicate(timeout=LONG) for rank in ranks]
    except subprocess.TimeoutExpired:
        for rank in ranks:
            rank.kill()
        pytest.fail("the ranks hang: " + "\n".join(r.communicate()[1][-1000:] for r in ranks))
    assert [rank.returncode for rank in ranks] == [0, 0], said
    return [json.loads(out.splitlines()[-1]) for out, _ in said]


@pytest.mark.parametrize("program", collective_programs.PROGRAMS)
def test_two_ranks(wrong, program):
    assert [rank[program] for rank in wrong] == ["", ""]
