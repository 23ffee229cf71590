"""Recordings keep no object alive that the program has dropped when a function runs: weak
references, finalizers and weak containers say what they say without torch_lazy.compile."""

import weakref

import pytest
import torch

import torch_lazy

pytestmark = [
    pytest.mark.usefixtures("nothing_pending"),
    pytest.mark.filterwarnings("ignore::torch_lazy.CompileWarning"),
]


class Thing:
    pass


class Box:
    def __init__(self, thing):
        self.thing = thing


def list_and_set(thing):
    held, weak = [thing], weakref.WeakSet([thing])
    return lambda x: x * (2 if held else 3) * (5 if len(weak) else 7), held.clear


def dict_and_reference(thing):
    held, weak = {"k": thing}, weakref.ref(thing)
    return lambda x: x * (2 if held else 3) * (5 if weak() is not None else 7), held.clear


def attribute_and_dict(thing):
    box, weak = Box(thing), weakref.WeakValueDictionary(k=thing)

    def function(x):
        return x * (2 if box.thing else 3) * (5 if "k" in weak else 7)

    return function, lambda: setattr(box, "thing", None)


def keys(thing):
    held, weak = [thing], weakref.WeakKeyDictionary({thing: 5})
    return lambda x: x * sum(weak.values()), held.clear


def finalizer(thing):
    held, seen = [thing], []
    weakref.finalize(thing, seen.append, 1)
    return lambda x: x * (2 if held else 3) * (5 + len(seen)), held.clear


def destructor(thing):
    held, seen = [thing], []
    thing.__class__ = type("Other", (Thing,), {"__del__": lambda self: seen.append(1)})
    return lambda x: x * (2 if held else 3) * (5 + len(seen)), held.clear


def proxy(thing):
    held, weak = [thing], weakref.proxy(thing)
    thing.factor = 5.0

    def function(x):
        try:
            return x * weak.factor
        except ReferenceError:
            return x * 7

    return function, held.clear


MAKERS = [list_and_set, dict_and_reference, attribute_and_dict, keys, finalizer, destructor, proxy]


def results(make, calls, compiled, elsewhere):
    """`elsewhere`: what is called before the object is dropped and what is called after it."""
    function, drop = make(Thing())
    device = "lazy" if compiled else "cpu"
    compiling = torch_lazy.compile if compiled else lambda f: f
    after = compiling(function)
    before = compiling(lambda x: function(x)) if elsewhere == "in another function" else after
    sizes = (2, 3) if elsewhere == "in calls of another size" else (2, 2)
    found = [before(torch.ones(sizes[0], device=device)).tolist() for _ in range(calls)]
    drop()
    return found + [after(torch.ones(sizes[1], device=device)).tolist() for _ in range(4)]


@pytest.mark.parametrize("calls", [1, 2, 3, 4, 6])
@pytest.mark.parametrize(
    "elsewhere", ["in the same calls", "in calls of another size", "in another function"]
)
@pytest.mark.parametrize("make", MAKERS)
def test_what_is_dropped_is_gone(make, elsewhere, calls):
    expected = results(make, calls, False, elsewhere)
    assert results(make, calls, True, elsewhere) == expected


def test_an_object_replaced_in_each_call_is_the_reason():
    box = Box(None)
    function = torch_lazy.compile(lambda x: x * (2 if box.thing else 3))
    x = torch.ones(2, device="lazy")
    with pytest.warns(torch_lazy.CompileWarning, match=r"thing is replaced between calls"):
        for _ in range(8):
            box.thing = Thing()
            assert function(x).tolist() == [2, 2]
