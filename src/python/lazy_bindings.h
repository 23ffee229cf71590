// The bindings of PyTorch's Lazy Tensor Core as submodules of torch_lazy._C.
#pragma once

#include <pybind11/pybind11.h>

namespace torch_lazy {

void bind_lazy(pybind11::module_& m);

}  // namespace torch_lazy
