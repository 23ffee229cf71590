// Rows of the table of operators: those that move elements to other places.
#include "compile/lowering.h"
#include "compile/places.h"

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
  const size_t dim = wrap(l.constant(1).toInt(), whole.sizes.size());
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
  if (!type_of(weight.dtype) || weight.sizes.size() != 2 || weight.sizes[1] == 1 || weight.conj ||
      weight.neg || (indices.dtype != at::kLong && indices.dtype != at::kInt)) {
    return false;
  }
  at::DimVector sizes = indices.sizes;
  sizes.push_back(weight.sizes[1]);
  l.begin(sizes);
  Layout column = indices;
  column.sizes.push_back(1);
  column.strides.push_back(1);
  const int32_t row = l.load_layout(slot_of(l, 1), column, Type::i64);
  const int32_t inside = between(l, row, 0, weight.sizes[0]);
  require(l, inside);
  Layout line = weight;
  line.sizes = {weight.sizes[1]};
  line.strides = {weight.strides[1]};
  l.store(0, load_at(l, slot_of(l, 0), line, Lookup{row, weight.strides[0]}, inside));
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
