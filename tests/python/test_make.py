"""tools/run_parts.sh, which `make test` and CI run their parts with."""

import pathlib
import shutil
import subprocess

import pytest

SCRIPT = pathlib.Path(__file__).parents[2] / "tools" / "run_parts.sh"
MAKEFILE = "good:\n\t@echo good ran\nbad:\n\t@echo bad ran; exit 3\n"


def run(folder, *parts):
    (folder / "Makefile").write_text(MAKEFILE)
    ended = subprocess.run([SCRIPT, *parts], cwd=folder, capture_output=True, text=True, timeout=60)
    return ended.returncode, ended.stdout.splitlines()


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make to run it with")
def test_a_failing_part_does_not_hide_the_parts_after_it(tmp_path):
    code, said = run(tmp_path, "bad", "good")
    assert code == 1
    assert "bad ran" in said and "good ran" in said
    assert said[-1] == "== FAILED: bad"
    assert [line.split()[::3] for line in said[-3:-1]] == [["FAILED", "bad"], ["passed", "good"]]
    assert run(tmp_path, "good") == (
        0, ["== make good", "good ran", "== summary", "   passed     0 s  good", "== PASSED: good"],
    )  # fmt: skip
