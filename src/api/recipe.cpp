// Traversal, numbering and hashing of what is behind a list of tensors.
#include "api/recipe.h"

#include "base/hash.h"
#include "capture/tensor.h"
#include "runtime/executor.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
#include <unordered_map>
#include <unordered_set>

namespace torch_lazy {
namespace {

bool covers(const Layout& layout, int64_t nbytes) {
  int64_t elements = 1;
  for (int64_t size : layout.sizes) {
    elements *= size;
  }
  const auto itemsize = static_cast<int64_t>(c10::elementSize(layout.dtype));
  return layout.offset == 0 && elements * itemsize == nbytes &&
         bytes_spanned(layout.sizes, layout.strides, 0, layout.dtype) == nbytes;
}

Layout contiguous(at::DimVector sizes, at::ScalarType dtype) {
  Layout layout;
  layout.dtype = dtype;
  layout.sizes = std::move(sizes);
  layout.strides.resize(layout.sizes.size());
  int64_t stride = 1;
  for (size_t i = layout.sizes.size(); i-- > 0;) {
    layout.strides[i] = stride;
    stride *= std::max<int64_t>(layout.sizes[i], 1);
  }
  return layout;
}

/// The contiguous layout of which `layout`, which covers its memory, is a permutation.
Layout in_memory_order(const Layout& layout) {
  std::vector<size_t> order(layout.sizes.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return layout.strides[a] > layout.strides[b]; });
  at::DimVector sizes;
  for (size_t dimension : order) {
    sizes.push_back(layout.sizes[dimension]);
  }
  return contiguous(std::move(sizes), layout.dtype);
}

class Hasher {
 public:
  void fold(uint64_t word) {
    hash_[0] = mix(hash_[0], word);
    hash_[1] = mix(hash_[1] + 0xa4093822299f31d0ull, word);
  }

  void fold(const Layout& layout) {
    fold(layout.sizes.size());
    for (size_t i = 0; i < layout.sizes.size(); ++i) {
      fold(static_cast<uint64_t>(layout.sizes[i]));
      fold(static_cast<uint64_t>(layout.strides[i]));
    }
    fold(static_cast<uint64_t>(layout.offset));
    fold(static_cast<uint64_t>(layout.dtype) * 4 + layout.conj * 2 + layout.neg);
  }

  void fold(const Description& description) {
    fold(description.op->identity);
    fold(static_cast<uint64_t>(description.default_dtype));
    fold(description.key.size());
    for (uint64_t word : description.key) {
      fold(word);
    }
  }

  std::array<uint64_t, 2> hash() const { return hash_; }

 private:
  std::array<uint64_t, 2> hash_{0x452821e638d01377ull, 0xbe5466cf34e90c6cull};
};

/// Numbers the values behind a list of tensors. The graph lock is held.
class Reader {
 public:
  Reader(at::TensorList tensors, Recipe& recipe) : recipe_(recipe) {
    std::unordered_set<const c10::TensorImpl*> seen;
    for (const at::Tensor& tensor : tensors) {
      if (seen.insert(tensor.unsafeGetTensorImpl()).second) {
        buffers_.push_back(&buffer_of(tensor));
        recipe_.outputs.push_back({0, Layout::of(tensor)});
      }
    }
  }

  void run(bool force) {
    choose();
    for (const Node* node : nodes_) {
      add(*node);
    }
    std::unordered_set<uint32_t> roots;
    for (size_t i = 0; i < buffers_.size(); ++i) {
      const Value* value = buffers_[i]->current;
      const uint32_t slot = slots_.count(value) ? slots_.at(value) : add_parameter(value);
      recipe_.outputs[i].slot = slot;
      const bool computed = value->producer || !value->data;
      if (computed && roots.insert(slot).second) {
        graph_.roots.push_back(slot);
      }
    }
    graph_.slots = static_cast<uint32_t>(slots_.size());
    graph_.numbers = static_cast<uint32_t>(recipe_.numbers.size());
    describe_leaves();
    graph_.hash = hash(force);
    recipe_.graph = std::make_shared<const Graph>(std::move(graph_));
  }

 private:
  void choose() {
    std::unordered_set<const Node*> chosen;
    std::vector<const Node*> stack;
    std::unordered_set<const Buffer*> distinct;
    for (Buffer* buffer : buffers_) {
      const Value* value = Program::instance().value_of(*buffer);
      if (value->failure) {
        raise(*value->failure);
      }
      used_.insert(value);
      if (value->producer) {
        stack.push_back(value->producer);
        recipe_.pending += distinct.insert(buffer).second;
      }
    }
    while (!stack.empty()) {
      const Node* node = stack.back();
      stack.pop_back();
      if (!chosen.insert(node).second) {
        continue;
      }
      nodes_.push_back(node);
      for (const Value* operand : node->operands) {
        used_.insert(operand);
        if (operand->producer) {
          stack.push_back(operand->producer);
        }
      }
    }
    std::sort(nodes_.begin(), nodes_.end(),
              [](const Node* a, const Node* b) { return a->sequence < b->sequence; });
  }

  void add(const Node& node) {
    GraphNode copy;
    copy.description = node.description;
    copy.first_number = static_cast<uint32_t>(recipe_.numbers.size());
    for (const Value* operand : node.operands) {
      auto it = slots_.find(operand);
      copy.operands.push_back(it != slots_.end() ? it->second : add_parameter(operand));
    }
    for (const Value* output : node.outputs) {
      // What nobody here reads is not computed, whether or not something else holds it.
      copy.outputs.push_back(output && used_.count(output) ? static_cast<int32_t>(number(output))
                                                           : -1);
    }
    recipe_.numbers.insert(recipe_.numbers.end(), node.numbers.begin(), node.numbers.end());
    graph_.nodes.push_back(std::move(copy));
  }

  uint32_t number(const Value* value) {
    return slots_.emplace(value, static_cast<uint32_t>(slots_.size())).first->second;
  }

  uint32_t add_parameter(const Value* value) {
    Parameter parameter;
    parameter.slot = number(value);
    parameter.fresh = !value->data;
    parameter.nbytes = value->nbytes;
    graph_.parameters.push_back(parameter);
    if (!parameter.fresh) {
      Leaf leaf;
      leaf.slot = parameter.slot;
      leaf.data = value->data;
      leaf.current = value->owner != nullptr;
      leaf.id = value->owner ? static_cast<int64_t>(value->owner->id) : -1;
      recipe_.leaves.push_back(std::move(leaf));
    }
    return parameter.slot;
  }

  void describe_leaves() {
    std::unordered_map<uint32_t, Leaf*> by_slot;
    for (Leaf& leaf : recipe_.leaves) {
      by_slot[leaf.slot] = &leaf;
    }
    // A value that was overwritten belonged to the buffer that holds what it became.
    std::unordered_map<const Value*, int64_t> ids;
    for (auto it = nodes_.rbegin(); it != nodes_.rend(); ++it) {
      const Node& node = **it;
      const Description& d = *node.description;
      for (size_t k = 0; k < d.writes.size(); ++k) {
        const Value* after = node.outputs[d.fresh.size() + k];
        const Value* before = node.operands[d.writes[k].operand];
        if (!after) {
          continue;
        }
        const int64_t id = after->owner       ? static_cast<int64_t>(after->owner->id)
                           : ids.count(after) ? ids.at(after)
                                              : -1;
        ids[before] = id;
        auto leaf = by_slot.find(slots_.at(before));
        if (leaf != by_slot.end() && leaf->second->id < 0) {
          leaf->second->id = id;
        }
      }
    }
    for (size_t i = 0; i < buffers_.size(); ++i) {
      const Layout& layout = recipe_.outputs[i].layout;
      for (Leaf& leaf : recipe_.leaves) {
        if (!leaf.exact && leaf.id == static_cast<int64_t>(buffers_[i]->id) &&
            covers(layout, static_cast<int64_t>(leaf.data.nbytes()))) {
          leaf.layout = layout;
          leaf.exact = true;
        }
      }
    }
    guess_layouts(by_slot);
  }

  /// A contiguous reader shows how a tensor over the leaf lies, else the memory order of one that
  /// reads all of it, else there is only a type.
  void guess_layouts(const std::unordered_map<uint32_t, Leaf*>& by_slot) {
    enum Knowledge : uint8_t { nothing, type, order, shape };
    std::unordered_map<const Leaf*, Knowledge> known;
    auto learn = [&](Leaf& leaf, Knowledge what, Layout layout) {
      if (!leaf.exact && what > known[&leaf]) {
        known[&leaf] = what;
        leaf.layout = std::move(layout);
      }
    };
    auto see = [&](Leaf& leaf, const Layout& read) {
      const auto nbytes = static_cast<int64_t>(leaf.data.nbytes());
      if (covers(read, nbytes)) {
        Layout sorted = in_memory_order(read);
        const bool plain = sorted == read;
        learn(leaf, plain ? shape : order, std::move(sorted));
      } else {
        const auto itemsize = static_cast<int64_t>(c10::elementSize(read.dtype));
        learn(leaf, type, contiguous({nbytes / itemsize}, read.dtype));
      }
    };
    for (const GraphNode& node : graph_.nodes) {
      for (size_t k = 0; k < node.operands.size(); ++k) {
        if (auto it = by_slot.find(node.operands[k]); it != by_slot.end()) {
          see(*it->second, node.description->operands[k]);
        }
      }
    }
    for (const RecipeOutput& output : recipe_.outputs) {
      if (auto it = by_slot.find(output.slot); it != by_slot.end()) {
        see(*it->second, output.layout);
      }
    }
  }

  std::array<uint64_t, 2> hash(bool force) const {
    Hasher hasher;
    hasher.fold(static_cast<uint64_t>(force));
    for (const GraphNode& node : graph_.nodes) {
      hasher.fold(*node.description);
      for (uint32_t slot : node.operands) {
        hasher.fold(slot);
      }
      for (int32_t slot : node.outputs) {
        hasher.fold(static_cast<uint64_t>(slot));
      }
    }
    for (const Parameter& parameter : graph_.parameters) {
      hasher.fold(static_cast<uint64_t>(parameter.nbytes) * 2 + parameter.fresh);
    }
    for (const RecipeOutput& output : recipe_.outputs) {
      hasher.fold(output.slot);
      hasher.fold(output.layout);
    }
    return hasher.hash();
  }

  Recipe& recipe_;
  Graph graph_;
  std::vector<Buffer*> buffers_;  // of the distinct tensors
  std::vector<const Node*> nodes_;
  std::unordered_set<const Value*> used_;
  std::unordered_map<const Value*, uint32_t> slots_;
};

}  // namespace

Recipe recipe_of(at::TensorList tensors, bool force) {
  Recipe result;
  Reader reader(tensors, result);
  GraphLock lock;
  reader.run(force);
  return result;
}

}  // namespace torch_lazy
