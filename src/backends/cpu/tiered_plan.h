// A graph that runs with PyTorch's kernels at first and is compiled when that pays.
#pragma once

#include <torch_lazy/backend.h>

namespace torch_lazy {

std::shared_ptr<Executable> make_tiered_plan(const std::shared_ptr<const Graph>& graph);

}  // namespace torch_lazy
