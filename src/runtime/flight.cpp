// The execution of a flight, and what becomes of its nodes when it fails.
#include "runtime/flight.h"

#include "base/hooks.h"
#include "base/warnings.h"
#include "runtime/failure.h"
#include "runtime/outside.h"
#include "runtime/real_tensor.h"
#include "runtime/recorders.h"

#include <algorithm>
#include <unordered_set>

namespace torch_lazy {
namespace {

bool reads_failed(const Node* node) {
  return std::any_of(node->operands.begin(), node->operands.end(),
                     [](const Value* value) { return value->failure != nullptr; });
}

}  // namespace

void give_up(c10::ArrayRef<Node*> failed, const std::shared_ptr<Failure>& failure,
             GraphLock& lock) {
  Program& program = Program::instance();
  std::vector<Node*> doomed;
  size_t next = 0;
  for (Node* node = failed[0]; node; node = node->next) {
    const bool itself = next < failed.size() && node == failed[next];
    next += itself;
    if (!itself && !reads_failed(node)) {
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

namespace {

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

/// Decides what becomes of nodes that failed together. All their flight's nodes are pending again.
void handle_failure(c10::ArrayRef<Node*> failed, const std::shared_ptr<Failure>& failure,
                    bool spoiled, GraphLock& lock) {
  // Half of a write cannot be taken back, and made again it would count twice: as in eager, it
  // stays.
  const bool passing = is_passing(failure->original) && !spoiled;
  const bool final = is_final(failure->original) || spoiled;
  std::vector<Node*> hopeless;
  for (Node* node : failed) {
    if (reads_failed(node) || (!passing && (final || node->failed))) {
      hopeless.push_back(node);
    } else if (!passing) {  // otherwise it stays pending: the next run tries again
      node->failed = true;
      Program::instance().park(node);
    }
  }
  if (!passing) {
    park_dependents(failed[0]->next);
  }
  if (!hopeless.empty()) {
    give_up(hopeless, failure, lock);
  }
}

/// By slot: whether it is memory whose content does not matter.
std::vector<char> fresh_slots(const Flight& flight) {
  std::vector<char> fresh(flight.collection.values.size(), 0);
  for (const Parameter& parameter : flight.plan->graph->parameters) {
    fresh[parameter.slot] = parameter.fresh;
  }
  return fresh;
}

/// Data that a run used up before it failed, and that nothing can make again.
void mark_lost(const Flight& flight, const std::unordered_set<const Value*>& incomplete) {
  const Collection& c = flight.collection;
  const std::vector<char> fresh = fresh_slots(flight);
  for (size_t slot = 0; slot < c.values.size(); ++slot) {
    Value* value = c.values[slot];
    if (!value->data && !value->failure && !fresh[slot] && !incomplete.count(value)) {
      value->failure = flight.failure;
    }
  }
}

/// Moves the parameters' data into the run. False: some of it never came, because a flight before
/// this one failed. `shared` takes the slots of what the plan may overwrite although something
/// needs it by now: nodes of a flight that failed after this one was scheduled. Needs the graph
/// lock.
bool load_parameters(Flight& flight, std::vector<uint32_t>& shared) {
  const Collection& c = flight.collection;
  for (uint32_t slot : c.parameters) {
    if (c.values[slot]->producer || c.values[slot]->failure) {
      return false;
    }
  }
  for (uint32_t slot : c.parameters) {
    Value* value = c.values[slot];
    if (!value->data) {
      continue;
    }
    const bool needed = value->refs > 0 || value->holds > 1;
    if (!c.kept[slot] && needed) {
      shared.push_back(slot);
    }
    flight.run.slots[slot] =
        c.kept[slot] || needed ? value->data : Program::instance().take_data(value);
  }
  return true;
}

/// Waits for collectives that write parameters, and marks as shared what the plan may overwrite
/// while they read it.
void respect_users_outside(const Flight& flight, std::vector<uint32_t>& shared) {
  if (!outside::any()) {
    return;
  }
  for (uint32_t slot : flight.collection.parameters) {
    const c10::Storage& data = flight.run.slots[slot];
    outside::wait_for_writers(data);
    if (!flight.collection.kept[slot] && outside::is_used(data) &&
        std::find(shared.begin(), shared.end(), slot) == shared.end()) {
      shared.push_back(slot);
    }
  }
}

/// Nothing for data that the run may overwrite.
std::shared_ptr<Beside> beside(const Flight& flight, size_t parameter) {
  const Collection& c = flight.collection;
  const uint32_t slot = c.parameters.at(parameter);
  GraphLock lock;
  return c.kept[slot] ? Program::instance().beside(c.values[slot]) : nullptr;
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
    auto& nodes = flight.collection.nodes;
    auto hit = std::find_if(nodes.begin(), nodes.end(), reads_failed);
    if (hit != nodes.end()) {
      give_up(*hit, failure, lock);  // with all that depend on it
    }
  }
  park_dependents(Program::instance().first());
  let_go(flight, lock);
}

}  // namespace

void call_off(Flight& flight) {
  GraphLock lock;
  give_back(flight, 0);
  let_go(flight, lock);
}

void fly(Flight& flight) {
  Program& program = Program::instance();
  Collection& c = flight.collection;
  bool ready = false;
  std::vector<uint32_t> shared;
  {
    GraphLock lock;
    ready = load_parameters(flight, shared);
  }
  if (!ready) {
    return turn_back(flight);
  }
  CollectedWarnings collected;
  std::exception_ptr error;
  try {
    hooks::AllowOtherThreads allow;
    respect_users_outside(flight, shared);
    for (uint32_t slot : shared) {
      flight.run.slots[slot] = copy_of(flight.run.slots[slot]);
    }
    flight.run.beside = [&](size_t parameter) { return beside(flight, parameter); };
    flight.plan->executable->run(flight.run);
  } catch (...) {
    error = std::current_exception();
  }
  Run& run = flight.run;
  for (const Remark& remark : run.remarks) {
    const Node& node = *c.nodes[std::min(remark.node, c.nodes.size() - 1)];
    TORCH_WARN(remark.text, node.source.empty() ? "; TORCH_LAZY_SOURCE_LINES=1 adds the line"
                                                : "; called at " + node.source);
  }
  if (!collected.warnings.empty()) {
    post(std::move(collected.warnings), flight.scheduler);
  }
  if (error) {
    run.completed = std::min(run.completed, c.nodes.size() - 1);
    const Node& node = *c.nodes[run.completed];
    flight.failure = make_failure(*node.description, node.source, error);
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
    if (error) {  // memory without content is no value that anything could go back to
      const std::vector<char> fresh = fresh_slots(flight);
      for (size_t slot = 0; slot < fresh.size(); ++slot) {
        if (fresh[slot]) {
          run.slots[slot] = c10::Storage();
        }
      }
    }
    // Data first: of what the run computed, and (after a failure) of what it did not use up.
    for (size_t slot = 0; slot < c.values.size(); ++slot) {
      Value* value = c.values[slot];
      if (!value->data && run.slots[slot] && (c.kept[slot] || error) && !incomplete.count(value)) {
        program.set_data(value, std::move(run.slots[slot]));
      } else if (value->data && run.slots[slot] && value->data.use_count() == 1 &&
                 value->data.device_type() != run.slots[slot].device_type()) {
        std::swap(value->data, run.slots[slot]);  // the same data, moved to the backend's memory
      }
    }
    for (size_t i = 0; i < run.completed; ++i) {
      program.retire(c.nodes[i], lock);
    }
    if (error) {
      const Node& failed_node = *c.nodes[run.completed];
      flight.failure->scheduler = is_passing(error) ? flight.scheduler : recorder_of(failed_node);
      give_back(flight, run.completed);
      post(flight.failure);  // before anyone can see that the nodes are pending again
      mark_lost(flight, incomplete);
      c10::ArrayRef<Node*> rest = c10::ArrayRef<Node*>(c.nodes).slice(run.completed);
      const size_t failed = run.failed ? std::min(run.failed, rest.size()) : rest.size();
      handle_failure(rest.slice(0, failed), flight.failure, run.spoiled, lock);
    }
    let_go(flight, lock);
  }
  c.nodes.clear();
  c.values.clear();
  run = Run();
}

}  // namespace torch_lazy
