// The part of torch_lazy.compile that runs in every call: arguments, guards, replays.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace torch_lazy {

void bind_compile(pybind11::module_& m);

}  // namespace torch_lazy
