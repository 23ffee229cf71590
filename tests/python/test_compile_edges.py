"""Programs in which a replay could go unnoticed by what is usually guarded: each is compared with
the plain function, call by call."""

import dataclasses
import functools
import operator
import os
import statistics
import sys
import tempfile
import threading
import types
import typing
import weakref

import pytest
import torch
from comparing import replayed
from side_by_side import CALLS, CHANGED_AT, Programs, check, name_of
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


# ---- Results that share memory -------------------------------------------------------------------


@program
def result_is_a_view_of_state(wrap, device):
    base = torch.ones(3, device=device)
    function = wrap(lambda: base.view(3))

    def call(_):
        w = torch.ones(3, device=device, requires_grad=True)
        base.fill_(1.0)
        view = function()
        y = (base * w).sum()
        view.add_(1)
        y.backward()  # raises: what it needs was overwritten
        return w.grad

    return call


@program
def results_share_memory(wrap, device):
    def both(x):
        y = x * 2
        return y, y.detach()

    function = wrap(both)

    def call(_):
        w = torch.ones(3, device=device, requires_grad=True)
        a, b = function(torch.ones(3, device=device))
        y = (a * w).sum()
        b.add_(1)
        y.backward()
        return w.grad

    return call


@program
def result_is_a_view_for_autograd(wrap, device):
    function = wrap(lambda x: x[1:])

    def call(_):
        x = torch.ones(3, device=device)
        w = torch.full((2,), 2.0, device=device, requires_grad=True)
        part = function(x)
        part.mul_(w)
        (x * 3).sum().backward()
        return x.requires_grad, part._base is x, w.grad.sum().item()

    return call


@program
def result_is_a_view_under_no_grad(wrap, device):
    @torch.no_grad()
    def part_of(x):
        return x[1:]

    function = wrap(part_of)

    def call(_):
        x = torch.ones(3, device=device)
        w = torch.full((2,), 2.0, device=device, requires_grad=True)
        function(x).mul_(w)  # raises: the view was made under no_grad
        return x.requires_grad

    return call


# ---- Names that are computed ---------------------------------------------------------------------


def joined(*parts):
    return "".join(parts)


@program
def method_added_to_a_class(wrap, device):
    class Runner:
        def run(self, x, mode):
            return getattr(self, f"run_{mode}", self.default)(x)

        def default(self, x):
            return x * 2

    runner = Runner()
    function = wrap(lambda x: runner.run(x, "fast"))
    x = torch.ones(3, device=device)

    def call(number):
        if number == CHANGED_AT:
            Runner.run_fast = lambda self, x: x * 5
        return function(x)

    return call


@program
def global_added(wrap, device):
    globals().pop("late_global", None)
    parts = ["late_", "global"]
    function = wrap(lambda x: x * globals().get(joined(*parts), 2.0))
    x = torch.ones(3, device=device)

    def call(number):
        if number == CHANGED_AT:
            globals()["late_global"] = 5.0
        return function(x)

    return call


@program
def function_of_torch_replaced(wrap, device):
    parts = ["re", "lu"]
    function = wrap(lambda x: getattr(torch, joined(*parts))(x))
    x = torch.ones(3, device=device)
    relu = torch.relu

    def call(number):
        torch.relu = (lambda x: x * 5) if number >= CHANGED_AT else relu
        try:
            return function(x)
        finally:
            torch.relu = relu

    return call


@program
def method_makes_a_protocol(wrap, device):
    @typing.runtime_checkable
    class Closes(typing.Protocol):
        def close_it(self): ...

    class Thing:
        pass

    thing = Thing()
    function = wrap(lambda x: x * (3 if isinstance(thing, Closes) else 2))
    x = torch.ones(3, device=device)

    def call(number):
        if number == CHANGED_AT:
            Thing.close_it = lambda self: 1
        return function(x)

    return call


@program
def attribute_by_attrgetter(wrap, device):
    class Thing:
        pass

    thing = Thing()
    name = joined("sc", "ale")
    setattr(thing, name, 2.0)
    get = operator.attrgetter(name)
    function = wrap(lambda x: x * get(thing))
    x = torch.ones(3, device=device)

    def call(number):
        if number == CHANGED_AT:
            setattr(thing, name, 5.0)
        return function(x)

    return call


@program
def argument_of_methodcaller(wrap, device):
    class Thing:
        def get(self, values):
            return values[0]

    values = [2.0]
    thing = Thing()
    get = operator.methodcaller("get", values)
    function = wrap(lambda x: x * get(thing))
    x = torch.ones(3, device=device)

    def call(number):
        if number == CHANGED_AT:
            values[0] = 5.0
        return function(x)

    return call


@program
def module_imported_by_a_computed_name(wrap, device):
    module = types.ModuleType("of_test_compile_edges")
    module.value = 2.0
    sys.modules[module.__name__] = module
    parts = ["of_test_", "compile_edges"]
    function = wrap(lambda x: x * __import__(joined(*parts)).value)
    x = torch.ones(3, device=device)

    def call(number):
        if number == CHANGED_AT:
            module.value = 5.0
        return function(x)

    return call


@program
def attribute_written_by_a_computed_name(wrap, device):
    class Thing:
        count = 0

    thing = Thing()
    parts = ["co", "unt"]

    def counted(x):
        object.__setattr__(thing, joined(*parts), thing.count + 1)
        return x * 2

    function = wrap(counted)
    x = torch.ones(3, device=device)
    return lambda number: (function(x).sum().item(), thing.count)


# ---- Objects behind functions and references -----------------------------------------------------


@program
def closure_of_a_decorator_of_torch(wrap, device):
    factors = [2.0]
    times = torch.no_grad()(functools.partial(lambda factors, x: x * factors[0], factors))
    function = wrap(lambda x: times(x))
    x = torch.ones(3, device=device)

    def call(number):
        if number == CHANGED_AT:
            factors[0] = 5.0
        return function(x)

    return call


@program
def module_under_a_decorator_of_torch(wrap, device):
    model = nn.Sequential(nn.LeakyReLU(0.5))
    forward = torch.no_grad()(model.forward)
    function = wrap(lambda x: forward(x))
    x = -torch.ones(3, device=device)

    def call(number):
        if number == CHANGED_AT:
            model[0].negative_slope = 0.25
        return function(x)

    return call


@program
def module_under_vmap(wrap, device):
    model = nn.Sequential(nn.LeakyReLU(0.5))
    mapped = torch.func.vmap(model)
    function = wrap(lambda x: mapped(x))
    x = -torch.ones(3, 1, device=device)

    def call(number):
        if number == CHANGED_AT:
            model[0] = nn.ReLU()
        return function(x)

    return call


@program
def cell_of_a_function_that_is_not_called(wrap, device):
    def make():
        factor = 2.0

        def get():
            return factor

        def put(value):
            nonlocal factor
            factor = value

        return get, put

    get, put = make()
    function = wrap(lambda x: x * get.__closure__[0].cell_contents)
    x = torch.ones(3, device=device)

    def call(number):
        if number == CHANGED_AT:
            put(5.0)
        return function(x)

    return call


@program
def weak_reference_does_not_keep_its_object(wrap, device):
    class Thing:
        pass

    box = [Thing()]
    reference = weakref.ref(box[0])
    function = wrap(lambda x: x * (2 if reference() is not None else 3))
    x = torch.ones(3, device=device)

    def call(number):
        if number == CHANGED_AT:
            box.clear()
        return function(x)

    return call


@program
def c_function_handed_on_from_an_object(wrap, device):
    place, path = tempfile.mkstemp()
    os.close(place)
    os.unlink(path)
    names = types.SimpleNamespace(ok=os.access)
    function = wrap(lambda x: x * (3 if all(map(names.ok, [path], [0])) else 2))
    x = torch.ones(3, device=device)

    def call(number):
        if number == CHANGED_AT:
            open(path, "w").close()
        try:
            return function(x)
        finally:
            if number == CALLS - 1:
                os.unlink(path)

    return call


@program
def number_of_threads_of_the_program(wrap, device):
    function = wrap(lambda x: x * threading.active_count())
    x = torch.ones(3, device=device)
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait, daemon=True)

    def call(number):
        if number == CHANGED_AT:
            thread.start()
        try:
            return function(x) / threading.active_count()
        finally:
            if number == CALLS - 1:
                ended.set()
                thread.join()  # or the next side would see it end

    return call


@program
def exception_that_is_being_handled(wrap, device):
    function = wrap(lambda x: x * (2 if sys.exc_info()[0] is None else 3))
    x = torch.ones(3, device=device)

    def call(number):
        if number < CHANGED_AT:
            return function(x)
        try:
            raise KeyError
        except KeyError:
            return function(x)

    return call


@program
def base_of_a_view(wrap, device):
    function = wrap(lambda x: x.clone() * x._base.shape[0])

    def call(number):
        base = torch.ones(8, device=device) if number < CHANGED_AT else torch.ones(2, 4).to(device)
        return function(base.view(-1)[:4])

    return call


# ---- Arguments -----------------------------------------------------------------------------------

NONE: dict[str, int] = {}


@program
def argument_is_a_default(wrap, device):
    function = wrap(lambda x, options: x * (2 if options is NONE else 3))
    x = torch.ones(3, device=device)
    return lambda number: function(x, NONE if number < CHANGED_AT else {})


@program
def argument_becomes_a_default(wrap, device):
    function = wrap(lambda x, options: x * (2 if options is NONE else 3))
    x = torch.ones(3, device=device)
    return lambda number: function(x, {} if number < CHANGED_AT else NONE)


@program
def argument_is_an_object_of_state(wrap, device):
    class Model:
        items: typing.ClassVar = [1.0]

    function = wrap(lambda x, items: x * (2 if items is Model.items else 3))
    x = torch.ones(3, device=device)
    return lambda number: function(x, Model.items if number < CHANGED_AT else [1.0])


@program
def dataclass_is_a_key(wrap, device):
    @dataclasses.dataclass(eq=False)
    class Config:
        size: int = 1

    one, other = Config(), Config()
    table = {one: 2.0, other: 3.0}
    function = wrap(lambda x, config: x * table[config])
    x = torch.ones(3, device=device)
    return lambda number: function(x, one if number < CHANGED_AT else other)


def test_deep_arguments_are_compared_by_identity():
    deep = ()
    for _ in range(100_000):
        deep = (deep,)
    shared = ()
    for _ in range(60):
        shared = (shared, shared)
    function = torch_lazy.compile(lambda x, tree: x * 2)
    x = torch.ones(3, device="lazy")
    for tree in (deep, shared):
        for _ in range(4):
            assert function(x, tree).tolist() == [2, 2, 2]


def test_arguments_that_cannot_be_weak_are_not_kept():
    class Batch:
        __slots__ = ("x",)

    kept = []
    function = torch_lazy.compile(lambda batch: next(iter(batch)) * 2)
    for _ in range(40):
        x = torch.ones(3, device="lazy")
        kept.append(weakref.ref(x))
        function({"x": x}.values())
    del x
    assert sum(reference() is not None for reference in kept) <= 8


# ---- What results carry --------------------------------------------------------------------------


@program
def result_has_an_attribute(wrap, device):
    def tagged(x):
        y = x * 2
        y.tag = 7
        return y

    function = wrap(tagged)
    x = torch.ones(3, device=device)
    return lambda number: getattr(function(x), "tag", None)


@program
def result_has_a_hook(wrap, device):
    def hooked(x):
        y = (x * 2).detach().requires_grad_()
        y.register_hook(lambda gradient: gradient * 10)
        return y

    function = wrap(hooked)
    x = torch.ones(3, device=device)

    def call(_):
        y = function(x)
        y.sum().backward()
        return y.grad

    return call


@program
def result_is_a_state_dict(wrap, device):
    model = nn.BatchNorm1d(2).to(device)
    function = wrap(lambda: model.state_dict())
    return lambda number: hasattr(function(), "_metadata")


@program
def one_dict_in_two_places(wrap, device):
    def twice(x):
        room = {}
        return x * 2, room, room

    function = wrap(twice)
    x = torch.ones(3, device=device)

    def call(_):
        _, one, other = function(x)
        one["key"] = 1
        return len(other)

    return call


@program
def result_contains_itself(wrap, device):
    def looped(x):
        result = [x * 2]
        result.append(result)
        return result

    function = wrap(looped)
    x = torch.ones(3, device=device)
    return lambda number: function(x)[1][0]


# ---- Stand-ins of a recording --------------------------------------------------------------------


def sgd(device):
    w = torch.ones(3, device=device, requires_grad=True)
    return w, torch.optim.SGD([w], lr=0.5)


@program
def type_of_a_learning_rate(wrap, device):
    w, optimizer = sgd(device)

    def step():
        rate = optimizer.param_groups[0]["lr"]
        return w.detach() * (2 if type(rate) is float and rate.__class__ is float else 3)

    function = wrap(step)
    return lambda number: function()


@program
def number_made_with_the_type_of_a_learning_rate(wrap, device):
    w, optimizer = sgd(device)

    def step():
        rate = optimizer.param_groups[0]["lr"]
        return w.detach() * rate.__class__(2) * rate.fromhex("0x1p-1") * rate

    function = wrap(step)
    return lambda number: function()


@program
def mean_of_learning_rates(wrap, device):
    w, optimizer = sgd(device)
    function = wrap(lambda: w.detach() * statistics.mean([optimizer.param_groups[0]["lr"]] * 2))
    return lambda number: function()


@program
def state_dict_in_a_step(wrap, device):
    w = nn.Parameter(torch.ones(3, device=device))
    optimizer = torch.optim.Adam([w], lr=0.5)

    def step():
        w.square().sum().backward()
        optimizer.step()
        state = optimizer.state_dict()
        return state["param_groups"][0]["capturable"], state["state"][0]["step"].device.type

    function = wrap(step)
    return lambda number: function()


# ---- What is replayed all the same ---------------------------------------------------------------


def test_views_as_results_are_replayed():
    function = torch_lazy.compile(lambda x: (x[1:], x.detach(), x.t()))
    for _ in range(6):
        function(torch.ones(3, 3, device="lazy"))
    assert replayed() == 4


def test_modules_under_decorators_are_replayed():
    model = nn.Linear(3, 3).to("lazy")
    forward = torch.no_grad()(model.forward)
    function = torch_lazy.compile(lambda x: forward(x))
    for _ in range(6):
        function(torch.ones(3, 3, device="lazy"))
    assert replayed() == 3  # the first call shows that it uses the model


def test_checkpoints_are_replayed():
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh()).to("lazy")

    def step(x):
        model.zero_grad()
        y = torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False).sum()
        y.backward()
        return y.detach()

    function = torch_lazy.compile(step)
    for _ in range(7):
        function(torch.ones(3, 3, device="lazy"))
    assert replayed() >= 4  # PyTorch sets itself up in its first checkpoint


@program
def checkpoint_with_dropout(wrap, device):
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout()).to(device)

    def step(x):
        model.zero_grad()
        y = torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False)
        y.sum().backward()
        drawn = (y != 0).float().sum(0)
        return (drawn - model[0].bias.grad / 2).abs().sum()

    function = wrap(step)
    x = torch.ones(4, 8, device=device)
    return lambda number: function(x)
