"""What the compiler makes of graphs: how many kernels, which steps, the same bits for any number of
threads, new shapes and numbers without new kernels, and what is kept on disk."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import torch_lazy
from torch_lazy import metrics

pytestmark = pytest.mark.usefixtures("nothing_pending")


@pytest.fixture(autouse=True)
def every_graph_compiled(tmp_path):
    with torch_lazy.config.override(
        compiler="force", cache_dir=str(tmp_path / "kernels"), **{"async": 0}
    ):
        yield


def counts(run):
    """What `run` adds to the counters of the compiler."""
    names = ("GraphCompiled", "GraphKernels", "GraphLaunches", "GraphProducts", "GraphCalls")
    before = metrics.counters()
    run()
    after = metrics.counters()
    return {n.removeprefix("Graph"): after.get(n, 0) - before.get(n, 0) for n in names}


def kernels_compiled():
    return metrics.counter_value("KernelCompiled") or 0


def run(*values):
    torch_lazy.sync(list(values))


def lazily(*size, grad=False, **options):
    return torch.randn(*size, **options).to("lazy").requires_grad_(grad)


X, W = (6, 40), (40,)

ONE_KERNEL = {
    "pointwise chain": lambda x, w: ((x * 2.5 + w).sin().exp() - x.abs().sqrt()).clamp(-1, 1),
    "softmax": lambda x, w: x.softmax(-1),
    "log softmax": lambda x, w: x.log_softmax(-1),
    "softmax along the first dimension": lambda x, w: x.softmax(0),
    "layer norm": lambda x, w: nn.functional.layer_norm(x, W, w, w),
    "rms norm": lambda x, w: x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * w,
    "everything about a row": lambda x, w: nn.functional.layer_norm(
        nn.functional.gelu(x * 1.5 + w), W, w, w
    ).softmax(-1),
    "variance": lambda x, w: (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True),
    "column sums": lambda x, w: (x * w).sum(0),
    "transposed": lambda x, w: (x.t() + 1).t() * w,
    "reshaped": lambda x, w: (x.reshape(2, 3, 40) + 1).reshape(6, 5, 8).neg(),
    "bfloat16 inside": lambda x, w: (x.bfloat16() * 2 + 1).relu().float(),
    "comparison and choice": lambda x, w: torch.where(x > w, x, w).masked_fill(x.isnan(), 0),
    "cumulative sum": lambda x, w: (x * 2 + w).cumsum(-1).sin() + x,
    "cumulative sum of another dimension": lambda x, w: (x * 2 + w).cumsum(0).softmax(0),
    "filled": lambda x, w: torch.zeros_like(x) + torch.full((40,), 2.5, device=x.device) + w,
}


@pytest.mark.parametrize("name", ONE_KERNEL)
def test_one_kernel(name):
    def result(device):
        torch.manual_seed(0)
        x, w = torch.randn(X).to(device), torch.randn(W).to(device)
        return ONE_KERNEL[name](x, w)

    y = result("lazy")
    assert counts(lambda: run(y)) == {
        "Compiled": 1, "Kernels": 1, "Launches": 1, "Products": 0, "Calls": 0,
    }  # fmt: skip
    torch.testing.assert_close(y.cpu(), result("cpu"), rtol=1e-4, atol=1e-5)


COPIES = {
    "transposed": lambda x, w: x.t().contiguous() @ w,
    "both": lambda x, w: x.t().clone(memory_format=torch.contiguous_format) @ w.clone(),
    "part": lambda x, w: x[:, 8:32].contiguous() @ w[:24],
    "rows of more dimensions": lambda x, w: x.view(4, 12, 48)[:, :, :24].reshape(48, 24) @ w[:24],
    "batches": lambda x, w: torch.bmm(x.view(3, 16, 48).transpose(1, 2).contiguous(),
                                      w.view(3, 16, 48)),
    "double": lambda x, w: x.double().t() @ w.double().t().contiguous(),
    "joined": lambda x, w: torch.cat([x @ w, w @ x, x.t() @ w], 1),
    "joined rows": lambda x, w: torch.cat([x @ w, w @ x], 0),
    "stacked": lambda x, w: torch.stack([x @ w, w @ x]),
    "linear": lambda x, w: nn.functional.linear(x.t().contiguous(), w, w[0]),
}  # fmt: skip


@pytest.mark.parametrize("products", ["own", "aten"])
@pytest.mark.parametrize("name", COPIES)
def test_products_need_no_copies(name, products):
    torch.manual_seed(0)
    x, w = torch.randn(48, 48), torch.randn(48, 48)
    with torch_lazy.config.override(products=products, plan_cache=0):
        y = COPIES[name](x.to("lazy"), w.to("lazy"))
        found = counts(lambda: run(y))
    assert found["Calls"] == 0
    assert found["Kernels"] == {"linear": 1, "double": 2}.get(name, 0)
    torch.testing.assert_close(y.cpu(), COPIES[name](x, w), rtol=1e-4, atol=1e-4)


HAS_OWN = " avx2 " in Path("/proc/cpuinfo").read_text()
needs_own = pytest.mark.skipif(not HAS_OWN, reason="no products of our own on this processor")

CONVOLUTIONS = {
    "plain": lambda: nn.Conv2d(16, 32, 3, padding=1, bias=False),
    "bias": lambda: nn.Conv2d(16, 32, 3, padding=1),
    "stride": lambda: nn.Conv2d(16, 32, 3, stride=2, padding=1),
    "dilation": lambda: nn.Conv2d(16, 32, (3, 2), dilation=(2, 1), padding=(2, 0)),
    "groups": lambda: nn.Conv2d(16, 64, 5, groups=2, stride=(1, 3)),
    "one place": lambda: nn.Conv2d(16, 48, 12),
    "1x1": lambda: nn.Conv2d(16, 64, 1, stride=2),
}


def check_products(step, products, atol):
    """A step on both devices: so many products of our own, and nothing left to PyTorch."""
    with torch_lazy.config.override(products="own", plan_cache=0):
        results = step("lazy")
        found = counts(lambda: run(*results))
    assert (found["Products"], found["Calls"]) == (products, 0)
    for have, want in zip(results, step("cpu"), strict=True):
        assert have.stride() == want.stride()
        torch.testing.assert_close(have.cpu(), want, rtol=1e-4, atol=atol)


def check_convolutions(make, shape, products, format=torch.preserve_format):
    def step(device):
        torch.manual_seed(0)
        model = make().to(device, memory_format=format)
        x = torch.randn(shape).to(device, memory_format=format).requires_grad_()
        y = model(x * 2)
        y.square().sum().backward()
        return [y.detach(), x.grad, *(p.grad for p in model.parameters())]

    check_products(step, products, atol=1e-3)


@needs_own
@pytest.mark.parametrize("format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_of_our_own(name, format):
    check_convolutions(CONVOLUTIONS[name], (16, 16, 12, 12), 3, format)


@needs_own
def test_convolutions_of_a_row():
    def make():
        return nn.Sequential(nn.Conv1d(16, 32, 5, padding=2), nn.GELU(), nn.Conv1d(32, 32, 3))

    check_convolutions(make, (4, 16, 50), 6)


def by_threads(step):
    """What a step gives by products of our own: the same with any number of threads."""
    threads = torch.get_num_threads()
    results = []
    with torch_lazy.config.override(products="own"):
        for count in (1, 2, 7):
            torch.set_num_threads(count)
            results.append(step())
    torch.set_num_threads(threads)
    for one, two, seven in zip(*results, strict=True):
        assert one.equal(two) and one.equal(seven)
    return results[0]


@needs_own
def test_gradients_of_convolutions_do_not_depend_on_threads():
    def step():
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(3, 32, 7, 2, 3), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU(),
            nn.Conv2d(64, 64, 3, 1, 1), nn.Flatten(), nn.Linear(1024, 16),
        ).to("lazy")  # fmt: skip
        model(torch.randn(16, 3, 16, 16).to("lazy")).square().sum().backward()
        return [p.grad.cpu() for p in model.parameters()]

    by_threads(step)


def test_a_launch_of_unlike_rows_is_shared_among_threads():
    """A few long rows, many short ones, empty ones, none: kernels that run together."""
    plain = [torch.randn(size) for size in ((3, 9000), (40000, 2), (5, 0), (0, 5), (7, 1))]
    inputs = [x.to("lazy") for x in plain]

    def step():
        results = [x.sum(1) for x in inputs]
        assert counts(lambda: run(*results))["Launches"] <= 2
        return [x.cpu() for x in results]

    torch.testing.assert_close(by_threads(step), [x.sum(1) for x in plain])


def heads_of(x, heads, size):
    """Queries, keys and values as they lie in the result of one projection."""
    parts = x.split(heads * size, -1)
    return [part.unflatten(-1, (heads, size)).transpose(1, 2) for part in parts]


def seen_by(queries, keys, unseen=()):
    """A mask in which some queries see no key at all."""
    mask = torch.rand(queries, keys) < 0.7
    mask[list(unseen)] = False
    return mask


ATTENTION = {  # queries, keys, and how
    "plain": (100, 100, dict),
    "causal": (100, 100, lambda: {"is_causal": True}),
    "causal, scaled": (128, 128, lambda: {"is_causal": True, "scale": 0.3}),
    "other keys": (80, 130, dict),
    "causal, other keys": (80, 130, lambda: {"is_causal": True}),
    "mask": (100, 100, lambda: {"attn_mask": seen_by(100, 100)}),
    "nothing seen": (100, 100, lambda: {"attn_mask": seen_by(100, 100, (0, 17, 99))}),
    "numbers": (100, 95, lambda: {"attn_mask": torch.randn(2, 1, 100, 95)}),
    "mask of heads": (90, 95, lambda: {"attn_mask": torch.randn(2, 3, 1, 95).expand(2, 3, 90, 95)}),
}  # fmt: skip


@needs_own
@pytest.mark.parametrize("needed", [(0, 1, 2), (0,), (2,), (1, 2), ()], ids=str)
@pytest.mark.parametrize("name", ATTENTION)
def test_attention_by_products_of_our_own(name, needed):
    queries, keys, how = ATTENTION[name]
    torch.manual_seed(0)
    others = how()
    inputs = [torch.randn(2, n, 3 * 3 * 56) for n in (queries, keys)]
    gradient = torch.randn(2, 3, queries, 56)

    def step(device):
        q, k, v = (
            heads_of(x.clone().to(device), 3, 56)[i].detach().requires_grad_(i in needed)
            for i, x in enumerate((inputs[0], inputs[1], inputs[1]))
        )
        more = {n: x.to(device) if torch.is_tensor(x) else x for n, x in others.items()}
        y = nn.functional.scaled_dot_product_attention(q, k, v, **more)
        wanted = [x for i, x in enumerate((q, k, v)) if i in needed]
        return [y.detach(), *torch.autograd.grad(y, wanted, gradient.to(device))] if wanted else [y]

    # Scores and the result; gradients, for two of which the scores' is needed. Backward makes the
    # scores again, which is found to be the same product.
    products = 2 + len(needed) + (1 if {0, 1} & set(needed) else 0)
    check_products(step, products, atol=1e-5)


@needs_own
@pytest.mark.parametrize("tokens", [16, 1200], ids=["little work", "many scores"])
def test_attention_that_is_left_to_pytorch(tokens):
    q = torch.randn(1, 2, tokens, 16)
    with torch_lazy.config.override(products="own", plan_cache=0):
        y = nn.functional.scaled_dot_product_attention(*[q.to("lazy")] * 3)
        found = counts(lambda: run(y))
    assert (found["Products"], found["Calls"]) == (0, 1)
    torch.testing.assert_close(y.cpu(), nn.functional.scaled_dot_product_attention(q, q, q))


@needs_own
def test_attention_refuses_dropout_as_eager_does():
    def call(device):
        q = torch.randn(1, 2, 100, 64).to(device)
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, q, q, 0.1)[0].sum()

    with torch_lazy.config.override(products="own"):
        for device in ("cpu", "lazy"):
            with pytest.raises(RuntimeError, match="do not support dropout > 0"):
                call(device).item()


@needs_own
@pytest.mark.parametrize(
    "shapes",
    [((5, 40, 30), (5, 30, 50)), ((1, 40, 30), (1, 30, 50)), ((40, 17, 16), (40, 16, 33))],
    ids=str,
)
@pytest.mark.parametrize("lies", ["plain", "transposed", "one for all"])
def test_batches_of_products_do_not_depend_on_threads(shapes, lies):
    torch.manual_seed(0)
    a, b = (torch.randn(shape) for shape in shapes)
    if lies == "transposed":
        a, b = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (a, b))
    if lies == "one for all":
        b = b[:1].expand_as(b)
    [found] = by_threads(lambda: [torch.bmm(a.to("lazy"), b.to("lazy")).cpu()])
    torch.testing.assert_close(found, torch.bmm(a, b), rtol=1e-4, atol=1e-4)


def test_copies_of_what_changes_stay():
    def program(device):
        torch.manual_seed(0)
        x, w = torch.randn(48, 48).to(device), torch.randn(48, 48).to(device)
        copy = x.t().contiguous()
        x.mul_(2).add_(w)
        kept = w.clone()
        product = copy @ w
        copy[3] = 0
        joined = torch.cat([x @ w, kept], 1)
        joined.add_(1)
        return [product, copy @ w, x, joined, kept @ x]

    found = program("lazy")
    run(*found)
    for have, want in zip(found, program("cpu"), strict=True):
        torch.testing.assert_close(have.cpu(), want, rtol=1e-4, atol=1e-4)


LONG = {
    "loss": lambda x: ((x * 2 - 1) ** 2).mean(),
    "also kept": lambda x: (lambda y: [y, y.sum(), y.amax()])(x.sin()),
    "of rows": lambda x: x.exp().sum(1),
    "of columns": lambda x: x.abs().sum(0),
    "in place": lambda x: (lambda y: [y.mul_(2).add_(1).sum(), y])(x.clone()),
    "two passes": lambda x: (lambda y: ((y - y.mean()) ** 2).mean())(x.sin()),
    "transposed": lambda x: x.t().contiguous().sum(),
    "cumulative": lambda x: x.flatten().cumsum(0).mean(),
}


@pytest.mark.parametrize("size", [(300, 700), (2, 65537), (70000, 3)], ids=str)
@pytest.mark.parametrize("name", LONG)
def test_long_reductions(name, size):
    torch.manual_seed(0)
    x = torch.randn(size)

    def results(device):
        return torch.utils._pytree.tree_leaves(LONG[name](x.to(device)))

    bits = []
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 7):
            torch.set_num_threads(count)
            found = results("lazy")
            run(*found)
            bits.append([y.cpu() for y in found])
    finally:
        torch.set_num_threads(threads)
    for have, *others, want in zip(*bits, results("cpu"), strict=True):
        torch.testing.assert_close(have, want, rtol=1e-4, atol=1e-3)
        assert all(torch.equal(have, other) for other in others)


def test_an_optimizer_is_a_few_launches():
    parameters = [lazily(8, 3 + i % 5, grad=True) for i in range(100)]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)

    def step():
        for p in parameters:
            p.grad = torch.randn_like(p)
        torch_lazy.sync()
        optimizer.step()  # ends the step

    step()
    second = counts(step)
    assert second["Kernels"] == 100
    assert second["Launches"] <= 2
    assert second["Products"] == second["Calls"] == 0
    assert counts(step)["Compiled"] == 0
    assert all(torch.isfinite(p).all().item() for p in parameters)


def test_a_transformer_block():
    torch.manual_seed(0)
    block = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
    block = block.to("lazy")
    x = lazily(2, 16, 32)

    def step():
        for p in block.parameters():
            p.grad = None
        block(x).square().mean().backward()
        torch_lazy.mark_step()

    found = counts(step)
    assert found["Compiled"] == 1
    assert found["Products"] >= 12  # four linear layers, forward, and twice backward
    assert found["Launches"] <= 30
    assert found["Kernels"] <= 40


def test_new_numbers_and_shapes_compile_no_kernel():
    def step(rows, factor):
        x, w = lazily(rows, 24), lazily(24)
        y = ((x * factor + w).softmax(-1) @ x.t()).relu().sum(0)
        torch.testing.assert_close(
            y.cpu(),
            ((x.cpu() * factor + w.cpu()).softmax(-1) @ x.cpu().t()).relu().sum(0),
            rtol=1e-4,
            atol=1e-5,
        )

    for rows in (7, 12, 19):
        step(rows, 1.5)
    known = kernels_compiled()
    for rows in range(20, 40):
        step(rows, 0.1 * rows)
    assert kernels_compiled() == known


def test_a_factor_of_one_is_a_graph_of_its_own():
    x, y = lazily(3, 4), lazily(3, 4)
    run(x, y)

    def step(factor):
        z = torch.add(x, y, alpha=factor).exp()
        expected = torch.add(x.cpu(), y.cpu(), alpha=factor).exp()
        torch.testing.assert_close(z.cpu(), expected, rtol=1e-4, atol=1e-5)

    def steps():
        for factor in (1.0, 0.5, 1.0, -2.0, 3.0, 0.0, 1.0):
            step(factor)

    assert counts(steps)["Compiled"] == 2


def test_the_gradient_of_an_embedding_is_one_kernel(tmp_path):
    log = tmp_path / "log"
    places = torch.randint(0, 50, (4, 9), device="lazy")
    table = lazily(50, 33, grad=True)
    a, b = lazily(4, 9, 33), lazily(4, 9, 33)
    run(places, table, a, b)

    def backward():
        (gradient,) = torch.autograd.grad(nn.functional.embedding(places, table), table, a + b)
        run(gradient)
        return gradient

    with torch_lazy.config.override(compile_log=str(log)):
        found = counts(backward)
    assert found["Kernels"] == found["Launches"] == 1
    assert found["Calls"] == 0
    text = log.read_text()
    assert "call " not in text
    assert "aten::add.Tensor aten::embedding_dense_backward" in text
    real = table.detach().cpu().requires_grad_()
    looked_up = nn.functional.embedding(places.cpu(), real)
    looked_up.backward((a + b).cpu())
    assert torch.equal(backward().cpu(), real.grad)


def test_the_gradient_of_an_index_is_one_kernel():
    places = torch.randint(-8, 8, (20,), device="lazy")
    x, g = lazily(8, 33, grad=True), lazily(20, 33)
    run(places, x, g)

    def backward():
        run(*torch.autograd.grad(x[places], x, g * 2))

    found = counts(backward)
    assert found["Kernels"] == found["Launches"] == 1
    assert found["Calls"] == 0


@pytest.mark.parametrize("threads", [2, 7])
def test_the_bits_do_not_depend_on_the_threads(threads):
    def train(count):
        before = torch.get_num_threads()
        torch.set_num_threads(count)
        try:
            torch.manual_seed(0)
            x = torch.randn(512, 300).to("lazy")
            w = torch.randn(300).to("lazy")
            y = nn.functional.layer_norm(x * w, (300,), w, w)
            places = torch.randint(0, 40, (512,)).to("lazy")
            sums = torch.zeros(40, 300, device="lazy").index_add_(0, places, y * 2)
            few = y[:40, 0].index_put([places], y[:, 1], accumulate=True)
            apart = y.scatter_add(1, places.expand(512, 512)[:, :300], x)
            results = (y, y.sum(0), y.sum(), y.square().mean(), y.softmax(0), sums, few, apart)
            return [t.cpu() for t in results]
        finally:
            torch.set_num_threads(before)

    for one, many in zip(train(1), train(threads), strict=True):
        assert torch.equal(one, many)


@pytest.mark.parametrize("overwrite", [False, True])
def test_what_a_later_call_needs_again_is_made_again(overwrite, tmp_path):
    log = tmp_path / "log"
    x = torch.randn(300, 300)

    def program(x):
        a = x.mul(2).neg()
        result = a.sort(1).values
        if overwrite:
            x.fill_(3)
        for i in range(20):
            result = result.sort(i % 2).values
        return result + a.sort(0).values + a

    on_lazy = x.to("lazy")
    run(on_lazy)
    with torch_lazy.config.override(compile_log=str(log)):
        actual = program(on_lazy)
        torch_lazy.mark_step()  # with what is written
    assert torch.equal(actual.cpu(), program(x))
    last = log.read_text().rsplit("pass reuse", 1)[1].splitlines()
    assert sum("= neg" in line for line in last) == (1 if overwrite else 2)


CALLS = []


@torch.library.custom_op("torch_lazy_tests::logged", mutates_args=(), device_types="cpu")
def logged(x: torch.Tensor) -> torch.Tensor:
    CALLS.append(x.sum().item())
    if torch.isnan(x).any():
        raise RuntimeError("the custom operator got a NaN")
    return x + 1


logged.register_fake(torch.empty_like)


def with_custom_operators(x, factor=1.0):
    y = logged((x * 2).sin().exp())
    z = logged(((y - 1).log() * factor).asin() + y.sqrt())
    return logged((z * y).softmax(-1)) * 2 - z


def test_custom_operators_cut_a_graph_into_compiled_parts():
    x = torch.rand(4, 33)
    found = counts(lambda: run(with_custom_operators(x.to("lazy"))))
    assert found["Kernels"] >= 4
    assert found["Calls"] == 0  # they are parts of their own
    torch.testing.assert_close(with_custom_operators(x.to("lazy")).cpu(), with_custom_operators(x))


def test_a_custom_operator_runs_once_where_a_later_one_fails():
    x = torch.full((4, 33), 1.0).to("lazy")
    first = x * 5
    CALLS.clear()
    with pytest.raises(RuntimeError, match="got a NaN"):
        run(first, with_custom_operators(x, factor=20.0))
    assert len(CALLS) == 2
    assert first[0, 0].item() == 5


def test_an_index_out_of_range_is_eagers_error():
    table = lazily(5, 8)
    y = nn.functional.embedding(torch.tensor([1, 9], device="lazy"), table) * 2
    z = table + 1
    with pytest.raises(IndexError):
        run(y)
    assert torch.equal(z.cpu(), table.cpu() + 1)


def test_what_is_shared_outside_is_written_in_place():
    real = torch.zeros(4)
    x = torch_lazy._C.from_real(real)
    x.add_(1).mul_(3)
    run(x)
    assert real.tolist() == x.tolist() == [3] * 4


def test_the_log(tmp_path):
    log = tmp_path / "log"
    with torch_lazy.config.override(compile_log=str(log)):
        run(lazily(3, 4).exp().sum(-1))
    text = log.read_text()
    for part in (
        "pass lower",
        "pass fuse",
        "reduce_sum f32",
        "aten::exp aten::sum",
        "machine code",
    ):
        assert part in text


def test_fusion_as_text(tmp_path):
    """Before and after: two pieces become one, and what was between them is gone."""
    log = tmp_path / "log"
    x = lazily(3, 4)
    with torch_lazy.config.override(compile_log=str(log)):
        run((x + 1).t() * 2)
    before, after = (
        part.partition("\n")[2].partition("graph ")[0]
        for part in log.read_text().split("pass ")
        if part.startswith(("lower", "fuse"))
    )
    assert before.count("piece") == 2
    assert before.count("store") == 2
    assert after.count("piece") == 1
    assert after.count("store") == 1


PROGRAM = """
import torch, torch_lazy
x = torch.randn(33, 65).to("lazy")
for _ in range(3):
    x = (x * 1.25).tanh().softmax(-1)
    torch_lazy.mark_step()
x.cpu()
print(*(torch_lazy.metrics.counter_value(n) or 0 for n in ("KernelCompiled", "KernelCacheHit")))
"""


def test_kernels_are_kept_on_disk(tmp_path):
    def process():
        environment = {
            "TORCH_LAZY_COMPILER": "force",
            "TORCH_LAZY_CACHE_DIR": str(tmp_path),
            "PATH": "/usr/bin:/bin",
        }
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment
        )
        assert done.returncode == 0, done.stderr
        return [int(n) for n in done.stdout.split()]

    assert process() == [1, 0]
    assert process() == [0, 1]
    for file in tmp_path.iterdir():
        file.write_bytes(b"damaged" + file.read_bytes()[7:])
    assert process() == [1, 0]


OLDER = (
    PROGRAM
    + """
def step(device):
    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(16, 32, 3, 2, 1), torch.nn.ReLU(), torch.nn.Conv2d(32, 64, 3, 1, 1)]
    model = torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(256, 24)).to(device)
    model(torch.randn(16, 16, 4, 4).to(device)).square().sum().backward()
    return [p.grad.cpu() for p in model.parameters()]

for have, want in zip(step("lazy"), step("cpu"), strict=True):
    torch.testing.assert_close(have, want, rtol=1e-4, atol=1e-4)
print((torch_lazy.metrics.counter_value("CompiledCall_aten::convolution_backward") or 0) > 0)
print(torch.isfinite(x.cpu()).all().item(), x.cpu().sum().item())
"""
)


@pytest.mark.parametrize("target", ["x86-64", "x86-64-v3"])
def test_older_processors(target):
    environment = {
        "TORCH_LAZY_COMPILER": "force",
        "TORCH_LAZY_CACHE_DIR": "off",
        "TORCH_LAZY_CODEGEN_TARGET": target,
        "TORCH_LAZY_PRODUCTS": "own",
        "PATH": "/usr/bin:/bin",
    }
    done = subprocess.run(
        [sys.executable, "-c", OLDER], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2] == str(target == "x86-64" or not HAS_OWN)
    finite, total = done.stdout.splitlines()[-1].split()
    assert finite == "True"
    assert float(total) == pytest.approx(33, rel=1e-5)


def test_without_a_code_generator_pytorch_serves():
    environment = {
        "TORCH_LAZY_COMPILER": "force",
        "TORCH_LAZY_CODEGEN_LIBRARY": "/nowhere/libnone.so",
        "PATH": "/usr/bin:/bin",
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["0", "0"]
    assert done.stderr.count("code generator cannot be used") == 1


def test_a_graph_that_is_seen_again_is_compiled():
    torch.set_num_threads(1)
    with torch_lazy.config.override(compiler="on"):
        x = lazily(5, 6)

        def step():
            y = x
            for _ in range(12):
                y = (y * 1.5).tanh()
            return y.cpu()

        first = step()
        results = [step() for _ in range(200)]
        for result in results:
            torch.testing.assert_close(result, first, rtol=1e-4, atol=1e-5)
    torch_lazy.wait_device_ops()


def test_check_mode_gives_eagers_bits(recwarn):
    with torch_lazy.config.override(compiler="check"):
        real = torch.randn(5, 6)
        x = real.to("lazy")
        y = nn.functional.gelu(x).softmax(-1)
        x.add_(1)
        assert torch.equal(y.cpu(), nn.functional.gelu(real).softmax(-1))
        assert torch.equal(x.cpu(), real + 1)
    assert not [w for w in recwarn if "differs" in str(w.message)]


def test_check_mode_names_what_differs():
    """The rounding of a sum, made large."""
    torch.manual_seed(0)
    real = torch.rand(100, 1000)
    with torch_lazy.config.override(compiler="check", source_lines=1):
        x = real.to("lazy")
        with pytest.warns(UserWarning, match=r"aten::\w+.*differs.*test_compiler.py"):
            ((x.exp().sum(0) - real.exp().sum(0).to("lazy")) * 1e6).cpu()
