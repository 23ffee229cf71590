"""Files that pretend to be saved graphs: a call is made only if all that it does is to compute."""

import struct
import subprocess
import sys

import pytest
import torch

import torch_lazy

pytestmark = pytest.mark.usefixtures("nothing_pending")

MASK = 2**64 - 1
FORM = 2


def mix(value: int, word: int) -> int:
    value = ((value ^ word) * 0x9FB21C651E98DF25) & MASK
    return value ^ (value >> 29)


def checksum(data: bytes) -> bytes:
    first, second = mix(0x8F14E45FCEEA167A, FORM), mix(0xC9F0F895FB98AB91, FORM)
    padded = data + bytes(-len(data) % 8)
    for (word,) in struct.iter_unpack("<Q", padded):
        first = mix(first, word)
        second = mix(second, ((word << 32) | (word >> 32)) & MASK)
    first = mix(mix(first, len(data)), second)
    second = mix(mix(second, len(data)), first)
    return struct.pack("<QQ", first, second)


def number(value: int) -> bytes:
    return struct.pack("<Q", value & MASK)


def text(value: str) -> bytes:
    return number(len(value.encode())) + value.encode()


def layout(
    sizes: list[int], dtype: int = 6, bits: int = 0, strides: list[int] | None = None
) -> bytes:
    """`bits`: 2 for a conjugate view, 1 for a negative one."""
    if strides is None:
        strides = [1] * len(sizes)
        for i in reversed(range(len(sizes) - 1)):
            strides[i] = strides[i + 1] * sizes[i + 1]
    pairs = b"".join(number(n) + number(s) for n, s in zip(sizes, strides, strict=True))
    return number(dtype << 2 | bits) + number(0) + number(len(sizes)) + pairs


CONSTANT, OPERAND, OPERANDS = 0, 1, 2
NONE = number(0)
INTEGER, REAL, BOOLEAN, TEXT, INTEGERS, SCALAR_TENSOR = 1, 2, 4, 5, 7, 12


def value(item) -> bytes:
    if item is None:
        return NONE
    if isinstance(item, bool):
        return number(BOOLEAN) + number(item)
    if isinstance(item, int):
        return number(INTEGER) + number(item)
    if isinstance(item, float):
        return number(REAL) + struct.pack("<d", item)
    if isinstance(item, str):
        return number(TEXT) + text(item)
    if isinstance(item, bytes):
        return item
    return number(INTEGERS) + number(len(item)) + b"".join(number(i) for i in item)


X = object()
"""The argument of the graph: four numbers."""


def hostile(path, op, arguments, outputs=(1,), calls=1, operand=None, name=None):
    """A graph of one call or some alike, with one tensor that it takes; `outputs`: the slots that
    each writes, where 0 is the tensor's."""
    schema = op._schema
    name = schema.name.encode() if name is None else name
    identity = 0
    for byte in str(schema).encode():
        identity = mix(identity, byte)
    data = b"TLgraph\n" + number(FORM) + text("0.1.0") + text(torch.__version__)
    data += number(1) + number(1) + number(1)  # one argument, one tensor, one buffer
    data += text("") + layout([4]) + number(0) + number(16) + number(0)
    data += number(0) + number(0)  # random numbers, constants
    data += number(1 + max(outputs)) + number(1) + number(0) + number(16) + number(0) + number(0)
    data += number(calls)
    call = number(len(name)) + name + text(schema.overload_name) + number(identity)
    call += text("a line") + number(6)
    call += number(1) + number(0) + (operand or layout([4]))
    call += number(0)
    call += number(len(arguments))
    for argument in arguments:
        if argument is X:
            call += number(OPERAND) + number(0) + number(0)
        elif argument == [X]:
            call += number(OPERANDS) + number(0) + number(1) + number(0)
        else:
            call += number(CONSTANT) + value(argument)
    call += number(len(outputs)) + b"".join(map(number, outputs))
    data += call * calls
    data += number(0)  # results
    path.write_bytes(data + checksum(data))
    return path


def test_the_forged_form_is_the_true_one(tmp_path):
    """Otherwise what follows would be refused for the wrong reason."""
    path = hostile(tmp_path / "f.graph", torch.ops.aten.neg.default, [X])
    assert torch_lazy.load_graph(path)(torch.ones(4)) == []
    path = hostile(tmp_path / "f.graph", torch.ops.aten.gelu.default, [X, "tanh"])
    assert torch_lazy.load_graph(path)(torch.ones(4)) == []


def test_files_are_neither_made_nor_overwritten(tmp_path):
    precious = tmp_path / "precious"
    precious.write_bytes(b"do not lose")
    for target in (precious, tmp_path / "new"):
        for op, arguments in [
            (torch.ops.aten.from_file.default, [str(target), True, 4096, None, None, None, None]),
            (torch.ops.aten.from_file.out, [str(target), True, 4096, X]),
        ]:
            path = hostile(tmp_path / "f.graph", op, arguments)
            with pytest.raises(RuntimeError, match="which makes something of a text"):
                torch_lazy.load_graph(path)
    assert precious.read_bytes() == b"do not lose"
    assert {p.name for p in tmp_path.iterdir()} == {"precious", "f.graph"}


@pytest.mark.parametrize(
    "op, arguments, reason",
    [
        ("resize_", [X, [1 << 20], None], "how a tensor lies"),
        ("set_.source_Tensor", [X, X], "how a tensor lies"),
        ("as_strided_", [X, [1 << 20], [1], 0], "how a tensor lies"),
        ("as_strided", [X, [1 << 20], [1], 0], "how a tensor lies"),
        ("_reshape_alias", [X, [1 << 20], [1]], "how a tensor lies"),
        ("_reshape_alias_copy", [X, [1 << 20], [1]], "is never recorded"),
        ("_print", ["hello"], "text"),
        ("_cufft_set_plan_cache_max_size", [0, 1], "effect"),
        ("set_.source_Storage", [X, None], "Storage"),
        ("record_stream", [X, None], "Stream"),
        ("_backward", [X, [X], None, None, False], "is never recorded"),
        ("item", [X], "not recorded|never recorded"),
        ("multinomial", [X, 1, False, None], "not recorded"),
    ],
)
def test_what_does_more_than_compute_is_refused(tmp_path, op, arguments, reason):
    name, _, overload = op.partition(".")
    function = getattr(getattr(torch.ops.aten, name), overload or "default")
    path = hostile(tmp_path / "f.graph", function, arguments)
    with pytest.raises(RuntimeError, match=f"no graph that can be loaded: .*({reason})"):
        torch_lazy.load_graph(path)


@pytest.mark.parametrize("outputs, calls", [((1,), 2), ((0,), 1), ((0,), 3)])
def test_a_value_that_is_computed_twice(tmp_path, outputs, calls):
    """It replaced the memory of the first one while it held a lock that freeing takes, too."""
    path = hostile(tmp_path / "f.graph", torch.ops.aten.sin.default, [X], outputs, calls)
    load = f"import torch_lazy; torch_lazy.load_graph({str(path)!r})"
    run = subprocess.run(
        [sys.executable, "-c", load], capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 1
    assert f"{path} is no graph that can be loaded: it computes the same value" in run.stderr


def test_what_is_written_in_place_may_stay_where_it_is(tmp_path):
    path = hostile(tmp_path / "f.graph", torch.ops.aten.sin_.default, [X], (0,), 3)
    assert torch_lazy.load_graph(path)(torch.ones(4)) == []


@pytest.mark.parametrize(
    "change",
    [
        {"operand": layout([4], bits=2)},
        {"operand": layout([4], dtype=3, bits=1)},
        {"operand": layout([1 << 40, 1 << 40], strides=[0, 0])},
        {"operand": layout([1 << 62], strides=[0])},
        {"operand": layout([1 << 62, 4, 0])},
        {"name": b"aten::\xff\xfe\n\x00"},
        {"name": "aten::größe\ud800".encode("utf-8", "surrogatepass")},
        {"arguments": [X, number(SCALAR_TENSOR) + number(3) + value(1 << 40)]},
        {"arguments": [X, number(SCALAR_TENSOR) + number(2) + number(REAL) + b"\xff" * 8]},
        {"arguments": [X, X, X]},
    ],
    ids=range(10),
)
@pytest.mark.parametrize("file", [b"f.graph", "größe.graph".encode(), b"f\xff.graph"])
def test_a_damaged_file_is_named(tmp_path, change, file):
    path = bytes(tmp_path) + b"/" + file
    hostile(tmp_path / "f.graph", torch.ops.aten.add_.Tensor, **{"arguments": [X, X, 1]} | change)
    (tmp_path / "f.graph").rename(tmp_path / file.decode(errors="surrogateescape"))
    shown = file.decode(errors="backslashreplace")
    with pytest.raises(RuntimeError) as error:
        torch_lazy.load_graph(path)
    assert f"/{shown} is no graph that can be loaded: " in str(error.value)
    assert "INTERNAL ASSERT" not in str(error.value)


def test_operators_of_other_libraries_have_to_be_named(tmp_path):
    called = []
    library = torch.library.Library("torch_lazy_hostile", "DEF")
    library.define("twice(Tensor x) -> Tensor")

    def twice(x):
        called.append(1)
        return x * 2

    library.impl("twice", twice, "CPU")
    library.impl("twice", lambda x: torch.empty_like(x), "Meta")
    path = hostile(tmp_path / "f.graph", torch.ops.torch_lazy_hostile.twice.default, [X])
    with pytest.raises(RuntimeError, match="only those of aten are called unless"):
        torch_lazy.load_graph(path)
    assert called == []
    graph = torch_lazy.load_graph(path, namespaces=["torch_lazy_hostile"])
    assert graph(torch.ones(4)) == []
    library._destroy()


def test_a_graph_with_an_operator_of_ones_own(tmp_path):
    with torch.library._scoped_library("torch_lazy_own", "DEF") as library:
        library.define("thrice(Tensor x) -> Tensor")
        library.impl("thrice", lambda x: x * 3, "CPU")
        library.impl("thrice", lambda x: torch.empty_like(x), "Meta")
        path = tmp_path / "f.graph"
        f = lambda x: torch.ops.torch_lazy_own.thrice(x) + 1  # noqa: E731
        torch_lazy.save_graph(f, path, [torch.ones(2)])
        graph = torch_lazy.load_graph(path, namespaces=("torch_lazy_own",))
        assert graph(torch.ones(2))[0].tolist() == [4, 4]
