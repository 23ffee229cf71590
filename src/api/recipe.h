// What a list of tensors computes, as a function of the data and numbers it depends on: the graph
// behind the tensors alone, taken without running anything. Its hash is the tensors' graph hash.
#pragma once

#include "ir/node.h"
#include <torch_lazy/graph.h>

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

namespace torch_lazy {

/// Data that a graph reads. Fresh memory, whose content does not matter, is no leaf.
struct Leaf {
  uint32_t slot = 0;
  int64_t id = -1;  // of the buffer it was made for
  int64_t nbytes = 0;
  c10::Storage data;       // empty while it is in flight, or long gone
  bool in_flight = false;  // being computed
  bool current = false;    // it is what its buffer holds: nothing recorded overwrites it
  Layout layout;           // how a tensor over all of it lies
  bool exact = false;      // that is how one of the tensors lies, not a guess from its readers
};

struct RecipeOutput {
  uint32_t slot = 0;
  Layout layout;
};

struct Recipe {
  std::shared_ptr<const Graph> graph;  // no parameter is donated
  std::vector<Leaf> leaves;            // in the order of the graph's parameters
  std::vector<c10::IValue> numbers;    // empty if `past`
  std::vector<RecipeOutput> outputs;   // one per distinct tensor, in the order of the list
  size_t pending = 0;                  // distinct buffers among the tensors' that are not computed
  bool past = false;                   // part of it has run already: only its structure is known
};

/// Keeps what leaves hold from being overwritten by what is recorded.
class LeafHold {
 public:
  LeafHold() = default;
  ~LeafHold();
  LeafHold(const LeafHold&) = delete;
  LeafHold& operator=(const LeafHold&) = delete;

  std::vector<Value*> values;
};

/// What to do with tensors that were computed and whose graph is still known.
enum class Past : uint8_t {
  follow,  // their graph is part of the recipe, as it was before it ran
  ignore,  // they are data
};

/// The recipe of lazy tensors. `force`: the sync that the hash is for gives its tensors data (it is
/// part of the hash). `hold`: holds the leaves.
Recipe recipe_of(at::TensorList tensors, bool force, Past past = Past::follow,
                 LeafHold* hold = nullptr);

}  // namespace torch_lazy
