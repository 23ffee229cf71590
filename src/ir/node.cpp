// Lifetimes of buffers, values and nodes.
#include "ir/node.h"

#include <algorithm>
#include <utility>

namespace torch_lazy {
namespace {

std::mutex& graph_mutex() {
  static auto* mutex = new std::mutex();  // never destroyed: tensors may die at exit
  return *mutex;
}

}  // namespace

GraphLock::GraphLock() : lock_(graph_mutex()) {}

GraphLock::~GraphLock() {
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

Program& Program::instance() {
  static auto* program = new Program();
  return *program;
}

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

Value* Program::value_of(Buffer& buffer) {
  if (!buffer.current) {
    Value* value = make_value(buffer.nbytes);
    value->owner = &buffer;
    value->refs = 1;
    buffer.current = value;
  }
  return buffer.current;
}

void Program::assign(Buffer& buffer, Value* value, GraphLock& lock) {
  Value* before = buffer.current;
  if (value) {
    retain(value);
    value->owner = &buffer;
    update_held(value);
    ++buffer.generation;
  }
  buffer.leaf = false;
  buffer.host = false;
  buffer.current = value;
  if (before) {
    before->owner = nullptr;
    release(before, lock);
  }
}

void Program::count_bytes(int64_t bytes) {
  bytes_allocated_ += bytes;
  peak_bytes_ = std::max(peak_bytes_, bytes_allocated_);
}

void Program::update_held(Value* value) {
  bool held = value->data && !value->owner;
  if (held != value->held_by_graph) {
    bytes_held_ += held ? value->nbytes : -value->nbytes;
    value->held_by_graph = held;
  }
}

void Program::set_data(Value* value, c10::Storage storage) {
  value->data = std::move(storage);
  count_bytes(value->nbytes);
  update_held(value);
}

c10::Storage Program::take_data(Value* value) {
  c10::Storage storage = std::move(value->data);
  value->data = c10::Storage();
  count_bytes(-value->nbytes);
  update_held(value);
  return storage;
}

void Program::release(Value* value, GraphLock& lock) {
  if (--value->refs > 0) {
    update_held(value);
    return;
  }
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
    if (Node* node = current->producer) {
      node->outputs[current->output] = nullptr;
      if (--node->refs == 0) {
        unlink(node);
        for (Value* operand : node->operands) {
          if (--operand->refs == 0) {
            dead.push_back(operand);
          }
        }
        node->operands.clear();
        lock.trash(node);
      }
    }
    lock.trash(current);
  }
}

void Program::append(Node* node) {
  node->sequence = ++sequence_;
  node->previous = last_;
  (last_ ? last_->next : first_) = node;
  last_ = node;
  ++pending_;
}

void Program::unlink(Node* node) {
  (node->previous ? node->previous->next : first_) = node->next;
  (node->next ? node->next->previous : last_) = node->previous;
  node->previous = nullptr;
  node->next = nullptr;
  --pending_;
}

void Program::retire(Node* node, GraphLock& lock) {
  unlink(node);
  for (Value* output : node->outputs) {
    if (output) {
      output->producer = nullptr;
    }
  }
  for (Value* operand : node->operands) {
    release(operand, lock);
  }
  lock.trash(node);
}

}  // namespace torch_lazy
