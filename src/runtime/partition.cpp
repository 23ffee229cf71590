// Parts of a graph: which values cross their borders, and what may happen to those.
#include "runtime/partition.h"

#include "base/hash.h"

#include <algorithm>

namespace torch_lazy {
namespace {

constexpr uint32_t kUnseen = ~uint32_t{0};

/// The whole graph's facts about slots, of which each part needs some.
struct Slots {
  explicit Slots(const Graph& graph)
      : bytes(graph.slot_bytes()),
        last_use(graph.slots, 0),
        outlives(graph.slots, 0),
        fresh(graph.slots, 0),
        local(graph.slots, kUnseen) {
    for (size_t i = 0; i < graph.nodes.size(); ++i) {
      for (uint32_t slot : graph.nodes[i].operands) {
        last_use[slot] = i;
      }
    }
    for (const Parameter& parameter : graph.parameters) {
      outlives[parameter.slot] = !parameter.donated;
      fresh[parameter.slot] = parameter.fresh;
    }
    for (uint32_t slot : graph.roots) {
      outlives[slot] = 1;
    }
  }

  std::vector<int64_t> bytes;
  std::vector<size_t> last_use;  // the last node that reads it
  std::vector<char> outlives;    // the whole run
  std::vector<char> fresh;       // memory that no node has touched so far
  std::vector<uint32_t> local;   // its number in the part that is being made
};

std::array<uint64_t, 2> hash_of(const Graph& graph) {
  std::array<uint64_t, 2> hash{0x452821e638d01377ull, 0xbe5466cf34e90c6cull};
  auto fold = [&](uint64_t word) {
    hash[0] = mix(hash[0], word);
    hash[1] = mix(hash[1] + 0xc0ac29b7c97c50ddull, word);
  };
  for (const GraphNode& node : graph.nodes) {
    fold(node.description->hash);
    for (uint32_t slot : node.operands) {
      fold(slot);
    }
    for (int32_t slot : node.outputs) {
      fold(static_cast<uint64_t>(slot));
    }
  }
  for (const Parameter& parameter : graph.parameters) {
    fold(static_cast<uint64_t>(parameter.nbytes) * 4 + parameter.fresh * 2 + parameter.donated);
  }
  for (uint32_t slot : graph.roots) {
    fold(slot);
  }
  return hash;
}

/// The part that consists of the nodes from `begin` to `end`.
Subgraph make_part(const Graph& whole, size_t begin, size_t end, Slots& slots) {
  Subgraph part;
  part.begin = begin;
  part.first_number = whole.nodes[begin].first_number;
  Graph& graph = part.graph;
  auto number = [&](uint32_t slot) {
    slots.local[slot] = static_cast<uint32_t>(part.slots.size());
    part.slots.push_back(slot);
    return slots.local[slot];
  };
  auto survives = [&](uint32_t slot) {
    return slots.outlives[slot] || slots.last_use[slot] >= end;
  };

  for (size_t i = begin; i < end; ++i) {
    GraphNode node = whole.nodes[i];
    node.first_number -= part.first_number;
    for (uint32_t& operand : node.operands) {
      const uint32_t slot = operand;
      if (slots.local[slot] == kUnseen) {
        Parameter parameter;
        parameter.slot = number(slot);
        parameter.donated = !survives(slot);
        parameter.fresh = slots.fresh[slot] && parameter.donated;
        parameter.nbytes = slots.bytes[slot];
        graph.parameters.push_back(parameter);
        slots.fresh[slot] = 0;
      }
      operand = slots.local[slot];
    }
    for (int32_t& output : node.outputs) {
      if (output >= 0) {
        const auto slot = static_cast<uint32_t>(output);
        output = static_cast<int32_t>(number(slot));
        if (survives(slot)) {
          graph.roots.push_back(static_cast<uint32_t>(output));
        }
      }
    }
    graph.nodes.push_back(std::move(node));
  }
  for (uint32_t slot : part.slots) {
    slots.local[slot] = kUnseen;
  }
  graph.slots = static_cast<uint32_t>(part.slots.size());
  graph.numbers = (end < whole.nodes.size() ? whole.nodes[end].first_number : whole.numbers) -
                  part.first_number;
  graph.hash = hash_of(graph);
  return part;
}

}  // namespace

std::vector<Subgraph> partition(const Graph& graph, const std::vector<Owner>& owners) {
  Slots slots(graph);
  std::vector<Subgraph> parts;
  for (size_t begin = 0; begin < graph.nodes.size();) {
    size_t end = begin + 1;
    while (end < graph.nodes.size() && owners[end] == owners[begin] &&
           owners[begin] != Owner::refused) {
      ++end;
    }
    parts.push_back(make_part(graph, begin, end, slots));
    parts.back().owner = owners[begin];
    begin = end;
  }
  return parts;
}

}  // namespace torch_lazy
