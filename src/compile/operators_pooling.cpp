// Rows of the table of operators: the greatest element of each window.
#include "compile/lowering.h"
#include "compile/places.h"

#include <array>

namespace torch_lazy::compile {
namespace {

/// Windows along one dimension.
struct Windows {
  int64_t size = 0;
  int64_t step = 0;
  int64_t padding = 0;
  int64_t inputs = 0;
  int64_t outputs = 0;

  /// Whether the element `tap` of a window is beside the input for some of them.
  bool may_be_before(int64_t tap) const { return tap < padding; }
  bool may_be_behind(int64_t tap) const { return (outputs - 1) * step - padding + tap >= inputs; }
};

/// A list of one or two numbers, or of none.
std::array<int64_t, 2> two(const Lowering& l, size_t argument,
                           const std::array<int64_t, 2>& if_empty) {
  const std::vector<int64_t> values = l.constant(argument).toIntVector();
  return values.empty() ? if_empty : std::array<int64_t, 2>{values.front(), values.back()};
}

/// self, kernel size, stride, padding, dilation, ceil mode. Nothing for windows with gaps.
std::optional<std::array<Windows, 2>> windows(const Lowering& l) {
  for (size_t argument = 1; argument <= 4; ++argument) {
    if (!l.is_constant(argument)) {
      return std::nullopt;
    }
  }
  const std::array<int64_t, 2> one{1, 1};
  if (two(l, 4, one) != one) {
    return std::nullopt;
  }
  const auto kernel = two(l, 1, one);
  const auto stride = two(l, 2, kernel);
  const auto padding = two(l, 3, {0, 0});
  const size_t first = l.layout(0).sizes.size() - 2;
  std::array<Windows, 2> found;
  for (size_t d = 0; d < 2; ++d) {
    found[d] = {kernel[d], stride[d], padding[d], l.layout(0).sizes[first + d],
                l.result_layout(0).sizes[first + d]};
  }
  return found;
}

int32_t small(Lowering& l, int64_t value) {
  return l.constant_of(Type::i32, static_cast<double>(value));
}

/// Where an element of the windows is inside; -1: everywhere.
int32_t inside(Lowering& l, const Windows& w, int64_t tap, int32_t first) {
  int32_t mask = -1;
  if (w.may_be_before(tap)) {
    mask = l.make(Opcode::ge, first, small(l, -tap));
  }
  if (w.may_be_behind(tap)) {
    const int32_t end = l.fixed(Type::i32, static_cast<double>(w.inputs - tap));
    mask = both(l, mask, l.make(Opcode::lt, first, end));
  }
  return mask;
}

/// As in eager, of equal elements the first one is found, and of those that are NaN the last.
bool max_pool2d_with_indices(Lowering& l) {
  constexpr int64_t kMostTaps = 16;
  const std::optional<Type> type = float_type(l, 0);
  const Layout& self = l.layout(0);
  const size_t rank = self.sizes.size();
  if (!type || !is_plain(self) || rank < 3) {
    return false;
  }
  const auto found = windows(l);
  if (!found) {
    return false;
  }
  const auto& [down, right] = *found;
  if (down.size * right.size > kMostTaps ||
      down.inputs * right.inputs > std::numeric_limits<int32_t>::max()) {
    return false;
  }
  const at::DimVector& sizes = l.result_layout(0).sizes;
  const auto indices = wanted_return(l, 1);
  l.begin(sizes);
  const auto first = [&](const Windows& w, size_t dim) {
    const int32_t place = l.convert(position(l, sizes, dim), Type::i32);
    return l.make(Opcode::sub, l.make(Opcode::mul, place, small(l, w.step)), small(l, w.padding));
  };
  const int32_t y = first(down, rank - 2);
  const int32_t x = first(right, rank - 1);
  const int32_t width = l.fixed(Type::i32, static_cast<double>(right.inputs));
  const int32_t zero = small(l, 0);
  Layout seen = self;
  seen.sizes = sizes;
  seen.strides[rank - 2] *= down.step;
  seen.strides[rank - 1] *= right.step;
  int32_t greatest = l.constant_of(*type, -kInfinity);
  int32_t index = -1;
  if (indices) {
    index = l.make(Opcode::add, l.make(Opcode::mul, l.make(Opcode::max, y, zero), width),
                   l.make(Opcode::max, x, zero));
  }
  for (int64_t i = 0; i < down.size; ++i) {
    const int32_t row = inside(l, down, i, y);
    const int32_t line =
        indices ? l.make(Opcode::mul, l.make(Opcode::add, y, small(l, i)), width) : -1;
    for (int64_t j = 0; j < right.size; ++j) {
      const int32_t mask = both(l, row, inside(l, right, j, x));
      Layout tap = seen;
      tap.offset += (i - down.padding) * self.strides[rank - 2] +
                    (j - right.padding) * self.strides[rank - 1];
      const int32_t value = l.convert(load_at(l, slot_of(l, 0), tap, {}, mask), *type);
      const int32_t greater = l.make(Opcode::bit_or, l.make(Opcode::gt, value, greatest),
                                     l.make(Opcode::ne, value, value));
      const int32_t taken = both(l, mask, greater);
      greatest = l.make(Opcode::select, taken, value, greatest);
      if (indices) {
        const int32_t place = l.make(Opcode::add, l.make(Opcode::add, line, x), small(l, j));
        index = l.make(Opcode::select, taken, place, index);
      }
    }
  }
  if (const auto values = wanted_return(l, 0)) {
    l.store(*values, greatest);
  }
  if (indices) {
    l.store(*indices, l.convert(index, Type::i64));
  }
  l.end();
  return true;
}

constexpr OperatorRow kRows[] = {
    {"max_pool2d_with_indices", max_pool2d_with_indices},
};

}  // namespace

c10::ArrayRef<OperatorRow> pooling_rows() {
  return kRows;
}

}  // namespace torch_lazy::compile
