// Rows of the table of operators: convolutions and their gradients, where the target has them.
#include "compile/lowering.h"
#include "compile/places.h"

namespace torch_lazy::compile {
namespace {

/// Arguments that follow one another: stride, padding, dilation, transposed, output padding,
/// groups.
std::optional<Convolution> geometry(const Lowering& l, size_t first, size_t rank) {
  for (size_t k = first; k < first + 6; ++k) {
    if (!l.is_constant(k)) {
      return std::nullopt;
    }
  }
  if ((rank != 3 && rank != 4) || l.constant(first + 3).toBool()) {
    return std::nullopt;
  }
  Convolution convolution;
  const auto set = [&](size_t argument, std::array<int64_t, 2>& to) {
    const std::vector<int64_t> values = l.constant(argument).toIntVector();
    to[1] = values.back();
    to[0] = rank == 4 ? values.front() : to[0];
  };
  set(first, convolution.stride);
  set(first + 1, convolution.padding);
  set(first + 2, convolution.dilation);
  convolution.groups = l.constant(first + 5).toInt();
  return convolution;
}

/// input, weight, bias, and the geometry
bool convolution(Lowering& l) {
  if (!l.is_tensor(0) || !l.is_tensor(1) || l.results() != 1 || !l.wanted(0) ||
      !l.description().writes.empty()) {
    return false;
  }
  const std::optional<Convolution> found = geometry(l, 3, l.layout(0).sizes.size());
  if (!found) {
    return false;
  }
  const Layout& result = l.result_layout(0);
  if (l.is_absent(2)) {
    return l.own_product(l.view(0), l.view(1), l.result_view(0), found);
  }
  if (!l.is_tensor(2) || l.layout(2).dtype != result.dtype ||
      l.layout(2).sizes != at::DimVector{result.sizes[1]}) {
    return false;
  }
  // The bias is added by a piece, which is merged with what comes after.
  const View made{l.new_slot(l.bytes(static_cast<uint32_t>(l.node().outputs[0]))), result};
  if (!l.own_product(l.view(0), l.view(1), made, found)) {
    return false;
  }
  Layout bias = l.layout(2);
  bias.sizes.resize(result.sizes.size() - 1, 1);
  bias.strides.resize(result.sizes.size() - 1, 0);
  const Type type = *type_of(result.dtype);
  l.begin(result.sizes);
  l.store(0, l.make(Opcode::add, l.load_layout(made.slot, made.layout, type),
                    l.load_layout(slot_of(l, 2), bias, type)));
  l.end();
  return true;
}

/// The output's gradient, input, weight, sizes of the bias, the geometry, and which are wanted
bool convolution_backward(Lowering& l) {
  if (!l.is_tensor(0) || !l.is_tensor(1) || !l.is_tensor(2) || !l.description().writes.empty()) {
    return false;
  }
  const size_t rank = l.layout(0).sizes.size();
  std::optional<Convolution> found = geometry(l, 4, rank);
  if (!found) {
    return false;
  }
  if (const size_t input = l.returned(0); l.wanted(input)) {
    found->kind = Convolution::Kind::input_gradient;
    if (!l.own_product(l.view(0), l.view(2), l.result_view(input), found)) {
      return false;
    }
  }
  if (const size_t weight = l.returned(1); l.wanted(weight)) {
    found->kind = Convolution::Kind::weight_gradient;
    if (!l.own_product(l.view(0), l.view(1), l.result_view(weight), found)) {
      return false;
    }
  }
  if (const size_t bias = l.returned(2); l.wanted(bias)) {
    const std::optional<Type> type = float_type(l, 0);
    if (!type) {
      return false;
    }
    std::vector<int64_t> dims{0};
    for (size_t d = 2; d < rank; ++d) {
      dims.push_back(static_cast<int64_t>(d));
    }
    l.begin_reduction(l.layout(0).sizes, dims);
    l.store(bias, l.make(Opcode::reduce_sum, l.load(0, *type)));
    l.end();
  }
  return true;
}

constexpr OperatorRow kRows[] = {
    {"convolution", convolution},
    {"convolution_backward", convolution_backward},
};

}  // namespace

c10::ArrayRef<OperatorRow> convolution_rows() {
  return kRows;
}

}  // namespace torch_lazy::compile
