// Graphs of torch.compile(backend="torch_lazy"): recorded once for the kinds of their arguments,
// and run as recorded from then on.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace torch_lazy {

void bind_graph_runner(pybind11::module_& m);

}  // namespace torch_lazy
