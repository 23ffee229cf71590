// What capture must know of an operator, read once from its schema and from the table of
// exceptions (operators whose schema does not tell the truth, or whose numbers matter).
#pragma once

#include <torch_lazy/export.h>

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <string>
#include <vector>

namespace torch_lazy {

namespace metrics {
class Counter;
}

enum class ArgumentKind : uint8_t { tensor, tensor_list, number, number_list, other };

/// What a number among the arguments is to a graph.
enum class NumberPolicy : uint8_t {
  input,      // travels beside the parameters; a new value needs no new graph
  factor,     // likewise, but whether it is 1 is part of the graph
  by_class,   // likewise, but its class (negative, 0, 1, 2, infinite, ...) is part of the graph
  attribute,  // its value is part of the graph: it decides the layout of the result
};

struct ArgumentInfo {
  ArgumentKind kind = ArgumentKind::other;
  NumberPolicy policy = NumberPolicy::input;
  bool written = false;
};

struct ReturnInfo {
  enum class Kind : uint8_t { fresh, view, written };
  Kind kind = Kind::fresh;
  int argument = -1;  // the one it is a view of, or the one written and returned
};

/// Why an operator is executed at once instead of being recorded.
enum class Immediate : uint8_t {
  no,
  data_dependent,  // the shape of a result, or a result that is no tensor, depends on data
  random,          // draws random numbers; what it draws may depend on data
  unsupported_arguments,
};

struct OperatorInfo {
  c10::OperatorHandle handle;
  c10::OperatorName operator_name;  // a copy: it outlives a custom operator that is deregistered
  std::string name;                 // with the overload: "aten::add.Tensor"
  uint64_t identity = 0;            // from the schema's text: the same in every process
  std::vector<ArgumentInfo> arguments;
  std::vector<ReturnInfo> returns;
  Immediate immediate = Immediate::no;
  bool writes = false;       // some argument is written
  bool only_views = false;   // makes views of its arguments, no data
  bool random_fill = false;  // random numbers written over the whole of self, nothing read
  bool effect = false;       // neither results nor writes: kept for what it does
  bool overwrites = false;   // the written argument's old content is not read
  bool writes_unannotated_statistics = false;  // native_batch_norm and its relatives
  bool returns_alias_unannotated = false;      // _unsafe_view: a view, though the schema is silent
  bool dynamic_only_with_masks = false;  // index: a boolean index has as many results as it is true
  bool bumps_versions = false;  // eager counts a write to each element of the written lists
  bool pointwise = false;
  bool lists_of_optional_tensors = false;  // the indices of index
  bool aten = false;
  metrics::Counter* captured = nullptr;
  metrics::Counter* reused = nullptr;  // when a call equals the one of the last trace

  explicit OperatorInfo(const c10::OperatorHandle& op);

  /// Raises a clear error if a custom operator has been deregistered since it was recorded.
  void check_registered() const {
    if (!aten) {
      check_still_there();
    }
  }

 private:
  TORCH_LAZY_API void check_still_there() const;
};

/// The facts about `op`; safe from any thread.
TORCH_LAZY_API const OperatorInfo& operator_info(const c10::OperatorHandle& op);

}  // namespace torch_lazy
