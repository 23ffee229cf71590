"""A model recorded once, then run by the hash of its graph on other arguments."""

import copy
import importlib
import inspect

import pytest
import torch
from comparing import DEVICE
from torch import fx, nn

if DEVICE.type != "lazy":
    pytest.skip("these are about the device lazy", allow_module_level=True)

from lazy_names import IS_DROP_IN, config, metrics, module, run_program

extraction = module("extract_compiled_graph")
extract_compiled_graph = extraction.extract_compiled_graph
tensor_factory_functions = module("tensor_factory_functions").tensor_factory_functions

pytestmark = pytest.mark.usefixtures("nothing_pending")


# ---- Models --------------------------------------------------------------------------------------


class ConstPlus(nn.Module):
    def forward(self, a):
        return a + 3


class ConstScale(nn.Module):
    def forward(self, a):
        return a * 2


class Difference(nn.Module):
    def forward(self, a, b):
        return a - b


class Product(nn.Module):
    def forward(self, a, b):
        return a * b


class Affine(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 5)

    def forward(self, a):
        return self.layer(a).relu()


class Addcmul(nn.Module):
    """The number is an input of the graph, beside the tensors."""

    def forward(self, a, b, c):
        return torch.addcmul(a, b, c, value=5)


class SeveralResults(nn.Module):
    def forward(self, a, b):
        return b + 1, a - 1


class RepeatedResults(nn.Module):
    def forward(self, a, b):
        c = a + b
        return a - b, c, a + 1, c


class ReturnsItsArgument(nn.Module):
    def forward(self, a, b):
        return b, a + b, b


class WritesAnArgument(nn.Module):
    def forward(self, a, b):
        a.sub_(b)
        return b - 1, b + 1


class WritesThroughAView(nn.Module):
    def forward(self, a, b):
        a[0].mul_(b[1])
        return a.t() @ b


class MakesTensors(nn.Module):
    def forward(self, a):
        return a + torch.arange(3) + torch.ones(2, 3, device="cpu")


class Normalized(nn.Module):
    """Weights, running statistics, and a parameter used twice."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.layer = nn.Linear(3, 3)
        self.eval()

    def forward(self, a):
        return self.layer(self.norm(self.layer(a))).softmax(1)


MODELS = [
    ConstPlus,
    ConstScale,
    Difference,
    Product,
    Affine,
    Addcmul,
    SeveralResults,
    RepeatedResults,
    ReturnsItsArgument,
    WritesAnArgument,
    WritesThroughAView,
    MakesTensors,
    Normalized,
]


class LeavesFactoriesAlone(fx.Tracer):
    """Has the functions that make tensors in the graph instead of their results."""

    def trace(self, root, *args, **kwargs):
        names = [f.__name__ for f in tensor_factory_functions if hasattr(torch, f.__name__)]
        self.wrapped = {}
        for name in names:
            original = getattr(torch, name)
            self.wrapped[name] = original
            setattr(torch, name, self.recording(original))
        try:
            return super().trace(root, *args, **kwargs)
        finally:
            for name, original in self.wrapped.items():
                setattr(torch, name, original)

    def recording(self, function):
        return lambda *args, **kwargs: self.create_proxy("call_function", function, args, kwargs)


def graph_of(model):
    return fx.GraphModule(model, LeavesFactoriesAlone().trace(model))


def random_arguments(model):
    return [torch.randn(2, 3) for _ in inspect.signature(model.forward).parameters]


def as_list(results):
    return list(results) if isinstance(results, (tuple, list)) else [results]


# ---- Running by hash -----------------------------------------------------------------------------


@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_ten_calls_with_other_arguments(make):
    model = make()
    run = extract_compiled_graph(graph_of(model), random_arguments(model))
    for _ in range(10):
        arguments = random_arguments(model)
        expected_arguments = copy.deepcopy(arguments)
        expected = as_list(model(*expected_arguments))
        results = run(*arguments)
        torch.testing.assert_close(list(results), [t.detach() for t in expected])
        torch.testing.assert_close(arguments, expected_arguments)
        assert all(t.device.type == "cpu" for t in results)


def test_nothing_is_recorded_again():
    model = Affine()
    run = extract_compiled_graph(graph_of(model), random_arguments(model))
    metrics.reset()
    run(*random_arguments(model))
    assert [name for name in metrics.counter_names() if "::" in name] == []
    assert metrics.counter_value("UncachedCompile") is None


def test_repeated_results_are_the_same_tensor():
    model = RepeatedResults()
    run = extract_compiled_graph(graph_of(model), random_arguments(model))
    results = run(*random_arguments(model))
    assert results[1] is results[3]


def test_arguments_that_are_not_written_stay_untouched():
    model = WritesAnArgument()
    run = extract_compiled_graph(graph_of(model), random_arguments(model))
    a, b = random_arguments(model)
    versions = a._version, b._version
    run(a, b)
    assert a._version > versions[0]
    assert b._version == versions[1]


def test_a_model_without_arguments_and_results():
    class Nothing(nn.Module):
        def forward(self):
            return ()

    run = extract_compiled_graph(fx.symbolic_trace(Nothing()), [])
    assert run() == ()


def test_the_model_itself_stays_where_it_is():
    model = Affine()
    extract_compiled_graph(graph_of(model), random_arguments(model))
    assert model.layer.weight.device.type == "cpu"


# ---- Fallbacks -----------------------------------------------------------------------------------


def test_a_fallback_is_refused():
    before = config.get_force_fallback()
    config.set_force_fallback("aten::sub")
    try:
        with pytest.raises(RuntimeError, match=r"fallback.*aten::sub") as caught:
            extract_compiled_graph(fx.symbolic_trace(Difference()), [torch.ones(2)] * 2)
    finally:
        config.set_force_fallback(before)
    assert str(caught.value).startswith("Fail to extract the compiled graph because of fallback: ")
    run = extract_compiled_graph(fx.symbolic_trace(Difference()), [torch.ones(2)] * 2)
    assert run(torch.ones(2), torch.zeros(2))[0].tolist() == [1, 1]


def test_fallback_operators_with_their_counts():
    x = torch.ones(2, 2).to("lazy") + 1
    assert extraction.get_fallback_ops() == []
    x.nonzero()
    x.nonzero()
    assert extraction.get_fallback_ops() == ["aten::nonzero=2"]


# ---- Parts ---------------------------------------------------------------------------------------


def test_inputs_of_a_call():
    matcher = extraction.GraphInputMatcher(
        tensor_id_to_arg_idx={7: 1, 5: 0},
        graph_input_tensor_ids=[5, 9, -1, 7, 5],
        graph_input_ivalues=["a", "weight", 2.5, "b", "a"],
    )
    assert matcher(["A", "B"]) == ["A", "weight", 2.5, "B", "A"]


def test_results_are_repeated_as_they_were_given():
    a, b = torch.ones(1), torch.ones(1)
    handler = extraction.ReturnValueHandler([a, b, a, a])
    assert handler.index == [[0, 2, 3], [1]]
    assert handler.duplicate_eager_tensors(["x", "y"]) == ["x", "y", "x", "x"]
    with pytest.raises(AssertionError):
        handler.duplicate_eager_tensors(["x"])


def test_devices_in_a_model_become_lazy():
    model = fx.GraphModule(nn.Module(), fx.Graph())
    graph = model.graph
    named = graph.call_function(torch.ones, (2,), {"device": torch.device("cpu")})
    numbered = graph.call_function(torch.zeros, (2,), {"device": torch.device("cuda", 1)})
    silent = graph.call_function(torch.arange, (2,))
    moved = graph.call_method("to", (silent, torch.device("cpu")))
    added = graph.call_function(torch.add, (named, silent))
    graph.output((named, numbered, moved, added))
    extraction.force_lazy_device(model)
    assert named.kwargs == {"device": torch.device("lazy")}
    assert numbered.kwargs == {"device": torch.device("lazy", 1)}
    assert silent.kwargs == {"device": torch.device("lazy")}
    assert moved.args == (silent, torch.device("lazy"))
    assert added.kwargs == {}
    assert "device(type='lazy'" in model.code


def test_functions_that_make_tensors():
    assert len(tensor_factory_functions) == 26
    assert len(set(tensor_factory_functions)) == 26
    assert {torch.ones, torch.tensor, torch.randn, torch.eye} < set(tensor_factory_functions)
    assert torch.add not in tensor_factory_functions
    if not IS_DROP_IN:
        theirs = importlib.import_module("torch._lazy.tensor_factory_functions")
        assert set(tensor_factory_functions) == set(theirs.tensor_factory_functions)


def test_the_debug_variable_prints_what_is_extracted():
    program = (
        "import torch\n"
        "from lazy_names import module\n"
        "class Twice(torch.nn.Module):\n"
        "    def forward(self, a):\n"
        "        return a * 2\n"
        "extraction = module('extract_compiled_graph')\n"
        "extraction.extract_compiled_graph(torch.fx.symbolic_trace(Twice()), [torch.ones(2)])\n"
    )
    assert run_program(program) == ""
    output = run_program(program, debug_extract_compiled_graph="")
    assert "def forward" in output
    assert "aten::mul" in output
