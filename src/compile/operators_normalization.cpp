// Rows of the table of operators: softmax and norms, forward and backward.
#include "compile/lowering.h"
#include "compile/places.h"

namespace torch_lazy::compile {
namespace {

/// Begins a piece over an argument's sizes with one dimension reduced; gives the computing type.
std::optional<Type> begin_along(Lowering& l, size_t argument, size_t dim_argument) {
  const Layout& layout = l.layout(argument);
  const std::optional<Type> type = type_of(layout.dtype);
  const auto rank = static_cast<int64_t>(layout.sizes.size());
  if (!type || !codegen::is_float(*type) || rank == 0) {
    return std::nullopt;
  }
  int64_t dim = l.constant(dim_argument).toInt();
  dim += dim < 0 ? rank : 0;
  l.begin_reduction(layout.sizes, {dim});
  return compute_type(*type);
}

/// One division for a row. The sum of a softmax is at least 1, or not a number.
int32_t inverse(Lowering& l, int32_t sum) {
  return l.make(Opcode::div, l.constant_of(l.type(sum), 1), sum);
}

// NaN need not enter the greatest number of a row: the row's sum carries it to all elements.

bool softmax(Lowering& l) {
  const std::optional<Type> type = begin_along(l, 0, 1);
  if (!type) {
    return false;
  }
  const int32_t x = l.load(0, *type);
  const int32_t top = l.make(Opcode::reduce_fmax, x);
  const int32_t e = l.make(Opcode::exp, l.make(Opcode::sub, x, top));
  const int32_t sum = l.make(Opcode::reduce_sum, e);
  l.store(0, l.make(Opcode::mul, e, inverse(l, sum)));
  l.end();
  return true;
}

/// Softmax whose rows of nothing but -infinity are zeros.
bool safe_softmax(Lowering& l) {
  const std::optional<Type> type = begin_along(l, 0, 1);
  if (!type) {
    return false;
  }
  const int32_t x = l.load(0, *type);
  const int32_t top = l.make(Opcode::reduce_max, x);
  const int32_t nothing = l.constant_of(*type, -kInfinity);
  const int32_t empty = l.make(Opcode::eq, top, nothing);
  const int32_t e = l.make(Opcode::exp, l.make(Opcode::sub, x, top));
  const int32_t y = l.make(Opcode::mul, e, inverse(l, l.make(Opcode::reduce_sum, e)));
  l.store(0, l.make(Opcode::select, empty, l.constant_of(*type, 0), y));
  l.end();
  return true;
}

bool log_softmax(Lowering& l) {
  const std::optional<Type> type = begin_along(l, 0, 1);
  if (!type) {
    return false;
  }
  const int32_t x = l.load(0, *type);
  const int32_t top = l.make(Opcode::reduce_fmax, x);
  const int32_t shifted = l.make(Opcode::sub, x, top);
  const int32_t sum = l.make(Opcode::reduce_sum, l.make(Opcode::exp, shifted));
  l.store(0, l.make(Opcode::sub, shifted, l.make(Opcode::log, sum)));
  l.end();
  return true;
}

bool softmax_backward(Lowering& l) {  // grad_output, output, dim, input_dtype
  const std::optional<Type> type = begin_along(l, 1, 2);
  if (!type) {
    return false;
  }
  const int32_t gy = l.make(Opcode::mul, l.load(0, *type), l.load(1, *type));
  const int32_t sum = l.make(Opcode::reduce_sum, gy);
  l.store(0, l.make(Opcode::sub, gy, l.make(Opcode::mul, l.load(1, *type), sum)));
  l.end();
  return true;
}

bool log_softmax_backward(Lowering& l) {
  const std::optional<Type> type = begin_along(l, 1, 2);
  if (!type) {
    return false;
  }
  const int32_t g = l.load(0, *type);
  const int32_t sum = l.make(Opcode::reduce_sum, g);
  const int32_t e = l.make(Opcode::exp, l.load(1, *type));
  l.store(0, l.make(Opcode::sub, g, l.make(Opcode::mul, e, sum)));
  l.end();
  return true;
}

/// Begins a piece whose last `inner` dimensions are reduced.
std::optional<Type> begin_rows(Lowering& l, size_t argument, size_t shape_argument, int64_t* n) {
  const Layout& layout = l.layout(argument);
  const std::optional<Type> type = type_of(layout.dtype);
  if (!type || !codegen::is_float(*type)) {
    return std::nullopt;
  }
  const std::vector<int64_t> shape = l.constant(shape_argument).toIntVector();
  if (shape.size() > layout.sizes.size() ||
      !std::equal(shape.rbegin(), shape.rend(), layout.sizes.rbegin())) {
    return std::nullopt;
  }
  *n = count(shape);
  l.begin(layout.sizes, static_cast<int>(shape.size()));
  return compute_type(*type);
}

bool layer_norm(Lowering& l) {  // input, normalized_shape, weight, bias, eps -> y, mean, rstd
  int64_t elements = 0;
  const std::optional<Type> type = begin_rows(l, 0, 1, &elements);
  if (!type) {
    return false;
  }
  const int32_t x = l.load(0, *type);
  const int32_t n = l.fixed(*type, static_cast<double>(elements));
  const int32_t mean = l.make(Opcode::div, l.make(Opcode::reduce_sum, x), n);
  const int32_t d = l.make(Opcode::sub, x, mean);
  const int32_t var = l.make(Opcode::div, l.make(Opcode::reduce_sum, l.make(Opcode::mul, d, d)), n);
  const int32_t rstd = l.make(Opcode::div, l.constant_of(*type, 1),
                              l.make(Opcode::sqrt, l.make(Opcode::add, var, l.number(4, *type))));
  int32_t y = l.make(Opcode::mul, d, rstd);
  if (!l.is_absent(2)) {
    y = l.make(Opcode::mul, y, l.load(2, *type));
  }
  if (!l.is_absent(3)) {
    y = l.make(Opcode::add, y, l.load(3, *type));
  }
  l.store(0, y);
  l.store(1, mean);
  l.store(2, rstd);
  l.end();
  return true;
}

/// Whether the argument has a number for each row of argument 1, as the forward makes it.
bool is_statistic(const Lowering& l, size_t argument) {
  at::DimVector rows = l.layout(1).sizes;
  const size_t normalized = l.constant(2).toIntVector().size();
  std::fill(rows.end() - static_cast<std::ptrdiff_t>(normalized), rows.end(), 1);
  return l.layout(argument).sizes == rows;
}

/// grad_out, input, normalized_shape, mean, rstd, weight, bias, output_mask
bool layer_norm_backward(Lowering& l) {
  int64_t elements = 0;
  std::optional<Type> type = begin_rows(l, 1, 2, &elements);
  if (!type || !l.is_tensor(0) || l.layout(0).sizes != l.layout(1).sizes || !l.is_tensor(3) ||
      !l.is_tensor(4) || !is_statistic(l, 3) || !is_statistic(l, 4)) {
    return false;
  }
  auto normalized = [&] {
    return l.make(Opcode::mul, l.make(Opcode::sub, l.load(1, *type), l.load(3, *type)),
                  l.load(4, *type));
  };
  const size_t input = l.returned(0);
  const size_t weight = l.returned(1);
  const size_t bias = l.returned(2);
  if (l.wanted(input)) {
    const int32_t xhat = normalized();
    int32_t g = l.load(0, *type);
    if (!l.is_absent(5)) {
      g = l.make(Opcode::mul, g, l.load(5, *type));
    }
    const int32_t n = l.fixed(*type, static_cast<double>(elements));
    const int32_t mean_g = l.make(Opcode::div, l.make(Opcode::reduce_sum, g), n);
    const int32_t mean_gx =
        l.make(Opcode::div, l.make(Opcode::reduce_sum, l.make(Opcode::mul, g, xhat)), n);
    const int32_t inner =
        l.make(Opcode::sub, l.make(Opcode::sub, g, mean_g), l.make(Opcode::mul, xhat, mean_gx));
    l.store(input, l.make(Opcode::mul, l.load(4, *type), inner));
    l.end();
  }
  if (l.wanted(weight) || l.wanted(bias)) {
    const Layout& x = l.layout(1);
    const size_t normalized_dims = l.constant(2).toIntVector().size();
    std::vector<int64_t> rows;
    for (size_t k = 0; k + normalized_dims < x.sizes.size(); ++k) {
      rows.push_back(static_cast<int64_t>(k));
    }
    if (rows.empty()) {
      return false;
    }
    l.begin_reduction(x.sizes, rows);
    const int32_t g = l.load(0, *type);
    if (l.wanted(weight)) {
      l.store(weight, l.make(Opcode::reduce_sum, l.make(Opcode::mul, g, normalized())));
    }
    if (l.wanted(bias)) {
      l.store(bias, l.make(Opcode::reduce_sum, g));
    }
    l.end();
  }
  return true;
}

constexpr OperatorRow kRows[] = {
    {"_log_softmax", log_softmax},
    {"_log_softmax_backward_data", log_softmax_backward},
    {"_safe_softmax", safe_softmax},
    {"_softmax", softmax},
    {"_softmax_backward_data", softmax_backward},
    {"native_layer_norm", layer_norm},
    {"native_layer_norm_backward", layer_norm_backward},
};

}  // namespace

c10::ArrayRef<OperatorRow> normalization_rows() {
  return kRows;
}

}  // namespace torch_lazy::compile
