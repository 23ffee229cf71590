// What a thread recorded before: a tree of calls from the places where nothing was pending. Each
// step knows its description and where its operands come from; each sync that was made at a step
// knows its plan.
#pragma once

#include "ir/collection.h"
#include <torch_lazy/export.h>

#include <c10/util/SmallVector.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace torch_lazy {

struct Plan;  // runtime/plan_cache.h

/// What a sync asks for.
struct SyncRequest {
  std::optional<c10::DeviceIndex> device;  // everything of one device; none: of all
  bool everything = false;
  bool to_write = false;       // also who reads the asked values
  std::vector<Value*> values;  // when not everything
};

/// A sync that was made at a step before, and what it ran, in terms of the segment.
struct KnownSync {
  int64_t scope = 0;            // everything or not, device, to_write
  std::vector<uint32_t> asked;  // places
  Bits kept;
  Bits dead;
  std::weak_ptr<Plan> plan;
  std::vector<uint32_t> nodes;       // by their index in the segment
  std::vector<uint32_t> values;      // the place of each slot
  std::vector<uint32_t> parameters;  // slots
  std::vector<char> kept_slots;
  std::unique_ptr<TraceStep> after;  // what was recorded after it while nodes were still pending
};

struct TraceStep {
  DescriptionPtr description;
  c10::SmallVector<uint32_t, 4> operands;  // places, or how an operand that is new here lies there
  uint64_t hits = 0;
  c10::SmallVector<std::unique_ptr<TraceStep>, 1> children;  // the last one taken first
  std::vector<std::unique_ptr<KnownSync>> syncs;
};

/// The tree of one thread. Only that thread changes it, under the graph lock; it may look at it
/// without.
class Trace {
 public:
  TORCH_LAZY_API static Trace& of_this_thread();
  Trace();
  ~Trace();

  /// The description of this call if one of the calls that came next before is equal.
  Description* expect(const OperatorInfo& op, const Key& key) const;

  /// One call further. Needs the graph lock.
  TraceStep* advance(TraceStep* from, Description* description, c10::ArrayRef<uint32_t> operands);
  TraceStep* root() { return &root_; }
  void move_to(TraceStep* step) { cursor_ = step; }

  /// A known sync at the segment's step, or null. Needs the graph lock.
  KnownSync* find(Segment& segment, const SyncRequest& request);
  /// Remembers a sync that was not known. Needs the graph lock.
  KnownSync* add(Segment& segment, const SyncRequest& request, const Collection& collection);

  /// Forgets everything if the tree has outgrown its bound. Not while a call is being recorded.
  void trim();
  TORCH_LAZY_API void reset();
  size_t steps() const { return steps_; }
  /// The tree in the language of Graphviz.
  TORCH_LAZY_API std::string dot() const;

 private:
  TraceStep root_;
  TraceStep* cursor_ = &root_;
  size_t steps_ = 0;
};

/// The nodes and values of the segment that a known sync runs. Needs the graph lock.
Collection collection_of(const KnownSync& known, const Segment& segment);

}  // namespace torch_lazy
