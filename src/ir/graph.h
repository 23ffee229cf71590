// A graph to compile and run: nodes in program order over numbered slots. This is what a backend
// sees. Two graphs with equal signatures are the same program over other data and numbers.
#pragma once

#include "ir/node.h"

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace torch_lazy {

struct GraphNode {
  DescriptionPtr description;
  c10::SmallVector<uint32_t, 4> operands;  // slots
  c10::SmallVector<int32_t, 3> outputs;    // slots of fresh results, then of writes; -1: not needed
  uint32_t first_number = 0;
};

struct Parameter {
  uint32_t slot = 0;
  bool fresh = false;    // memory whose content does not matter: the run allocates it
  bool donated = false;  // nobody needs the value after the run: its memory may be reused
  int64_t nbytes = 0;
};

struct Graph {
  std::vector<GraphNode> nodes;
  std::vector<Parameter> parameters;
  std::vector<uint32_t> roots;  // slots whose data must be there after the run
  uint32_t slots = 0;
  uint32_t numbers = 0;
  std::array<uint64_t, 2> hash{};

  std::string text() const;
};

/// What is about to run: the pending nodes it consists of, and the data and numbers it runs on.
struct Collection {
  std::vector<Node*> nodes;          // in program order
  std::vector<Value*> values;        // by slot
  std::vector<uint32_t> parameters;  // slots
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
