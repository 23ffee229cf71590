// Where the values of a program live: memory that is there, memory of their own, or the arena.
#pragma once

#include "compile/program.h"

namespace torch_lazy::compile {

/// Steps that run together: one call, or pieces that do not depend on each other.
struct Batch {
  std::vector<uint32_t> steps;
  std::vector<uint32_t> done;  // slots that nothing needs after it and that do not survive
};

/// Bytes of a value that has a block of its own.
constexpr int64_t kBlock = 64 << 10;

struct Home {
  enum class Kind : uint8_t {
    outside,  // what the slot `group` has in the run: a parameter's data, or a call's result
    own,      // memory of its own that survives the run, allocated for `group`
    block,    // the same, from the pool of blocks and back: it is large
    arena,    // at `offset` in the arena
  };
  Kind kind = Kind::outside;
  uint32_t group = 0;  // the first slot with this memory: later versions are written in place
  int64_t offset = 0;
  bool in_place = false;  // it is written into its base's memory
  bool covered = false;   // it is written whole: its base's content does not matter
};

struct MemoryPlan {
  std::vector<Batch> batches;
  std::vector<Home> homes;       // by slot
  std::vector<size_t> last_use;  // by slot: batch
  int64_t arena_bytes = 0;
  int64_t live_bytes = 0;    // the most that blocks and values in the arena take at once
  int64_t late_bytes = 0;    // the most that values made from `commit` on take at once
  size_t commit = 0;         // the first batch that overwrites data from before the run
  size_t last_fallible = 0;  // batch after which nothing can fail, + 1
};

/// Whether a call may raise an error that depends on data.
bool is_fallible(const GraphNode& node);

MemoryPlan plan_memory(const Program& program);

}  // namespace torch_lazy::compile
