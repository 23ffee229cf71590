"""PyTorch's features: each program gives the same results on eager and on the device, bit by bit.

A program takes the device and returns anything made of tensors and plain values.
"""

import copy
import io

import pytest
import torch
import torch.nn.functional as F
from comparing import COMPILED, DEVICE, difference
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

PROGRAMS = {}


def program(function, close=None):
    PROGRAMS[function.__name__] = function, close
    return function


def program_within(rtol, atol):
    """For programs whose kernels on the CPU are others than those of any device."""
    return lambda function: program(function, (rtol, atol))


# Training amplifies rounding (a bias in front of a norm has no gradient but noise): compiled, these
# are compared in double precision.
AMPLIFIED = ("transformer_modules", "batch_norm", "other_norms")


@pytest.fixture
def precision(name, monkeypatch):
    double = COMPILED and name in AMPLIFIED
    if double:
        torch.set_default_dtype(torch.float64)
        monkeypatch.setitem(example.__kwdefaults__, "dtype", torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("precision")
@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name):
    run, close = PROGRAMS[name]
    torch.manual_seed(3)
    expected = run(torch.device("cpu"))
    torch.manual_seed(3)
    actual = run(DEVICE)
    # Sums that cancel (the gradient of a bias in front of a norm) are noise of this size.
    close = close or ((2e-3, 2e-3) if COMPILED else None)
    found = difference(expected, actual, close=close)
    assert found is None, found


def example(device, *size, grad=False, dtype=torch.float32):
    return torch.randn(*size, dtype=dtype).to(device).requires_grad_(grad)


def network(device):
    return nn.Sequential(
        nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Dropout(0.3), nn.Linear(8, 3)
    ).to(device)


def gradients(module):
    return {name: p.grad for name, p in module.named_parameters()}


# ---- Autograd ------------------------------------------------------------------------------------


@program
def backward_and_accumulation(device):
    model = network(device)
    for _ in range(3):
        model(example(device, 4, 6)).square().mean().backward()
    return gradients(model)


@program
def double_backward(device):
    x = example(device, 5, grad=True)
    (first,) = torch.autograd.grad((x.sin() * x.exp()).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), x, create_graph=True)
    second.sum().backward()
    return first, second, x.grad


@program
def gradient_penalty(device):
    model = network(device)
    x = example(device, 4, 6, grad=True)
    (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    slope.norm(dim=1).sub(1).square().mean().backward()
    return gradients(model)


@program
def tensor_hooks(device):
    seen = []
    x = example(device, 4, grad=True)
    y = x * 2
    y.register_hook(lambda g: seen.append(g.clone()) or g * 3)
    y.retain_grad()
    x.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad + 1))
    y.sum().backward()
    return seen, x.grad, y.grad


@program
def module_hooks(device):
    seen = []
    model = network(device)
    model[0].register_forward_pre_hook(lambda m, args: (args[0] * 2,))
    model[1].register_forward_hook(lambda m, args, out: out + 1)
    model[2].register_full_backward_hook(lambda m, gi, go: seen.append((gi, go)))
    model[2].register_full_backward_pre_hook(lambda m, go: (go[0] * 2,))
    model(example(device, 4, 6)).sum().backward()
    return seen, gradients(model)


@program
def optimizer_in_backward(device):
    model = network(device)
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

    def step(p):
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step)
    for _ in range(2):
        model(example(device, 4, 6)).square().mean().backward()
    return model.state_dict()


@program
def saved_tensor_hooks(device):
    packed = []
    x = example(device, 4, grad=True)
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: packed.append(t.shape) or t.cpu(), lambda t: t.to(device)
    ):
        (x.exp() * x).sum().backward()
    with torch.autograd.graph.save_on_cpu():
        (x.sin() * x).sum().backward()
    return packed, x.grad


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x)
        ctx.scale = scale
        return x**3 * scale

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * ctx.scale * grad, None


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


@program
def custom_functions(device):
    x = example(device, 4, grad=True)
    y = Doubled.apply(Cube.apply(x, 0.5).clone())
    y.sum().backward()
    return y, x.grad


@program
def in_place_on_views_with_gradients(device):
    x = example(device, 4, 4, grad=True)
    y = x.clone()
    y[1:3].mul_(2)
    y.t()[0].add_(x[0])
    y.diagonal().zero_()
    y[:, 1] = x[:, 2] * 3
    y.view(-1)[5:9].copy_(x.view(-1)[:4])
    y.sum().backward()
    return y, x.grad


@program
def version_counters(device):
    x = example(device, 4, grad=True)
    y = x.exp()
    y.add_(1)
    try:
        y.sum().backward()
    except RuntimeError as error:
        return "modified by an inplace operation" in str(error), y._version


@program
def detaching(device):
    x = example(device, 4, grad=True)
    y = (x * 2).detach_()
    z = x.detach()
    z.mul_(3)
    return x, y, z, x._version


@program
def leaf_updates_without_gradients(device):
    w = example(device, 3, 3, grad=True)
    for _ in range(3):
        (w @ w).sum().backward()
        with torch.no_grad():
            w -= 0.1 * w.grad
            w.grad.zero_()
    return w, w.grad, w._version


@program
def checkpointing(device):
    results = []
    for reentrant in (False, True):
        torch.manual_seed(5)
        model = network(device)
        x = example(device, 4, 6, grad=True)
        checkpoint(model, x, use_reentrant=reentrant).square().mean().backward()
        results += [x.grad, gradients(model)]
    model = network(device)
    x = example(device, 4, 6, grad=True)
    checkpoint_sequential(model, 2, x, use_reentrant=False).sum().backward()
    return results, gradients(model), x.grad


@program
def anomaly_detection(device):
    x = example(device, 3, grad=True)
    try:
        with torch.autograd.detect_anomaly(check_nan=True):
            (x * 0 / 0).sum().backward()
    except RuntimeError as error:
        return "nan" in str(error)


@program
def inference_mode_and_grad_modes(device):
    model = network(device).eval()
    with torch.inference_mode():
        a = model(example(device, 2, 6))
        a.add_(1)
        view = a[0]
    with torch.no_grad():
        b = model(example(device, 2, 6))
    with torch.enable_grad():
        c = model(example(device, 2, 6))
    return a.is_inference(), view.is_inference(), a.clone(), b, c


@program
def functional_gradients(device):
    x = example(device, 3)
    hessian = torch.autograd.functional.hessian(lambda v: (v**3).sum(), x)
    jacobian = torch.autograd.functional.jacobian(lambda v: v.outer(v).exp(), x)
    _, vhp = torch.autograd.functional.vhp(lambda v: (v**3).sum(), x, torch.ones_like(x))
    return hessian, jacobian, vhp


@program
def forward_mode(device):
    import torch.autograd.forward_ad as forward

    with forward.dual_level():
        x = forward.make_dual(example(device, 4), example(device, 4))
        y = (x.sin() * x).softmax(0)
        y[1:].mul_(x[1:])
        return tuple(forward.unpack_dual(y))


@program
def gradcheck(device):
    x = example(device, 3, 4, grad=True, dtype=torch.float64)
    w = example(device, 4, grad=True, dtype=torch.float64)
    return (
        torch.autograd.gradcheck(lambda x, w: F.layer_norm(x, [4], w).tanh(), (x, w)),
        torch.autograd.gradgradcheck(lambda x: x.exp().cumsum(0), (x,)),
    )


# ---- torch.func ----------------------------------------------------------------------------------


@program
def function_transforms(device):
    from torch.func import functionalize, grad, hessian, jacfwd, jacrev, jvp, linearize, vjp, vmap

    def f(x):
        y = x.clone()
        y[0].mul_(3)
        return (y.sin() * x).sum()

    x = example(device, 3)
    batch = example(device, 5, 3)
    _, pull = vjp(lambda v: v.exp() * 2, x)
    _, push = linearize(lambda v: v.sin(), x)
    return [
        grad(f)(x),
        vmap(grad(f))(batch),
        vmap(lambda v: v.softmax(0) @ v)(batch),
        jacrev(lambda v: v.sin() * v.sum())(x),
        jacfwd(lambda v: v.sin() * v.sum())(x),
        hessian(lambda v: (v**3).sum())(x),
        jvp(torch.sin, (x,), (torch.ones_like(x),)),
        pull(torch.ones_like(x)),
        push(torch.ones_like(x)),
        functionalize(f)(x),
        vmap(lambda v: torch.randn_like(v), randomness="different")(batch),
    ]


@program
def per_sample_gradients(device):
    from torch.func import functional_call, grad, stack_module_state, vmap

    model = network(device).eval()
    parameters = dict(model.named_parameters())

    def loss(parameters, x):
        return functional_call(model, parameters, (x,)).square().sum()

    each = vmap(grad(loss), in_dims=(None, 0))(parameters, example(device, 4, 6))
    models = [network(device).eval() for _ in range(3)]
    stacked, buffers = stack_module_state(models)
    ensemble = vmap(lambda p, b, x: functional_call(models[0], (p, b), (x,)), in_dims=(0, 0, None))
    return each, ensemble(stacked, buffers, example(device, 2, 6))


# ---- Tensors -------------------------------------------------------------------------------------


@program
def tied_weights(device):
    """Tied before module.to(device), tied after it; an optimizer made before it goes on."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model.to(device)
    for _ in range(2):
        model(example(device, 3, 4)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert model[2].weight is model[0].weight
    return model.state_dict(), len(list(model.parameters()))


@program
def data_and_set(device):
    x = example(device, 4, grad=True)
    x.data = torch.ones(2, 3, device=device)
    x.data[0] = 5
    alias = x.data
    alias.add_(1)
    y = example(device, 6)
    z = torch.empty(0, device=device)
    z.set_(y.untyped_storage(), 2, (2, 2), (2, 1))
    z.mul_(10)
    w = torch.empty(0, device=device).set_(y)
    w[0] = 7
    grown = torch.empty(0, device=device).set_(example(device, 3).untyped_storage(), 1, (5,))
    grown.fill_(2)
    return x, alias, y, z, w, grown


@program
def data_across_devices(device):
    x = nn.Parameter(torch.ones(3))
    x.data = x.data.to(device)
    x.data.mul_(2)
    return x


@program
def resizing(device):
    x = torch.arange(6.0, device=device)
    alias = x[2:]
    x.resize_(2, 2)
    alias[0] = 9
    y = torch.ones(2, device=device)
    y.resize_(4)
    y[2:] = 3
    z = torch.ones(2, 3, 4, 5, device=device).resize_(1, 2, 2, 3, memory_format=torch.channels_last)
    return x, alias, y, z.stride(), torch.ones(2, device=device).resize_as_(x).shape


@program
def channels_last(device):
    x = example(device, 2, 3, 8, 8).to(memory_format=torch.channels_last)
    conv = nn.Conv2d(3, 4, 3, padding=1).to(device).to(memory_format=torch.channels_last)
    norm = nn.BatchNorm2d(4).to(device)
    y = F.max_pool2d(norm(conv(x)).relu(), 2)
    y.sum().backward()
    assert y.is_contiguous(memory_format=torch.channels_last)
    return y, gradients(conv), gradients(norm), dict(norm.named_buffers()), (x + 1).contiguous()


@program
def complex_numbers(device):
    x = example(device, 3, 4, dtype=torch.complex64, grad=True)
    y = x.conj() * x.mT.mH.exp()
    y.abs().sum().backward()
    z = example(device, 4, dtype=torch.complex64)
    z.imag.zero_()
    z.conj()[1:].mul_(2j)
    z.real.add_(1)
    return (
        y,
        x.grad,
        z,
        torch.fft.fft(z),
        z.conj().imag,
        torch.view_as_real(z.conj().resolve_conj()),
        z.angle(),
    )


@program
def empty_and_scalar_tensors(device):
    empty = torch.empty(0, 3, device=device)
    one = torch.tensor(2.5, device=device)
    cpu_scalar = torch.tensor(3.0)
    x = example(device, 4)
    return [
        empty.sum(0),
        empty.t() @ empty,
        torch.cat([empty, torch.ones(2, 3, device=device)]),
        empty.mean(),
        one * x,
        x.mul(cpu_scalar),
        cpu_scalar + x,
        x[one.long()],
        torch.where(x > 0, one, x),
        one.item(),
        float(one),
        int(one),
        bool(one > 1),
        [1, 2, 3][one.long() - 1],
    ]


@program
def wrapped_numbers_and_promotion(device):
    i = torch.arange(4, device=device)
    h = torch.ones(4, device=device, dtype=torch.bfloat16)
    return [
        i + 1.5,
        i * True,
        i / 2,
        i // 2,
        i**2,
        h * 2.5,
        h + i,
        h * torch.tensor(2.0),
        2**i,
        1 - h,
        i % 3,
        i.float() @ h.float(),
    ]


@program
def views_of_all_kinds(device):
    x = torch.arange(24.0, device=device).reshape(2, 3, 4)
    x.view(torch.int32)[0, 0, 0] = 1
    x.unfold(2, 2, 2)[..., 0].add_(100)
    x.permute(2, 0, 1)[1].mul_(-1)
    x.as_strided((2, 2), (12, 5), 1).fill_(0.5)
    x.expand(3, 2, 3, 4)[2].add_(1)
    x.flatten()[::7] = 9
    for part in x.split(2, dim=2):
        part.sub_(2)
    for row in x.unbind(1):
        row.mul_(2)
    x.squeeze().movedim(0, 2)[0, 1].copy_(torch.tensor([5, 6]))
    x.narrow(1, 1, 2).transpose(0, 1).diagonal().neg_()
    return x, x.reshape(-1)[3:].view(3, 7).T, x.t_() if x.dim() == 2 else x.swapaxes_(0, 2)


@program
def indexing(device):
    x = torch.arange(20.0, device=device).reshape(4, 5)
    rows = torch.tensor([0, 2], device=device)
    x[rows] += 1
    x[rows, 1] = -1
    x[x > 15] = 0
    x[:, torch.tensor([1, 3])] *= 2
    x[torch.tensor([True, False, True, False], device=device)] -= 1
    x[..., None].squeeze_(-1)[1, ::2] = torch.tensor([7.0, 8, 9], device=device)
    return (
        x,
        x[rows][:, rows],
        x[[1, 2], [0, 4]],
        x.take(rows),
        x.gather(1, rows.expand(4, 2)),
        x[-1, -1],
    )


@program
def writes_from_the_cpu(device):
    source = torch.ones(3)
    x = torch.zeros(2, 3, device=device)
    x[0] = source
    x[1].copy_(source * 2)
    source.fill_(9)
    y = source.to(device, copy=True)
    source.zero_()
    back = torch.zeros(2, 3, dtype=torch.float64)
    back.copy_(x)
    return x, y, back.tolist()


@program
def deep_copies(device):
    model = network(device)
    model(example(device, 2, 6)).sum().backward()
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin[0].weight.zero_()
    x = example(device, 4)
    y, z = copy.deepcopy((x, x[1:]))
    z.zero_()
    return model.state_dict(), twin.state_dict(), x, y, gradients(twin)


@program
def printing(device):
    x = torch.arange(6.0, device=device).reshape(2, 3)
    texts = [
        repr(x),
        str(x + 0.5),
        f"{x[0, 1]:.2f}",
        f"{x.sum()}",
        repr(nn.Parameter(x)),
        repr(x > 2),
        repr(x.to(torch.complex64)),
    ]
    return [text.replace(", device='lazy:0'", "").replace(" " * 8, " ") for text in texts]


@program
def conversions(device):
    x = example(device, 3, 2)
    return [
        x.tolist(),
        x.double(),
        x.to(torch.bfloat16).float(),
        x.bool(),
        x.half().to(torch.int8),
        x.cpu().numpy().tolist(),
        torch.tensor(x[0].tolist(), device=device),
        torch.as_tensor(x),
        torch.stack(list(x)),
        len(x),
        [v.item() for v in x[0]],
        x.type_as(x.double()),
        x.new_tensor([1, 2]),
        max(x[:, 0]),
        (x > 0).any().item(),
    ]


@program
def random_numbers(device):
    x = torch.rand(4, device=device)
    y = torch.empty(3, 2, device=device).normal_(1, 2)
    torch.rand(100, device=device)  # dies, but has advanced the generator
    z = F.dropout(x, 0.4)
    generator = torch.Generator().manual_seed(11)
    return [
        x,
        y,
        z,
        torch.randperm(6, device=device),
        torch.randint(0, 9, (4,), device=device),
        torch.randn(3, device=device, generator=generator),
        torch.empty(4, device=device).uniform_(generator=generator),
        x.bernoulli(),
        torch.multinomial(x, 3),
        torch.poisson(x * 4),
        torch.normal(x, 0.5),
        torch.rand_like(y.t()),
        torch.empty(5, device=device).exponential_(),
        torch.empty(5, device=device).random_(0, 100),
        F.gumbel_softmax(x),
        F.rrelu(y, training=True),
        torch.rand(2).tolist(),
    ]


@program
def random_state(device):
    state = torch.get_rng_state()
    a = torch.rand(3, device=device)
    torch.set_rng_state(state)
    b = torch.rand(3, device=device)
    with torch.random.fork_rng(devices=[]):
        torch.rand(3, device=device)
    return a, b, torch.rand(3, device=device)


@program
def distributions(device):
    import torch.distributions as d

    p = torch.tensor([0.2, 0.3, 0.5], device=device)
    one = torch.ones(3, device=device)
    every = [
        d.Normal(p, one),
        d.Bernoulli(p),
        d.Categorical(p),
        d.OneHotCategorical(p),
        d.Gamma(p, one),
        d.Beta(p, one),
        d.Dirichlet(p),
        d.Poisson(p * 9),
        d.Exponential(p),
        d.Laplace(p, one),
        d.Uniform(p, p + 1),
        d.Multinomial(5, p),
        d.Binomial(7, p),
        d.MultivariateNormal(p, torch.eye(3, device=device)),
        d.LogNormal(p, one),
        d.StudentT(p + 3),
        d.Geometric(p),
        d.VonMises(p, one),
    ]
    results = []
    for each in every:
        sample = each.sample((4,))
        results += [sample, each.log_prob(sample)]
    results.append(d.kl_divergence(every[0], d.Normal(one, p)))
    return results


@program
def tensor_subclasses(device):
    calls = []

    class Named(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            calls.append(function.__name__)
            return super().__torch_function__(function, types, args, kwargs or {})

    x = torch.ones(3, device=device).as_subclass(Named)
    y = (x + 1).sin()
    y[0] = 5
    kept = type(y).__name__, list(calls)
    return kept, y.as_subclass(torch.Tensor)


class Wrapper(torch.Tensor):
    """A wrapper that doubles what multiplications give."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, device=inner.device
        )

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        from torch.utils._pytree import tree_map

        inner = tree_map(lambda t: t.inner if isinstance(t, Wrapper) else t, args)
        out = function(*inner, **(kwargs or {}))
        if function is torch.ops.aten.mul.Tensor:
            out = out * 2
        return tree_map(lambda t: cls(t) if isinstance(t, torch.Tensor) else t, out)


@program
def wrapper_subclasses(device):
    x = Wrapper(example(device, 3))
    return (x * x + x).inner, torch.stack([x, x]).inner


@program
def dispatch_modes(device):
    class Log(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.names = []

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.names.append(str(function))
            return function(*args, **(kwargs or {}))

    x = example(device, 3, 3, grad=True)
    with Log() as log:
        y = (x @ x).relu().sum()
        y.backward()
    return log.names, x.grad


@program
def save_and_load(device):
    model = network(device)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    twin = network(device)
    twin.load_state_dict(torch.load(file))
    return twin.state_dict()


@program
def out_arguments(device):
    a, b = example(device, 3, 4), example(device, 3, 4)
    strided = torch.zeros(4, 6, device=device)[:, ::2].t()
    empty = torch.empty(0, device=device)
    pair = torch.empty(0, device=device), torch.empty(0, dtype=torch.int64, device=device)
    double = torch.empty(3, 4, dtype=torch.float64, device=device)
    torch.add(a, b, out=strided)
    torch.mm(a, b.t(), out=empty)
    torch.max(a, 1, out=pair)
    torch.mul(a, b, out=double)
    torch.cumsum(a, 0, out=a)
    torch.cat([a, b], out=(grown := torch.empty(0, device=device)))
    torch.arange(7, out=(counted := torch.empty(0, device=device)))
    return strided, empty, pair, double, a, grown, counted


@program
def foreach_operators(device):
    x = [example(device, 3), example(device, 2, 2), torch.empty(0, device=device)]
    y = [torch.ones_like(t) for t in x]
    torch._foreach_add_(x, y, alpha=2)
    torch._foreach_mul_([x[0], x[0][1:]], 2)  # elements that alias
    torch._foreach_addcdiv_(x, y, y, value=0.5)
    packed = torch.arange(1.0, len(x) + 1)  # on the CPU, whatever the device
    torch._foreach_addcmul_(x, y, y, packed)
    torch._foreach_addcdiv_(x, x, y, packed)
    packed.zero_()
    x = list(torch._foreach_addcmul(x, torch._foreach_addcdiv(y, x, y, packed), y, packed + 1))
    torch._foreach_lerp_(x, y, 0.3)
    return (
        x,
        torch._foreach_norm(x),
        torch._foreach_sqrt(torch._foreach_abs(x)),
        torch._foreach_maximum(x, 0.0),
    )


@program
def sorting_and_searching(device):
    x = example(device, 4, 5)
    return [
        x.sort(1),
        x.topk(2),
        x.argsort(0),
        x.kthvalue(2),
        x.median(0),
        x.mode(),
        torch.unique(x > 0, return_counts=True),
        x.nonzero(),
        torch.searchsorted(x[0].sort().values, x[1]),
        x[x > 0],
        torch.bincount((x[0] > 0).long()),
        x.histc(4),
        torch.where(x > 0),
        x.unique_consecutive(dim=0),
    ]


@program
def linear_algebra(device):
    a = example(device, 4, 4)
    s = a @ a.mT + torch.eye(4, device=device)
    return [
        torch.linalg.solve(a, s),
        torch.linalg.cholesky(s),
        torch.linalg.eigh(s),
        torch.linalg.qr(a),
        torch.linalg.det(a),
        torch.linalg.inv(a),
        torch.linalg.norm(a, "nuc"),
        torch.einsum("ij,jk->ik", a, s),
        torch.linalg.matrix_exp(a),
        torch.baddbmm(s.expand(2, 4, 4), a.expand(2, 4, 4), s.expand(2, 4, 4)),
    ]


@program
def factories_on_the_asked_device(device):
    """Beside a tensor, a factory makes its result on the device that it is asked for."""
    x = example(device, 2, 3)
    end = example(device, 1)[0]
    makers = {
        "zeros_like": lambda d: torch.zeros_like(x, device=d),
        "ones_like": lambda d: torch.ones_like(x, device=d),
        "full_like": lambda d: torch.full_like(x, 2, device=d),
        "empty_like": lambda d: torch.empty_like(x, device=d),
        "rand_like": lambda d: torch.rand_like(x, device=d),
        "randint_like": lambda d: torch.randint_like(x, 4, device=d),
        "new_zeros": lambda d: x.new_zeros((2,), device=d),
        "new_ones": lambda d: x.new_ones((2,), device=d),
        "new_full": lambda d: x.new_full((2,), 3, device=d),
        "new_empty": lambda d: x.new_empty((2,), device=d),
        "new_empty_strided": lambda d: x.new_empty_strided((2,), (1,), device=d),
        "new_tensor": lambda d: x.new_tensor([1.0], device=d),
        "linspace": lambda d: torch.linspace(end, 4, 3, device=d),
        "logspace": lambda d: torch.logspace(0, end, 3, device=d),
        "scalar_tensor": lambda d: torch.scalar_tensor(2, device=d),
    }
    results = []
    for name, make in makers.items():
        for asked in ("cpu", "meta", None, device):
            made = make(asked)
            of_tensor = name.endswith("_like") or name.startswith("new_")
            wanted = torch.device(asked or (device if of_tensor else "cpu")).type
            assert made.device.type == wanted, name
            if name[:3] not in ("emp", "ran") and "empty" not in name and asked != "meta":
                results.append(made.tolist())
    return results


@program
def mask_assigned_in_torchscript(device):
    """TorchScript's lists of optional tensors are of a type of their own."""

    @torch.jit.script
    def assign(x: torch.Tensor) -> torch.Tensor:
        x[x < 0] = 1.0
        x[1, x[0] > 1] = 2.0
        return x

    return [assign(example(device, 4, 6)) for _ in range(3)]


# ---- Modules and training ------------------------------------------------------------------------


def trained(model, *inputs):
    """Three steps of training: outputs, gradients of the last step, state."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    outputs = []
    for _ in range(3):
        optimizer.zero_grad()
        out = model(*inputs)
        out = out[0] if isinstance(out, tuple) else out
        out.float().square().mean().backward()
        outputs.append(out.detach().clone())
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    return outputs, gradients(model), model.state_dict()


@program_within(1e-4, 1e-5)  # eager projects all inputs of a sequence at once, on the CPU only
def recurrent_networks(device):
    x = example(device, 5, 2, 4)
    return [
        trained(nn.RNN(4, 6, 2, dropout=0.2).to(device), x),
        trained(nn.LSTM(4, 6, 2, bidirectional=True).to(device), x),
        trained(nn.GRU(4, 6, batch_first=True).to(device), x),
        trained(nn.LSTMCell(4, 6).to(device), x[0]),
    ]


@program_within(1e-4, 1e-5)
def packed_sequences(device):
    lstm = nn.LSTM(4, 6, batch_first=True).to(device)
    packed = nn.utils.rnn.pack_padded_sequence(
        example(device, 3, 5, 4), [5, 3, 2], batch_first=True
    )
    out, lengths = nn.utils.rnn.pad_packed_sequence(lstm(packed)[0], batch_first=True)
    out.sum().backward()
    return out, lengths.tolist(), gradients(lstm)


@program
def transformer_modules(device):
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2, enable_nested_tensor=False
    )
    model = nn.Transformer(8, 2, 1, 1, 16, batch_first=True).to(device)
    x = example(device, 2, 5, 8)
    mask = nn.Transformer.generate_square_subsequent_mask(5, device=device)
    return trained(encoder.to(device), x), trained(model, x, x, mask)


@program
def attention(device):
    q = example(device, 2, 2, 6, 8, grad=True)
    outputs = [
        F.scaled_dot_product_attention(q, q, q),
        F.scaled_dot_product_attention(q, q, q, is_causal=True),
        F.scaled_dot_product_attention(
            q, q, q, attn_mask=torch.ones(6, 6, device=device).tril().bool()
        ),
        F.scaled_dot_product_attention(q, q, q, dropout_p=0.3),
    ]
    torch.stack(outputs).square().sum().backward()
    return outputs, q.grad


@program
def batch_norm(device):
    model = nn.Sequential(nn.Conv1d(3, 4, 2), nn.BatchNorm1d(4), nn.ReLU(), nn.Conv1d(4, 2, 1)).to(
        device
    )
    x = example(device, 3, 3, 6)
    outputs = trained(model, x)
    model.eval()
    frozen = model(x)
    cumulative = nn.BatchNorm1d(3, momentum=None, affine=False).to(device)
    cumulative(x)
    cumulative(x * 2)
    return outputs, frozen, dict(cumulative.named_buffers())


@program
def other_norms(device):
    x = example(device, 2, 4, 6, 6)
    model = nn.Sequential(
        nn.GroupNorm(2, 4),
        nn.InstanceNorm2d(4, affine=True, track_running_stats=True),
        nn.LocalResponseNorm(2),
    )
    spectral = nn.utils.parametrizations.spectral_norm(nn.Linear(6, 3))
    weight = nn.utils.parametrizations.weight_norm(nn.Linear(6, 3))
    return (
        trained(model.to(device), x),
        trained(spectral.to(device), x),
        trained(weight.to(device), x),
    )


@program
def embeddings(device):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(10, 4, padding_idx=0, max_norm=1.0)
            self.bag = nn.EmbeddingBag(10, 4, mode="mean")

        def forward(self, ids):
            return self.embedding(ids).mean(1) + self.bag(ids)

    ids = torch.tensor([[1, 2, 0], [4, 1, 9]], device=device)
    return trained(Model().to(device), ids)


@program
def convolutions(device):
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3, stride=2, groups=3, padding_mode="circular", padding=1),
        nn.ConvTranspose2d(6, 4, 2, stride=2),
        nn.AdaptiveAvgPool2d(3),
        nn.PixelShuffle(2),
        nn.Upsample(scale_factor=2, mode="bilinear"),
        nn.Dropout2d(0.2),
    )
    return trained(model.to(device), example(device, 2, 3, 8, 8))


@program
def losses(device):
    x, y = example(device, 4, 5, grad=True), example(device, 4, 5)
    labels = torch.tensor([0, 2, -100, 4], device=device)
    total = [
        F.cross_entropy(x, labels, label_smoothing=0.1),
        F.nll_loss(x.log_softmax(1), labels),
        F.mse_loss(x, y),
        F.smooth_l1_loss(x, y),
        F.huber_loss(x, y),
        F.binary_cross_entropy_with_logits(x, y.sigmoid()),
        F.kl_div(x.log_softmax(1), y.softmax(1), reduction="batchmean"),
        F.cosine_embedding_loss(x, y, torch.tensor([1, -1, 1, 1], device=device)),
        F.ctc_loss(
            x.log_softmax(1)[:, None],
            torch.tensor([[1, 2]], device=device),
            torch.tensor([4], device=device),
            torch.tensor([2], device=device),
        ),
        F.triplet_margin_loss(x, y, y.flip(0)),
    ]
    torch.stack(total).sum().backward()
    return total, x.grad


@program
def moving_averages(device):
    from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn

    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).to(device)
    averaged = AveragedModel(model)
    moving = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = SWALR(optimizer, swa_lr=0.05)
    batches = [example(device, 4, 6) for _ in range(3)]
    for batch in batches:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        schedule.step()
        averaged.update_parameters(model)
        moving.update_parameters(model)
    update_bn(batches, averaged)
    return averaged.module.state_dict(), moving.module.state_dict()


@program
def clipping(device):
    model = network(device)
    model(example(device, 4, 6)).square().sum().backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    whole = nn.utils.clip_grad_norm_(model.parameters(), 0.1, norm_type=float("inf"), foreach=False)
    nn.utils.clip_grad_value_(model.parameters(), 0.01)
    flat = nn.utils.parameters_to_vector(model.parameters())
    return norm, whole, gradients(model), flat


@program
def data_loader(device):
    data = torch.utils.data.TensorDataset(torch.arange(10.0).reshape(5, 2), torch.arange(5))
    loader = torch.utils.data.DataLoader(data, batch_size=2, shuffle=True)
    model = nn.Linear(2, 5).to(device)
    losses = []
    for x, y in loader:
        loss = F.cross_entropy(model(x.to(device)), y.to(device, non_blocking=True))
        loss.backward()
        losses.append(loss)
    return losses, gradients(model)


@program
def schedules(device):
    model = network(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=6)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    rates = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = model(example(device, 4, 6)).square().mean()
        loss.backward()
        optimizer.step()
        schedule.step()
        plateau.step(loss)
        rates.append(optimizer.param_groups[0]["lr"])
    return rates, model.state_dict()


@program
def compiled_without_changes(device):
    model = network(device)

    @torch.compile(backend="eager", fullgraph=True)
    def step(x):
        return model(x).square().mean()

    loss = step(example(device, 4, 6))
    loss.backward()
    return loss, gradients(model)


@program
def half_precision(device):
    results = []
    for dtype in (torch.bfloat16, torch.float16):
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).to(device, dtype)
        results.append(trained(model, example(device, 4, 6).to(dtype)))
    return results


@program
def quantities_read_in_the_middle(device):
    """Reading a value in the middle of a step changes nothing."""
    model = network(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    seen = []
    for _ in range(3):
        optimizer.zero_grad()
        hidden = model[:2](example(device, 4, 6))
        seen.append(hidden[0, 0].item())
        loss = model[2:](hidden).square().mean()
        seen.append(float(loss))
        loss.backward()
        seen.append(model[0].weight.grad.norm().item())
        if seen[-1] > 0.1:
            optimizer.step()
    return seen, model.state_dict()
