// Rows of the table of operators: matrix products. They stay products, but what is added to them
// becomes a piece, which is merged with what comes after.
#include "compile/lowering.h"
#include "compile/places.h"

#include <algorithm>

namespace torch_lazy::compile {
namespace {

bool is_float(const Layout& layout) {
  const std::optional<Type> type = type_of(layout.dtype);
  return type && codegen::is_float(*type) && !layout.conj && !layout.neg;
}

/// Whether a library can write it: rows one after the other.
bool is_dense(const Layout& layout) {
  int64_t stride = 1;
  for (size_t k = layout.sizes.size(); k-- > 0;) {
    if (layout.sizes[k] != 1 && layout.strides[k] != stride) {
      return false;
    }
    stride *= layout.sizes[k];
  }
  return true;
}

/// mm and bmm
bool product(Lowering& l) {
  if (!l.is_tensor(0) || !l.is_tensor(1) || l.results() != 1 || !l.wanted(0) ||
      !l.description().writes.empty() || l.description().arguments.size() != 2) {
    return false;
  }
  const Layout& out = l.result_layout(0);
  if (!is_float(l.layout(0)) || !is_float(l.layout(1)) || !is_dense(out)) {
    return false;
  }
  l.product(l.view(0), l.view(1), l.result_view(0));
  return true;
}

/// A product in memory of its own, and the piece that adds to it. Half types round in between in
/// eager's way only when it is one call, so they stay one.
bool add_to_product(Lowering& l, View a, View b, size_t added) {
  const Layout& result = l.result_layout(0);
  const Type type = *type_of(result.dtype);
  if (type != Type::f32 && type != Type::f64) {
    return false;
  }
  at::DimVector sizes(a.layout.sizes.begin(), a.layout.sizes.end() - 1);
  sizes.push_back(b.layout.sizes.back());
  const View made = hand_over(l, type, sizes);
  l.product(std::move(a), std::move(b), made);
  // The piece sees the product in the result's sizes: of linear, they may have more dimensions.
  Layout seen = made.layout;
  seen.sizes = result.sizes;
  seen.strides = c10::contiguous_strides(result.sizes);
  l.begin(result.sizes);
  l.store(0, l.make(Opcode::add, l.load_layout(made.slot, seen, type), l.load(added, type)));
  l.end();
  return true;
}

bool addmm(Lowering& l) {  // self, a, b, beta, alpha
  if (!l.is_tensor(0) || !l.is_tensor(1) || !l.is_tensor(2) || l.results() != 1 || !l.wanted(0) ||
      !l.description().writes.empty() || !number_is(l, 3, kClassOne, 1) ||
      !number_is(l, 4, kClassOne, 1) || !is_float(l.layout(0)) || !is_float(l.layout(1)) ||
      !is_float(l.layout(2))) {
    return false;
  }
  return add_to_product(l, l.view(1), l.view(2), 0);
}

/// input [..., k], weight [m, k], bias [m]
bool linear(Lowering& l) {
  if (!l.is_tensor(0) || !l.is_tensor(1) || l.results() != 1 || !l.wanted(0) ||
      !l.description().writes.empty() || !is_float(l.layout(0)) || !is_float(l.layout(1)) ||
      l.layout(1).sizes.size() != 2 || l.layout(0).sizes.size() < 2 ||
      l.layout(0).sizes.back() != l.layout(1).sizes[1] || !is_dense(l.layout(0)) ||
      !is_dense(l.result_layout(0))) {
    return false;
  }
  View a = l.view(0);
  const int64_t k = a.layout.sizes.back();
  int64_t rows = 1;
  for (size_t i = 0; i + 1 < a.layout.sizes.size(); ++i) {
    rows *= a.layout.sizes[i];
  }
  a.layout.sizes = {rows, k};
  a.layout.strides = {k, 1};
  View b = transposed(l.view(1));
  if (l.is_absent(2)) {
    Layout out = l.result_layout(0);
    out.sizes = {rows, b.layout.sizes[1]};
    out.strides = {b.layout.sizes[1], 1};
    l.product(std::move(a), std::move(b), {static_cast<uint32_t>(l.node().outputs[0]), out});
    return true;
  }
  return l.is_tensor(2) && is_float(l.layout(2)) &&
         add_to_product(l, std::move(a), std::move(b), 2);
}

constexpr OperatorRow kRows[] = {
    {"addmm", addmm},
    {"bmm", product},
    {"linear", linear},
    {"mm", product},
};

}  // namespace

c10::ArrayRef<OperatorRow> product_rows() {
  return kRows;
}

}  // namespace torch_lazy::compile
