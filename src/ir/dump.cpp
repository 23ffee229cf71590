// What is recorded behind values, copied out for a dump.
#include "ir/dump.h"

#include "ir/dump_calls.h"

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <unordered_map>

namespace torch_lazy {
namespace {

/// A dump reads zero-dim CPU tensors, which dispatches; it should look the same inside a Python
/// mode, and not be seen by it.
struct BelowModes {
  c10::impl::ForceDispatchKeyGuard keys{
      c10::DispatchKeySet(c10::DispatchKey::BackendSelect),
      c10::default_excluded_set | c10::autograd_dispatch_keyset_with_ADInplaceOrView};
};

/// Copies the recorded nodes behind values. Used under the graph lock.
class Recorder {
 public:
  void add_roots(c10::ArrayRef<Buffer*> roots, c10::ArrayRef<Layout> layouts) {
    for (const Buffer* root : roots) {
      if (root->current) {
        reach(root->current);
      }
      calls_.device = root->device;
    }
    std::sort(nodes_.begin(), nodes_.end(),
              [](const Node* a, const Node* b) { return a->sequence < b->sequence; });
    for (const Node* node : nodes_) {
      add_call(*node);
    }
    for (size_t i = 0; i < roots.size(); ++i) {
      DumpCalls::Root root;
      root.value = root_value(*roots[i]);
      if (!layouts.empty()) {
        root.layout = layouts[i];
      }
      calls_.roots.push_back(std::move(root));
    }
  }

  DumpCalls calls() && { return std::move(calls_); }

 private:
  void reach(const Value* root) {
    std::vector<const Value*> stack{root};
    while (!stack.empty()) {
      const Value* value = stack.back();
      stack.pop_back();
      if (value->pending() && places_.emplace(value->producer, 0).second) {
        nodes_.push_back(value->producer);
        stack.insert(stack.end(), value->producer->operands.begin(),
                     value->producer->operands.end());
      }
    }
  }

  void add_call(const Node& node) {
    places_[&node] = calls_.calls.size();
    DumpCalls::Call call;
    call.description = node.description;
    for (const Value* operand : node.operands) {
      call.operands.push_back(number(operand));
    }
    call.numbers.assign(node.numbers.begin(), node.numbers.end());
    call.scope = node.scope;
    call.source = node.source;
    calls_.calls.push_back(std::move(call));
  }

  size_t root_value(const Buffer& buffer) {
    if (!buffer.current) {
      return add_leaf("lazy_tensors::undefined", buffer.nbytes);
    }
    const History* history = Program::instance().history(buffer.current);
    if (!history) {
      return number(buffer.current);
    }
    auto [known, is_new] = histories_.try_emplace(history->graph.get(), 0);
    if (is_new) {
      known->second = append_graph(calls_, *history->graph, *history->numbers);
    }
    return known->second + history->slot;
  }

  size_t add_leaf(const char* name, int64_t nbytes) {
    calls_.values.push_back({std::nullopt, 0, name, nbytes});
    return calls_.values.size() - 1;
  }

  size_t number(const Value* value) {
    auto known = values_.find(value);
    if (known != values_.end()) {
      return known->second;
    }
    size_t index = calls_.values.size();
    if (value->pending()) {
      calls_.values.push_back({places_.at(value->producer), static_cast<size_t>(value->output)});
    } else {
      const bool there = value->data || value->in_flight();
      index = add_leaf(there            ? "lazy_tensors::device_data"
                       : value->failure ? "lazy_tensors::failed"
                                        : "lazy_tensors::undefined",
                       value->nbytes);
    }
    values_.emplace(value, index);
    return index;
  }

  DumpCalls calls_;
  std::vector<const Node*> nodes_;
  std::unordered_map<const Node*, size_t> places_;  // among the calls
  std::unordered_map<const Value*, size_t> values_;
  std::unordered_map<const Graph*, size_t> histories_;  // the value of slot 0
};

std::string write(const DumpCalls& calls, DumpFormat format) {
  BelowModes below;
  const DumpGraph graph = make_dump_graph(calls);
  return format == DumpFormat::text ? graph.text() : graph.dot();
}

std::string dump_buffers(c10::ArrayRef<Buffer*> roots, c10::ArrayRef<Layout> layouts,
                         DumpFormat format) {
  Recorder recorder;
  {
    GraphLock lock;
    recorder.add_roots(roots, layouts);
  }
  return write(std::move(recorder).calls(), format);
}

}  // namespace

std::string dump_graph(const Graph& graph, c10::ArrayRef<c10::IValue> numbers,
                       c10::ArrayRef<Node*> nodes, c10::DeviceIndex device, DumpFormat format) {
  DumpCalls calls;
  calls.device = device;
  append_graph(calls, graph, numbers);
  for (size_t i = 0; i < nodes.size(); ++i) {
    calls.calls[i].scope = nodes[i]->scope;
    calls.calls[i].source = nodes[i]->source;
  }
  for (uint32_t slot : graph.roots) {
    calls.roots.push_back({slot, std::nullopt});
  }
  return write(calls, format);
}

std::string dump_text(c10::ArrayRef<Buffer*> roots, c10::ArrayRef<Layout> layouts) {
  return dump_buffers(roots, layouts, DumpFormat::text);
}

std::string dump_dot(c10::ArrayRef<Buffer*> roots, c10::ArrayRef<Layout> layouts) {
  return dump_buffers(roots, layouts, DumpFormat::dot);
}

}  // namespace torch_lazy
