// Rows of the table of operators: those that move elements to other places.
#include "compile/lowering.h"

#include <algorithm>

namespace torch_lazy::compile {
namespace {

bool cat(Lowering& l) {  // tensors, dim
  const ArgumentSource& list = l.argument(0);
  const Layout& whole = l.result_layout(0);
  if (list.kind != ArgumentSource::Kind::operand_list || !type_of(whole.dtype) || !l.wanted(0) ||
      !l.description().writes.empty()) {  // parts of one write would be several
    return false;
  }
  int64_t dim = l.constant(1).toInt();
  dim += dim < 0 ? static_cast<int64_t>(whole.sizes.size()) : 0;
  int64_t start = 0;
  const Type through = compute_type(*type_of(whole.dtype));
  for (int element : list.elements) {
    if (element < 0) {
      return false;
    }
    const Layout& part = l.description().operands[element];
    if (part.sizes.size() != whole.sizes.size() || !type_of(part.dtype)) {
      return false;  // also the empty tensor that cat leaves out
    }
    Layout place = whole;
    place.sizes = part.sizes;
    place.offset += start * whole.strides[dim];
    start += part.sizes[dim];
    l.begin(part.sizes);
    const bool plain = part.dtype == whole.dtype;
    l.store_operand_like(static_cast<uint32_t>(l.node().outputs[0]), place,
                         l.load_operand(element, plain ? *type_of(part.dtype) : through));
    l.end();
  }
  return true;
}

/// weight [n, c], indices: rows of weight.
bool embedding(Lowering& l) {
  const Layout& weight = l.layout(0);
  const Layout& indices = l.layout(1);
  const std::optional<Type> type = type_of(weight.dtype);
  if (!type || weight.sizes.size() != 2 || weight.sizes[1] == 1 || weight.conj || weight.neg ||
      (indices.dtype != at::kLong && indices.dtype != at::kInt)) {
    return false;
  }
  at::DimVector sizes = indices.sizes;
  sizes.push_back(weight.sizes[1]);
  l.begin(sizes);
  Layout column = indices;
  column.sizes.push_back(1);
  column.strides.push_back(1);
  const int32_t row = l.load_layout(l.node().operands[l.argument(1).index], column, Type::i64);
  const int32_t inside =
      l.make(Opcode::bit_and, l.make(Opcode::ge, row, l.constant_of(Type::i64, 0)),
             l.make(Opcode::lt, row, l.fixed(Type::i64, static_cast<double>(weight.sizes[0]))));
  const int32_t check = l.make(Opcode::check, inside);
  l.piece().terms[check].place = 0;
  Access access;
  access.slot = l.node().operands[l.argument(0).index];
  access.type = *type;
  access.offset = weight.offset;
  access.strides.resize(l.piece().sizes.size(), 0);
  access.strides.back() = weight.strides[1];
  access.lookups.push_back({row, weight.strides[0]});
  access.mask = inside;
  l.store(0, l.piece().load(std::move(access)));
  l.end();
  return true;
}

constexpr OperatorRow kRows[] = {
    {"cat", cat},
    {"embedding", embedding},
};

}  // namespace

c10::ArrayRef<OperatorRow> shape_rows() {
  return kRows;
}

}  // namespace torch_lazy::compile
