// The choice of nodes.
#include "runtime/selection.h"

#include "base/metrics.h"
#include "runtime/flight.h"

#include <algorithm>

namespace torch_lazy {
namespace {

/// Marks the pending nodes that a set of values needs.
class Selection {
 public:
  Selection() : epoch_(Program::instance().next_epoch()) {}

  void add(Value* value) {
    if (value->pending()) {
      add(value->producer);
    }
  }

  void add(Node* node) {
    stack_.push_back(node);
    while (!stack_.empty()) {
      Node* current = stack_.back();
      stack_.pop_back();
      if (current->epoch == epoch_) {
        continue;
      }
      current->epoch = epoch_;
      nodes_.push_back(current);
      for (Value* operand : current->operands) {
        if (operand->pending()) {
          stack_.push_back(operand->producer);
        }
      }
    }
  }

  /// Adds pending nodes that read `value`.
  void add_readers(Value* value) {
    add_readers(value, Program::instance().last(), /*parked=*/true);
  }

  /// A write reuses the memory of the value it replaces, so who reads that value should run first;
  /// a parked reader makes the write copy instead.
  void add_readers_of_overwritten() {
    for (size_t examined = 0; examined < nodes_.size(); ++examined) {
      Node* node = nodes_[examined];
      for (const Write& write : node->description->writes) {
        Value* base = node->operands[write.operand];
        if (base->refs > 1 && base->epoch != epoch_) {
          base->epoch = epoch_;
          add_readers(base, node, /*parked=*/false);
        }
      }
    }
  }

  /// Effects that the program asked for before any of the chosen nodes.
  void add_earlier_effects() {
    if (Program::instance().effects() == 0) {
      return;
    }
    uint64_t last = 0;
    for (Node* node : nodes_) {
      last = std::max(last, node->sequence);
    }
    for (Node* node = Program::instance().first(); node && node->sequence < last;
         node = node->next) {
      ++visited_;
      if (node->epoch != epoch_ && !node->parked && node->description->op->effect) {
        add(node);
      }
    }
  }

  std::vector<Node*> in_order() && {
    std::sort(nodes_.begin(), nodes_.end(),
              [](Node* a, Node* b) { return a->sequence < b->sequence; });
    static metrics::Counter& visited = metrics::counter("NodesVisited");
    visited.add(static_cast<int64_t>(visited_));
    return std::move(nodes_);
  }

 private:
  /// Recorded nodes that have the value among their operands, counted once for each.
  static uint32_t readers_in_graph(const Value* value) {
    return value->refs - value->readers - (value->owner ? 1 : 0);
  }

  static uint32_t count_reads(const Node* node, const Value* value) {
    return static_cast<uint32_t>(std::count(node->operands.begin(), node->operands.end(), value));
  }

  /// Adds readers of `value`, of which none was recorded after `from`. These are mostly near: looks
  /// for them backwards until all are found, as long as that takes no longer than an index does.
  void add_readers(Value* value, Node* from, bool parked) {
    uint32_t missing = readers_in_graph(value);
    for (Node* node = from; node && missing > 0; node = node->previous) {
      if (visited_ > 2 * (Program::instance().pending() + Program::instance().parked())) {
        return add_readers_by_index(value, parked);
      }
      ++visited_;
      if (const uint32_t reads = count_reads(node, value)) {
        missing -= std::min(missing, reads);
        if (parked || !node->parked) {
          add(node);
        }
      }
    }
  }

  void add_readers_by_index(const Value* value, bool parked) {
    if (index_.empty()) {
      for (Node* node = Program::instance().first(); node; node = node->next) {
        ++visited_;
        for (const Value* operand : node->operands) {
          if (operand->refs > 1) {
            index_.emplace_back(operand, node);
          }
        }
      }
      std::sort(index_.begin(), index_.end());
    }
    auto reader = std::lower_bound(index_.begin(), index_.end(),
                                   std::pair<const Value*, Node*>(value, nullptr));
    for (; reader != index_.end() && reader->first == value; ++reader) {
      ++visited_;
      if (parked || !reader->second->parked) {
        add(reader->second);
      }
    }
  }

  uint64_t epoch_;
  size_t visited_ = 0;                                 // nodes looked at, for the choice of others
  std::vector<std::pair<const Value*, Node*>> index_;  // who reads what, sorted; made when needed
  std::vector<Node*> nodes_;
  std::vector<Node*> stack_;
};

/// Inside a run (an operator of the user's that marks a step): what needs its results waits.
void leave_out_waiting(std::vector<Node*>& nodes) {
  const uint64_t waiting = Program::instance().next_epoch();
  auto waits = [waiting](const Value* operand) {
    return operand->producer && (operand->producer->epoch == waiting ||
                                 (operand->producer->flight &&
                                  operand->producer->flight->state == Flight::State::running));
  };
  std::erase_if(nodes, [&](Node* node) {
    if (std::none_of(node->operands.begin(), node->operands.end(), waits)) {
      return false;
    }
    node->epoch = waiting;
    return true;
  });
}

std::vector<Node*> select_everything(std::optional<c10::DeviceIndex> device) {
  Program& program = Program::instance();
  auto wanted = [&](const Node* node) {
    return !node->parked && (!device || node->description->device == *device);
  };
  if (program.parked() == 0) {
    std::vector<Node*> nodes;
    nodes.reserve(program.pending());
    for (Node* node = program.first(); node; node = node->next) {
      if (wanted(node)) {
        nodes.push_back(node);
      }
    }
    return nodes;
  }
  Selection selection;
  for (Node* node = program.first(); node; node = node->next) {
    if (wanted(node)) {
      selection.add(node);  // and what is parked, where something new needs it
    }
  }
  return std::move(selection).in_order();
}

std::vector<Node*> select_for(const SyncRequest& request) {
  Selection selection;
  for (Value* value : request.values) {
    selection.add(value);
    if (request.to_write) {
      selection.add_readers(value);
    }
  }
  selection.add_readers_of_overwritten();
  selection.add_earlier_effects();
  return std::move(selection).in_order();
}

}  // namespace

std::shared_ptr<Failure> find_failure(const SyncRequest& request) {
  for (const Value* value : request.values) {
    if (value->failure) {
      return value->failure;
    }
  }
  return nullptr;
}

std::vector<Node*> select_nodes(const SyncRequest& request, bool inside_run) {
  std::vector<Node*> nodes =
      request.everything ? select_everything(request.device) : select_for(request);
  if (inside_run) {
    leave_out_waiting(nodes);
  }
  return nodes;
}

}  // namespace torch_lazy
