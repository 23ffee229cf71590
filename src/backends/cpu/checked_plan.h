// A debugging aid: every graph runs twice, compiled and with PyTorch's kernels, and the results are
// compared.
#pragma once

#include <torch_lazy/backend.h>

namespace torch_lazy {

/// Results are those of PyTorch's kernels; the first node whose compiled values differ beyond
/// tolerance is warned about.
std::shared_ptr<Executable> make_checked_plan(const std::shared_ptr<const Graph>& graph);

}  // namespace torch_lazy
