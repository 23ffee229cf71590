// Recorded calls over numbered values, copied out of the program so that they can be written down
// without its lock.
#pragma once

#include "ir/dump_graph.h"
#include <torch_lazy/description.h>
#include <torch_lazy/graph.h>

#include <c10/util/ArrayRef.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace torch_lazy {

struct DumpCalls {
  struct Value {
    std::optional<size_t> call;  // that makes it; none: a leaf
    size_t output = 0;
    const char* leaf = "";  // its name
    int64_t nbytes = 0;
  };
  struct Call {
    DescriptionPtr description;
    std::vector<size_t> operands;  // values
    std::vector<c10::IValue> numbers;
    std::shared_ptr<const std::string> scope;
    std::string source;
  };
  struct Root {
    size_t value = 0;
    std::optional<Layout> layout;  // how a tensor lies in it; none: as it was made
  };
  std::vector<Value> values;
  std::vector<Call> calls;  // in program order
  std::vector<Root> roots;
  int device = 0;
};

/// Adds the calls of a graph that runs, or ran, on these numbers. Its slot k becomes the value
/// (result + k).
size_t append_graph(DumpCalls& calls, const Graph& graph, c10::ArrayRef<c10::IValue> numbers);

/// The graph to show. Arguments appear as in PyTorch's Lazy Tensor Core: tensors and numbers are
/// operands, everything else is a tag. A view that an operand is read through makes no node, but
/// has a vertex of its own here.
DumpGraph make_dump_graph(const DumpCalls& calls);

}  // namespace torch_lazy
