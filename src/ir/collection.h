// From pending nodes to what runs: numbered values, a signature, a graph.
#pragma once

#include "ir/node.h"
#include <torch_lazy/graph.h>

#include <vector>

namespace torch_lazy {

/// What is about to run: the pending nodes it consists of, and the data and numbers it runs on.
struct Collection {
  std::vector<Node*> nodes;          // in program order
  std::vector<Value*> values;        // by slot
  std::vector<uint32_t> parameters;  // slots
  std::vector<char> fresh;           // by parameter: memory whose content does not matter
  std::vector<char> kept;            // by slot: something outlives the run that needs it
  std::vector<c10::IValue> numbers;
  std::vector<uint64_t> signature;
};

/// Numbers the values of `nodes` (pending, in program order) and writes the graph's signature.
/// Needs the graph lock, and that no other collection is in progress.
Collection collect(std::vector<Node*> nodes);

/// The graph of a collection, for a backend that has not seen it.
Graph make_graph(const Collection& collection);

}  // namespace torch_lazy
