"""Some tens of random programs in two threads; random_threads.py runs as many as you like."""

import pytest
import random_threads
import torch

pytestmark = pytest.mark.usefixtures("nothing_pending")

PART = 5


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("first", range(0, 40, PART))
def test_pairs(first):
    for seed in range(first, first + PART):
        found = random_threads.run_pair(seed)
        assert found is None, f"seed {seed}: {found}"


@pytest.mark.parametrize("first", range(0, 40, PART))
def test_races(first):
    for seed in range(first, first + PART):
        found = random_threads.run_race(seed)
        assert found is None, f"seed {seed}: {found}"


def test_a_lost_write_is_found(monkeypatch):
    """The tester can fail."""
    honest = random_threads.Ways.run

    def broken(ways, way, name, k):
        if name != "add":
            honest(ways, way, name, k)

    monkeypatch.setattr(random_threads.Ways, "run", broken)
    assert any(random_threads.run_race(seed) for seed in range(20))
