"""Weights of convolutions that stay the same are kept in oneDNN's layout; when they change, in
whatever way, results are those of the new weights."""

import pytest
import torch
from torch import nn

import torch_lazy
from torch_lazy import _C, metrics

pytestmark = pytest.mark.usefixtures("nothing_pending")

has_onednn = pytest.mark.skipif(
    not _C.has_onednn(), reason="built without oneDNN, or a processor without AVX-512"
)


@pytest.fixture(autouse=True)
def blocked(tmp_path):
    with torch_lazy.config.override(
        compiler="force", products="onednn", cache_dir=str(tmp_path), **{"async": 0}
    ):
        yield


def convolution():
    torch.manual_seed(0)
    return nn.Conv2d(32, 32, 3, padding=1, bias=False).requires_grad_(False)


IMAGE = torch.randn(2, 32, 8, 8, generator=torch.Generator().manual_seed(1))


def kept():
    names = ("KeptWeights", "KeptWeightsReused")
    return [metrics.counter_value(name) or 0 for name in names]


def traced(layer):
    image = IMAGE.to("lazy")

    def run():
        result = layer(image)
        torch_lazy.mark_step()
        return result.cpu()

    return run


def replayed(layer):
    image = IMAGE.to("lazy")
    call = torch_lazy.compile(lambda: layer(image))
    return lambda: call().cpu()


WAYS = pytest.mark.parametrize("way", [traced, replayed])


@has_onednn
@WAYS
def test_weights_that_stay_are_kept(way):
    layer = convolution()
    expected = layer(IMAGE)
    run = way(layer.to("lazy"))
    for _ in range(8):
        torch.testing.assert_close(run(), expected)
    before = kept()
    for _ in range(3):
        torch.testing.assert_close(run(), expected)
    assert [new - old for new, old in zip(kept(), before, strict=True)] == [0, 3]


def scale_in_place(layer, weight):
    weight.mul_(-2)


def copy_from_host(layer, weight):
    weight.copy_(torch.ones(weight.shape))


def load(layer, weight):
    layer.load_state_dict({"weight": torch.full(weight.shape, 0.5)})


def replace(layer, weight):
    layer.weight = nn.Parameter(torch.full(weight.shape, 0.25, device="lazy"), requires_grad=False)


def replace_data(layer, weight):
    layer.weight.data = torch.full(weight.shape, 0.125).to("lazy")


def write_a_part(layer, weight):
    weight[3:5, :, 1] = 7.0


def write_through_an_alias(layer, weight):
    _C.to_real(weight).add_(1.0)


def write_by_an_operator_that_runs_at_once(layer, weight):
    torch.nn.init.orthogonal_(weight)


def train(layer, weight):
    weight.requires_grad_(True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    layer(IMAGE.to("lazy")).square().sum().backward()
    optimizer.step()
    weight.requires_grad_(False)


CHANGES = [scale_in_place, copy_from_host, load, replace, replace_data, write_a_part,
           write_through_an_alias, write_by_an_operator_that_runs_at_once, train]  # fmt: skip


@WAYS
@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__)
def test_results_follow_a_change(way, change):
    layer = convolution().to("lazy")
    run = way(layer)
    for _ in range(8):
        before = run()
    for _ in range(3):
        with torch.set_grad_enabled(change is train):
            change(layer, layer.weight)
        weight = layer.weight.detach().cpu()
        expected = nn.functional.conv2d(IMAGE, weight, padding=1)
        for _ in range(3):
            torch.testing.assert_close(run(), expected)
    assert not torch.allclose(before, expected)


def test_results_follow_an_alias_that_goes_on_writing():
    layer = convolution().to("lazy")
    run = traced(layer)
    plain = _C.to_real(layer.weight)
    for _ in range(4):
        plain.mul_(0.5)
        torch.testing.assert_close(run(), nn.functional.conv2d(IMAGE, plain, padding=1))


def test_results_follow_memory_that_was_given():
    layer = convolution()
    plain = layer.weight.detach().clone()
    layer.weight = nn.Parameter(_C.from_real(plain), requires_grad=False)
    run = traced(layer)
    for _ in range(4):
        plain.mul_(0.5)
        torch.testing.assert_close(run(), nn.functional.conv2d(IMAGE, plain, padding=1))


def shared_with_plain(weight):
    return _C.to_real(weight)


def shared_leaf(weight):
    _, values = _C._lazy_ts_backend._get_tensors_ts_device_data_node([weight])
    return values[0]


@WAYS
@pytest.mark.parametrize("alias", [shared_with_plain, shared_leaf], ids=lambda f: f.__name__)
@pytest.mark.parametrize("writes_first", [False, True])
def test_results_follow_an_alias_after_writes_of_both_sides(way, alias, writes_first):
    layer = convolution().to("lazy")
    run = way(layer)
    plain = alias(layer.weight)
    for _ in range(2):
        if writes_first:
            with torch.no_grad():
                layer.weight.mul_(2)
            torch_lazy.mark_step()
        for _ in range(8):
            run()
        plain.mul_(-3)
        weight = layer.weight.detach().cpu()
        torch.testing.assert_close(run(), nn.functional.conv2d(IMAGE, weight, padding=1))


@WAYS
def test_results_follow_memory_that_was_given_after_writes_of_both_sides(way):
    layer = convolution()
    array = layer.weight.detach().clone().numpy()
    layer.weight = nn.Parameter(_C.from_real(torch.from_numpy(array)), requires_grad=False)
    run = way(layer)
    for _ in range(2):
        layer.weight.mul_(2)
        torch_lazy.mark_step()
        for _ in range(8):
            run()
        array *= -3
        weight = layer.weight.detach().cpu()
        torch.testing.assert_close(run(), nn.functional.conv2d(IMAGE, weight, padding=1))


@has_onednn
def test_keeping_can_be_switched_off():
    run = traced(convolution().to("lazy"))
    before = kept()
    with torch_lazy.config.override(keep_weights=False):
        for _ in range(4):
            run()
    assert kept() == before


@has_onednn
def test_weights_that_a_step_changes_are_not_kept():
    layer = convolution().to("lazy").requires_grad_(True)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)
    image = IMAGE.to("lazy")
    before = kept()
    for _ in range(4):
        optimizer.zero_grad()
        layer(image).square().sum().backward()
        optimizer.step()
    torch_lazy.wait_device_ops()
    assert kept() == before


@has_onednn
def test_one_weight_is_kept_once_for_images_of_any_size():
    layer = convolution()
    lazy = convolution().to("lazy")
    before = kept()
    for size in (8, 12, 16, 8):
        image = torch.randn(2, 32, size, size)
        for _ in range(2):
            result = lazy(image.to("lazy"))
            torch_lazy.mark_step()
            torch.testing.assert_close(result.cpu(), layer(image))
    assert kept()[0] - before[0] == 1
