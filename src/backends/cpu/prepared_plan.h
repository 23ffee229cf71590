// A compiled graph, ready to be run: the program, where its values live, machine code of its
// kernels, and for each batch what a run does, in which order. Made once; runs only read it.
#pragma once

#include "backends/aten/interpreter.h"
#include "backends/cpu/convolution.h"
#include "backends/cpu/kernel_library.h"
#include "compile/emit.h"
#include "compile/memory.h"
#include <torch_lazy/metrics.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace torch_lazy {

struct PreparedLaunch {
  compile::Launch launch;
  KernelPtr kernel;
  size_t first_pointer = 0;  // in the run's tables
  size_t pointers = 0;
  size_t first_scalar = 0;
  bool scalars_are_there = false;  // they are those of the launch before it
};

/// Where a pointer that a kernel gets comes from.
struct PointerSource {
  enum class Kind : uint8_t { scratch, arena, storage };
  Kind kind = Kind::storage;
  uint32_t slot = 0;   // storage
  int64_t offset = 0;  // in bytes, from the arena's or the storage's beginning
};

/// A copy of a base's content, made before a write that is not in place and not of everything.
struct ContentCopy {
  uint32_t from = 0;
  uint32_t to = 0;
};

struct PreparedBatch {
  bool call = false;
  const compile::Product* product = nullptr;
  bool own_product = false;  // decided once: the same bits in every run
  std::shared_ptr<const PreparedConvolution> convolution;  // likewise, for a convolution
  int64_t weight = -1;  // the number of the graph's parameter that is its weight; -1: none
  metrics::Counter* called = nullptr;  // call
  int64_t call_bytes = 0;              // call: of its results
  uint32_t node = 0;                   // the last one that it computes
  std::vector<uint32_t> operands;      // call: arena slots that need a storage
  std::vector<PreparedLaunch> launches;
  std::vector<ContentCopy> copies;
  std::vector<uint32_t> cleared;   // slots whose memory is zeroed before
  std::vector<uint32_t> made;      // slots with memory of their own that appear here
  std::vector<ContentCopy> moves;  // writes in place: the storage goes on to the next version
  std::vector<uint32_t> done;      // slots to let go of: what is in the arena alone needs nothing
  int64_t units = 0;
  int64_t elements = 0;
  int64_t scratch_bytes = 0;
};

/// A parameter that is written, and its buffer's last version.
struct LastVersion {
  uint32_t parameter = 0;  // which of the graph's
  uint32_t last = 0;       // slot
};

struct PreparedPlan {
  /// Compiles the graph and all its kernels. Throws when that is not possible.
  explicit PreparedPlan(const std::shared_ptr<const Graph>& graph);
  PreparedPlan(const PreparedPlan&) = delete;  // batches point into the program
  PreparedPlan& operator=(const PreparedPlan&) = delete;

  std::shared_ptr<const Graph> graph;
  compile::Program program;
  compile::MemoryPlan memory;
  Interpreter interpreter;  // of the calls
  std::vector<LastVersion> last_versions;
  std::vector<PreparedBatch> batches;   // one for each of the memory plan's
  std::vector<PointerSource> pointers;  // of all launches, in order
  size_t scalars = 0;                   // of all launches
  int64_t bytes = 0;                    // about what all this takes, without the graph
};

/// Which operators became which kernels.
std::string summary(const PreparedPlan& plan);

}  // namespace torch_lazy
