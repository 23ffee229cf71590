// Text and dot of the graph behind values.
#include "ir/dump.h"

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <sstream>
#include <unordered_map>
#include <vector>

namespace torch_lazy {
namespace {

/// Reading a zero-dim CPU tensor dispatches, and a Python mode must not run under the graph lock.
struct BelowModes {
  c10::impl::ForceDispatchKeyGuard keys{
      c10::DispatchKeySet(c10::DispatchKey::BackendSelect),
      c10::default_excluded_set | c10::autograd_dispatch_keyset_with_ADInplaceOrView};
};

/// A node, or data that nodes read, as one line of a dump.
struct Entry {
  const Node* node = nullptr;
  const Value* data = nullptr;
  std::string root;
};

class Dump {
 public:
  explicit Dump(c10::ArrayRef<Buffer*> roots) {
    std::vector<const Node*> nodes;
    for (size_t i = 0; i < roots.size(); ++i) {
      const Value* value = roots[i]->current;
      reach(value, nodes);
    }
    std::sort(nodes.begin(), nodes.end(),
              [](const Node* a, const Node* b) { return a->sequence < b->sequence; });
    for (const Node* node : nodes) {
      for (const Value* operand : node->operands) {
        add_data(operand);
      }
      ids_[node] = entries_.size();
      entries_.push_back({node, nullptr, ""});
    }
    for (size_t i = 0; i < roots.size(); ++i) {
      const Value* value = roots[i]->current;
      if (value) {
        add_data(value);
        entries_[id(value)].root = "ROOT=" + std::to_string(i);
      }
    }
  }

  std::string text() const {
    std::ostringstream out;
    out << "IR {\n";
    for (size_t i = 0; i < entries_.size(); ++i) {
      out << "  %" << i << " = " << line(entries_[i]) << "\n";
    }
    out << "}\n";
    return out.str();
  }

  std::string dot() const {
    std::ostringstream out;
    out << "digraph G {\n";
    for (size_t i = 0; i < entries_.size(); ++i) {
      const Entry& entry = entries_[i];
      out << "  node" << i << " [label=\"" << name(entry) << "\\n" << shapes(entry);
      if (!entry.root.empty()) {
        out << "\\n" << entry.root;
      }
      out << "\"]\n";
    }
    for (size_t i = entries_.size(); i-- > 0;) {
      if (!entries_[i].node) {
        continue;
      }
      const auto& operands = entries_[i].node->operands;
      for (size_t k = 0; k < operands.size(); ++k) {
        out << "  node" << id(operands[k]) << " -> node" << i;
        if (operands.size() > 1) {
          out << " [label=\"i=" << k << "\"]";
        }
        out << "\n";
      }
    }
    out << "}\n";
    return out.str();
  }

 private:
  void reach(const Value* value, std::vector<const Node*>& nodes) {
    if (!value || !value->producer) {
      return;
    }
    std::vector<const Node*> stack{value->producer};
    while (!stack.empty()) {
      const Node* node = stack.back();
      stack.pop_back();
      if (!ids_.emplace(node, 0).second) {
        continue;
      }
      nodes.push_back(node);
      for (const Value* operand : node->operands) {
        if (operand->producer) {
          stack.push_back(operand->producer);
        }
      }
    }
  }

  void add_data(const Value* value) {
    if (!value->producer && ids_.emplace(value, entries_.size()).second) {
      entries_.push_back({nullptr, value, ""});
    }
  }

  size_t id(const Value* value) const {
    const void* key = value->producer ? static_cast<const void*>(value->producer) : value;
    return ids_.at(key);
  }

  static std::string name(const Entry& entry) {
    if (entry.data) {
      return entry.data->data      ? "lazy_tensors::device_data"
             : entry.data->failure ? "lazy_tensors::failed"
                                   : "lazy_tensors::undefined";
    }
    return entry.node->description->op->name;
  }

  static std::string shapes(const Entry& entry) {
    if (entry.data) {
      return std::to_string(entry.data->nbytes) + " bytes";
    }
    const Description& d = *entry.node->description;
    std::string text;
    for (const FreshOutput& output : d.fresh) {
      text += (text.empty() ? "" : ", ") + output.layout.shape_text();
    }
    for (const Write& write : d.writes) {
      text += (text.empty() ? "" : ", ") + d.operands[write.operand].shape_text();
    }
    return text;
  }

  std::string line(const Entry& entry) const {
    std::ostringstream out;
    out << "[" << shapes(entry) << "] " << name(entry) << "(";
    if (entry.node) {
      const Description& d = *entry.node->description;
      for (size_t k = 0; k < entry.node->operands.size(); ++k) {
        const Value* operand = entry.node->operands[k];
        out << (k ? ", " : "") << "%" << id(operand);
        if (operand->producer && operand->producer->outputs.size() > 1) {
          out << "." << operand->output;
        }
      }
      out << ")";
      for (const Write& write : d.writes) {
        out << ", writes=" << write.operand;
      }
      for (const c10::IValue& number : entry.node->numbers) {
        out << ", number=";
        if (number.isTensor()) {
          out << number.toTensor().item();
        } else {
          out << number;
        }
      }
      if (!entry.node->source.empty()) {
        out << ", location=" << entry.node->source;
      }
    } else {
      out << ")";
    }
    if (!entry.root.empty()) {
      out << ", " << entry.root;
    }
    return out.str();
  }

  std::unordered_map<const void*, size_t> ids_;
  std::vector<Entry> entries_;
};

}  // namespace

std::string dump_text(c10::ArrayRef<Buffer*> roots) {
  BelowModes below;
  GraphLock lock;
  return Dump(roots).text();
}

std::string dump_dot(c10::ArrayRef<Buffer*> roots) {
  BelowModes below;
  GraphLock lock;
  return Dump(roots).dot();
}

}  // namespace torch_lazy
