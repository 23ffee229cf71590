// The choice of nodes.
#include "runtime/selection.h"

#include "runtime/failure.h"
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
    for (Node* node = Program::instance().first(); node; node = node->next) {
      if (node->epoch != epoch_ &&
          std::find(node->operands.begin(), node->operands.end(), value) != node->operands.end()) {
        add(node);
      }
    }
  }

  /// A write reuses the memory of the value it replaces, so who reads that value should run first;
  /// a parked reader makes the write copy instead.
  void add_readers_of_overwritten() {
    size_t examined = 0;
    while (true) {
      bool found = false;
      for (; examined < nodes_.size(); ++examined) {
        for (const Write& write : nodes_[examined]->description->writes) {
          Value* base = nodes_[examined]->operands[write.operand];
          if (base->refs > 1 && base->epoch != epoch_) {
            base->epoch = epoch_;
            found = true;
          }
        }
      }
      if (!found) {
        return;
      }
      for (Node* node = Program::instance().first(); node; node = node->next) {
        bool reads = std::any_of(node->operands.begin(), node->operands.end(),
                                 [this](Value* operand) { return operand->epoch == epoch_; });
        if (reads && !node->parked && node->epoch != epoch_) {
          add(node);
        }
      }
    }
  }

  /// Effects that the program asked for before any of the chosen nodes.
  void add_earlier_effects() {
    uint64_t last = 0;
    for (Node* node : nodes_) {
      last = std::max(last, node->sequence);
    }
    for (Node* node = Program::instance().first(); node && node->sequence < last;
         node = node->next) {
      if (node->epoch != epoch_ && !node->parked && node->description->op->effect) {
        add(node);
      }
    }
  }

  std::vector<Node*> in_order() && {
    std::sort(nodes_.begin(), nodes_.end(),
              [](Node* a, Node* b) { return a->sequence < b->sequence; });
    return std::move(nodes_);
  }

 private:
  uint64_t epoch_;
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
    if (value->failure) {
      raise(*value->failure);
    }
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

std::vector<Node*> select_nodes(const SyncRequest& request, bool inside_run) {
  std::vector<Node*> nodes =
      request.everything ? select_everything(request.device) : select_for(request);
  if (inside_run) {
    leave_out_waiting(nodes);
  }
  return nodes;
}

}  // namespace torch_lazy
