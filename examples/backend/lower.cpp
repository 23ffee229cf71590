// The table of operators, and how layouts become strides of loops.
#include "lower.h"

#include <algorithm>
#include <optional>
#include <string_view>

namespace loops {
namespace {

using torch_lazy::ArgumentSource;
using torch_lazy::Description;
using torch_lazy::GraphNode;
using torch_lazy::Layout;

/// Operators that compute each element of the result from one element of each input. The inputs are
/// the operator's first arguments, tensors or numbers.
struct Elementwise {
  std::string_view name;
  Opcode code;
  size_t inputs;
};

constexpr Elementwise kElementwise[] = {
    {"aten::add.Tensor", Opcode::add, 3},
    {"aten::add.Scalar", Opcode::add, 3},
    {"aten::add_.Tensor", Opcode::add, 3},
    {"aten::sub.Tensor", Opcode::sub, 3},
    {"aten::sub.Scalar", Opcode::sub, 3},
    {"aten::mul.Tensor", Opcode::mul, 2},
    {"aten::mul.Scalar", Opcode::mul, 2},
    {"aten::mul_.Tensor", Opcode::mul, 2},
    {"aten::div.Tensor", Opcode::div, 2},
    {"aten::div.Scalar", Opcode::div, 2},
    {"aten::maximum", Opcode::maximum, 2},
    {"aten::neg", Opcode::neg, 1},
    {"aten::exp", Opcode::exp, 1},
    {"aten::tanh", Opcode::tanh, 1},
    {"aten::sqrt", Opcode::sqrt, 1},
    {"aten::relu", Opcode::relu, 1},
    {"aten::threshold_backward", Opcode::relu_gradient, 3},
    {"aten::where.self", Opcode::select, 3},
    {"aten::clone", Opcode::copy, 1},
};

bool plain(const Layout& layout, at::ScalarType dtype) {
  return layout.dtype == dtype && !layout.conj && !layout.neg;
}

Operand whole(uint32_t slot, const Layout& layout) {
  Operand operand;
  operand.slot = static_cast<int>(slot);
  operand.boolean = layout.dtype == at::kBool;
  operand.offset = layout.offset;
  operand.strides.assign(layout.strides.begin(), layout.strides.end());
  return operand;
}

/// As `whole`, broadcast to a loop over `rank` dimensions.
Operand broadcast(uint32_t slot, const Layout& layout, size_t rank) {
  Operand operand = whole(slot, layout);
  for (size_t d = 0; d < layout.sizes.size(); ++d) {
    if (layout.sizes[d] == 1) {
      operand.strides[d] = 0;
    }
  }
  operand.strides.insert(operand.strides.begin(), rank - layout.sizes.size(), 0);
  return operand;
}

/// The result: new memory, or (for an operator that writes) the operand written.
bool lower_result(const GraphNode& node, Instruction& instruction) {
  const Description& d = *node.description;
  const bool write = !d.writes.empty();
  const Layout& layout = write ? d.operands[d.writes[0].operand] : d.fresh[0].layout;
  if (d.fresh.size() + d.writes.size() != 1 || !plain(layout, at::kFloat)) {
    return false;
  }
  // A result that nobody needs has no slot; a graph seldom has one.
  if (node.outputs[0] < 0) {
    return false;
  }
  instruction.extents.assign(layout.sizes.begin(), layout.sizes.end());
  instruction.result = whole(static_cast<uint32_t>(node.outputs[0]), layout);
  return true;
}

std::optional<Instruction> lower_elementwise(const GraphNode& node, const Elementwise& row) {
  const Description& d = *node.description;
  Instruction instruction;
  instruction.code = row.code;
  if (!lower_result(node, instruction)) {
    return std::nullopt;
  }
  for (size_t i = 0; i < row.inputs; ++i) {
    const ArgumentSource& argument = d.arguments[i];
    if (argument.kind == ArgumentSource::Kind::number) {
      Operand operand;
      operand.number = argument.index;
      instruction.inputs.push_back(operand);
      continue;
    }
    if (argument.kind != ArgumentSource::Kind::operand) {
      return std::nullopt;
    }
    const Layout& layout = d.operands[argument.index];
    const bool condition = row.code == Opcode::select && i == 0;
    if (!plain(layout, condition ? at::kBool : at::kFloat)) {
      return std::nullopt;
    }
    const uint32_t slot = node.operands[argument.index];
    // Element by element in place: another view of the written memory would be read half changed.
    if (!d.writes.empty() && slot == node.operands[d.writes[0].operand] &&
        !(layout == d.operands[d.writes[0].operand])) {
      return std::nullopt;
    }
    instruction.inputs.push_back(broadcast(slot, layout, instruction.extents.size()));
  }
  return instruction;
}

/// The product of two operands, `first` and the next.
std::optional<Instruction> lower_product(const GraphNode& node, size_t first) {
  const Description& d = *node.description;
  Instruction instruction;
  instruction.code = Opcode::sum_of_products;
  if (!plain(d.operands[first], at::kFloat) || !plain(d.operands[first + 1], at::kFloat) ||
      !lower_result(node, instruction)) {
    return std::nullopt;
  }
  Operand a = whole(node.operands[first], d.operands[first]);
  Operand b = whole(node.operands[first + 1], d.operands[first + 1]);
  a.strides = {a.strides[0], 0, a.strides[1]};
  b.strides = {0, b.strides[1], b.strides[0]};
  instruction.extents.push_back(d.operands[first].sizes[1]);
  instruction.reduced = 1;
  instruction.result.strides.push_back(0);
  instruction.inputs = {a, b};
  return instruction;
}

/// addmm(bias, a, b, beta, alpha): the product, times alpha, plus beta times the bias.
std::vector<Instruction> lower_addmm(const GraphNode& node) {
  const Description& d = *node.description;
  std::optional<Instruction> product = lower_product(node, 1);
  if (!product || !plain(d.operands[0], at::kFloat)) {
    return {};
  }
  Operand beta;
  Operand alpha;
  beta.number = d.arguments[3].index;
  alpha.number = d.arguments[4].index;
  Instruction scale;
  scale.code = Opcode::mul;
  lower_result(node, scale);
  Instruction add = scale;
  scale.inputs = {scale.result, alpha};
  add.code = Opcode::add;
  add.inputs = {add.result, broadcast(node.operands[0], d.operands[0], 2), beta};
  return {*product, scale, add};
}

std::optional<Instruction> lower_sum(const GraphNode& node) {
  const Description& d = *node.description;
  const Layout& input = d.operands[0];
  Instruction instruction;
  instruction.code = Opcode::sum_of_products;
  if (!plain(input, at::kFloat) || !lower_result(node, instruction)) {
    return std::nullopt;
  }
  const size_t rank = input.sizes.size();
  std::vector<char> reduced(rank, 1);
  bool keep = false;
  if (d.op->name == "aten::sum.dim_IntList") {
    if (d.arguments[1].value.isIntList() && !d.arguments[1].value.toIntList().empty()) {
      reduced.assign(rank, 0);
      for (int64_t dim : d.arguments[1].value.toIntList()) {
        if (rank > 0) {
          reduced[static_cast<size_t>(dim < 0 ? dim + static_cast<int64_t>(rank) : dim)] = 1;
        }
      }
    }
    keep = d.arguments[2].value.toBool();
  }
  // The loop goes over the dimensions that stay, then over those that are summed up.
  Operand in = whole(node.operands[0], input);
  Operand out = instruction.result;
  in.strides.clear();
  out.strides.clear();
  instruction.extents.clear();
  size_t next = 0;  // dimension of the result
  for (size_t dim = 0; dim < rank; ++dim) {
    if (!reduced[dim]) {
      instruction.extents.push_back(input.sizes[dim]);
      in.strides.push_back(input.strides[dim]);
      out.strides.push_back(instruction.result.strides[next]);
    }
    next += !reduced[dim] || keep;
  }
  for (size_t dim = 0; dim < rank; ++dim) {
    if (reduced[dim]) {
      instruction.extents.push_back(input.sizes[dim]);
      in.strides.push_back(input.strides[dim]);
      out.strides.push_back(0);
      ++instruction.reduced;
    }
  }
  instruction.result = out;
  instruction.inputs = {in};
  return instruction;
}

}  // namespace

std::vector<Instruction> lower(const GraphNode& node) {
  const std::string& name = node.description->op->name;
  std::optional<Instruction> one;
  if (name == "aten::addmm") {
    return lower_addmm(node);
  }
  if (name == "aten::mm") {
    one = lower_product(node, 0);
  } else if (name == "aten::sum" || name == "aten::sum.dim_IntList") {
    one = lower_sum(node);
  } else {
    const auto* row = std::find_if(std::begin(kElementwise), std::end(kElementwise),
                                   [&](const Elementwise& r) { return r.name == name; });
    if (row != std::end(kElementwise)) {
      one = lower_elementwise(node, *row);
    }
  }
  return one ? std::vector<Instruction>{*one} : std::vector<Instruction>{};
}

}  // namespace loops
