// Choice of nodes, plans, runs and their results.
#include "runtime/executor.h"

#include "base/hash.h"
#include "base/hooks.h"
#include "base/metrics.h"
#include "base/scopes.h"
#include "base/settings.h"
#include "ir/collection.h"
#include "runtime/graph_report.h"
#include "runtime/plan_cache.h"
#include <torch_lazy/backend.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <sstream>

namespace torch_lazy {
namespace {

std::recursive_mutex& execution_mutex() {
  static auto* mutex = new std::recursive_mutex();
  return *mutex;
}

PlanCache& plans() {
  static auto* cache = new PlanCache();
  return *cache;
}

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
      TORCH_CHECK(!current->running, "torch-lazy: ", current->description->op->name,
                  " is being executed by this thread; its result cannot be read from inside it");
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

  /// A write reuses the memory of the value it replaces, so who reads that value must run first.
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
        if (reads && node->epoch != epoch_) {
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
      if (node->epoch != epoch_ && node->description->op->effect) {
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

std::string describe_failure(const Node& node, const std::string& what) {
  std::ostringstream out;
  out << what << "\n(torch-lazy: raised by " << node.description->op->name << "(";
  for (size_t i = 0; i < node.description->operands.size(); ++i) {
    out << (i ? ", " : "") << node.description->operands[i].shape_text();
  }
  out << "), recorded earlier and executed now";
  if (!node.source.empty()) {
    out << "; called at " << node.source;
  } else {
    out << "; TORCH_LAZY_SOURCE_LINES=1 adds the line that called it";
  }
  out << ")";
  return out.str();
}

/// After node `failed` could not run: its results, and everything recorded that depends on them,
/// never come to be. Buffers that would have been written keep their last good value.
void fail(Node* failed, const std::shared_ptr<Failure>& failure, GraphLock& lock) {
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
    node->running = false;
    program.retire(node, lock);
  }
}

/// Lets go of the values that a run held, so that none could die under it.
void let_go(const Collection& collection, GraphLock& lock) {
  for (Value* value : collection.values) {
    Program::instance().release(value, lock);
  }
}

std::string what(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& e) {
    return e.what_without_backtrace();
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "unknown error";
  }
}

/// Throws an error of the original's type with another message, so that Python sees eager's class.
[[noreturn]] void raise_like(const std::exception_ptr& original, const std::string& message) {
  const c10::SourceLocation here{__func__, __FILE__, static_cast<uint32_t>(__LINE__)};
  try {
    std::rethrow_exception(original);
  } catch (const c10::IndexError&) {
    throw c10::IndexError(here, message);
  } catch (const c10::ValueError&) {
    throw c10::ValueError(here, message);
  } catch (const c10::TypeError&) {
    throw c10::TypeError(here, message);
  } catch (const c10::NotImplementedError&) {
    throw c10::NotImplementedError(here, message);
  } catch (const c10::LinAlgError&) {
    throw c10::LinAlgError(here, message);
  } catch (const c10::OutOfMemoryError&) {
    throw c10::OutOfMemoryError(here, message);
  } catch (const c10::Error&) {
    throw c10::Error(here, message);
  } catch (const std::runtime_error& e) {
    throw std::runtime_error(message);
  }  // anything else, a Python exception above all, goes on as it is
}

std::shared_ptr<Executable> plan_for(const Collection& collection) {
  uint64_t hash = hash_words(collection.signature);
  if (std::shared_ptr<Executable> plan = plans().find(collection.signature, hash)) {
    static metrics::Counter& hits = metrics::counter("CachedCompile");
    hits.add();
    return plan;
  }
  static metrics::Counter& misses = metrics::counter("UncachedCompile");
  misses.add();
  std::shared_ptr<Executable> plan =
      backend().compile(std::make_shared<const Graph>(make_graph(collection)));
  plans().add(collection.signature, hash, plan);
  return plan;
}

/// For people who follow which graphs run.
void report(const Collection& collection) {
  if (!saves_graph_reports()) {
    return;
  }
  Graph graph;
  {
    GraphLock lock;
    graph = make_graph(collection);
  }
  std::vector<const Value*> roots;
  for (uint32_t slot : graph.roots) {
    roots.push_back(collection.values[slot]);
  }
  save_graph_report(roots, {graph.hash}, [&] { return graph.text(); });
}

/// Runs pending nodes, given in program order. The execution lock is held, the graph lock is not.
void execute(Collection collection) {
  Program& program = Program::instance();
  std::shared_ptr<Executable> plan;
  Run run;
  run.slots.resize(collection.values.size());
  run.numbers = std::move(collection.numbers);
  std::exception_ptr error;
  report(collection);
  try {
    plan = plan_for(collection);
  } catch (...) {
    GraphLock lock;
    for (Node* node : collection.nodes) {
      node->running = false;
    }
    let_go(collection, lock);
    throw;
  }
  {
    GraphLock lock;
    for (uint32_t slot : collection.parameters) {
      Value* value = collection.values[slot];
      if (value->data) {
        run.slots[slot] = collection.kept[slot] ? value->data : program.take_data(value);
      }
    }
  }
  try {
    hooks::AllowOtherThreads allow;
    plan->run(run);
  } catch (...) {
    error = std::current_exception();
  }

  std::string message;
  if (error) {
    message = describe_failure(*collection.nodes[run.completed], what(error));
  }
  {
    GraphLock lock;
    // Data first: of what the run computed, and (after a failure) of what it did not use up.
    for (size_t slot = 0; slot < collection.values.size(); ++slot) {
      Value* value = collection.values[slot];
      if (!value->data && run.slots[slot] && (collection.kept[slot] || error)) {
        program.set_data(value, std::move(run.slots[slot]));
      }
    }
    for (size_t i = 0; i < run.completed; ++i) {
      program.retire(collection.nodes[i], lock);
    }
    if (error) {
      for (size_t i = run.completed; i < collection.nodes.size(); ++i) {
        collection.nodes[i]->running = false;
      }
      auto failure = std::make_shared<Failure>(Failure{message, error});
      fail(collection.nodes[run.completed], failure, lock);
    }
    let_go(collection, lock);
  }
  if (error) {
    raise_like(error, message);
  }
}

/// Collects under the graph lock, marks the nodes as running and holds their values.
Collection start(std::vector<Node*> nodes) {
  Collection collection = collect(std::move(nodes));
  for (Node* node : collection.nodes) {
    node->running = true;
  }
  for (Value* value : collection.values) {
    Program::instance().retain(value);
  }
  return collection;
}

void check_failure(const Value* value) {
  if (value && value->failure) {
    raise(*value->failure);
  }
}

}  // namespace

void raise(const Failure& failure) {
  if (failure.original) {
    raise_like(failure.original, failure.message);
  }
  TORCH_CHECK(false, failure.message);
}

ExecutionLock::ExecutionLock() : lock_(execution_mutex(), std::defer_lock) {
  if (!lock_.try_lock()) {
    hooks::AllowOtherThreads allow;
    lock_.lock();
  }
}

void run_all() {
  ExecutionLock execution;
  Collection collection;
  {
    GraphLock lock;
    std::vector<Node*> nodes;
    nodes.reserve(Program::instance().pending());
    const uint64_t blocked = Program::instance().next_epoch();
    for (Node* node = Program::instance().first(); node; node = node->next) {
      // Inside a run (an operator of the user's that marks a step): what needs its results waits.
      bool waits =
          node->running ||
          std::any_of(node->operands.begin(), node->operands.end(), [blocked](Value* operand) {
            return operand->pending() && operand->producer->epoch == blocked;
          });
      if (waits) {
        node->epoch = blocked;
      } else {
        nodes.push_back(node);
      }
    }
    if (nodes.empty()) {
      return;
    }
    collection = start(std::move(nodes));
  }
  execute(std::move(collection));
}

namespace {

/// Runs what these values need; `to_write`: also who else reads them. Each may be held by `holds`
/// others besides its readers.
void run_values(c10::ArrayRef<Value*> values, bool to_write, uint32_t holds) {
  Collection collection;
  {
    GraphLock lock;
    Selection selection;
    for (Value* value : values) {
      check_failure(value);
      selection.add(value);
      if (to_write && value->refs > holds) {
        selection.add_readers(value);
      }
    }
    selection.add_readers_of_overwritten();
    selection.add_earlier_effects();
    std::vector<Node*> nodes = std::move(selection).in_order();
    if (nodes.empty()) {
      return;
    }
    collection = start(std::move(nodes));
  }
  execute(std::move(collection));
}

/// Values that stay while other threads go on recording.
class Held {
 public:
  explicit Held(c10::ArrayRef<Buffer*> buffers) {
    GraphLock lock;
    for (Buffer* buffer : buffers) {
      Value* value = Program::instance().value_of(*buffer);
      Program::instance().retain(value);
      values.push_back(value);
    }
  }

  ~Held() {
    GraphLock lock;
    for (Value* value : values) {
      Program::instance().release(value, lock);
    }
  }

  c10::SmallVector<Value*, 4> values;
};

}  // namespace

void run_buffers(c10::ArrayRef<Buffer*> buffers, bool to_write) {
  ExecutionLock execution;
  Held held(buffers);
  run_values(held.values, to_write, /*holds=*/2);
}

c10::Storage allocate(int64_t nbytes) {
  return at::empty({nbytes}, at::TensorOptions().dtype(at::kByte).device(real_device())).storage();
}

c10::Storage materialize(Buffer& buffer, bool to_write) {
  Buffer* list[] = {&buffer};
  Held held(list);
  Value* value = held.values[0];
  run_values(held.values, to_write, /*holds=*/2);
  GraphLock lock;
  check_failure(value);
  if (!value->data) {
    TORCH_INTERNAL_ASSERT(!value->pending(), "a value is still pending after its run");
    Program::instance().set_data(value, allocate(value->nbytes));
  }
  return value->data;
}

void end_step() {
  static metrics::Counter& steps = metrics::counter("MarkStep");
  run_all();
  steps.add();
  reset_scopes();
}

void wait_for_device() {
  ExecutionLock execution;
  backend().wait();
}

bool over_limit(const Program& program) {
  const Settings& s = settings();
  int64_t nodes = s.max_nodes.load(std::memory_order_relaxed);
  int64_t bytes = s.max_bytes_held.load(std::memory_order_relaxed);
  return (nodes && static_cast<int64_t>(program.pending()) >= nodes) ||
         (bytes && program.bytes_held() >= bytes) || s.check.load(std::memory_order_relaxed);
}

void discard_pending() {
  ExecutionLock execution;
  GraphLock lock;
  auto failure = std::make_shared<Failure>();
  failure->message = "torch-lazy: this value was discarded before it was computed";
  Program& program = Program::instance();
  while (Node* node = program.first()) {
    fail(node, failure, lock);
  }
}

}  // namespace torch_lazy
