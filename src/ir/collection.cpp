// Numbering, signature and hash of what runs.
#include "ir/collection.h"

#include "base/hash.h"

namespace torch_lazy {
namespace {

constexpr uint64_t kDead = ~uint64_t{0};
constexpr uint64_t kFreshParameter = uint64_t{1} << 62;
constexpr uint64_t kDataParameter = uint64_t{1} << 61;

}  // namespace

Collection collect(std::vector<Node*> nodes) {
  Collection result;
  const uint64_t epoch = Program::instance().next_epoch();
  std::vector<uint32_t> uses;
  uses.reserve(nodes.size() * 2);
  result.values.reserve(nodes.size() * 2);
  result.signature.reserve(nodes.size() * 6);
  auto& signature = result.signature;

  auto number = [&](Value* value) {
    value->epoch = epoch;
    value->slot = static_cast<uint32_t>(result.values.size());
    result.values.push_back(value);
    uses.push_back(0);
    return value->slot;
  };

  auto parameter = [&](Value* value) {
    TORCH_INTERNAL_ASSERT(!value->pending() && !value->failure,
                          "a graph reads a value that is neither there nor part of it");
    result.parameters.push_back(number(value));
    result.fresh.push_back(value->undefined());
    signature.push_back((value->undefined() ? kFreshParameter : kDataParameter) ^
                        static_cast<uint64_t>(value->nbytes));
  };

  for (Node* node : nodes) {
    signature.push_back(node->description->id);
    for (Value* operand : node->operands) {
      if (operand->epoch != epoch) {
        parameter(operand);
      }
      ++uses[operand->slot];
      signature.push_back(operand->slot);
    }
    for (Value* output : node->outputs) {
      signature.push_back(output ? number(output) : kDead);
    }
    for (const c10::IValue& value : node->numbers) {
      result.numbers.push_back(value);
    }
  }

  result.kept.resize(result.values.size());
  uint64_t bits = 1;
  for (size_t slot = 0; slot < result.values.size(); ++slot) {
    bool kept = result.values[slot]->refs > uses[slot];
    result.kept[slot] = kept;
    bits = (bits << 1) | static_cast<uint64_t>(kept);
    if (slot % 63 == 62) {
      signature.push_back(bits);
      bits = 1;
    }
  }
  signature.push_back(bits);
  result.nodes = std::move(nodes);
  return result;
}

Graph make_graph(const Collection& collection) {
  Graph graph;
  graph.slots = static_cast<uint32_t>(collection.values.size());
  std::array<uint64_t, 2> hash{0x243f6a8885a308d3ull, 0x13198a2e03707344ull};
  auto fold = [&](uint64_t word) {
    hash[0] = mix(hash[0], word);
    hash[1] = mix(hash[1] + 0xa4093822299f31d0ull, word);
  };
  for (const Node* node : collection.nodes) {
    GraphNode copy;
    copy.description = node->description;
    copy.first_number = graph.numbers;
    graph.numbers += static_cast<uint32_t>(node->numbers.size());
    fold(node->description->hash);
    for (const Value* operand : node->operands) {
      copy.operands.push_back(operand->slot);
      fold(operand->slot);
    }
    for (const Value* output : node->outputs) {
      copy.outputs.push_back(output ? static_cast<int32_t>(output->slot) : -1);
      fold(static_cast<uint64_t>(copy.outputs.back()));
    }
    graph.nodes.push_back(std::move(copy));
  }
  std::vector<char> has_data(graph.slots, 0);
  for (size_t i = 0; i < collection.parameters.size(); ++i) {
    const uint32_t slot = collection.parameters[i];
    const Value* value = collection.values[slot];
    Parameter parameter;
    parameter.slot = slot;
    parameter.fresh = collection.fresh[i];
    parameter.donated = !collection.kept[slot];
    parameter.nbytes = value->nbytes;
    has_data[slot] = !parameter.fresh;
    fold(static_cast<uint64_t>(parameter.nbytes) * 4 + parameter.fresh * 2 + parameter.donated);
    graph.parameters.push_back(parameter);
  }
  for (uint32_t slot = 0; slot < graph.slots; ++slot) {
    if (collection.kept[slot] && !has_data[slot]) {
      graph.roots.push_back(slot);
      fold(slot);
    }
  }
  graph.hash = hash;
  return graph;
}

}  // namespace torch_lazy
