// Where the values of a program live: memory that is there, memory of their own, or the arena.
#pragma once

#include "compile/program.h"

namespace torch_lazy::compile {

/// Steps that run together: one call, or pieces that do not depend on each other.
struct Batch {
  std::vector<uint32_t> steps;
  std::vector<uint32_t> done;  // slots that nothing needs after it and that do not survive
  std::vector<uint32_t>
      hosts;  // groups whose memory is used from here on, before they are computed
};

struct Home {
  enum class Kind : uint8_t {
    outside,  // what the slot `group` has in the run: a parameter's data, or a call's result
    own,      // memory of its own, allocated for `group`
    arena,    // at `offset` in the arena, or in the memory of a result that is computed later
  };
  Kind kind = Kind::outside;
  uint32_t group = 0;  // the first slot with this memory: later versions are written in place
  int32_t host = -1;   // arena: the group of the result whose memory it is in
  int64_t offset = 0;
  bool in_place = false;  // it is written into its base's memory
  bool covered = false;   // it is written whole: its base's content does not matter
};

struct MemoryPlan {
  std::vector<Batch> batches;
  std::vector<Home> homes;       // by slot
  std::vector<size_t> last_use;  // by slot: batch
  int64_t arena_bytes = 0;
  int64_t live_bytes = 0;    // the most that is in use at once, of the arena and in hosts
  size_t commit = 0;         // the first batch that overwrites data from before the run
  size_t last_fallible = 0;  // batch after which nothing can fail, + 1
};

/// Whether a call may raise an error that depends on data.
bool is_fallible(const GraphNode& node);

MemoryPlan plan_memory(const Program& program);

}  // namespace torch_lazy::compile
