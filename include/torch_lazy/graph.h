// A graph to compile and run: nodes in program order over numbered slots. This is what a backend
// sees. Two graphs with equal signatures are the same program over other data and numbers.
#pragma once

#include <torch_lazy/description.h>
#include <torch_lazy/export.h>

#include <c10/util/SmallVector.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace torch_lazy {

struct GraphNode {
  DescriptionPtr description;
  c10::SmallVector<uint32_t, 4> operands;  // slots
  c10::SmallVector<int32_t, 3> outputs;    // slots of fresh results, then of writes; -1: not needed
  uint32_t first_number = 0;
};

struct Parameter {
  uint32_t slot = 0;
  bool fresh = false;    // memory whose content does not matter: the run allocates it
  bool donated = false;  // nobody needs the value after the run: its memory may be reused
  int64_t nbytes = 0;
};

/// What a backend keeps beside data from run to run, such as a copy in another layout; by names of
/// the backend's own. It is gone as soon as the data changes or is freed.
using Beside = std::map<std::string, std::shared_ptr<void>>;

struct Graph {
  std::vector<GraphNode> nodes;
  std::vector<Parameter> parameters;
  std::vector<uint32_t> roots;  // slots whose data must be there after the run
  uint32_t slots = 0;
  uint32_t numbers = 0;
  std::array<uint64_t, 2> hash{};  // over the structure; the same in every process

  TORCH_LAZY_API std::string text() const;

  /// By slot: the slot of the last version of its buffer inside the graph.
  TORCH_LAZY_API std::vector<uint32_t> last_versions() const;

  /// By slot: the bytes of its storage.
  TORCH_LAZY_API std::vector<int64_t> slot_bytes() const;
};

}  // namespace torch_lazy
