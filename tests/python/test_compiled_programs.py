"""Random programs inside torch_lazy.compile; compiled_programs.py runs as many as you like."""

import compiled_programs
import pytest

import torch_lazy

PROGRAMS = 300
PART = 50


@pytest.mark.usefixtures("nothing_pending")
@pytest.mark.parametrize("first", range(0, PROGRAMS, PART))
def test_programs(first):
    for seed in range(first, first + PART):
        failure = compiled_programs.test_seed(seed)
        assert failure is None, f"\n{failure}"
    # Most programs end in something that backward may still need, or read: some do not.
    assert torch_lazy.metrics.counter_value("Replayed") > PART / 2
