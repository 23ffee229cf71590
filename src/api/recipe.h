// What a list of tensors computes, as a function of the data and numbers it depends on: the graph
// behind the tensors alone, taken without running anything. Its hash is the tensors' graph hash.
#pragma once

#include "ir/node.h"
#include <torch_lazy/graph.h>

#include <ATen/core/Tensor.h>

#include <array>
#include <memory>
#include <vector>

namespace torch_lazy {

/// Data that a graph reads. Fresh memory, whose content does not matter, is no leaf.
struct Leaf {
  uint32_t slot = 0;
  int64_t id = -1;      // of the buffer it belonged to when it was read
  c10::Storage data;    // empty while it is in flight
  bool current = true;  // it is still what its buffer holds, so nothing pending overwrites it
  Layout layout;        // how a tensor over all of it lies
  bool exact = false;   // that is how one of the tensors lies, not a guess from its readers
};

struct RecipeOutput {
  uint32_t slot = 0;
  Layout layout;
};

struct Recipe {
  std::shared_ptr<const Graph> graph;  // no parameter is donated
  std::vector<Leaf> leaves;            // in the order of the graph's parameters
  std::vector<c10::IValue> numbers;
  std::vector<RecipeOutput> outputs;  // one per distinct tensor, in the order of the list
  size_t pending = 0;                // distinct buffers among the tensors that are not computed
};

/// The recipe of lazy tensors. `force`: the sync that the hash is for gives its tensors data (it is
/// part of the hash). Waits for what is in flight if the tensors depend on it.
Recipe recipe_of(at::TensorList tensors, bool force);

}  // namespace torch_lazy
