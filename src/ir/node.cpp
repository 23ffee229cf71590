// Lifetimes of buffers, values and nodes.
#include "ir/node.h"

#include "base/fork.h"
#include "base/hooks.h"
#include "base/metrics.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <condition_variable>
#include <new>
#include <utility>

namespace torch_lazy {
namespace {

RankedMutex& graph_mutex() {
  static auto* mutex = new RankedMutex(Rank::graph);  // never destroyed: tensors may die at exit
  return *mutex;
}

/// Those who wait for the end of a replay.
struct ReplayWaiters {
  std::condition_variable_any ended;
  int number = 0;
};

ReplayWaiters& replay_waiters() {
  static auto* waiters = new ReplayWaiters();
  return *waiters;
}

bool is_changing(const Buffer* buffer) {
  return buffer && buffer->replay == Buffer::Replay::writes;
}

[[maybe_unused]] const bool fork_handled = [] {
  add_fork_part(ForkOrder::leaves, {nullptr, nullptr, [] {
                                      new (&replay_waiters())
                                          ReplayWaiters();  // they are threads of the parent
                                    }});
  return true;
}();

}  // namespace

GraphLock::GraphLock() : lock_(graph_mutex()) {}

GraphLock::GraphLock(c10::ArrayRef<Buffer*> buffers) : lock_(graph_mutex()) {
  if (std::any_of(buffers.begin(), buffers.end(), &is_changing)) {
    wait_for_replay(buffers);
  }
}

GraphLock::GraphLock(Buffer& buffer) : lock_(graph_mutex()) {
  if (is_changing(&buffer)) {
    wait_for_replay({&buffer});
  }
}

void GraphLock::wait_for_replay(c10::ArrayRef<Buffer*> buffers) {
  auto is_over = [&] { return std::none_of(buffers.begin(), buffers.end(), &is_changing); };
  while (!is_over()) {
    const bool inside = Program::instance().replaying_ == std::this_thread::get_id();
    lock_.unlock();
    TORCH_CHECK(!inside,
                "torch-lazy: an operator that a compiled function calls uses a tensor which that "
                "call changes; it cannot be used from inside it");
    {
      hooks::AllowOtherThreads allow;
      std::unique_lock<RankedMutex> waiting(graph_mutex());
      ReplayWaiters& waiters = replay_waiters();
      ++waiters.number;
      waiters.ended.wait(waiting, is_over);
      --waiters.number;
    }
    lock_.lock();
  }
}

void Program::end_replay() {
  replaying_ = std::thread::id();
  if (replay_waiters().number > 0) {
    replay_waiters().ended.notify_all();
  }
}

GraphLock::~GraphLock() {
  const std::vector<std::shared_ptr<const void>> forgotten = Program::instance().take_forgotten();
  lock_.unlock();
  while (values_) {
    delete std::exchange(values_, values_->next_garbage);
  }
  while (nodes_) {
    delete std::exchange(nodes_, nodes_->next_garbage);
  }
}

void GraphLock::trash(Value* value) {
  value->next_garbage = std::exchange(values_, value);
}

void GraphLock::trash(Node* node) {
  node->next_garbage = std::exchange(nodes_, node);
}

void Segment::update(const Value* value) {
  if (value->segment == id) {
    kept.set(value->place, value->owner || value->readers);
  }
}

void Segment::died(const Value* value) {
  if (value->segment == id) {
    dead.set(value->place, true);
  }
}

Program& Program::instance() {
  static auto* program = new Program();
  return *program;
}

// ---- Values
// --------------------------------------------------------------------------------------

Value* Program::make_value(int64_t nbytes) {
  auto* value = new Value();
  value->nbytes = nbytes;
  return value;
}

Value* Program::make_data(c10::Storage storage) {
  Value* value = make_value(static_cast<int64_t>(storage.nbytes()));
  set_data(value, std::move(storage));
  return value;
}

void Program::drop_beside(Value* value) {
  value->has_beside = false;
  const auto found = besides_.find(value);
  free_later(std::move(found->second));
  besides_.erase(found);
}

void Program::drop_history(Value* value) {
  value->has_history = false;
  const auto found = histories_.find(value);
  free_later(std::make_shared<History>(std::move(found->second)));
  histories_.erase(found);
}

void Program::expose(Value* value) {
  forget_beside(value);
  if (!value->data) {
    return;
  }
  if (exposed_.size() >= most_exposed_) {
    std::erase_if(exposed_, [](const auto& entry) { return entry.second.expired(); });
    most_exposed_ = std::max(most_exposed_, 2 * exposed_.size());
  }
  exposed_.try_emplace(value->data.unsafeGetStorageImpl(), value->data.getWeakStorageImpl());
}

std::shared_ptr<Beside> Program::beside(Value* value) {
  if (!value->data || exposed_.count(value->data.unsafeGetStorageImpl()) > 0) {
    return nullptr;
  }
  value->has_beside = true;
  std::shared_ptr<Beside>& beside = besides_[value];
  if (!beside) {
    beside = std::make_shared<Beside>();
  }
  return beside;
}

Value* Program::value_of(Buffer& buffer) {
  if (!buffer.current) {
    list(buffer);
    Value* value = make_value(buffer.nbytes);
    value->owner = &buffer;
    value->origin = buffer.id;
    value->refs = 1;
    buffer.current = value;
  }
  return buffer.current;
}

void Program::assign(Buffer& buffer, Value* value, GraphLock& lock) {
  Value* before = buffer.current;
  if (value) {
    list(buffer);
    retain(value);
    value->owner = &buffer;
    if (!value->origin) {
      value->origin = buffer.id;
    }
    update_held(value);
    segment_.update(value);
    ++buffer.generation;
  }
  buffer.leaf = false;
  buffer.host = false;
  buffer.current = value;
  if (before) {
    before->owner = nullptr;
    segment_.update(before);
    release(before, lock);
  }
}

void Program::release(Value* value, GraphLock& lock) {
  if (--value->refs > 0) {
    update_held(value);
    return;
  }
  segment_.died(value);
  if (value->holds == 0) {
    free_unreachable(value, lock);
  } else {
    update_held(value);
  }
}

void Program::let_go(Value* value, GraphLock& lock) {
  if (--value->holds == 0 && value->refs == 0) {
    free_unreachable(value, lock);
  }
}

void Program::begin_reading(Value* value) {
  retain(value);
  ++value->readers;
  segment_.update(value);
}

void Program::end_reading(Value* value, GraphLock& lock) {
  --value->readers;
  segment_.update(value);
  release(value, lock);
}

void Program::free_unreachable(Value* value, GraphLock& lock) {
  // Iterative: a chain of a million nodes must not overflow the stack.
  c10::SmallVector<Value*, 16> dead{value};
  while (!dead.empty()) {
    Value* current = dead.pop_back_val();
    if (current->data) {
      count_bytes(-current->nbytes);
      if (current->held_by_graph) {
        bytes_held_ -= current->nbytes;
      }
    }
    forget_history(current);
    forget_beside(current);
    if (Node* node = current->producer) {
      node->outputs[current->output] = nullptr;
      if (--node->refs == 0) {
        unlink(node);
        for (Value* operand : node->operands) {
          if (--operand->refs == 0) {
            segment_.died(operand);
            if (operand->holds == 0) {
              dead.push_back(operand);
            }
          }
        }
        node->operands.clear();
        lock.trash(node);
      }
    }
    lock.trash(current);
  }
}

// ---- Nodes
// ---------------------------------------------------------------------------------------

void Program::link(Node* node, Node* before) {
  node->next = before;
  node->previous = before ? before->previous : last_;
  (node->previous ? node->previous->next : first_) = node;
  (before ? before->previous : last_) = node;
  ++(node->parked ? parked_ : pending_);
  effects_ += node->description->op->effect;
}

void Program::unlink(Node* node) {
  (node->previous ? node->previous->next : first_) = node->next;
  (node->next ? node->next->previous : last_) = node->previous;
  node->previous = nullptr;
  node->next = nullptr;
  --(node->parked ? parked_ : pending_);
  effects_ -= node->description->op->effect;
}

void Program::append(Node* node, Trace* recorder) {
  if (pending_ == 0) {
    segment_.begin(parked_ == 0 ? recorder : nullptr);
  }
  node->sequence = ++sequence_;
  link(node, nullptr);
  segment_.append(node, recorder);
}

void Program::take_out(Node* node) {
  unlink(node);
  for (Value* operand : node->operands) {
    if (--operand->refs == 0) {
      segment_.died(operand);
    }
  }
}

void Program::put_back(c10::ArrayRef<Node*> nodes) {
  segment_.leave();
  Node* before = first_;
  for (Node* node : nodes) {
    while (before && before->sequence < node->sequence) {
      before = before->next;
    }
    for (Value* operand : node->operands) {
      retain(operand);
    }
    link(node, before);
  }
}

void Program::park(Node* node) {
  if (!node->parked) {
    --pending_;
    ++parked_;
    node->parked = true;
  }
}

void Program::retire(Node* node, GraphLock& lock) {
  for (Value* output : node->outputs) {
    if (output) {
      output->producer = nullptr;
    }
  }
  lock.trash(node);
}

void Program::drop(Node* node, GraphLock& lock) {
  unlink(node);
  for (Value* operand : node->operands) {
    release(operand, lock);
  }
  retire(node, lock);
}

// ---- Live buffers and histories
// ------------------------------------------------------------------

void Program::list(Buffer& buffer) {
  if (buffer.listed) {
    return;
  }
  static metrics::Counter& created = metrics::counter("CreateLtcTensor");
  created.add_guarded();
  devices_.set(static_cast<size_t>(buffer.device));
  if (observer_) {
    observer_(buffer, true);
  }
  buffer.listed = true;
  buffer.next = first_buffer_;
  if (first_buffer_) {
    first_buffer_->previous = &buffer;
  }
  first_buffer_ = &buffer;
}

void Program::unlist(Buffer& buffer) {
  if (!buffer.listed) {
    return;
  }
  static metrics::Counter& destroyed = metrics::counter("DestroyLtcTensor");
  destroyed.add_guarded();
  if (observer_) {
    observer_(buffer, false);
  }
  buffer.listed = false;
  (buffer.previous ? buffer.previous->next : first_buffer_) = buffer.next;
  if (buffer.next) {
    buffer.next->previous = buffer.previous;
  }
}

std::vector<Buffer*> Program::live_buffers(std::optional<c10::DeviceIndex> device) const {
  std::vector<Buffer*> buffers;
  for (Buffer* buffer = first_buffer_; buffer; buffer = buffer->next) {
    if (!device || buffer->device == *device) {
      buffers.push_back(buffer);
    }
  }
  std::sort(buffers.begin(), buffers.end(),
            [](const Buffer* a, const Buffer* b) { return a->id < b->id; });
  return buffers;
}

std::vector<c10::DeviceIndex> Program::devices() const {
  std::vector<c10::DeviceIndex> devices;
  for (size_t i = 0; i < devices_.size(); ++i) {
    if (devices_[i]) {
      devices.push_back(static_cast<c10::DeviceIndex>(i));
    }
  }
  return devices;
}

void Program::remember(Value* value, History history) {
  forget_history(value);
  value->has_history = true;
  histories_.emplace(value, std::move(history));
}

const History* Program::history(const Value* value) const {
  if (!value || !value->has_history) {
    return nullptr;
  }
  return &histories_.at(const_cast<Value*>(value));
}

void Program::forget_histories() {
  for (auto& [value, history] : histories_) {
    value->has_history = false;
  }
  free_later(std::make_shared<decltype(histories_)>(std::move(histories_)));
  histories_.clear();
}

}  // namespace torch_lazy
