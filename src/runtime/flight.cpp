// The execution of a flight, and what becomes of its nodes when it fails.
#include "runtime/flight.h"

#include "base/hooks.h"
#include "runtime/failure.h"

#include <algorithm>
#include <unordered_set>

namespace torch_lazy {
namespace {

/// Ends the lives of `failed` and of everything recorded that depends on it: it never comes to be.
/// Buffers that would have been written keep their last good value.
void doom(Node* failed, const std::shared_ptr<Failure>& failure, GraphLock& lock) {
  Program& program = Program::instance();
  std::vector<Node*> doomed;
  for (Node* node = failed; node; node = node->next) {
    bool hit =
        node == failed || std::any_of(node->operands.begin(), node->operands.end(),
                                      [](Value* value) { return value->failure != nullptr; });
    if (!hit) {
      continue;
    }
    doomed.push_back(node);
    for (Value* output : node->outputs) {
      if (output) {
        output->failure = failure;
      }
    }
  }
  for (Node* node : doomed) {
    ++node->refs;  // none may die while buffers are turned back
  }
  // Backwards, so that a chain of writes to one buffer unwinds to the value before the first.
  for (auto it = doomed.rbegin(); it != doomed.rend(); ++it) {
    Node* node = *it;
    size_t fresh = node->description->fresh.size();
    for (size_t i = fresh; i < node->outputs.size(); ++i) {
      Value* output = node->outputs[i];
      if (output && output->owner) {
        Value* base = node->operands[node->description->writes[i - fresh].operand];
        Buffer& buffer = *output->owner;
        if (base->nbytes == buffer.nbytes && !base->undefined()) {
          program.assign(buffer, base, lock);
        }
      }
    }
  }
  for (Node* node : doomed) {
    program.drop(node, lock);
  }
}

/// What depends on parked nodes waits with them.
void park_dependents(Node* from) {
  Program& program = Program::instance();
  for (Node* node = from; node; node = node->next) {
    if (std::any_of(node->operands.begin(), node->operands.end(), [](const Value* value) {
          return value->pending() && value->producer->parked;
        })) {
      program.park(node);
    }
  }
}

/// Decides what becomes of a node that failed. All its flight's nodes are pending again.
void handle_failure(Node* failed, const std::shared_ptr<Failure>& failure, GraphLock& lock) {
  if (is_passing(failure->original)) {
    return;  // stays pending: the next run tries again
  }
  if (is_final(failure->original) || failed->failed) {
    return doom(failed, failure, lock);
  }
  failed->failed = true;
  Program::instance().park(failed);
  park_dependents(failed->next);
}

/// Moves the parameters' data into the run. False: some of it never came, because a flight before
/// this one failed. Needs the graph lock.
bool load_parameters(Flight& flight) {
  const Collection& c = flight.collection;
  for (uint32_t slot : c.parameters) {
    if (c.values[slot]->producer || c.values[slot]->failure) {
      return false;
    }
  }
  for (uint32_t slot : c.parameters) {
    Value* value = c.values[slot];
    if (value->data) {
      flight.run.slots[slot] = c.kept[slot] ? value->data : Program::instance().take_data(value);
    }
  }
  return true;
}

/// The nodes from number `first` on are pending again. Needs the graph lock.
void give_back(Flight& flight, size_t first) {
  auto& nodes = flight.collection.nodes;
  for (size_t i = first; i < nodes.size(); ++i) {
    nodes[i]->flight = nullptr;
  }
  Program::instance().put_back(c10::ArrayRef<Node*>(nodes).slice(first));
}

void let_go(Flight& flight, GraphLock& lock) {
  for (Value* value : flight.collection.values) {
    Program::instance().let_go(value, lock);
  }
}

/// A flight whose parameters never came: its nodes wait for another attempt, or share the fate of
/// what they read.
void turn_back(Flight& flight) {
  GraphLock lock;
  give_back(flight, 0);
  std::shared_ptr<Failure> failure;
  for (uint32_t slot : flight.collection.parameters) {
    if (flight.collection.values[slot]->failure) {
      failure = flight.collection.values[slot]->failure;
    }
  }
  if (failure) {
    for (Node* node : flight.collection.nodes) {
      const bool hit = std::any_of(node->operands.begin(), node->operands.end(),
                                   [](Value* value) { return value->failure != nullptr; });
      if (hit) {
        doom(node, failure, lock);  // with all that depend on it
        break;
      }
    }
  }
  park_dependents(Program::instance().first());
  let_go(flight, lock);
}

}  // namespace

void fly(Flight& flight) {
  Program& program = Program::instance();
  Collection& c = flight.collection;
  bool ready = false;
  {
    GraphLock lock;
    ready = load_parameters(flight);
  }
  if (!ready) {
    return turn_back(flight);
  }
  std::exception_ptr error;
  try {
    hooks::AllowOtherThreads allow;
    flight.plan->executable->run(flight.run);
  } catch (...) {
    error = std::current_exception();
  }
  Run& run = flight.run;
  if (error) {
    run.completed = std::min(run.completed, c.nodes.size() - 1);
    flight.failure = make_failure(*c.nodes[run.completed], error);
    flight.failure->scheduler = flight.scheduler;
  } else {
    run.completed = c.nodes.size();
  }
  {
    std::unordered_set<const Value*> incomplete;
    GraphLock lock;
    for (size_t i = run.completed; i < c.nodes.size(); ++i) {
      for (Value* output : c.nodes[i]->outputs) {
        if (output) {
          incomplete.insert(output);
        }
      }
    }
    // Data first: of what the run computed, and (after a failure) of what it did not use up.
    for (size_t slot = 0; slot < c.values.size(); ++slot) {
      Value* value = c.values[slot];
      if (!value->data && run.slots[slot] && (c.kept[slot] || error) && !incomplete.count(value)) {
        program.set_data(value, std::move(run.slots[slot]));
      }
    }
    for (size_t i = 0; i < run.completed; ++i) {
      program.retire(c.nodes[i], lock);
    }
    if (error) {
      give_back(flight, run.completed);
      handle_failure(c.nodes[run.completed], flight.failure, lock);
    }
    let_go(flight, lock);
  }
  c.nodes.clear();
  c.values.clear();
  run = Run();
  if (error) {
    post(flight.failure);
  }
}

}  // namespace torch_lazy
