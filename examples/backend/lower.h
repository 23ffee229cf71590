// From a node of torch-lazy's graph to instructions.
#pragma once

#include "program.h"
#include <torch_lazy/graph.h>

#include <vector>

namespace loops {

/// The instructions for a node; none if this backend leaves the node to PyTorch. Slots are those of
/// the graph; numbers count from the node's first.
std::vector<Instruction> lower(const torch_lazy::GraphNode& node);

}  // namespace loops
