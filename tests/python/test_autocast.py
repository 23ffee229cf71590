"""Mixed precision: torch.autocast("lazy") casts what eager's autocast casts."""

import threading

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import torch_lazy

BF16, F32 = torch.bfloat16, torch.float32


# ---- The policy, operator by operator ------------------------------------------------------------


class Casts(TorchDispatchMode):
    """Records casts, and stops at the first other operator: its arguments need not make sense."""

    class Stop(Exception):
        pass

    def __init__(self):
        super().__init__()
        self.log = []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if operator.namespace == "prim":  # a fake tensor is asked for its device
            return operator(*args, **kwargs)
        if operator is torch.ops.aten._to_copy.default:
            self.log.append((args[0].dtype, kwargs["dtype"]))
            return torch.empty_like(args[0], dtype=kwargs["dtype"])
        self.log.append(kwargs.get("dtype"))
        raise self.Stop


def argument(schema, tensor):
    kind = str(schema.type)
    if kind in ("Tensor", "Optional[Tensor]"):
        return tensor()
    if kind in ("List[Tensor]", "List[Optional[Tensor]]"):
        return [tensor(), tensor()]
    if schema.has_default_value():
        return schema.default_value
    if kind.startswith("Optional"):
        return None
    simple = {"int": 1, "float": 1.0, "bool": False, "str": "fro", "number": 1.0}
    return {**simple, "List[int]": [1, 1], "List[float]": [1.0]}[kind]


def casts_of(operator, device, dtypes, region):
    """What autocast does before it calls the operator: casts, and the result type it asks for."""
    made = 0

    def tensor():
        nonlocal made
        made += 1
        return torch.ones(2, 2, dtype=dtypes[made % len(dtypes)], device=device)

    args, kwargs = [], {}
    for schema in operator._schema.arguments:
        value = argument(schema, tensor)
        if schema.kwarg_only:
            kwargs[schema.name] = value
        else:
            args.append(value)
    casts = Casts()
    try:
        with region, casts:
            operator(*args, **kwargs)
    except Casts.Stop:
        pass
    except (RuntimeError, IndexError):  # refused, by autocast or by the operator itself
        casts.log.append("refused")
    return casts.log


def operators_with_kernel(key):
    for name in torch._C._dispatch_get_all_op_names():
        if torch._C._dispatch_has_kernel_for_dispatch_key(name, key):
            name, _, overload = name.removeprefix("aten::").partition(".")
            yield getattr(getattr(torch.ops.aten, name), overload or "default")


def differences(reference, lazy, key, exceptions=()):
    types = [[F32], [BF16], [F32, BF16], [torch.float64], [torch.int64]]
    found = []
    seen = 0
    for operator in operators_with_kernel(key):
        for dtypes in types if str(operator) not in exceptions else ():
            expected = casts_of(operator, reference.device, dtypes, reference)
            got = casts_of(operator, "lazy", dtypes, lazy)
            seen += any(entry not in (None, "refused") for entry in expected)
            if expected != got:
                found.append((str(operator), dtypes, expected, got))
    assert seen > 100  # else this compared nothing
    return found


@pytest.mark.filterwarnings("ignore")
def test_policy_is_the_cpus():
    lazy = torch.autocast("lazy", BF16)
    assert not differences(torch.autocast("cpu", BF16), lazy, "AutocastCPU")


class CudaRegion:
    """torch.autocast("cuda"), which refuses to work without a GPU; the rules need none."""

    device = "cuda"

    def __enter__(self):
        torch.set_autocast_dtype("cuda", BF16)
        torch.set_autocast_enabled("cuda", True)

    def __exit__(self, *exception):
        torch.set_autocast_enabled("cuda", False)


@pytest.mark.filterwarnings("ignore")
def test_policy_is_cudas_when_cuda_does_the_work():
    # These two belong to a library that lazy tensors never call by name.
    exceptions = {"aten.cudnn_convolution.default", "aten.cudnn_convolution_transpose.default"}
    with FakeTensorMode(), torch_lazy.config.override(device="cuda"):
        region = torch.autocast("lazy", BF16)
        assert not differences(CudaRegion(), region, "AutocastCUDA", exceptions)


# ---- Whole programs ------------------------------------------------------------------------------


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm = torch.nn.LayerNorm(8)
        self.head = torch.nn.Linear(8, 4)

    def forward(self, images):
        x = torch.nn.functional.gelu(self.convolution(images)).flatten(2).transpose(1, 2)
        x = torch.cat([self.norm(x + self.attention(x, x, x)[0]), x], 1)
        return torch.softmax(self.head(x.mean(1)), -1)


def trained(device, dtype):
    torch.manual_seed(0)
    network = Network().to(device)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(3):
        images, labels = torch.randn(2, 3, 6, 6).to(device), torch.tensor([1, 3]).to(device)
        with torch.autocast(device, dtype=dtype):
            loss = torch.nn.functional.cross_entropy(network(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [p.cpu() for p in network.parameters()]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_training_equals_eager(dtype):
    losses, weights = trained("lazy", dtype)
    expected_losses, expected_weights = trained("cpu", dtype)
    assert losses == expected_losses
    for got, expected in zip(weights, expected_weights, strict=True):
        assert torch.equal(got, expected)


def test_gradient_scaler():
    def run(device):
        torch.manual_seed(0)
        layer = torch.nn.Linear(4, 4).to(device)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler(device)
        for _ in range(3):
            with torch.autocast(device, dtype=torch.float16):
                loss = layer(torch.randn(2, 4).to(device)).square().sum()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        return scaler.get_scale(), layer.weight.detach().cpu()

    (scale, weight), (expected_scale, expected_weight) = run("lazy"), run("cpu")
    assert scale == expected_scale
    assert torch.equal(weight, expected_weight)


def test_custom_function():
    class Double(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="lazy", cast_inputs=F32)
        def forward(ctx, x):
            assert not torch.is_autocast_enabled("lazy")
            return x * 2

        @staticmethod
        @torch.amp.custom_bwd(device_type="lazy")
        def backward(ctx, gradient):
            return gradient * 2

    x = torch.ones(2, 2, device="lazy", requires_grad=True)
    with torch.autocast("lazy", dtype=BF16):
        y = Double.apply(x @ x)
    assert y.dtype == F32
    y.sum().backward()
    assert x.grad.tolist() == [[8.0, 8.0], [8.0, 8.0]]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled(backend):
    layer = torch.nn.Linear(3, 3).to("lazy")

    def function(x):
        with torch.autocast("lazy", dtype=BF16):
            y = layer(x)
            return y * 2 if y.dtype == BF16 else y

    x = torch.randn(2, 3).to("lazy")
    torch._dynamo.reset()
    compiled = torch.compile(function, backend=backend, fullgraph=True)
    assert compiled(x).dtype == BF16
    assert torch.equal(compiled(x).cpu(), function(x).cpu())


# ---- Regions -------------------------------------------------------------------------------------


def product_type():
    x = torch.ones(2, 2, device="lazy")
    return (x @ x).dtype


def test_regions():
    assert product_type() == F32
    with torch.autocast("lazy", dtype=BF16):
        assert product_type() == BF16
        assert torch.is_autocast_enabled("lazy")
        with torch.autocast(device_type="lazy", enabled=False):
            assert product_type() == F32
        with torch_lazy.autocast(dtype=torch.float16):
            assert product_type() == torch.float16
        assert product_type() == BF16
    assert product_type() == F32
    assert not torch.is_autocast_enabled("lazy")
    assert torch.amp.is_autocast_available("lazy")


def test_other_devices_are_not_touched():
    x = torch.ones(2, 2)
    with torch.autocast("lazy", dtype=BF16):
        assert (x @ x).dtype == F32
    with torch.autocast("cpu", dtype=BF16):
        assert (x @ x).dtype == BF16
        assert product_type() == F32
        assert torch.get_autocast_dtype("cpu") == BF16


def test_default_type_is_eagers_in_every_thread():
    types = [torch.get_autocast_dtype("lazy")]

    def other_thread():
        with torch_lazy.autocast():
            types.append(product_type())

    thread = threading.Thread(target=other_thread)
    thread.start()
    thread.join()
    assert types == [torch.get_autocast_dtype("cpu")] * 2


def test_decorator():
    assert torch_lazy.autocast(dtype=BF16)(product_type)() == BF16
    assert torch.autocast("lazy", dtype=BF16)(product_type)() == BF16
    assert product_type() == F32


def test_works_without_the_patches():
    torch_lazy.undo_patches()
    try:
        with torch_lazy.autocast(dtype=BF16):
            assert product_type() == BF16
        with pytest.raises(RuntimeError):
            torch.autocast("lazy")
    finally:
        torch_lazy.patches.apply()


def test_mistakes():
    with pytest.raises(TypeError, match="takes no device type"):
        torch_lazy.autocast("lazy")
    with pytest.warns(UserWarning, match="target dtype is not supported"):
        region = torch.autocast("lazy", dtype=torch.float64)
    with region:
        assert product_type() == F32
    half = torch.ones(2, device="lazy", dtype=torch.float16)
    with torch.autocast("lazy", dtype=BF16), pytest.raises(RuntimeError, match="can be mixed"):
        torch.cat([half, half])


# ---- Weights are cast once -----------------------------------------------------------------------


class CountCasts(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.count += operator is torch.ops.aten._to_copy.default
        return operator(*args, **(kwargs or {}))


def test_weights_are_cast_once():
    weight = torch.nn.Parameter(torch.ones(2, 2, device="lazy"))
    x = torch.ones(2, 2, device="lazy", dtype=BF16)
    with CountCasts() as casts:
        with torch.autocast("lazy", dtype=BF16):
            (x @ weight) @ weight
        assert casts.count == 1
        with torch.autocast("lazy", dtype=BF16):  # the last region's casts are forgotten
            x @ weight
        assert casts.count == 2
        with torch.autocast("lazy", dtype=BF16, cache_enabled=False):
            (x @ weight) @ weight
        assert casts.count == 4


def test_a_changed_weight_is_cast_again():
    weight = torch.nn.Parameter(torch.ones(1, 1, device="lazy"))
    x = torch.ones(1, 1, device="lazy")
    with torch.autocast("lazy", dtype=BF16):
        before = x @ weight
        with torch.no_grad():
            weight.add_(1)
        after = x @ weight
    assert (before.item(), after.item()) == (1.0, 2.0)


def test_a_cast_without_gradient_does_not_hide_the_weight():
    weight = torch.nn.Parameter(torch.ones(1, 1, device="lazy"))
    x = torch.ones(1, 1, device="lazy")
    with torch.autocast("lazy", dtype=BF16):
        with torch.no_grad():
            x @ weight
        (x @ weight).sum().backward()
    assert weight.grad.item() == 1.0
