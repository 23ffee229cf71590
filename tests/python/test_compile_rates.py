"""torch_lazy.compile: numbers follow learning rates only where the program's own code makes them of
these by operations that are known.
"""

import array
import collections
import copy
import ctypes
import datetime
import fractions
import json
import math
import pickle
import statistics
import struct
import sys
import warnings

import numpy as np
import pytest
import torch
from comparing import replayed
from torch import nn

import torch_lazy
from torch_lazy.rates import Rate, RateWatch

pytestmark = pytest.mark.usefixtures("nothing_pending")


def recorded():
    return torch_lazy.metrics.counter_value("ReplayRecorded") or 0


class Number(torch.optim.Optimizer):
    """Sets its parameter to what a function makes of the learning rate."""

    def __init__(self, parameter, function, lr):
        super().__init__([parameter], {"lr": lr})
        self.function = function

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.fill_(self.function(group["lr"]))


def numbers(function, rates):
    """What a compiled step gives for each rate, and what Python gives; replays of the step."""
    parameter = nn.Parameter(torch.zeros(2, dtype=torch.float64, device="lazy"))
    optimizer = Number(parameter, function, rates[0])

    @torch_lazy.compile
    def step():
        optimizer.step()

    before = replayed()
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", torch_lazy.CompileWarning)
        for rate in rates:
            optimizer.param_groups[0]["lr"] = rate
            step()
            assert type(optimizer.param_groups[0]["lr"]) is float
            found.append(parameter[0].item())
    return found, [float(function(rate)) for rate in rates], replayed() - before


RATES = [0.1, 0.1, 0.3, 0.7, 1.1, 2.0, 3.0, 5.5, 0.01, 0.3]


FOLLOWED = {
    "itself": lambda lr: lr,
    "negative": lambda lr: -lr,
    "decay": lambda lr: 1 - lr * 0.01,
    "sum": lambda lr: 3 + lr + 0.1,
    "quotients": lambda lr: lr / 3 + 7 / lr,
    "powers": lambda lr: lr**3 + 0.9**lr + lr**0.5,
    "itself_twice": lambda lr: lr * lr - lr,
    "bool": lambda lr: lr * True - False,
    "positive": lambda lr: +lr,
}


@pytest.mark.parametrize("name", FOLLOWED)
def test_arithmetic_is_followed(name):
    found, expected, replays = numbers(FOLLOWED[name], RATES)
    assert found == expected
    assert replays == len(RATES) - 3  # two alike, and one with another rate


PERCENT = "%.0f"
DOUBLE = struct.Struct("d")
Seconds = datetime.timedelta
ARRAY = np.array


def clipped(lr):
    if lr > 1.0:
        return 1.0
    return lr


NOT_FOLLOWED = {
    "min": lambda lr: min(lr, 1.0),
    "max": lambda lr: max(lr, 0.5),
    "if": clipped,
    "bool": lambda lr: lr * 2 if lr - 1.1 else 7.0,
    "round": lambda lr: round(lr, 1),
    "int": lambda lr: int(lr),
    "float": lambda lr: float(lr),
    "floor": lambda lr: math.floor(lr) + 0.5,
    "floordiv": lambda lr: lr // 0.4,
    "mod": lambda lr: lr % 0.4,
    "abs": lambda lr: abs(lr - 1),
    "format": lambda lr: float(f"{lr:.0f}"),
    "str": lambda lr: float(str(lr)[:1]),
    "hash": lambda lr: {0.1: 1.0}.get(lr, 2.0),
    "copy": lambda lr: copy.deepcopy(lr) * 2,
    "pickle": lambda lr: pickle.loads(pickle.dumps(lr)),
    "sqrt": lambda lr: math.sqrt(lr),
    "copysign": lambda lr: math.copysign(1.0, lr - 1),
    "fmod": lambda lr: math.fmod(lr, 1.0),
    "numpy_minimum": lambda lr: float(np.minimum(lr, 1.0)),
    "numpy_float": lambda lr: float(np.float64(lr) * 2),
    "complex": lambda lr: (lr * (1 + 0j)).real,
    "is_integer": lambda lr: 1.0 if lr.is_integer() else 2.0,
    "tensor": lambda lr: torch.tensor(lr).clamp(max=1.0).item(),
    "uploaded": lambda lr: torch.tensor(lr, dtype=torch.float64, device="lazy"),
    "percent": lambda lr: float("%.0f" % lr),  # noqa: UP031
    "percent_of_a_dict": lambda lr: float("%(lr).0f" % {"lr": lr}),  # noqa: UP031
    "percent_by_name": lambda lr: float(PERCENT % lr),
    "type": lambda lr: 2.0 if type(lr) is float else 3.0,
    "json": lambda lr: float(json.dumps(lr)[:1]),
    "json_of_a_list": lambda lr: float(json.dumps([lr])[1:2]),
    "struct": lambda lr: struct.unpack("d", DOUBLE.pack(lr))[0] // 1,
    "array": lambda lr: array.array("d", [lr])[0] // 1,
    "ctypes": lambda lr: ctypes.c_double(lr).value // 1,
    "timedelta": lambda lr: datetime.timedelta(seconds=lr).total_seconds() // 1,
    "timedelta_of_a_name": lambda lr: Seconds(0, lr).total_seconds() // 1,
    "numpy_array": lambda lr: float(ARRAY([lr])[0] // 1),
    "fraction": lambda lr: float(fractions.Fraction(lr) // 1),
    "statistics": lambda lr: statistics.fmean([lr, lr]) // 1,
    "sum": lambda lr: min(sum([lr, lr]), 1.0),
    "sorted": lambda lr: sorted([lr, 1.0])[0],
    "complex_of_it": lambda lr: complex(lr).real // 1,
    "join": lambda lr: float("".join(map(str, [lr]))[:1]),
}


@pytest.mark.parametrize("name", NOT_FOLLOWED)
@pytest.mark.parametrize("rates", [RATES, [2.0, 2.0, 3.0, 0.5, 0.25, 2.0]], ids=["up", "down"])
def test_what_looks_at_a_rate_is_not_followed(name, rates):
    """The second order of rates: the number does not change when the rate first does."""
    found, expected, _ = numbers(NOT_FOLLOWED[name], rates)
    assert found == expected


def test_another_rate_is_another_recording():
    """Each rate that comes back is replayed."""
    rates = [value for value in (0.5, 2.0, 3.0) for _ in range(3)] * 3
    found, expected, replays = numbers(lambda lr: min(lr, 1.0), rates)
    assert found == expected
    assert replays == len(rates) - 3 * 2


def test_numbers_of_a_function_outside_of_optimizers():
    """The rate is read from the group by the function itself."""
    parameter = nn.Parameter(torch.zeros(2, dtype=torch.float64, device="lazy"))
    optimizer = torch.optim.SGD([parameter], lr=0.1)

    @torch_lazy.compile
    def step(x):
        rate = optimizer.param_groups[0]["lr"]
        return x * (rate * 2), x - min(rate, 1.0)

    x = torch.ones(2, dtype=torch.float64, device="lazy")
    for rate in RATES:
        optimizer.param_groups[0]["lr"] = rate
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", torch_lazy.CompileWarning)
            a, b = step(x)
        assert a[0].item() == rate * 2
        assert b[0].item() == 1 - min(rate, 1.0)


def test_a_rate_that_is_kept_or_returned():
    seen = []

    class Log:
        last = 0.0

    log = Log()
    parameter = nn.Parameter(torch.zeros(2, dtype=torch.float64, device="lazy"))
    optimizer = torch.optim.SGD([parameter], lr=0.1)

    def step(x):
        rate = optimizer.param_groups[0]["lr"]
        log.last = rate * 2
        return x * rate, {"rate": rate}

    compiled = torch_lazy.compile(step)
    x = torch.ones(2, dtype=torch.float64, device="lazy")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", torch_lazy.CompileWarning)
        for rate in RATES:
            optimizer.param_groups[0]["lr"] = rate
            y, returned = compiled(x)
            assert type(returned["rate"]) is float
            assert returned["rate"] == rate
            assert type(log.last) is float
            assert log.last == rate * 2
            assert y[0].item() == rate
            seen.append(rate)
    assert seen == RATES


class Slots:
    __slots__ = ("rate",)


def cell_of(value):
    def function():
        return value

    return function


Pair = collections.namedtuple("Pair", "name rate")

KEPT = {
    "list": (lambda rate: [rate], lambda kept: kept[0]),
    "dict": (lambda rate: {"rate": rate}, lambda kept: kept["rate"]),
    "deque": (lambda rate: collections.deque([rate]), lambda kept: kept[0]),
    "tuple": (lambda rate: [(1, (2, rate))], lambda kept: kept[0][1][1]),
    "named_tuple": (lambda rate: [Pair("rate", rate)], lambda kept: kept[0].rate),
    "closure": (cell_of, lambda kept: kept()),
}


@pytest.mark.parametrize("name", KEPT)
def test_rates_that_are_kept_become_floats(name):
    """Wherever a program puts one, it finds a float after the call."""
    keep, look = KEPT[name]
    parameter = nn.Parameter(torch.zeros(2, device="lazy"))
    optimizer = torch.optim.SGD([parameter], lr=0.5)
    place = Slots()
    kept = []

    def step(x):
        place.rate = optimizer.param_groups[0]["lr"] * 3
        kept.append(keep(place.rate))
        return x * 2

    compiled = torch_lazy.compile(step)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", torch_lazy.CompileWarning)
        for _ in range(6):
            compiled(torch.ones(2, device="lazy"))
    assert [(type(look(each)), look(each)) for each in kept] == [(float, 1.5)] * 6
    assert type(place.rate) is float


def test_the_reason_is_said():
    parameter = nn.Parameter(torch.zeros(2, dtype=torch.float64, device="lazy"))
    optimizer = Number(parameter, lambda lr: min(lr, 1.0), 0.1)

    @torch_lazy.compile
    def step():
        optimizer.step()

    with pytest.warns(torch_lazy.CompileWarning, match=r"__[lg]t__.*test_compile_rates\.py:\d+"):
        for i in range(10):
            optimizer.param_groups[0]["lr"] = 0.1 * (i + 1)
            step()


def test_an_error_leaves_the_rate():
    parameter = nn.Parameter(torch.zeros(2, device="lazy"))
    optimizer = Number(parameter, lambda lr: 1 / 0, 0.125)
    rate = optimizer.param_groups[0]["lr"]

    @torch_lazy.compile
    def step():
        optimizer.step()

    profile = sys.getprofile()
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            step()
        assert optimizer.param_groups[0]["lr"] is rate
        assert not torch_lazy._C.is_recording()
        assert sys.getprofile() is profile


def test_a_profiler_goes_on():
    calls = []

    def profile(frame, event, argument):
        calls.append((event, frame.f_code.co_name))

    parameter = nn.Parameter(torch.zeros(2, device="lazy"))
    optimizer = torch.optim.SGD([parameter], lr=0.1)

    @torch_lazy.compile
    def named_step():
        optimizer.step()

    sys.setprofile(profile)
    try:
        named_step()
        assert sys.getprofile() is profile
    finally:
        sys.setprofile(None)
    assert ("call", "named_step") in calls


def test_rates_are_floats():
    """What is left of one after its call is a float that remembers nothing."""
    group = {"lr": 0.5}
    watch = RateWatch([("group", group)], "")
    with watch:
        rate = group["lr"]
        assert isinstance(rate, float) and type(rate) is Rate
        assert type(-rate * 2 + 1) is Rate
        assert type(copy.copy(rate)) is float
        assert type(pickle.loads(pickle.dumps(rate))) is float
    assert type(rate * 2) is float
    assert rate > 0.25 and rate == 0.5 and hash(rate) == hash(0.5)
    assert f"{rate:.1f} {rate!r} {rate}" == "0.5 0.5 0.5"
    assert type(group["lr"]) is float


def test_two_rates_in_one_number():
    def run(device):
        parameters = [nn.Parameter(torch.ones(2, dtype=torch.float64, device=device)) for _ in "ab"]
        optimizer = torch.optim.SGD([{"params": [p]} for p in parameters], lr=0.1)

        def step():
            a, b = (group["lr"] for group in optimizer.param_groups)
            return parameters[0].detach() * (a / (a + b))

        step = torch_lazy.compile(step) if device == "lazy" else step
        found = []
        for i in range(12):
            for k, group in enumerate(optimizer.param_groups):
                group["lr"] = 0.1 * (i + 1) / (1 + k * (i > 6) * i)
            found.append(step()[0].item())
        return found

    assert run("lazy") == run("cpu")
    assert replayed() > 4
