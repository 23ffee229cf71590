// The recorded program: buffers, their values, and the nodes that make values.
//
// A Buffer is what a storage is in eager. Its current Value is data, or an output of a pending
// Node, or undefined (fresh memory). A write gives the buffer a new value; older values stay what
// they were for the nodes that read them. Whoever holds a value holds its node, and a node holds
// its operands: what nothing alive can reach is gone.
#pragma once

#include <torch_lazy/description.h>
#include <torch_lazy/export.h>

#include <c10/core/Storage.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>

namespace torch_lazy {

struct Buffer;
struct Node;
struct Value;

/// Why a value could not be computed; raised whenever it is read.
struct Failure {
  std::string message;
  std::exception_ptr original;  // its type is eager's; null: none of eager's
};

struct Value {
  uint32_t refs = 0;           // buffers (one) and operands of nodes that hold it
  bool held_by_graph = false;  // data that only pending nodes keep alive (counted)
  Node* producer = nullptr;    // set while pending
  int output = -1;             // which output of the producer
  int64_t nbytes = 0;
  c10::Storage data;        // set when it is there
  Buffer* owner = nullptr;  // the buffer whose current value this is
  std::shared_ptr<Failure> failure;
  // Scratch of the collection in progress.
  uint64_t epoch = 0;
  uint32_t slot = 0;
  Value* next_garbage = nullptr;

  bool pending() const { return producer != nullptr; }
  bool undefined() const { return !producer && !data && !failure; }
};

struct Node {
  uint32_t refs = 0;  // outputs that something holds, and runs that it is part of
  uint64_t sequence = 0;
  DescriptionPtr description;
  c10::SmallVector<Value*, 4> operands;
  c10::SmallVector<Value*, 3> outputs;  // fresh outputs, then one per write; null: dead or repeated
  c10::SmallVector<c10::IValue, 2> numbers;
  std::shared_ptr<const std::string> scope;  // with TORCH_LAZY_IR_DEBUG
  std::string source;
  bool running = false;
  uint64_t epoch = 0;
  Node* previous = nullptr;  // pending nodes, in the order of the program
  Node* next = nullptr;
  Node* next_garbage = nullptr;
};

struct Buffer {
  uint64_t id = 0;
  int64_t nbytes = 0;
  Value* current = nullptr;  // null: undefined
};

/// The graph lock, held. It guards every field above, the list below and the description table.
/// Nothing that may take the interpreter's lock happens under it: what dies meanwhile is collected
/// here and freed after unlocking.
class TORCH_LAZY_API GraphLock {
 public:
  GraphLock();
  ~GraphLock();
  GraphLock(const GraphLock&) = delete;
  GraphLock& operator=(const GraphLock&) = delete;

  void trash(Value* value);
  void trash(Node* node);

 private:
  std::unique_lock<std::mutex> lock_;
  Value* values_ = nullptr;
  Node* nodes_ = nullptr;
};

/// The pending nodes in program order. Every function needs the graph lock.
class TORCH_LAZY_API Program {
 public:
  static Program& instance();

  /// The buffer's value to read; an undefined one is made if there is none.
  Value* value_of(Buffer& buffer);

  /// Makes `value` the buffer's current one and lets go of the one before.
  void assign(Buffer& buffer, Value* value, GraphLock& lock);

  Value* make_value(int64_t nbytes);
  Value* make_data(c10::Storage storage);

  void retain(Value* value) { ++value->refs; }
  /// Frees what nothing holds any more, along whole chains, without recursion.
  void release(Value* value, GraphLock& lock);

  void append(Node* node);
  /// Takes an executed, failed or dead node out and lets go of its operands and outputs.
  void retire(Node* node, GraphLock& lock);

  void set_data(Value* value, c10::Storage storage);
  /// Moves the data out, for a run that may write into it.
  c10::Storage take_data(Value* value);

  Node* first() const { return first_; }
  Node* last() const { return last_; }
  size_t pending() const { return pending_; }
  int64_t bytes_held() const { return bytes_held_; }
  int64_t bytes_allocated() const { return bytes_allocated_; }
  int64_t peak_bytes() const { return peak_bytes_; }
  void reset_peak() { peak_bytes_ = bytes_allocated_; }
  uint64_t next_epoch() { return ++epoch_; }

 private:
  void unlink(Node* node);
  void count_bytes(int64_t bytes);
  void update_held(Value* value);

  Node* first_ = nullptr;
  Node* last_ = nullptr;
  size_t pending_ = 0;
  uint64_t sequence_ = 0;
  uint64_t epoch_ = 0;
  int64_t bytes_held_ = 0;
  int64_t bytes_allocated_ = 0;
  int64_t peak_bytes_ = 0;
};

}  // namespace torch_lazy
