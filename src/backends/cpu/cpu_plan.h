// A compiled graph on the CPU: kernels over PyTorch's threads, and calls of PyTorch's kernels.
#pragma once

#include <torch_lazy/backend.h>

namespace torch_lazy {

/// Compiles the graph and all its kernels. Throws when that is not possible.
std::shared_ptr<Executable> make_cpu_plan(const std::shared_ptr<const Graph>& graph);

}  // namespace torch_lazy
