"""The memory of a lazy tensor has no address: what asks for one raises an error or gets what it
needs in another way. Nothing reads it and crashes.
"""

import pickle

import numpy as np
import pytest
import torch
from comparing import DEVICE, difference

if DEVICE.type != "lazy":
    pytest.skip("a test of lazy storages", allow_module_level=True)

import torch_lazy

ops = torch.ops.aten


def test_asking_for_the_pointer_is_an_error():
    x = torch.ones(4, device=DEVICE) + 1
    with pytest.raises(RuntimeError, match=r"pointer|address"):
        torch._C.TensorBase.data_ptr(x)
    with pytest.raises(RuntimeError, match=r"pointer|address"):
        torch._C.StorageBase.data_ptr(x.untyped_storage())
    assert x.tolist() == [2, 2, 2, 2]  # and it is as good as before


def test_data_ptr_tells_memory_apart():
    x = torch.arange(6.0, device=DEVICE)
    y = torch.arange(6.0, device=DEVICE)
    assert x.data_ptr() != y.data_ptr()
    assert x.view(2, 3).data_ptr() == x.data_ptr()
    assert x[2:].data_ptr() == x.data_ptr() + 8
    assert x.untyped_storage().data_ptr() == x[2:].untyped_storage().data_ptr()
    assert x.new_empty(0).data_ptr() == 0
    parameter = torch.nn.Parameter(x)
    assert parameter.data_ptr() == x.data_ptr()


# Operators of PyTorch whose C++ reads memory without asking a kernel.
READERS = {
    "grid_sampler_fallback": lambda d: ops._grid_sampler_2d_cpu_fallback(
        torch.rand(1, 2, 4, 4).to(d), torch.rand(1, 3, 3, 2).to(d), 0, 0, False
    ),
    "qparams": lambda d: ops.choose_qparams_optimized(torch.rand(64).to(d), 64, 200, 0.16, 8),
    "linear_fp16": lambda d: (ops.fbgemm_pack_gemm_matrix_fp16(torch.rand(4, 8).to(d)).shape,),
    "linear_quantize": lambda d: list(ops.fbgemm_linear_quantize_weight(torch.rand(4, 8).to(d))),
}


@pytest.mark.parametrize("name", READERS)
def test_readers_of_memory_run(name):
    torch.manual_seed(1)
    expected = READERS[name]("cpu")
    torch.manual_seed(1)
    actual = READERS[name](DEVICE)
    assert difference(expected, actual) is None


def test_slice_of_a_storage():
    x = torch.arange(6, dtype=torch.uint8, device=DEVICE)
    storage = x.untyped_storage()
    part = storage[2:5]
    assert list(part) == [2, 3, 4]
    assert part.device == x.device
    assert list(storage[-2:]) == [4, 5]
    assert storage[3] == 3
    with pytest.raises(RuntimeError, match="step of 2"):
        storage[::2]


def test_dlpack():
    x = torch.arange(3.0, device=DEVICE) * 2
    for capsule in (torch.utils.dlpack.to_dlpack(x), torch.to_dlpack(x), torch_lazy.to_dlpack(x)):
        assert torch.from_dlpack(capsule).tolist() == [0, 2, 4]
    assert torch.from_dlpack(x).tolist() == [0, 2, 4]
    assert np.from_dlpack(x).tolist() == [0, 2, 4]
    assert x.__dlpack_device__() == torch.ones(1).__dlpack_device__()
    with pytest.raises(BufferError, match="gradient"):
        torch.from_dlpack(x.requires_grad_())


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.uint8, torch.bool, torch.float32])
def test_fresh_memory_under_deterministic_algorithms(dtype):
    def program(device):
        one = torch.zeros(1, dtype=dtype, device=device)
        return [
            torch.empty(2, dtype=dtype, device=device),
            torch.empty_strided((2,), (2,), dtype=dtype, device=device),
            torch.empty_permuted((2, 3), (1, 0), dtype=dtype, device=device),
            torch.empty_like(one),
            one.new_empty(3),
            one.clone().resize_(4),
            torch.full((2,), 1, dtype=dtype, device=device).resize_(1),
        ]

    torch.use_deterministic_algorithms(True)
    try:
        assert difference(program("cpu"), program(DEVICE)) is None
    finally:
        torch.use_deterministic_algorithms(False)


def test_generator():
    generator = torch.Generator(DEVICE).manual_seed(5)
    assert isinstance(generator, torch.Generator)
    assert isinstance(torch.default_generator, torch.Generator)
    assert generator.device.type == "lazy"
    x = torch.randn(4, device=DEVICE, generator=generator)
    again = torch.Generator("cpu").manual_seed(5)
    assert x.tolist() == torch.randn(4, generator=again).tolist()
    state = generator.get_state()
    copy = pickle.loads(pickle.dumps(generator))
    assert copy.device == generator.device
    y = torch.rand(3, device=DEVICE, generator=generator)
    assert torch.rand(3, device=DEVICE, generator=copy).tolist() == y.tolist()
    generator.set_state(state)
    other = generator.clone_state()
    assert torch.rand(3, device=DEVICE, generator=generator).tolist() == y.tolist()
    assert torch.rand(3, device=DEVICE, generator=other).tolist() == y.tolist()
    assert torch.Generator().device.type == "cpu"


def test_gradient_of_lobpcg():
    torch.manual_seed(2)
    a = torch.randn(10, 10, dtype=torch.float64)
    matrix, start = a @ a.T + torch.eye(10), torch.randn(10, 1, dtype=torch.float64)

    def gradient(device):
        leaf = matrix.clone().to(device).requires_grad_()
        values, _ = torch.lobpcg((leaf + leaf.T) / 2, k=1, X=start.to(device))
        values.sum().backward()
        return leaf.grad

    torch.testing.assert_close(gradient(DEVICE).cpu(), gradient("cpu"))
