"""Compiled functions and what C code and libraries find by themselves: functions that were
registered with them, methods that no code names, names of classes, settings. Compared with the
plain function, call by call; one thing changes in between."""

import codecs
import copy
import copyreg
import datetime
import decimal
import json
import logging
import statistics
import types
import typing

import numpy as np
import pytest
import torch
import torch.distributions as td
from comparing import replayed
from side_by_side import CHANGED_AT, Programs, check, name_of
from torch import nn
from torch._higher_order_ops.while_loop import while_loop
from torch.utils import _pytree as pytree

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


# ---- Functions that were registered --------------------------------------------------------------


@program
def transform_of_a_constraint(wrap, device):
    class Mine(td.constraints.Constraint):
        pass

    def register(scale):
        td.transform_to.register(Mine, lambda _: td.AffineTransform(0.0, scale))

    register(2.0)
    constraint = Mine()
    function = wrap(lambda x: td.transform_to(constraint)(x))
    return with_change(function, lambda: register(3.0), device)


@program
def divergence_of_two_distributions(wrap, device):
    class Mine(td.Normal):
        pass

    td.register_kl(Mine, Mine)(lambda p, q: p.loc * 2)
    one = torch.ones(3, device=device)
    mine = Mine(one, one, validate_args=False)
    function = wrap(lambda x: td.kl_divergence(mine, mine) * x)
    change = td.register_kl(Mine, Mine)
    return with_change(function, lambda: change(lambda p, q: p.loc * 3), device)


@program
def kernel_of_a_custom_operator(wrap, device):
    library = torch.library.Library("registered_for_test", "FRAGMENT")
    library.define("scaled(Tensor x) -> Tensor")
    kernels = []

    def register(scale):
        while kernels:
            kernels.pop()._destroy()
        kernels.append(torch.library.Library("registered_for_test", "IMPL"))
        kernels[0].impl("scaled", lambda x: x * scale, "CompositeImplicitAutograd")

    register(2)
    x = torch.ones(3, device=device)
    function = wrap(lambda x: torch.ops.registered_for_test.scaled(x))

    def call(number):
        if number == CHANGED_AT:
            register(3)
        try:
            return function(x).tolist()
        finally:
            if number == 10:  # the last one
                kernels.pop()._destroy()
                library._destroy()

    return call


@program
def how_objects_are_copied(wrap, device):
    class Mine:
        k = 1

    class Other:
        k = 5

    mine = Mine()
    function = wrap(lambda x: x * copy.copy(mine).k)
    return with_change(function, lambda: copyreg.pickle(Mine, lambda _: (Other, ())), device)


@program
def what_a_node_of_a_tree_consists_of(wrap, device):
    class Mine:
        k = 4

    tree = [1, Mine()]
    function = wrap(
        lambda x: x * sum(getattr(leaf, "k", leaf) for leaf in pytree.tree_leaves(tree))
    )

    def register():
        pytree.register_pytree_node(Mine, lambda _: ([1, 1, 1], None), lambda *_: Mine())

    x = torch.ones(3, device=device)

    def call(number):
        if number == CHANGED_AT:
            register()
        try:
            return function(x)
        finally:
            if number == 10:
                pytree._deregister_pytree_node(Mine)

    return call


@program
def handler_of_errors_of_a_codec(wrap, device):
    codecs.register_error("of_test", lambda e: ("a", e.end))
    function = wrap(lambda x: x * len("\u00e9".encode("ascii", errors="of_test")))
    change = lambda: codecs.register_error("of_test", lambda e: ("abc", e.end))  # noqa: E731
    return with_change(function, change, device)


# ---- Methods that C code calls -------------------------------------------------------------------


@program
def items_of_a_dict_by_json(wrap, device):
    class Mine(dict):
        def items(self):
            return [("a", 2)]

    mine = Mine(a=5)
    function = wrap(lambda x: x * float(json.dumps(mine)[6:-1]))
    return with_change(function, lambda: setattr(Mine, "items", lambda _: [("a", 7)]), device)


@program
def zone_of_a_time(wrap, device):
    class Zone(datetime.tzinfo):
        k = 1

        def utcoffset(self, _):
            return datetime.timedelta(hours=self.k)

        def dst(self, _):
            return None

    noon = datetime.datetime(2020, 1, 1, 12, tzinfo=Zone())
    function = wrap(lambda x: x * noon.utctimetuple().tm_hour)
    return with_change(function, lambda: setattr(Zone, "k", 2), device)


@program
def memory_by_its_address(wrap, device):
    class Mine:
        pass

    memory = np.array([2.0], dtype="f4")
    mine = Mine()
    mine.__array_interface__ = memory.__array_interface__
    function = wrap(lambda x: x * torch.tensor(np.asarray(mine)).to(device))
    return with_change(function, lambda: memory.__setitem__(0, 3.0), device)


# ---- Names ---------------------------------------------------------------------------------------


@program
def name_of_a_class_by_pytorch(wrap, device):
    class Mine(nn.Module):
        pass

    module = Mine()
    function = wrap(lambda x: x * len(module._get_name()))
    return with_change(function, lambda: setattr(Mine, "__name__", "AnotherName"), device)


@program
def name_of_a_class_by_repr(wrap, device):
    class Mine(typing.NamedTuple):
        a: int

    mine = Mine(1)
    function = wrap(lambda x: x * len(repr(mine)))
    return with_change(function, lambda: setattr(Mine, "__name__", "AnotherName"), device)


@program
def full_name_of_a_class_by_str(wrap, device):
    class Mine:
        pass

    function = wrap(lambda x: x * len(str(Mine)))
    return with_change(function, lambda: setattr(Mine, "__qualname__", "AnotherName"), device)


@program
def builtins_of_a_functions_own(wrap, device):
    names = {"__builtins__": {"len": lambda _: 2}}
    inner = types.FunctionType((lambda: len("ab")).__code__, names)
    function = wrap(lambda x: x * inner())
    return with_change(function, lambda: inner.__builtins__.update(len=lambda _: 5), device)


# ---- Settings ------------------------------------------------------------------------------------


@program
def encoder_of_json(wrap, device):
    function = wrap(lambda x: x * len(json.dumps([1, 2])))
    x = torch.ones(3, device=device)

    def call(number):
        before = json._default_encoder.item_separator
        json._default_encoder.item_separator = ",   " if number >= CHANGED_AT else before
        try:
            return function(x)
        finally:
            json._default_encoder.item_separator = before

    return call


@program
def errors_of_numpy(wrap, device):
    zeros = np.zeros(2)

    def divide(x):
        try:
            return x * (2 + 0 * len(zeros / zeros))
        except FloatingPointError:
            return x * 3

    function = wrap(divide)
    x = torch.ones(3, device=device)

    def call(number):
        with np.errstate(invalid="raise" if number >= CHANGED_AT else "ignore"):
            return function(x)

    return call


@program
def level_of_the_root_logger(wrap, device):
    seen = []

    class Counts(logging.Handler):
        def emit(self, _):
            seen.append(1)

    logger = logging.getLogger("test of levels")
    logger.propagate = False
    logger.addHandler(Counts())

    def log(x):
        logger.info("called")
        return x

    function = wrap(log)
    x = torch.ones(3, device=device)

    def call(number):
        logger.setLevel(logging.INFO if number >= CHANGED_AT else logging.WARNING)
        function(x)
        return len(seen)

    return call


def quotient(x):
    return x * float(decimal.Decimal(1) / decimal.Decimal(3) * 3)


def quotient_of_an_import(x):
    from decimal import Decimal as Exact

    return x * float(Exact(1) / Exact(3) * 3)


@pytest.mark.parametrize("read", [quotient, quotient_of_an_import])
def test_context_of_decimals(read):
    def make(wrap, device):
        context = decimal.Context(prec=28)
        decimal.setcontext(context)
        return with_change(wrap(read), lambda: setattr(context, "prec", 2), device)

    before = decimal.getcontext()
    try:
        check(make)
    finally:
        decimal.setcontext(before)


# ---- Functions that torch.compile compiles -------------------------------------------------------


@program
def cond(wrap, device):
    return with_change(
        wrap(lambda x: torch.cond(x.sum() > 5, lambda a: a * 2, lambda a: a * 3, (x,))),
        lambda: None,
        device,
    )


@program
def loop(wrap, device):
    return with_change(
        wrap(lambda x: while_loop(lambda a: a.sum() < 20, lambda a: (a * 2,), (x,))[0]),
        lambda: None,
        device,
    )


@program
def function_of_torch_compile(wrap, device):
    scale = types.SimpleNamespace(k=2.0)
    inner = torch.compile(lambda x: x * scale.k, backend="eager")
    function = wrap(lambda x: inner(x) + 1)
    return with_change(function, lambda: setattr(scale, "k", 3.0), device)


# ---- What is replayed all the same ---------------------------------------------------------------


class Point(typing.NamedTuple):
    x: float


class Halved:
    @property
    def k(self):
        return 0.5

    @staticmethod
    def of(x):
        return x / 2

    def __call__(self, x):
        return [part * self.k for part in (x, self.of(x))][1]


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x * len(json.dumps([1, 2])),
        lambda x: x * Point(2.0).x,
        lambda x: Halved()(x),
        lambda x: td.Normal(x, 1.0, validate_args=False).log_prob(x),
        lambda x: x * np.float64(2.0),
        lambda x: x * sorted([3, 1], key=lambda n: -n)[0],
        lambda x: x * copy.deepcopy({"k": 2.0})["k"],
        lambda x: x * statistics.mean([1.0, 3.0]),
    ],
    ids=["json", "namedtuple", "methods", "distribution", "numpy", "key", "deepcopy", "statistics"],
)
def test_what_is_found_is_replayed(read):
    function = torch_lazy.compile(read)
    for _ in range(6):
        function(torch.ones(3, device="lazy"))
    assert replayed() >= 3
