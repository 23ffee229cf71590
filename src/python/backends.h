// The part of torch_lazy._C about backends.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <string>

namespace torch_lazy {

void bind_backends(pybind11::module_& m);

/// Asks the Python package for the library of an installed backend; empty if there is none.
std::string python_backend_path(const std::string& name);

}  // namespace torch_lazy
