"""Compiled functions and what PyTorch keeps beside a tensor's data: graphs of autograd from before
the call, gradients and hooks of what the call makes, which tensor it is, inference mode. Compared
with the plain function, call by call."""

import dataclasses
import threading

import pytest
import torch
from comparing import replayed
from side_by_side import CHANGED_AT, Programs, check, name_of

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


# ---- Graphs from before the call -----------------------------------------------------------------


@program
def backward_through_an_argument(wrap, device):
    w = torch.ones(3, device=device, requires_grad=True)

    def step(h):
        loss = (h * h).sum()
        loss.backward()
        return loss.detach()

    function = wrap(step)

    def call(_):
        w.grad = None
        loss = function(w * 2)
        return loss.item(), w.grad.tolist()

    return call


@program
def gradient_of_an_argument(wrap, device):
    w = torch.ones(3, device=device, requires_grad=True)
    function = wrap(lambda h: torch.autograd.grad((h * h).sum(), w)[0])
    return lambda number: function(w * (number + 1))


@program
def writes_into_a_graph(wrap, device):
    v = torch.full((3,), 2.0, device=device, requires_grad=True)

    def step(x):
        x.mul_(v)

    function = wrap(step)

    def call(number):
        v.grad = None
        x = torch.ones(3, device=device) * (number + 1)
        function(x)
        x.sum().backward()
        return v.grad

    return call


@program
def writes_into_a_graph_through_a_view(wrap, device):
    v = torch.full((3,), 2.0, device=device, requires_grad=True)

    def step(x):
        x[0].mul_(v)

    function = wrap(step)

    def call(number):
        v.grad = None
        x = torch.ones(2, 3, device=device) * (number + 1)
        function(x)
        x.sum().backward()
        return v.grad

    return call


@program
def keeps_the_gradient_of_an_argument(wrap, device):
    w = torch.ones(3, device=device, requires_grad=True)

    def step(h):
        h.retain_grad()
        return (h * 2).detach()

    function = wrap(step)

    def call(_):
        h = w * 3
        function(h)
        h.sum().backward()
        return None if h.grad is None else h.grad.tolist()

    return call


@program
def returns_a_leaf_with_its_gradient(wrap, device):
    def step(x):
        z = x.detach().clone().requires_grad_()
        (z * z).sum().backward()
        return z

    function = wrap(step)
    x = torch.arange(3.0, device=device)
    return lambda number: (function(x).grad.tolist(), x.grad)


# ---- Hooks that backward calls -------------------------------------------------------------------


@program
def hook_of_an_argument(wrap, device):
    seen = []

    def step(x):
        (x * 2).sum().backward()

    function = wrap(step)

    def call(number):
        x = torch.ones(3, device=device, requires_grad=True)
        if number >= CHANGED_AT:
            x.register_hook(seen.append)
        function(x)
        return x.grad.tolist(), len(seen)

    return call


@program
def hook_of_the_node_that_accumulates(wrap, device):
    w = torch.ones(3, device=device, requires_grad=True)
    node = w.view_as(w).grad_fn.next_functions[0][0]
    seen = []

    def step(x):
        (w * x).sum().backward()

    function = wrap(step)
    x = torch.ones(3, device=device)

    def call(number):
        if number == CHANGED_AT:
            node.register_hook(lambda *_: seen.append(1))
        w.grad = None
        function(x)
        return w.grad.tolist(), len(seen)

    return call


# ---- Which tensor it is --------------------------------------------------------------------------


def alternating(wrap, device, looked_up):
    """Two tensors of the same kind, passed by turns."""
    x, y = (torch.ones(3, device=device) for _ in range(2))
    function = wrap(looked_up(x, y))
    return lambda number: function(x if number < CHANGED_AT else y)


@program
def argument_as_the_key_of_a_dict(wrap, device):
    def looked_up(x, _):
        table = {x: 2.0}
        return lambda t: t * table.get(t, 3.0)

    return alternating(wrap, device, looked_up)


@program
def argument_in_a_set(wrap, device):
    def looked_up(x, _):
        known = {x}
        return lambda t: t * (2.0 if t in known else 3.0)

    return alternating(wrap, device, looked_up)


@program
def identity_of_an_argument(wrap, device):
    def looked_up(x, _):
        number = id(x)
        return lambda t: t * (2.0 if id(t) == number else 3.0)

    return alternating(wrap, device, looked_up)


@program
def hash_of_an_argument(wrap, device):
    def looked_up(x, _):
        number = hash(x)
        return lambda t: t * (2.0 if hash(t) == number else 3.0)

    return alternating(wrap, device, looked_up)


@program
def result_with_a_tensor_as_key(wrap, device):
    function = wrap(lambda x: {x: x * 2})
    x, y = (torch.ones(3, device=device) for _ in range(2))

    def call(number):
        given = x if number < CHANGED_AT else y
        return next(iter(function(given))) is given

    return call


# ---- Results -------------------------------------------------------------------------------------


@program
def result_of_inference_mode(wrap, device):
    @torch.inference_mode()
    def double(x):
        return x * 2

    function = wrap(double)
    x = torch.ones(3, device=device)
    return lambda number: (function(x).is_inference(), (function(x) + 0).is_inference())


@dataclasses.dataclass
class Kept:
    value: torch.Tensor
    count: int = 0


@program
def dataclass_that_is_kept(wrap, device):
    kept = Kept(torch.ones(3, device=device))

    def step(x):
        x.add_(1)
        return kept

    function = wrap(step)
    x = torch.ones(3, device=device)

    def call(number):
        result = function(x)
        result.count += 1
        return kept.count

    return call


@program
def thread_of_the_call(wrap, device):
    main = threading.get_ident()
    function = wrap(lambda x: x * (2.0 if threading.get_ident() == main else 3.0))
    x = torch.ones(3, device=device)

    def call(number):
        if number < CHANGED_AT:
            return function(x)
        results = []
        thread = threading.Thread(target=lambda: results.append(function(x).tolist()))
        thread.start()
        thread.join()
        return results[0]

    return call


@program
def plain_generator(wrap, device):
    """Drawn on the CPU in each call."""
    generator = torch.Generator()
    generator.manual_seed(3)
    function = wrap(lambda x: x * torch.rand(3, generator=generator).to(device))
    x = torch.ones(3, device=device)
    return lambda number: function(x)


# ---- What is replayed all the same ---------------------------------------------------------------


def test_backward_through_graphs_of_the_call_is_replayed():
    w = torch.ones(3, device="lazy", requires_grad=True)

    def step(x):
        w.grad = None
        (w * x).sum().backward()
        return w.grad

    function = torch_lazy.compile(step)
    for _ in range(6):
        function(torch.ones(3, device="lazy"))
    assert replayed() == 3


def test_writes_without_a_graph_are_replayed():
    total = torch.zeros(3, device="lazy")
    function = torch_lazy.compile(lambda x: total.add_(x))
    x = torch.ones(3, device="lazy")
    for _ in range(6):
        function(x)
    assert replayed() >= 3
    assert total.tolist() == [6.0] * 3


def test_parameters_as_keys_are_replayed():
    """Which tensors state consists of is compared in every call."""
    w = torch.ones(3, device="lazy")
    table = {w: 2.0}
    function = torch_lazy.compile(lambda x: x * table[w])
    x = torch.ones(3, device="lazy")
    for _ in range(6):
        assert function(x).tolist() == [2.0] * 3
    assert replayed() >= 3
