// What eager raises for an index that a kernel found to be out of range.
#pragma once

#include "compile/program.h"
#include <torch_lazy/backend.h>

namespace torch_lazy {

/// For a run that cannot be repeated, since data is gone: executes the nodes that a kernel was made
/// of with PyTorch's own kernels, on the data that there still is by slot, and zeros for the rest.
/// Raises what the first of them raises for its positions, `run.completed` at it; returns where
/// none does.
void raise_index_error(const compile::Program& program, std::vector<uint32_t> nodes,
                       std::vector<c10::Storage> slots, Run& run);

}  // namespace torch_lazy
