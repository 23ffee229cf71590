"""Compiled functions and objects that they reach through modules, classes and functions of PyTorch
and Python, through descriptions of functions, and by names that are texts. Compared with the plain
function, call by call; one thing changes in between."""

import builtins
import collections
import datetime
import io
import logging
import operator
import os
import sys
import threading
import time
import types

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from comparing import replayed
from side_by_side import CHANGED_AT, Programs, check, name_of
from torch import nn

import torch_lazy

pytestmark = [
    pytest.mark.usefixtures("nothing_pending"),
    pytest.mark.filterwarnings("ignore::torch_lazy.CompileWarning"),
]

PROGRAMS = Programs()
program = PROGRAMS.add


@pytest.mark.parametrize("make", PROGRAMS, ids=name_of)
def test_programs(make):
    check(make)


def with_change(function, change, device):
    """Calls with a tensor of ones; the change is made once, in between."""
    x = torch.ones(3, device=device)

    def call(number):
        if number == CHANGED_AT:
            change()
        return function(x)

    return call


class Settings:
    def __init__(self, k=2.0):
        self.k = k


# ---- What a program puts into modules, classes and functions that are not its own ----------------


@program
def object_in_builtins(wrap, device):
    builtins.settings_of_test = Settings()
    function = wrap(lambda x: x * settings_of_test.k)  # noqa: F821
    return with_change(function, lambda: setattr(builtins.settings_of_test, "k", 3.0), device)


@program
def dict_in_builtins(wrap, device):
    builtins.table_of_test = {"k": 2.0}
    function = wrap(lambda x: x * table_of_test["k"])  # noqa: F821
    return with_change(function, lambda: builtins.table_of_test.update(k=3.0), device)


@program
def object_in_torch(wrap, device):
    torch.settings_of_test = Settings()
    function = wrap(lambda x: x * torch.settings_of_test.k)
    return with_change(function, lambda: setattr(torch.settings_of_test, "k", 3.0), device)


@program
def namespace_in_sys(wrap, device):
    sys.settings_of_test = types.SimpleNamespace(k=2.0)
    function = wrap(lambda x: x * sys.settings_of_test.k)
    return with_change(function, lambda: setattr(sys.settings_of_test, "k", 3.0), device)


@program
def count_in_torch(wrap, device):
    torch.counts_of_test = Settings(0)

    def counted(x):
        torch.counts_of_test.k += 1
        return x

    function = wrap(counted)
    x = torch.ones(3, device=device)
    return lambda number: (function(x).tolist(), torch.counts_of_test.k)


@program
def dict_in_a_class_of_pytorch(wrap, device):
    nn.Module.settings_of_test = {"k": 2.0}
    module = nn.ReLU()
    function = wrap(lambda x: x * module.settings_of_test["k"])
    return with_change(function, lambda: nn.Module.settings_of_test.update(k=3.0), device)


@program
def list_in_tensors_class(wrap, device):
    torch.Tensor.settings_of_test = [2.0]

    def change():
        torch.Tensor.settings_of_test[0] = 3.0

    function = wrap(lambda x: x * x.settings_of_test[0])
    return with_change(function, change, device)


class Scaled(nn.Module):
    k = 2.0

    def forward(self, x):
        return x * self.k


@program
def module_in_functional(wrap, device):
    F.scaled_of_test = Scaled()
    function = wrap(lambda x: F.scaled_of_test(x))
    return with_change(function, lambda: setattr(F.scaled_of_test, "k", 3.0), device)


@program
def attribute_of_a_function_of_pytorch(wrap, device):
    F.relu.k_of_test = 2.0
    function = wrap(lambda x: x * F.relu.k_of_test)
    return with_change(function, lambda: setattr(F.relu, "k_of_test", 3.0), device)


@program
def module_of_pytorch_in_a_closure(wrap, device):
    functional = F
    functional.k_of_closure = 2.0
    function = wrap(lambda x: x * functional.k_of_closure)
    return with_change(function, lambda: setattr(F, "k_of_closure", 3.0), device)


@program
def settings_of_pytorch(wrap, device):
    config = torch._dynamo.config
    before = config.verbose

    def call(number):
        config.verbose = number >= CHANGED_AT
        try:
            return function(x)
        finally:
            config.verbose = before

    function = wrap(lambda x: x * (3.0 if config.verbose else 2.0))
    x = torch.ones(3, device=device)
    return call


@program
def root_logger(wrap, device):
    seen = []
    handler = logging.Handler()
    handler.emit = lambda record: seen.append(record.getMessage())

    def logged(x):
        logging.info("a call")
        return x

    function = wrap(logged)
    x = torch.ones(3, device=device)
    root = logging.getLogger()
    level = root.level

    def call(number):
        root.setLevel(logging.INFO if number >= CHANGED_AT else logging.WARNING)
        root.addHandler(handler)
        try:
            function(x)
        finally:
            root.removeHandler(handler)
            root.setLevel(level)
        return len(seen)

    return call


@program
def environment_as_bytes(wrap, device):
    os.environ["TORCH_LAZY_OF_TEST"] = "2"
    function = wrap(lambda x: x * int(os.environb[b"TORCH_LAZY_OF_TEST"]))
    return with_change(function, lambda: os.environ.update(TORCH_LAZY_OF_TEST="3"), device)


# ---- Names that are texts ------------------------------------------------------------------------


@program
def number_in_a_parameter_list(wrap, device):
    parameters = nn.ParameterList([torch.ones(3, device=device), 5.0])

    def change():
        parameters[1] = 7.0

    numbers = wrap(lambda x: x * sum(p for p in parameters if not isinstance(p, torch.Tensor)))
    return with_change(numbers, change, device)


@program
def scheduler_by_a_computed_name(wrap, device):
    parameter = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    names = ["last_epoch"]

    def change():
        optimizer.step()
        scheduler.step()

    function = wrap(lambda x: x * (1 + getattr(scheduler, names[0])))
    return with_change(function, change, device)


def count_of_writes(read):
    def make(wrap, device):
        state = torch.ones(3, device=device)
        start = state._version
        function = wrap(lambda x: x * (read(state) - start + 1))
        return with_change(function, lambda: state.add_(0), device)

    return make


by_getattr = count_of_writes(lambda state: getattr(state, "_version"))  # noqa: B009
by_attrgetter = count_of_writes(operator.attrgetter("_version"))
by_getattr.__name__ = "count_of_writes_by_getattr"
by_attrgetter.__name__ = "count_of_writes_by_attrgetter"
PROGRAMS += [by_getattr, by_attrgetter]


@program
def print_by_getattr(wrap, device):
    out = io.StringIO()

    def printed(x):
        for _ in map(getattr(builtins, "print"), [1]):  # noqa: B009
            pass
        return x

    function = wrap(printed)
    x = torch.ones(3, device=device)

    def call(_):
        before, sys.stdout = sys.stdout, out
        try:
            function(x)
        finally:
            sys.stdout = before
        return len(out.getvalue())

    return call


# ---- What describes functions and arrays ---------------------------------------------------------


def described():
    """Two words."""


@program
def docs_of_a_function(wrap, device):
    described.__doc__ = "Two words."
    function = wrap(lambda x: x * len(described.__doc__))
    return with_change(function, lambda: setattr(described, "__doc__", "One"), device)


@program
def annotations_of_a_function(wrap, device):
    described.__annotations__ = {"k": 2.0}
    function = wrap(lambda x: x * described.__annotations__["k"])
    return with_change(function, lambda: described.__annotations__.update(k=3.0), device)


@program
def module_of_a_function(wrap, device):
    described.__module__ = "tanh"
    function = wrap(lambda x: getattr(torch, described.__module__)(x))
    return with_change(function, lambda: setattr(described, "__module__", "exp"), device)


@program
def names_of_fields(wrap, device):
    array = np.array([(1.0, 2.0)], dtype=[("a", "f8"), ("b", "f8")])
    function = wrap(lambda x: x * float(array["a"][0]))
    return with_change(function, lambda: setattr(array.dtype, "names", ("b", "a")), device)


@program
def array_that_cannot_be_written(wrap, device):
    array = np.ones(3)
    function = wrap(lambda x: x * (2.0 if array.flags.writeable else 3.0))
    return with_change(function, lambda: array.setflags(write=False), device)


@program
def parameter_or_tensor(wrap, device):
    given = [nn.Parameter(torch.ones(3, device=device), requires_grad=False)]
    function = wrap(lambda x: x * (2.0 if isinstance(x, nn.Parameter) else 3.0))

    def call(number):
        if number == CHANGED_AT:
            given[0] = torch.ones(3, device=device)
        return function(given[0])

    return call


# ---- The process, and what surrounds a call ------------------------------------------------------


@program
def inside_an_except_block(wrap, device):
    def raised_again(x):
        try:
            raise
        except RuntimeError:
            return x * 2
        except ValueError:
            return x * 3

    function = wrap(raised_again)
    x = torch.ones(3, device=device)

    def call(number):
        if number < CHANGED_AT:
            return function(x)
        try:
            raise ValueError
        except ValueError:
            return function(x)

    return call


@program
def time_zone(wrap, device):
    before = os.environ.get("TZ")
    function = wrap(lambda x: x * datetime.datetime.fromtimestamp(0).hour)
    x = torch.ones(3, device=device)

    def call(number):
        os.environ["TZ"] = "UTC-5" if number >= CHANGED_AT else "UTC"
        time.tzset()
        try:
            return function(x)
        finally:
            os.environ.pop("TZ")
            os.environ.update({} if before is None else {"TZ": before})
            time.tzset()

    return call


@program
def name_of_the_main_thread(wrap, device):
    thread = threading.main_thread()
    before = thread.name
    function = wrap(lambda x: x * len(threading.main_thread().name))
    x = torch.ones(3, device=device)

    def call(number):
        thread.name = "short" if number >= CHANGED_AT else before
        try:
            return function(x)
        finally:
            thread.name = before

    return call


@program
def settings_that_the_function_sets(wrap, device):
    def set_them(x):
        np.seterr(divide="ignore")
        sys.setrecursionlimit(2000)
        torch.set_printoptions(precision=3)
        return x

    function = wrap(set_them)
    x = torch.ones(3, device=device)

    def call(_):
        before = np.seterr(divide="warn"), sys.getrecursionlimit()
        torch.set_printoptions(profile="default")
        try:
            function(x)
            precision = torch._tensor_str.PRINT_OPTS.precision
            return np.geterr()["divide"], sys.getrecursionlimit(), precision
        finally:
            np.seterr(**before[0])
            sys.setrecursionlimit(before[1])
            torch.set_printoptions(profile="default")

    return call


@program
def a_file_of_a_type(wrap, device, path="/dev/null"):
    function = wrap(lambda x: x * (1 + len(list(io.FileIO(path)))))
    x = torch.ones(3, device=device)
    return lambda number: function(x)


@program
def traced_by_jit(wrap, device):
    function = wrap(lambda x: x.tanh() * 2)
    x = torch.ones(3, device=device)

    def call(number):
        if number < CHANGED_AT:
            return function(x)
        traced = torch.jit.trace(lambda a: function(a) + a, (x,), check_trace=False)
        return traced(x * 2)

    return call


# ---- What is replayed all the same ---------------------------------------------------------------


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x * torch.pi,
        lambda x: F.relu(x),
        lambda x: x * len(collections.OrderedDict(a=1)),
        lambda x: x * (1 if isinstance(x, nn.Parameter) else 2),
    ],
)
def test_what_libraries_have_of_their_own_is_replayed(read):
    function = torch_lazy.compile(read)
    for _ in range(6):
        function(torch.ones(3, device="lazy"))
    assert replayed() >= 3


def test_the_function_of_a_compiled_one_stays():
    function = torch_lazy.compile(lambda x: x * 2)
    with pytest.raises(AttributeError):
        function.function = lambda x: x * 3
