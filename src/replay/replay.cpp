// Replaying a recorded call: the data of known buffers goes into the plan, and what the plan leaves
// goes to the buffers that had it after the recorded call.
#include "base/metrics.h"
#include "capture/tensor.h"
#include "replay/recording.h"
#include "replay/replay_data.h"
#include "runtime/draw.h"
#include "runtime/executor.h"
#include "runtime/failure.h"
#include "runtime/outside.h"
#include "runtime/queue.h"
#include "runtime/real_tensor.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>

namespace torch_lazy {
namespace {

/// Stands where the graph of a result was that backward has used up.
struct UsedUpGraph : torch::autograd::Node {
  torch::autograd::variable_list apply(torch::autograd::variable_list&& /*inputs*/) override {
    TORCH_CHECK(
        false,
        "Trying to backward through the graph a second time (or directly access saved tensors "
        "after they have already been freed). Saved intermediate values of the graph are freed "
        "when you call .backward() or autograd.grad(). Specify retain_graph=True if you need to "
        "backward through the graph a second time or if you need to access saved tensors after "
        "calling backward.");
  }
  std::string name() const override { return "UsedUpGraph"; }
};

/// Nodes of autograd are held by intrusive pointers, in PyTorch before 2.12 by shared ones.
using AutogradNodePtr = decltype(torch::autograd::Edge::function);

template <typename Pointer>
Pointer make_used_up_graph() {
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<torch::autograd::Node>>) {
    return std::make_shared<UsedUpGraph>();
  } else {
    return c10::make_intrusive<UsedUpGraph>();
  }
}

c10::Storage draw_again(const Draw& last) {
  c10::Storage memory = allocate(last.nbytes);
  torch::jit::Stack stack(last.arguments.begin(), last.arguments.end());
  stack[0] = real_tensor(memory, last.layout);
  draw(*last.op, stack);
  return memory;
}

void lose(Buffer& buffer, std::shared_ptr<Failure> failure, GraphLock& lock) {
  Program& program = Program::instance();
  Value* value = program.make_value(buffer.nbytes);
  value->failure = std::move(failure);
  program.assign(buffer, value, lock);
}

/// Freed after the graph lock: memory may be the host language's.
using Garbage = std::vector<c10::Storage>;

/// One replay: its data on the way in and out.
class Replay {
 public:
  Replay(const Recording& recording, ReplayTensors& tensors, std::vector<c10::IValue> numbers,
         size_t& completed)
      : r_(recording),
        known_(tensors.known),
        buffers_(tensors.buffers),
        versions_(tensors.versions),
        run_(tensors.run),
        numbers_(std::move(numbers)),
        completed_(completed),
        fresh_(recording, tensors.hosts) {
    made_.resize(r_.made.size());
    if (r_.keeps_old_gradients) {
      hold_old_gradients(tensors.known);
    }
    if (r_.plan) {
      run_.slots.resize(r_.plan->graph->slots);
      if (run_.numbers.empty()) {
        run_.numbers = r_.numbers;
      }
    }
  }

  ~Replay() {
    if (marked_) {
      free_buffers(unmark_locked());
    }
  }

  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

  std::vector<at::Tensor> operator()() {
    if (r_.plan) {
      while (!load()) {
        obtain_data();
      }
      try {
        respect_users_outside();
        for (uint32_t slot : shared_) {
          run_.slots[slot] = copy_of(run_.slots[slot]);
        }
        execute_plan();
      } catch (...) {
        completed_ = run_.completed;
        fail(std::current_exception());
      }
    }
    commit();
    bump_versions();
    make_tensors();
    std::vector<at::Tensor> results;
    for (const MadeTensor& result : r_.results) {
      results.push_back(result.same >= 0          ? results[result.same]
                        : result.gradient_of >= 0 ? known_[result.gradient_of]->grad()
                        : result.related >= 0     ? related_to(result, results)
                                                  : tensor_of(result));
    }
    clear_run();
    return results;
  }

 private:
  /// Known gradients are looked at where their tensors have them, and there will be others.
  void hold_old_gradients(std::vector<const at::Tensor*>& known) {
    old_gradients_.reserve(known.size());
    for (size_t i = r_.given; i < known.size(); ++i) {
      old_gradients_.push_back(*known[i]);
      known[i] = &old_gradients_.back();
    }
  }

  void execute_plan() {
    if (!numbers_.empty()) {
      run_.numbers.swap(numbers_);
    }
    run_.beside = [this](size_t parameter) { return beside(parameter); };
    execute(*r_.plan->executable, run_);
    run_.beside = nullptr;
    completed_ = r_.plan->graph->nodes.size();
    if (!numbers_.empty()) {
      run_.numbers.swap(numbers_);
    }
  }

  /// Nothing for data that the run may overwrite, and for memory of the host language.
  std::shared_ptr<Beside> beside(size_t parameter) {
    const Content& content = r_.parameters[parameter];
    const Parameter& place = r_.plan->graph->parameters[parameter];
    if (place.donated || content.kind != Content::Kind::entry) {
      return nullptr;
    }
    GraphLock lock;
    Value* value = buffers_[content.index]->current;
    const bool is_same = value && value->data && value->data.is_alias_of(run_.slots[place.slot]);
    return is_same ? program_.beside(value) : nullptr;  // another thread may have written meanwhile
  }

  /// As it is before a run.
  void clear_run() {
    constexpr size_t kStep = 16;  // nearly all are empty: many are looked at at once
    std::vector<c10::Storage>& slots = run_.slots;
    size_t begin = 0;
    for (; begin + kStep <= slots.size(); begin += kStep) {
      uintptr_t any = 0;
#pragma GCC unroll 16
      for (size_t i = 0; i < kStep; ++i) {
        any |= reinterpret_cast<uintptr_t>(slots[begin + i].unsafeGetStorageImpl());
      }
      if (any != 0) {
        std::fill_n(slots.begin() + begin, kStep, c10::Storage());
      }
    }
    std::fill(slots.begin() + begin, slots.end(), c10::Storage());
    run_.completed = 0;
    run_.remarks.clear();
  }

  /// Moves the parameters' data into the run, and marks the buffers: other threads leave them alone
  /// until the run has given them new data. False: some of the data is not there.
  bool load() {
    const Graph& graph = *r_.plan->graph;
    Garbage garbage;
    GraphLock lock;
    const size_t number = graph.parameters.size();
    const Parameter* parameter = graph.parameters.data();
    const Content* content = r_.parameters.data();
    Buffer* const* buffers = buffers_.data();
    c10::Storage* slots = run_.slots.data();
    for (size_t i = 0; i < number; ++i, ++parameter, ++content) {
      if (i + kAhead < number && content[kAhead].kind == Content::Kind::entry) {
        __builtin_prefetch(buffers[content[kAhead].index]->current);
      }
      c10::Storage& slot = slots[parameter->slot];
      if (content->kind != Content::Kind::entry) {
        slot = fresh_.of(*content);
        continue;
      }
      Value* value = buffers[content->index]->current;
      if (!value || !value->data) [[unlikely]] {
        if (r_.undefined[content->index] && (!value || value->undefined())) {
          continue;
        }
        unload(i);
        return false;
      }
      if (!parameter->donated) {
        slot = value->data;
      } else if (value->refs > 1 || value->readers > 0 || value->holds > 0) {
        slot = value->data;
        shared_.push_back(parameter->slot);  // somebody else needs it as it is
      } else {
        slot = program_.take_data(value);
      }
    }
    free_replaced_gradients(garbage);
    mark();
    return true;
  }

  /// Another thread has recorded or changed something since the tensors matched.
  void obtain_data() {
    wait_for_buffers(buffers_);
    for (size_t b = 0; b < buffers_.size(); ++b) {
      if (!r_.undefined[b]) {
        const Reading memory(*buffers_[b]);
      }
    }
  }

  /// Gives data back that was taken for the first parameters. Needs the graph lock.
  void unload(size_t number) {
    const Graph& graph = *r_.plan->graph;
    for (size_t i = 0; i < number; ++i) {
      c10::Storage& slot = run_.slots[graph.parameters[i].slot];
      Value* value = r_.parameters[i].kind == Content::Kind::entry
                         ? buffers_[r_.parameters[i].index]->current
                         : nullptr;
      if (slot && value && !value->data) {
        program_.set_data(value, std::move(slot));
      }
    }
    shared_.clear();
  }

  /// Needs the graph lock.
  void mark() {
    marked_ = true;
    program_.begin_replay();
    const size_t number = buffers_.size();
    Buffer* const* buffer = buffers_.data();
    const Content* after = r_.after.data();
    for (size_t b = 0; b < number; ++b) {
      buffer[b]->replay =
          after[b].kind == Content::Kind::entry ? Buffer::Replay::reads : Buffer::Replay::writes;
    }
    for (const ReplacedGradients* replaced : freed_) {
      buffer[replaced->buffer]->replay = Buffer::Replay::writes;
    }
  }

  /// Returns the buffers whose storages other threads have freed meanwhile. Needs the graph lock.
  std::vector<Buffer*> unmark() {
    std::vector<Buffer*> abandoned;
    if (!std::exchange(marked_, false)) {
      return abandoned;
    }
    for (Buffer* buffer : buffers_) {
      buffer->replay = Buffer::Replay::none;
      if (buffer->abandoned) [[unlikely]] {
        abandoned.push_back(buffer);
      }
    }
    program_.end_replay();
    return abandoned;
  }

  std::vector<Buffer*> unmark_locked() {
    GraphLock lock;
    return unmark();
  }

  static void free_buffers(const std::vector<Buffer*>& abandoned) {
    for (Buffer* buffer : abandoned) {
      free_buffer(buffer);
    }
  }

  /// Waits for collectives that write parameters; what they read is not overwritten.
  void respect_users_outside() {
    if (!outside::any()) {
      return;
    }
    for (const Parameter& parameter : r_.plan->graph->parameters) {
      const c10::Storage& data = run_.slots[parameter.slot];
      outside::wait_for_writers(data);
      if (parameter.donated && outside::is_used(data) &&
          std::find(shared_.begin(), shared_.end(), parameter.slot) == shared_.end()) {
        shared_.push_back(parameter.slot);
      }
    }
  }

  /// Gradients that get new tensors are gone before the call needs its memory, as in eager.
  void free_replaced_gradients(Garbage& garbage) {
    freed_.reserve(r_.replaced.size());
    for (const ReplacedGradients& replaced : r_.replaced) {
      Value* value = buffers_[replaced.buffer]->current;
      if (value && value->data && value->refs == 1 && value->holds == 0 && are_alone(replaced)) {
        garbage.push_back(program_.take_data(value));
        freed_.push_back(&replaced);
      }
    }
  }

  /// Whether nobody but their parameters has these gradients, and nothing else their memory.
  bool are_alone(const ReplacedGradients& replaced) const {
    for (uint32_t i : replaced.old) {
      if (known_[i]->use_count() != 1) {
        return false;
      }
    }
    return is_in_place(replaced) &&
           known_[replaced.old[0]]->storage().use_count() == replaced.old.size();
  }

  /// Another thread may have put another gradient there.
  bool is_in_place(const ReplacedGradients& replaced) const {
    const at::Tensor& old = *known_[replaced.old[0]];
    return old.defined() && old.has_storage() &&
           old.storage().data_ptr().get_context() == buffers_[replaced.buffer];
  }

  bool was_freed(const ReplacedGradients& replaced) const {
    return std::find(freed_.begin(), freed_.end(), &replaced) != freed_.end();
  }

  /// Gives data to a buffer. Needs the graph lock.
  C10_ALWAYS_INLINE void put(Buffer& buffer, c10::Storage&& data, GraphLock& lock,
                             Garbage& garbage) {
    Value* value = buffer.current;
    if (value && value->refs == 1 && value->holds == 0 && value->readers == 0 && !value->producer &&
        !value->failure && value->nbytes == buffer.nbytes) {
      if (value->data) [[unlikely]] {
        garbage.push_back(program_.take_data(value));
      }
      program_.forget_history(value);
      ++buffer.generation;
      buffer.leaf = false;
      buffer.host = false;
    } else [[unlikely]] {
      value = program_.make_value(buffer.nbytes);
      program_.assign(buffer, value, lock);
    }
    program_.set_data(value, std::move(data));
  }

  c10::Storage data_of(const Content& content) {
    return content.kind == Content::Kind::slot ? std::move(run_.slots[content.index])
                                               : fresh_.of(content);
  }

  void commit() {
    Garbage garbage;
    std::vector<Buffer*> abandoned;
    {
      GraphLock lock;
      give_data(lock, garbage);
      keep_old_gradients(lock, garbage);
      abandoned = unmark();
    }
    free_buffers(abandoned);
  }

  /// Needs the graph lock.
  void give_data(GraphLock& lock, Garbage& garbage) {
    const auto number = static_cast<uint32_t>(buffers_.size());
    Buffer* const* buffer = buffers_.data();
    const Content* after = r_.after.data();
    for (uint32_t b = 0; b < number; ++b, ++buffer, ++after) {
      if (b + kAhead < number) {
        __builtin_prefetch(buffer[kAhead]->current);
      }
      if (after->kind == Content::Kind::slot) {
        if (c10::Storage& data = run_.slots[after->index]) {
          put(**buffer, std::move(data), lock, garbage);
        }
      } else if (after->kind == Content::Kind::donated) {
        lose_donated(**buffer, lock);
      } else if (c10::Storage data = fresh_.of(*after)) {
        put(**buffer, std::move(data), lock, garbage);
      }
    }
  }

  /// Counts the writes, by counters that were the tensors' own when they matched.
  void bump_versions() {
    for (uint32_t i : r_.written) {
      if (versions_[i].enabled()) {
        versions_[i].bump();
      }
    }
  }

  /// New buffers, and the gradients over them.
  void make_tensors() {
    for (uint32_t i = 0; i < r_.gradients.size(); ++i) {
      if (kept_[i]) {
        continue;
      }
      const NewGradient& gradient = r_.gradients[i];
      at::Tensor& grad = known_[gradient.of]->mutable_grad();
      if (gradient.none) {
        grad.reset();
      } else if (gradient.tensor.gradient_of >= 0) {
        grad = known_[gradient.tensor.gradient_of]->grad();
      } else {
        grad = tensor_of(gradient.tensor);
      }
    }
  }

  /// Old tensors serve as the new gradients where nobody can tell the difference; also where
  /// another thread has taken one after its data was freed: it took the new gradient. Needs the
  /// graph lock.
  void keep_old_gradients(GraphLock& lock, Garbage& garbage) {
    kept_.assign(r_.gradients.size(), 0);
    for (const ReplacedGradients& replaced : r_.replaced) {
      if (replaced.made < 0 || made_[replaced.made] ||
          !(are_alone(replaced) || (was_freed(replaced) && is_in_place(replaced)))) {
        continue;
      }
      put(*buffers_[replaced.buffer], data_of(r_.made[replaced.made].content), lock, garbage);
      made_[replaced.made] = known_[replaced.old[0]]->storage();
      for (uint32_t i : replaced.gradients) {
        kept_[i] = 1;
      }
    }
  }

  const c10::Storage& made_storage(uint32_t index) {
    c10::Storage& storage = made_[index];
    if (!storage) {
      const MadeBuffer& made = r_.made[index];
      storage = make_storage(made.nbytes, made.device);
      if (c10::Storage data = data_of(made.content)) {
        set_buffer_data(buffer_of(storage), std::move(data));
      }
    }
    return storage;
  }

  at::Tensor tensor_of(const MadeTensor& made) {
    if (made.known >= 0) {
      return *known_[made.known];
    }
    c10::Storage storage =
        made.buffer.known ? storage_of_known(made.buffer.index) : made_storage(made.buffer.index);
    std::optional<c10::InferenceMode> inference;
    if (made.inference) {
      inference.emplace(true);
    }
    at::Tensor tensor = make_tensor(std::move(storage), made.layout);
    if (made.consumed) {
      auto graph = make_used_up_graph<AutogradNodePtr>();
      graph->add_input_metadata(tensor);
      torch::autograd::impl::set_gradient_edge(tensor, torch::autograd::Edge(std::move(graph), 0));
    } else if (made.requires_grad) {
      tensor.set_requires_grad(true);
    }
    return tensor;
  }

  /// A result in the memory of a known tensor or of a result before it.
  at::Tensor related_to(const MadeTensor& made, const std::vector<at::Tensor>& results) {
    const auto place = static_cast<size_t>(made.related);
    const at::Tensor& other =
        place < r_.known.size() ? *known_[place] : results[place - r_.known.size()];
    if (made.view) {
      at::AutoGradMode mode(made.view_with_grad);
      const Layout& layout = made.layout;
      return other.as_strided(layout.sizes, layout.strides, layout.offset);
    }
    at::Tensor tensor = tensor_of(made);
    tensor.unsafeGetTensorImpl()->set_version_counter(
        other.unsafeGetTensorImpl()->version_counter());
    return tensor;
  }

  c10::Storage storage_of_known(uint32_t buffer) const {
    for (uint32_t i = 0; i < known_.size(); ++i) {
      if (r_.known[i].buffer == buffer) {
        return known_[i]->storage();
      }
    }
    TORCH_INTERNAL_ASSERT(false, "a known buffer belongs to a known tensor");
  }

  /// What ran before the error stays, as in eager.
  [[noreturn]] void fail(const std::exception_ptr& error) {
    std::shared_ptr<Failure> failure = failure_of(r_, run_, error);
    {
      Garbage garbage;
      std::vector<Buffer*> abandoned;
      {
        GraphLock lock;
        for (uint32_t b = 0; b < buffers_.size(); ++b) {
          restore(b, failure, lock, garbage);
        }
        abandoned = unmark();
      }
      free_buffers(abandoned);
    }
    for (const NewGradient& gradient : r_.gradients) {
      known_[gradient.of]->mutable_grad().reset();
    }
    raise(*failure);
  }

  /// The latest content of a known buffer that the run has left.
  void restore(uint32_t b, const std::shared_ptr<Failure>& failure, GraphLock& lock,
               Garbage& garbage) {
    const std::vector<Version>& versions = r_.versions[b];
    for (auto version = versions.rbegin(); version != versions.rend(); ++version) {
      if (version->node < run_.completed && run_.slots[version->slot]) {
        return put(*buffers_[b], std::move(run_.slots[version->slot]), lock, garbage);
      }
    }
    const Value* value = buffers_[b]->current;
    if (!value || value->data || value->failure || r_.undefined[b]) {
      return;
    }
    const Graph& graph = *r_.plan->graph;
    for (size_t i = 0; i < graph.parameters.size(); ++i) {
      if (r_.parameters[i] == Content{Content::Kind::entry, b}) {
        if (c10::Storage data = std::move(run_.slots[graph.parameters[i].slot])) {
          return put(*buffers_[b], std::move(data), lock, garbage);
        }
      }
    }
    lose(*buffers_[b], failure, lock);
  }

  Program& program_ = Program::instance();
  const Recording& r_;
  const std::vector<const at::Tensor*>& known_;  // with gradients
  const std::vector<Buffer*>& buffers_;
  std::vector<c10::VariableVersion>& versions_;
  Run& run_;
  std::vector<c10::IValue> numbers_;  // of this call; empty: the recorded ones
  size_t& completed_;                 // nodes, for the caller
  std::vector<uint32_t> shared_;      // slots of memory that must stay as it is
  FreshData fresh_;
  std::vector<c10::Storage> made_;  // by made buffer, when it is there
  std::vector<char> kept_;          // by gradient: the old tensor serves
  std::vector<at::Tensor> old_gradients_;
  bool marked_ = false;  // the buffers are
  std::vector<const ReplacedGradients*> freed_;
};

}  // namespace

c10::Storage upload_again(const HostData& data, c10::ArrayRef<const at::Tensor*> hosts) {
  if (data.argument < 0) {
    return copy_of(data.constant);  // a run may write into it
  }
  const at::Tensor& host = *hosts[data.argument];
  c10::Storage memory = allocate(data.nbytes);
  BelowEverything below;
  real_tensor(memory, data.layout).copy_(make_strided(host.storage(), host.key_set(), data.source));
  return memory;
}

FreshData::FreshData(const Recording& recording, c10::ArrayRef<const at::Tensor*> hosts) {
  for (const Draw& draw : recording.draws) {
    drawn_.push_back(draw_again(draw));
  }
  for (const HostData& data : recording.uploads) {
    uploaded_.push_back(upload_again(data, hosts));
  }
}

std::shared_ptr<Failure> failure_of(const Recording& recording, const Run& run,
                                    const std::exception_ptr& error) {
  const Graph& graph = *recording.plan->graph;
  const size_t node = std::min(run.completed, graph.nodes.size() - 1);
  return make_failure(*graph.nodes[node].description, recording.lines[node], error);
}

void lose_donated(Buffer& buffer, GraphLock& lock) {
  auto failure = std::make_shared<Failure>();
  failure->message = "torch-lazy: this tensor was given up to a compiled function (donate)";
  failure->delivered = true;
  lose(buffer, std::move(failure), lock);
}

bool is_recording() {
  return watch() != nullptr;
}

bool ready_to_replay() {
  if (is_recording() || inside_run()) {
    return false;
  }
  finish_all();
  return true;
}

std::vector<at::Tensor> replay(const Recording& recording, ReplayTensors& tensors,
                               std::vector<c10::IValue> numbers, size_t* completed) {
  static metrics::Counter& replayed = metrics::counter("Replayed");
  replayed.add();
  ExecutionLock execution;
  size_t nodes = 0;
  size_t& ran = completed ? *completed : nodes;
  ran = 0;
  try {
    return Replay(recording, tensors, std::move(numbers), ran)();
  } catch (...) {
    tensors.run = Run();
    throw;
  }
}

}  // namespace torch_lazy
