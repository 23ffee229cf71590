"""Compiled functions after there was no memory: they are replayed again."""

import pytest
import torch

import torch_lazy

pytestmark = pytest.mark.usefixtures("nothing_pending")
TOO_MUCH = 2**44  # elements


def replayed():
    return torch_lazy.metrics.counters().get("Replayed", 0)


def without_memory(kept):
    """An operation that fails, whose result somebody keeps."""
    y = torch.ones(1, device="lazy").expand(TOO_MUCH // 8) * 2
    kept.append(y)
    with pytest.raises(RuntimeError, match="memory"):
        y.sum().item()


def make():
    @torch_lazy.compile
    def f(x):
        return (x * 2 + 1).sum()

    return f


@pytest.mark.parametrize("before", [0, 1, 2, 5])
def test_a_result_that_never_came(before, recwarn):
    """However long the operation waits that had no memory, it is no reason against a function."""
    f = make()
    x = torch.ones(8, device="lazy")
    for _ in range(before):
        f(x)
    kept = []
    without_memory(kept)
    for _ in range(40):  # with several checks
        assert f(x).item() == 24
    count = replayed()
    for _ in range(8):
        f(x)
    assert replayed() >= count + 7
    assert not [w for w in recwarn if issubclass(w.category, torch_lazy.CompileWarning)]
    kept.clear()


def test_a_function_that_needs_what_never_came():
    kept = []
    without_memory(kept)
    late = kept[0][:4]

    @torch_lazy.compile
    def f(x):
        return (x + late).sum()

    x = torch.ones(4, device="lazy")
    for _ in range(3):
        with pytest.raises(RuntimeError, match="memory"):
            f(x).item()
    late = torch.ones(4, device="lazy")
    assert [f(x).item() for _ in range(6)] == [8] * 6
    count = replayed()
    f(x)
    assert replayed() == count + 1


def test_too_much_in_one_call_of_many():
    @torch_lazy.compile
    def f(x, n):
        return (x.expand(n) * 2).max()

    x = torch.ones(1, device="lazy")
    for n in (8, TOO_MUCH // 8, 8, TOO_MUCH // 8, 8):
        for _ in range(5):
            if n == 8:
                assert f(x, n).item() == 2
            else:
                with pytest.raises(RuntimeError, match="memory"):
                    f(x, n).item()
    count = replayed()
    f(x, 8)
    assert replayed() == count + 1
