// Cuts a graph into parts for two backends: runs of nodes in program order, as long as possible,
// that one of them executes. A part is a graph of its own.
#pragma once

#include <torch_lazy/graph.h>

#include <cstdint>
#include <vector>

namespace torch_lazy {

enum class Owner : uint8_t {
  base,     // PyTorch's kernels
  plugin,   // the plug-in took it
  refused,  // the plug-in failed when it was asked; such a node is a part alone
};

struct Subgraph {
  Owner owner = Owner::base;
  size_t begin = 0;           // nodes of the whole graph
  uint32_t first_number = 0;  // of the whole graph's numbers
  Graph graph;
  std::vector<uint32_t> slots;  // by slot of `graph`: the slot of the whole graph
};

/// `owners` has one entry per node. Memory whose content does not matter is a fresh parameter only
/// where it dies in its part; elsewhere whoever runs the parts allocates it.
std::vector<Subgraph> partition(const Graph& graph, const std::vector<Owner>& owners);

}  // namespace torch_lazy
