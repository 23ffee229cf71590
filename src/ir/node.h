// The recorded program: buffers, their values, and the nodes that make values.
//
// A Buffer is what a storage is in eager. Its current Value is data, or an output of a Node that is
// pending or in flight (part of a run that was scheduled), or undefined (fresh memory). A write
// gives the buffer a new value; older values stay what they were for the nodes that read them.
// Whoever holds a value holds its node, and a node holds its operands: what nothing alive can reach
// is gone.
#pragma once

#include "base/ranked_mutex.h"
#include "base/recycled.h"
#include "ir/segment.h"
#include <torch_lazy/description.h>
#include <torch_lazy/export.h>
#include <torch_lazy/graph.h>

#include <c10/core/Storage.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <atomic>
#include <bitset>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

namespace torch_lazy {

struct Buffer;
struct Flight;  // a scheduled run: runtime/flight.h
struct Node;
struct Value;

/// Why a value could not be computed.
struct Failure {
  std::string message;
  std::exception_ptr original;         // its type is eager's; null: none of eager's
  std::thread::id scheduler;           // the thread that recorded the call; the one whose run
                                       // failed where that is not known, or there was no memory
  std::atomic<bool> delivered{false};  // the program has seen it
};

/// What replays look at comes first and fills one cache line.
struct alignas(64) Value : Recycled<Value> {
  uint32_t refs = 0;     // its buffer, operands of recorded nodes, and readers outside the graph
  uint32_t holds = 0;    // flights that it is part of; these do not keep it from being overwritten
  uint32_t readers = 0;  // of `refs`: those outside the graph
  bool held_by_graph = false;  // data that only the graph keeps alive (counted)
  bool has_history = false;    // the graph that computed it is kept (Program::history)
  bool has_beside = false;     // a backend keeps something beside its data (Program::beside)
  Node* producer = nullptr;    // set until its data is there
  int64_t nbytes = 0;
  c10::Storage data;        // set when it is there
  Buffer* owner = nullptr;  // the buffer whose current value this is
  std::shared_ptr<Failure> failure;
  uint64_t origin = 0;  // the id of the buffer that it was made for
  int output = -1;      // which output of the producer
  // Its place in what is recorded now (ir/segment.h).
  uint32_t place = 0;
  uint64_t segment = 0;
  // Scratch of the collection in progress.
  uint32_t slot = 0;
  uint64_t epoch = 0;
  Value* next_garbage = nullptr;

  inline bool pending() const;
  inline bool in_flight() const;
  bool undefined() const { return !producer && !data && !failure; }
};

struct Node : Recycled<Node> {
  uint32_t refs = 0;  // outputs that something holds; one more for an effect
  uint64_t sequence = 0;
  DescriptionPtr description;
  c10::SmallVector<Value*, 4> operands;
  c10::SmallVector<Value*, 3> outputs;  // fresh outputs, then one per write; null: dead or repeated
  c10::SmallVector<c10::IValue, 2> numbers;
  std::shared_ptr<const std::string> scope;  // with TORCH_LAZY_IR_DEBUG
  std::string source;
  Flight* flight = nullptr;  // while it is scheduled
  bool failed = false;       // an attempt to execute it failed
  bool parked = false;       // it, or what it needs, failed: runs only when something needs it
  uint32_t place = 0;        // in the segment
  uint64_t epoch = 0;
  Node* previous = nullptr;  // pending nodes, in the order of the program
  Node* next = nullptr;
  Node* next_garbage = nullptr;
};

bool Value::pending() const {
  return producer && !producer->flight;
}

bool Value::in_flight() const {
  return producer && producer->flight;
}

/// One cache line: replays look at many.
struct alignas(64) Buffer : Recycled<Buffer> {
  uint64_t id = 0;
  int64_t nbytes = 0;
  Value* current = nullptr;    // null: undefined
  uint64_t generation = 0;     // values it has had
  uint64_t epoch = 0;          // scratch of who looks for aliases
  Buffer* previous = nullptr;  // live buffers
  Buffer* next = nullptr;
  c10::DeviceIndex device = 0;
  bool listed = false;
  // What the replay that is being executed does to it; its memory is the replay's then.
  enum class Replay : uint8_t { none, reads, writes } replay = Replay::none;
  bool abandoned = false;  // its storage is gone; the replay frees it
  // Of the current value (LazyTensor): it was asked for as a leaf of the graph; it is known to the
  // program as host data.
  bool leaf = false;
  bool host = false;
};

/// The graph that computed a value which is there: for dumps and hashes of tensors that were read.
struct History {
  std::shared_ptr<const Graph> graph;
  uint32_t slot = 0;
  std::shared_ptr<const std::vector<c10::IValue>> numbers;  // of the run
};

/// The graph lock, held. It guards every field above, the list below and the description table.
/// Nothing that may take the interpreter's lock happens under it: what dies meanwhile is collected
/// here and freed after unlocking.
class TORCH_LAZY_API GraphLock {
 public:
  GraphLock();
  /// Also waits until no replay on another thread is about to change one of these: what is recorded
  /// or read comes after it. Null ones are left out. Not for who holds the scheduling lock.
  explicit GraphLock(c10::ArrayRef<Buffer*> buffers);
  explicit GraphLock(Buffer& buffer);
  ~GraphLock();
  GraphLock(const GraphLock&) = delete;
  GraphLock& operator=(const GraphLock&) = delete;

  void trash(Value* value);
  void trash(Node* node);

 private:
  void wait_for_replay(c10::ArrayRef<Buffer*> buffers);

  std::unique_lock<RankedMutex> lock_;
  Value* values_ = nullptr;
  Node* nodes_ = nullptr;
};

/// The pending nodes in program order, and the live buffers. Every function needs the graph lock.
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

  /// A hold for a run that was scheduled.
  void hold(Value* value) { ++value->holds; }
  void let_go(Value* value, GraphLock& lock);

  /// A reader outside the graph: the value's memory stays as it is.
  void begin_reading(Value* value);
  void end_reading(Value* value, GraphLock& lock);

  /// Adds a recorded node at the end. Its operands and outputs are set. `recorder`: the trace of
  /// the thread that records; null: none is followed.
  void append(Node* node, Trace* recorder);
  /// Takes a node out of the pending ones: it is scheduled.
  void take_out(Node* node);
  /// Puts nodes (in program order) that were taken out back into their places.
  void put_back(c10::ArrayRef<Node*> nodes);
  /// A pending node that failed waits until something needs it.
  void park(Node* node);
  /// Ends the life of a node that was taken out and executed: its outputs stand alone.
  void retire(Node* node, GraphLock& lock);
  /// Ends the life of a node that never runs.
  void drop(Node* node, GraphLock& lock);

  inline void set_data(Value* value, c10::Storage storage);
  /// Moves the data out, for a run that may write into it.
  inline c10::Storage take_data(Value* value);
  /// What a backend keeps beside the value's data; null: the data may change.
  std::shared_ptr<Beside> beside(Value* value);
  /// The data changes, or is about to.
  inline void forget_beside(Value* value);
  /// Somebody outside may write into the memory of the value's data from now on, whichever value it
  /// becomes the data of.
  void expose(Value* value);
  /// Keeps something that the host language or a backend may have to do with until after unlocking.
  void free_later(std::shared_ptr<const void> object) {
    if (object) {
      forgotten_.push_back(std::move(object));
    }
  }
  std::vector<std::shared_ptr<const void>> take_forgotten() {
    return std::exchange(forgotten_, {});
  }

  /// A replay on this thread has marked its buffers; it has freed them again.
  void begin_replay() { replaying_ = std::this_thread::get_id(); }
  void end_replay();

  Node* first() const { return first_; }
  Node* last() const { return last_; }
  /// Nodes that the next run of everything consists of: those in the list that are not parked.
  size_t pending() const { return pending_; }
  size_t parked() const { return parked_; }
  /// Of the list: nodes that are kept for what they do.
  size_t effects() const { return effects_; }
  int64_t bytes_held() const { return bytes_held_; }
  int64_t bytes_allocated() const { return bytes_allocated_; }
  int64_t peak_bytes() const { return peak_bytes_; }
  void reset_peak() { peak_bytes_ = bytes_allocated_; }
  uint64_t next_epoch() { return ++epoch_; }

  /// Buffers that tensors refer to, by id; of one device or of all.
  std::vector<Buffer*> live_buffers(std::optional<c10::DeviceIndex> device) const;
  void list(Buffer& buffer);
  void unlist(Buffer& buffer);

  Segment& segment() { return segment_; }

  /// The devices that ever had a buffer, in order.
  std::vector<c10::DeviceIndex> devices() const;

  /// Told when buffers come and go, under the graph lock; null: nobody.
  using Observer = void (*)(const Buffer& buffer, bool born);
  void set_observer(Observer observer) { observer_ = observer; }

  void remember(Value* value, History history);
  inline void forget_history(Value* value);
  const History* history(const Value* value) const;
  void forget_histories();

 private:
  friend class GraphLock;

  void link(Node* node, Node* before);
  void unlink(Node* node);
  void free_unreachable(Value* value, GraphLock& lock);
  inline void count_bytes(int64_t bytes);
  void drop_beside(Value* value);
  void drop_history(Value* value);
  inline void update_held(Value* value);

  Node* first_ = nullptr;
  Node* last_ = nullptr;
  Buffer* first_buffer_ = nullptr;
  size_t pending_ = 0;
  size_t parked_ = 0;
  uint64_t sequence_ = 0;
  uint64_t epoch_ = 0;
  int64_t bytes_held_ = 0;
  int64_t bytes_allocated_ = 0;
  int64_t peak_bytes_ = 0;
  Segment segment_;
  std::unordered_map<Value*, History> histories_;
  std::unordered_map<Value*, std::shared_ptr<Beside>> besides_;
  std::vector<std::shared_ptr<const void>> forgotten_;
  std::thread::id replaying_;  // the thread whose replay has marked buffers
  // Storages that somebody outside may write into. While one is here, no other has its address.
  std::unordered_map<const c10::StorageImpl*, c10::weak_intrusive_ptr<c10::StorageImpl>> exposed_;
  size_t most_exposed_ = 64;  // then it is looked which of them are freed
  std::bitset<128> devices_;
  Observer observer_ = nullptr;
  size_t effects_ = 0;
};

// Replays call these for every tensor.

void Program::count_bytes(int64_t bytes) {
  bytes_allocated_ += bytes;
  peak_bytes_ = std::max(peak_bytes_, bytes_allocated_);
}

void Program::update_held(Value* value) {
  const bool held = value->data && !value->owner;
  if (held != value->held_by_graph) {
    bytes_held_ += held ? value->nbytes : -value->nbytes;
    value->held_by_graph = held;
  }
}

void Program::set_data(Value* value, c10::Storage storage) {
  forget_beside(value);
  value->data = std::move(storage);
  count_bytes(value->nbytes);
  update_held(value);
}

c10::Storage Program::take_data(Value* value) {
  forget_beside(value);
  c10::Storage storage = std::move(value->data);
  count_bytes(-value->nbytes);
  update_held(value);
  return storage;
}

void Program::forget_history(Value* value) {
  if (value && value->has_history) {
    drop_history(value);
  }
}

void Program::forget_beside(Value* value) {
  if (value->has_beside) {
    drop_beside(value);
  }
}

}  // namespace torch_lazy
