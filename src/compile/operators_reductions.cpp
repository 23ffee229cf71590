// Rows of the table of operators: sums, means, extremes and losses over dimensions.
#include "compile/lowering.h"
#include "compile/places.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace torch_lazy::compile {
namespace {

struct Reduction {
  Reduction(Lowering& lowering, Type computed) : l(lowering), type(computed) {
    const Layout& layout = l.layout(0);
    const std::optional<std::vector<int64_t>> dims = dims_named(l, "dim", layout.sizes.size());
    if (!dims || layout.sizes.empty()) {
      l.fail();
      return;
    }
    for (int64_t dim : *dims) {
      elements *= layout.sizes[dim];
    }
    l.begin_reduction(layout.sizes, *dims);
    x = l.load(0, type);
  }

  bool finish(int32_t value) {
    l.store(0, value);
    l.end();
    return true;
  }

  Lowering& l;
  Type type;
  int64_t elements = 1;
  int32_t x = -1;
};

/// The type in which a sum of a result of this dtype is accumulated.
std::optional<Type> sum_type(const Lowering& l) {
  const std::optional<Type> type = type_of(l.result_layout(0).dtype);
  if (!type || *type == Type::boolean || !l.is_tensor(0) || !type_of(l.layout(0).dtype)) {
    return std::nullopt;
  }
  return codegen::is_float(*type) ? compute_type(*type) : Type::i64;
}

template <Opcode op>
bool sum_like(Lowering& l) {
  const std::optional<Type> type = sum_type(l);
  if (!type) {
    return false;
  }
  Reduction r(l, *type);
  return !l.failed() && r.finish(l.make(op, r.x));
}

bool mean(Lowering& l) {
  const std::optional<Type> type = sum_type(l);
  if (!type || !codegen::is_float(*type)) {
    return false;
  }
  Reduction r(l, *type);
  if (l.failed()) {
    return false;
  }
  return r.finish(l.make(Opcode::div, l.make(Opcode::reduce_sum, r.x),
                         l.fixed(*type, static_cast<double>(r.elements))));
}

template <Opcode op>
bool extreme(Lowering& l) {
  const std::optional<Type> type = type_of(l.layout(0).dtype);
  if (!type || *type == Type::boolean || l.results() != 1) {
    return false;
  }
  Reduction r(l, compute_type(*type));
  return !l.failed() && r.finish(l.make(op, r.x));
}

/// max.dim and min.dim: values and positions.
template <Opcode op, Opcode position>
bool extreme_with_index(Lowering& l) {
  const std::optional<Type> type = type_of(l.layout(0).dtype);
  if (!type || *type == Type::boolean || l.is_tensor(1)) {
    return false;
  }
  if (l.results() == 1) {
    return extreme<op>(l);
  }
  if (!l.is_constant(1) || !l.constant(1).isInt()) {
    return false;
  }
  Reduction r(l, compute_type(*type));
  if (l.failed()) {
    return false;
  }
  l.store(0, l.make(op, r.x));
  l.store(1, l.make(position, r.x));
  l.end();
  return true;
}

template <Opcode op>
bool position(Lowering& l) {
  const std::optional<Type> type = type_of(l.layout(0).dtype);
  if (!type || *type == Type::boolean) {
    return false;
  }
  Reduction r(l, compute_type(*type));
  return !l.failed() && r.finish(l.make(op, r.x));
}

template <Opcode op>
bool truth(Lowering& l) {
  if (!type_of(l.layout(0).dtype)) {
    return false;
  }
  Reduction r(l, Type::boolean);
  return !l.failed() && r.finish(l.make(op, r.x));
}

/// var.correction and its relatives: sum of squared distances over n - correction.
template <bool root, bool with_mean>
bool variance(Lowering& l) {
  const std::string& name = l.description().op->name;
  if (name.find(".correction") == std::string::npos) {
    return false;
  }
  const std::optional<Type> type = sum_type(l);
  if (!type || !codegen::is_float(*type)) {
    return false;
  }
  Reduction r(l, *type);
  if (l.failed()) {
    return false;
  }
  const int32_t n = l.fixed(*type, static_cast<double>(r.elements));
  const int32_t average = l.make(Opcode::div, l.make(Opcode::reduce_sum, r.x), n);
  const int32_t distance = l.make(Opcode::sub, r.x, average);
  const int32_t sum = l.make(Opcode::reduce_sum, l.make(Opcode::mul, distance, distance));
  const int32_t correction = l.is_absent(2) ? l.constant_of(*type, 1) : l.number(2, *type);
  const int32_t rest =
      l.make(Opcode::max, l.make(Opcode::sub, n, correction), l.constant_of(*type, 0));
  int32_t value = l.make(Opcode::div, sum, rest);
  if (root) {
    value = l.make(Opcode::sqrt, value);
  }
  l.store(0, value);
  if (with_mean) {
    l.store(1, average);
  }
  l.end();
  return true;
}

bool mse_loss(Lowering& l) {  // self, target, reduction
  const std::optional<Type> type = type_of(l.result_layout(0).dtype);
  if (!type || !codegen::is_float(*type) || l.layout(0).sizes != l.layout(1).sizes ||
      l.layout(0).sizes.empty()) {
    return false;
  }
  const Type computed = compute_type(*type);
  const int64_t reduction = l.constant(2).toInt();
  const auto& sizes = l.layout(0).sizes;
  l.begin(sizes, reduction == 0 ? 0 : static_cast<int>(sizes.size()));
  const int32_t difference = l.make(Opcode::sub, l.load(0, computed), l.load(1, computed));
  int32_t value = l.make(Opcode::mul, difference, difference);
  if (reduction != 0) {
    value = l.make(Opcode::reduce_sum, value);
  }
  if (reduction == 1) {
    value = l.make(Opcode::div, value, l.fixed(computed, static_cast<double>(count(sizes))));
  }
  l.store(0, value);
  l.end();
  return true;
}

constexpr OperatorRow kRows[] = {
    {"all", truth<Opcode::reduce_all>},
    {"amax", extreme<Opcode::reduce_max>},
    {"amin", extreme<Opcode::reduce_min>},
    {"any", truth<Opcode::reduce_any>},
    {"argmax", position<Opcode::reduce_argmax>},
    {"argmin", position<Opcode::reduce_argmin>},
    {"max", extreme_with_index<Opcode::reduce_max, Opcode::reduce_argmax>},
    {"mean", mean},
    {"min", extreme_with_index<Opcode::reduce_min, Opcode::reduce_argmin>},
    {"mse_loss", mse_loss},
    {"prod", sum_like<Opcode::reduce_prod>},
    {"std", variance<true, false>},
    {"std_mean", variance<true, true>},
    {"sum", sum_like<Opcode::reduce_sum>},
    {"var", variance<false, false>},
    {"var_mean", variance<false, true>},
};

}  // namespace

c10::ArrayRef<OperatorRow> reduction_rows() {
  return kRows;
}

}  // namespace torch_lazy::compile
