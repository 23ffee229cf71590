// The plan that needs no compiler and gives eager's bits.
#pragma once

#include <torch_lazy/backend.h>

namespace torch_lazy {

std::shared_ptr<Executable> make_aten_plan(const std::shared_ptr<const Graph>& graph);

}  // namespace torch_lazy
