// How tensors over the leaves of a graph lie. A graph knows memory and how operations read it, not
// the tensor that the program made; but callers who give other data for a leaf think in tensors.
#pragma once

#include "api/recipe.h"

namespace torch_lazy {

/// Fills in the layouts of the leaves. A tensor of the list that covers a leaf's memory is exact;
/// else it is guessed from who reads it. `ids`: of the outputs' buffers.
void describe_leaves(const Graph& graph, const std::vector<RecipeOutput>& outputs,
                     const std::vector<int64_t>& ids, std::vector<Leaf>& leaves);

}  // namespace torch_lazy
