"""Lazy tensors in files, pickles, copies and other processes keep values, aliasing and device."""

import copy
import io
import os
import pickle
import subprocess
import sys

import pytest
import torch
import torch.multiprocessing

import torch_lazy  # noqa: F401


def saved(value, **kwargs):
    file = io.BytesIO()
    torch.save(value, file, **kwargs)
    file.seek(0)
    return file


def aliases():
    """A tensor whose value is still pending, and a view into its middle."""
    whole = torch.arange(6.0).to("lazy") + 1
    return {"whole": whole, "part": whole.view(2, 3)[1]}


def assert_aliases(pair, device):
    assert pair["whole"].device.type == pair["part"].device.type == device
    assert pair["whole"].tolist() == [1, 2, 3, 4, 5, 6]
    pair["part"].fill_(9)
    assert pair["whole"].tolist() == [1, 2, 3, 9, 9, 9]


# ---- torch.save and torch.load -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("location", "device"),
    [
        (None, "lazy"),
        ("lazy", "lazy"),
        ("lazy:0", "lazy"),
        (torch.device("lazy"), "lazy"),
        ("cpu", "cpu"),
        ({"lazy": "cpu"}, "cpu"),
        (lambda storage, location: storage, "cpu"),
    ],
)
@pytest.mark.parametrize("zip_file", [True, False])
def test_save_and_load(location, device, zip_file):
    file = saved(aliases(), _use_new_zipfile_serialization=zip_file)
    assert_aliases(torch.load(file, map_location=location), device)


def test_cpu_file_loads_to_lazy():
    loaded = torch.load(saved(torch.arange(3.0)), map_location="lazy")
    assert loaded.device.type == "lazy"
    assert loaded.tolist() == [0, 1, 2]


def test_load_by_memory_map(tmp_path):
    torch.save(aliases(), tmp_path / "file.pt")
    assert_aliases(torch.load(tmp_path / "file.pt", mmap=True), "lazy")
    assert torch.load(tmp_path / "file.pt")["whole"].tolist() == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(3, 4).t(),
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.tensor(3, dtype=torch.int8),
        torch.randn(0, 3),
        torch.randn(3, dtype=torch.complex64).conj(),
        torch.randn(4).bfloat16(),
    ],
)
def test_kinds_of_tensors(tensor):
    loaded = torch.load(saved(tensor.to("lazy")))
    expected = torch.load(saved(tensor))
    assert (loaded.dtype, loaded.stride()) == (expected.dtype, expected.stride())
    assert torch.equal(loaded.cpu(), tensor)


def test_training_continues_from_a_checkpoint():
    def network_and_optimizer():
        network = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)).to("lazy")
        return network, torch.optim.AdamW(network.parameters(), lr=0.1)

    def step(network, optimizer, x):
        optimizer.zero_grad()
        network(x).square().sum().backward()
        optimizer.step()

    inputs = torch.randn(3, 5, 4).to("lazy")
    network, optimizer = network_and_optimizer()
    step(network, optimizer, inputs[0])
    file = saved({"network": network.state_dict(), "optimizer": optimizer.state_dict()})
    step(network, optimizer, inputs[1])

    other_network, other_optimizer = network_and_optimizer()
    checkpoint = torch.load(file)
    other_network.load_state_dict(checkpoint["network"])
    other_optimizer.load_state_dict(checkpoint["optimizer"])
    step(other_network, other_optimizer, inputs[1])
    for name, value in network.state_dict().items():
        assert torch.equal(value.cpu(), other_network.state_dict()[name].cpu()), name


def test_tied_parameters_stay_tied():
    network = torch.nn.ModuleDict({"a": torch.nn.Linear(2, 2), "b": torch.nn.Linear(2, 2)})
    network["b"].weight = network["a"].weight
    network.to("lazy")
    loaded = torch.load(saved(network), weights_only=False)
    assert loaded["a"].weight is loaded["b"].weight
    assert loaded["a"].weight.device.type == "lazy"
    assert torch.equal(loaded["a"].weight.cpu(), network["a"].weight.cpu())


def test_file_loads_without_torch_lazy(tmp_path):
    torch.save(aliases(), tmp_path / "file.pt")
    program = f"""
import sys, torch
assert "torch_lazy" not in sys.modules
pair = torch.load({str(tmp_path / "file.pt")!r}, map_location="cpu")
pair["part"].fill_(9)
assert pair["whole"].tolist() == [1, 2, 3, 9, 9, 9]
"""
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)


def test_safetensors(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    x = torch.arange(3.0).to("lazy")
    safetensors.save_file({"x": x, "y": x + 1}, tmp_path / "file.safetensors")
    loaded = safetensors.load_file(tmp_path / "file.safetensors")
    assert (loaded["x"].tolist(), loaded["y"].tolist()) == ([0, 1, 2], [1, 2, 3])
    with pytest.raises(RuntimeError, match="share memory"):
        safetensors.save_file({"x": x, "view": x[:2]}, tmp_path / "shared.safetensors")


# ---- pickle and copy -----------------------------------------------------------------------------


def test_pickle():
    x = (torch.arange(6.0).to("lazy") + 1).view(2, 3).t()
    parameter = torch.nn.Parameter(x.clone())
    loaded, loaded_parameter = pickle.loads(pickle.dumps((x, parameter)))
    assert loaded.device.type == "lazy"
    assert loaded.stride() == x.stride()
    assert torch.equal(loaded.cpu(), x.cpu())
    assert isinstance(loaded_parameter, torch.nn.Parameter)
    assert loaded_parameter.requires_grad


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_pickle_of_a_storage():
    storage = torch.arange(3, dtype=torch.uint8).to("lazy").untyped_storage()
    loaded = pickle.loads(pickle.dumps(storage))
    assert loaded.tolist() == [0, 1, 2]


def test_deepcopy_keeps_aliasing():
    pair = aliases()
    copied = copy.deepcopy(pair)
    assert_aliases(copied, "lazy")
    assert pair["whole"].tolist() == [1, 2, 3, 4, 5, 6]


def test_deepcopy_of_details():
    x = torch.ones(2, 2, device="lazy", requires_grad=True)
    (x * 3).sum().backward()
    x.note = ["kept"]
    copied = copy.deepcopy({"x": x, "again": x})
    assert copied["x"] is copied["again"]
    assert copied["x"].grad.tolist() == [[3, 3], [3, 3]]
    assert copied["x"].requires_grad
    assert copied["x"].note == ["kept"]
    conjugated = (torch.ones(2, dtype=torch.complex64, device="lazy") * 1j).conj()
    assert copy.deepcopy(conjugated).tolist() == [-1j, -1j]
    with pytest.raises(RuntimeError, match="graph leaves"):
        copy.deepcopy(x * 2)


def test_deepcopy_of_a_module():
    network = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)).to("lazy")
    network.append(network[0])
    copied = copy.deepcopy(network)
    assert copied[2] is copied[0]
    for value, other in zip(
        network.state_dict().values(), copied.state_dict().values(), strict=True
    ):
        assert value.data_ptr() != other.data_ptr()
        assert torch.equal(value.cpu(), other.cpu())


def test_shallow_copy_shares_memory():
    x = torch.zeros(2, device="lazy")
    copy.copy(x).fill_(5)
    assert x.tolist() == [5, 5]


# ---- Storages ------------------------------------------------------------------------------------


def test_storages():
    storage = torch.arange(3, dtype=torch.uint8).to("lazy").untyped_storage()
    assert storage.device.type == "lazy"
    storage[1] = 7
    assert storage.tolist() == [0, 7, 2]
    clone = storage.clone()
    storage.fill_(1)
    assert (storage.tolist(), clone.tolist()) == ([1, 1, 1], [0, 7, 2])
    assert clone.cpu().device.type == "cpu"
    assert torch.UntypedStorage(4, device="lazy").nbytes() == 4
    assert torch.UntypedStorage([3, 4], device="lazy").tolist() == [3, 4]
    assert torch.UntypedStorage(4).to(device="lazy").device.type == "lazy"
    assert torch.UntypedStorage([1, 2]).tolist() == [1, 2]  # others are made as ever


# ---- Other processes -----------------------------------------------------------------------------


def test_queue_between_processes():
    queue = torch.multiprocessing.get_context("fork").SimpleQueue()
    queue.put(aliases()["part"])
    received = queue.get()
    assert received.device.type == "lazy"
    assert received.tolist() == [4, 5, 6]


class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.tensor([float(index) ** 2])


@pytest.mark.parametrize("workers", [0, 1])
def test_data_loader(workers):
    loader = torch.utils.data.DataLoader(Squares(), batch_size=2, num_workers=workers)
    batches = [batch.to("lazy", non_blocking=True) for batch in loader]
    assert [batch.tolist() for batch in batches] == [[[0], [1]], [[4], [9]]]
