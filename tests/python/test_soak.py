"""A few seconds of tests/soak/soak.py; `make soak` takes half an hour."""

import pathlib
import subprocess
import sys

import pytest

SOAK = pathlib.Path(__file__).parent.parent / "soak" / "soak.py"


def soak(seconds, *arguments):
    return subprocess.run(
        [sys.executable, SOAK, "--seconds", str(seconds), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.slow
def test_a_short_soak():
    done = soak(15)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "soak: 0 problems" in done.stdout


def test_a_problem_is_reported():
    done = soak(1, "--only", "wrong")
    assert done.returncode == 1
    assert "PROBLEM: wrong, thread" in done.stdout
