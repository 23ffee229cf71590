// Rows of the table of operators: sums and products of the elements up to each one.
#include "compile/cost.h"
#include "compile/lowering.h"
#include "compile/places.h"

namespace torch_lazy::compile {
namespace {

/// The type in which PyTorch adds up what it stores as `type`.
Type carried_type(Type type) {
  switch (type) {
    case Type::f32:
    case Type::f64:
      return Type::f64;
    case Type::bf16:
    case Type::f16:
      return Type::f32;
    default:
      return Type::i64;
  }
}

template <Opcode op>
bool scan(Lowering& l) {  // self, dim, dtype
  const std::optional<Type> type = type_of(l.result_layout(0).dtype);
  if (!type || *type == Type::boolean || !l.is_tensor(0) || !is_plain(l.layout(0)) ||
      !l.is_constant(1) || !l.constant(1).isInt()) {
    return false;
  }
  const auto& sizes = l.layout(0).sizes;
  const size_t dim = sizes.empty() ? 0 : wrap(l.constant(1).toInt(), sizes.size());
  const bool alone = sizes.empty() || sizes[dim] == 1;
  if (alone) {
    l.begin(sizes);
    l.store(0, l.load(0, *type));
  } else {
    l.begin_reduction(sizes, static_cast<int64_t>(dim));
    l.store(0, l.make(op, l.load(0, carried_type(*type), *type)));
    if (!worth_scanning(l.piece())) {
      return false;
    }
  }
  l.end();
  return true;
}

constexpr OperatorRow kRows[] = {
    {"cumprod", scan<Opcode::scan_prod>},
    {"cumsum", scan<Opcode::scan_sum>},
};

}  // namespace

c10::ArrayRef<OperatorRow> scan_rows() {
  return kRows;
}

}  // namespace torch_lazy::compile
