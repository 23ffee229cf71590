// What is being recorded now, followed beside what the thread recorded before (ir/trace.h). While
// it goes the same way, calls reuse descriptions, and a sync at a known place finds its plan.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace torch_lazy {

class Trace;
struct Node;
struct TraceStep;
struct Value;

/// A growing set of small numbers.
class Bits {
 public:
  void clear() { words_.clear(); }
  void set(size_t i, bool on) {
    const size_t word = i / 64;
    if (word >= words_.size()) {
      words_.resize(word + 1);
    }
    const uint64_t bit = uint64_t{1} << (i % 64);
    words_[word] = on ? words_[word] | bit : words_[word] & ~bit;
  }
  bool operator==(const Bits& other) const { return words_ == other.words_; }

 private:
  std::vector<uint64_t> words_;
};

/// The nodes recorded since nothing was pending, by one thread, and the values that they touch in
/// the order in which they met them. Guarded by the graph lock.
///
/// Which graph a sync has to run follows from the path of calls, and from which values something
/// outside the graph still wants (`kept`) or nothing wants any more (`dead`): these sets are kept
/// up to date while values come and go, so that at a sync they need only be compared.
struct Segment {
  uint64_t id = 0;
  Trace* trace = nullptr;      // of the thread that records
  TraceStep* at = nullptr;     // the last step; null: no trace is followed
  std::vector<Value*> values;  // by place
  std::vector<Node*> nodes;    // by index
  Bits kept;
  Bits dead;

  /// Starts over at the root of `next`; null: nothing is followed.
  void begin(Trace* next);
  /// Follows no trace any more, until nothing is pending.
  void leave() { at = nullptr; }
  /// A node was recorded by the thread of `recorder`.
  void append(Node* node, Trace* recorder);

  inline void update(const Value* value);
  inline void died(const Value* value);

 private:
  void place(Value* value);
};

}  // namespace torch_lazy
