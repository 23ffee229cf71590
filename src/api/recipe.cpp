// Traversal, numbering and hashing of what is behind a list of tensors.
#include "api/recipe.h"

#include "api/leaf_layout.h"
#include "base/hash.h"
#include "capture/tensor.h"
#include "runtime/failure.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <unordered_map>
#include <unordered_set>

namespace torch_lazy {
namespace {

/// A value: one of the recorded program, or a slot of a graph that ran.
struct Ref {
  Value* value = nullptr;
  const Graph* graph = nullptr;
  uint32_t slot = 0;

  bool operator==(const Ref& other) const {
    return value == other.value && graph == other.graph && slot == other.slot;
  }
};

struct RefHash {
  size_t operator()(const Ref& ref) const {
    return mix(reinterpret_cast<uint64_t>(ref.value) ^ reinterpret_cast<uint64_t>(ref.graph),
               ref.slot);
  }
};

/// A node of either kind. Those of graphs that ran come first.
struct Step {
  uint64_t order = 0;
  const Description* description = nullptr;
  c10::SmallVector<Ref, 4> operands;
  c10::SmallVector<Ref, 3> outputs;  // neither value nor graph: dead
  const Node* node = nullptr;        // of the recorded program
  size_t numbers = 0;
};

/// The producer of each slot of a graph that ran; -1: a parameter.
struct PastGraph {
  std::shared_ptr<const Graph> graph;  // kept alive: its address identifies it here
  uint64_t first = 0;                  // order of its first node
  std::vector<int64_t> producers;
};

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

/// Numbers the values behind a list of tensors. The graph lock is held while it runs.
class Reader {
 public:
  Reader(at::TensorList tensors, Past past, LeafHold* hold) : past_(past), hold_(hold) {
    std::unordered_set<const c10::TensorImpl*> seen;
    for (const at::Tensor& tensor : tensors) {
      if (seen.insert(tensor.unsafeGetTensorImpl()).second) {
        buffers_.push_back(&buffer_of(tensor));
        recipe_.outputs.push_back({0, Layout::of(tensor)});
      }
    }
  }

  const std::vector<Buffer*>& buffers() const { return buffers_; }

  /// Why one of the tensors has no value; null: all have one, or may get one.
  std::shared_ptr<Failure> failure() const {
    for (const Buffer* buffer : buffers_) {
      if (buffer->current && buffer->current->failure) {
        return buffer->current->failure;
      }
    }
    return nullptr;
  }

  Recipe run(bool force) {
    choose();
    for (const Step& step : steps_) {
      add(step);
    }
    std::unordered_set<uint32_t> roots;
    for (size_t i = 0; i < buffers_.size(); ++i) {
      const uint32_t slot = slot_of(roots_[i]);
      recipe_.outputs[i].slot = slot;
      if (leaf_slots_.count(slot) == 0 && roots.insert(slot).second) {
        graph_.roots.push_back(slot);
      }
    }
    graph_.slots = static_cast<uint32_t>(slots_.size());
    describe_leaves(graph_, recipe_.outputs, ids(), recipe_.leaves);
    graph_.hash = hash(force);
    recipe_.graph = std::make_shared<const Graph>(std::move(graph_));
    return std::move(recipe_);
  }

 private:
  std::vector<int64_t> ids() const {
    std::vector<int64_t> ids;
    for (const Buffer* buffer : buffers_) {
      ids.push_back(static_cast<int64_t>(buffer->id));
    }
    return ids;
  }

  // ---- Choice

  Ref root_of(Buffer& buffer) {
    Value* value = Program::instance().value_of(buffer);
    const History* history =
        past_ == Past::follow && !value->pending() ? Program::instance().history(value) : nullptr;
    if (!history) {
      return {value};
    }
    recipe_.past = true;
    auto [it, added] = pasts_.try_emplace(history->graph.get());
    if (added) {
      PastGraph& past = it->second;
      past.graph = history->graph;
      past.producers.assign(history->graph->slots, -1);
      past.first = past_nodes_;
      past_nodes_ += history->graph->nodes.size();
      for (size_t n = 0; n < history->graph->nodes.size(); ++n) {
        for (int32_t slot : history->graph->nodes[n].outputs) {
          if (slot >= 0) {
            past.producers[slot] = static_cast<int64_t>(n);
          }
        }
      }
    }
    return {nullptr, history->graph.get(), history->slot};
  }

  /// The step that makes a value; none: a leaf.
  std::optional<Step> producer(const Ref& ref) const {
    Step step;
    if (ref.value) {
      if (!ref.value->pending()) {
        return std::nullopt;
      }
      const Node& node = *ref.value->producer;
      step.node = &node;
      step.order = past_nodes_ + node.sequence;
      step.description = node.description.get();
      step.numbers = node.numbers.size();
      for (Value* operand : node.operands) {
        step.operands.push_back({operand});
      }
      for (Value* output : node.outputs) {
        step.outputs.push_back({output});
      }
      return step;
    }
    const PastGraph& past = pasts_.at(ref.graph);
    const int64_t index = past.producers[ref.slot];
    if (index < 0) {
      return std::nullopt;
    }
    const GraphNode& node = ref.graph->nodes[index];
    step.order = past.first + static_cast<uint64_t>(index);
    step.description = node.description.get();
    step.numbers = static_cast<size_t>(node.description->numbers);
    for (uint32_t slot : node.operands) {
      step.operands.push_back({nullptr, ref.graph, slot});
    }
    for (int32_t slot : node.outputs) {
      step.outputs.push_back(slot < 0 ? Ref{}
                                      : Ref{nullptr, ref.graph, static_cast<uint32_t>(slot)});
    }
    return step;
  }

  void choose() {
    std::vector<Ref> stack;
    std::unordered_set<const Buffer*> distinct;
    for (Buffer* buffer : buffers_) {
      roots_.push_back(root_of(*buffer));
      stack.push_back(roots_.back());
      if (buffer->current->pending()) {
        recipe_.pending += distinct.insert(buffer).second;
      }
    }
    std::unordered_set<uint64_t> chosen;
    while (!stack.empty()) {
      Ref ref = stack.back();
      stack.pop_back();
      used_.insert(ref);
      std::optional<Step> step = producer(ref);
      if (!step || !chosen.insert(step->order).second) {
        continue;
      }
      stack.insert(stack.end(), step->operands.begin(), step->operands.end());
      steps_.push_back(std::move(*step));
    }
    std::sort(steps_.begin(), steps_.end(),
              [](const Step& a, const Step& b) { return a.order < b.order; });
  }

  // ---- Numbering

  void add(const Step& step) {
    GraphNode copy;
    copy.description = DescriptionPtr::reclaim_copy(const_cast<Description*>(step.description));
    copy.first_number = graph_.numbers;
    graph_.numbers += static_cast<uint32_t>(step.numbers);
    for (const Ref& operand : step.operands) {
      copy.operands.push_back(slot_of(operand));
    }
    for (const Ref& output : step.outputs) {
      // What nobody here reads is not computed, whether or not something else holds it.
      copy.outputs.push_back(used_.count(output) ? static_cast<int32_t>(number(output)) : -1);
    }
    if (step.node && !recipe_.past) {
      const auto& numbers = step.node->numbers;
      recipe_.numbers.insert(recipe_.numbers.end(), numbers.begin(), numbers.end());
    }
    graph_.nodes.push_back(std::move(copy));
  }

  uint32_t number(const Ref& ref) {
    return slots_.emplace(ref, static_cast<uint32_t>(slots_.size())).first->second;
  }

  uint32_t slot_of(const Ref& ref) {
    auto it = slots_.find(ref);
    return it != slots_.end() ? it->second : add_parameter(ref);
  }

  uint32_t add_parameter(const Ref& ref) {
    Parameter parameter;
    Leaf leaf;
    if (Value* value = ref.value) {
      parameter.fresh = value->undefined();
      parameter.nbytes = value->nbytes;
      leaf.id = static_cast<int64_t>(value->origin);
      leaf.data = value->data;
      leaf.in_flight = value->in_flight();
      leaf.current = value->owner != nullptr;
      if (hold_) {
        Program::instance().begin_reading(value);
        hold_->values.push_back(value);
      }
    } else {
      const auto& all = ref.graph->parameters;
      parameter = *std::find_if(all.begin(), all.end(),
                                [&](const Parameter& p) { return p.slot == ref.slot; });
      parameter.donated = false;
    }
    parameter.slot = number(ref);
    if (!parameter.fresh) {
      leaf.slot = parameter.slot;
      leaf.nbytes = parameter.nbytes;
      leaf_slots_.insert(leaf.slot);
      recipe_.leaves.push_back(std::move(leaf));
    }
    graph_.parameters.push_back(parameter);
    return parameter.slot;
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

  const Past past_;
  LeafHold* const hold_;
  Recipe recipe_;
  Graph graph_;
  std::vector<Buffer*> buffers_;  // of the distinct tensors
  std::vector<Ref> roots_;
  std::unordered_map<const Graph*, PastGraph> pasts_;
  uint64_t past_nodes_ = 0;
  std::vector<Step> steps_;
  std::unordered_set<Ref, RefHash> used_;
  std::unordered_map<Ref, uint32_t, RefHash> slots_;
  std::unordered_set<uint32_t> leaf_slots_;
};

}  // namespace

LeafHold::~LeafHold() {
  GraphLock lock;
  for (Value* value : values) {
    Program::instance().end_reading(value, lock);
  }
}

Recipe recipe_of(at::TensorList tensors, bool force, Past past, LeafHold* hold) {
  Reader reader(tensors, past, hold);
  std::shared_ptr<Failure> failure;
  {
    GraphLock lock(reader.buffers());
    failure = reader.failure();
    if (!failure) {
      return reader.run(force);
    }
  }
  raise(*failure);
}

}  // namespace torch_lazy
