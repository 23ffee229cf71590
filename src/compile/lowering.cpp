// A node being lowered: arguments to terms, terms to results.
#include "compile/lowering.h"

#include <torch_lazy/backend.h>

#include <ATen/native/TypeProperties.h>
#include <c10/core/ScalarTypeToTypeMeta.h>

#include <algorithm>
#include <unordered_map>

namespace torch_lazy::compile {

std::optional<Type> type_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return Type::f32;
    case at::kDouble:
      return Type::f64;
    case at::kBFloat16:
      return Type::bf16;
    case at::kHalf:
      return Type::f16;
    case at::kChar:
      return Type::i8;
    case at::kByte:
      return Type::u8;
    case at::kShort:
      return Type::i16;
    case at::kInt:
      return Type::i32;
    case at::kLong:
      return Type::i64;
    case at::kBool:
      return Type::boolean;
    default:
      return std::nullopt;
  }
}

at::ScalarType dtype_of(Type type) {
  switch (type) {
    case Type::f32:
      return at::kFloat;
    case Type::f64:
      return at::kDouble;
    case Type::bf16:
      return at::kBFloat16;
    case Type::f16:
      return at::kHalf;
    case Type::i8:
      return at::kChar;
    case Type::u8:
      return at::kByte;
    case Type::i16:
      return at::kShort;
    case Type::i32:
      return at::kInt;
    case Type::i64:
      return at::kLong;
    case Type::boolean:
      return at::kBool;
  }
  return at::kFloat;
}

Lowering::Lowering(Program& program, uint32_t node)
    : program_(program), index_(node), node_(program.graph->nodes[node]) {}

bool Lowering::is_tensor(size_t index) const {
  return has_argument(index) && argument(index).kind == ArgumentSource::Kind::operand;
}

bool Lowering::is_constant(size_t index) const {
  return has_argument(index) && argument(index).kind == ArgumentSource::Kind::constant;
}

bool Lowering::is_number(size_t index) const {
  return has_argument(index) && (argument(index).kind == ArgumentSource::Kind::number ||
                                 (is_constant(index) && argument(index).value.isScalar()));
}

bool Lowering::is_absent(size_t index) const {
  if (!is_constant(index)) {
    return false;
  }
  const c10::IValue& value = argument(index).value;
  return value.isNone() || (value.isTensor() && !value.toTensor().defined());
}

const Layout& Lowering::layout(size_t index) const {
  return description().operands[argument(index).index];
}

const c10::IValue& Lowering::constant(size_t index) const {
  return argument(index).value;
}

const NumberKind& Lowering::number_kind(size_t index, size_t element) const {
  static const NumberKind none;
  const auto& kinds = argument(index).numbers;
  return element < kinds.size() ? kinds[element] : none;
}

at::ScalarType Lowering::common_dtype(c10::ArrayRef<size_t> arguments) const {
  at::native::ResultTypeState state = {};
  auto promote = [](at::ScalarType a, at::ScalarType b) {
    return a == at::ScalarType::Undefined   ? b
           : b == at::ScalarType::Undefined ? a
                                            : c10::promoteTypes(a, b);
  };
  for (size_t index : arguments) {
    if (is_tensor(index)) {
      const Layout& l = layout(index);
      at::ScalarType& into = l.sizes.empty() ? state.zeroResult : state.dimResult;
      into = promote(into, l.dtype);
      continue;
    }
    NumberKind kind;
    if (is_constant(index)) {
      if (!constant(index).isScalar()) {
        continue;
      }
      kind.type = constant(index).toScalar().type();
    } else {
      kind = number_kind(index);
    }
    if (kind.wrapped) {
      const at::ScalarType type =
          c10::isFloatingType(kind.type) ? description().default_dtype : kind.type;
      state.wrappedResult = promote(state.wrappedResult, type);
    } else {
      state.zeroResult = promote(state.zeroResult, kind.type);
    }
  }
  return at::native::result_type(state);
}

const Layout& Lowering::result_layout(size_t result) const {
  return description().output_layout(result);
}

size_t Lowering::returned(size_t position) const {
  const ReturnSource& source = description().returns[position];
  return source.kind == ReturnSource::Kind::fresh ? static_cast<size_t>(source.index) : results();
}

void Lowering::begin(at::IntArrayRef sizes, int inner) {
  std::vector<int64_t> reduced;
  for (size_t k = sizes.size() - static_cast<size_t>(inner); k < sizes.size(); ++k) {
    reduced.push_back(static_cast<int64_t>(k));
  }
  begin_reduction(sizes, reduced);
}

void Lowering::begin_reduction(at::IntArrayRef sizes, c10::ArrayRef<int64_t> reduced) {
  piece_ = Piece();
  piece_.nodes.push_back(index_);
  full_ = at::DimVector(sizes.begin(), sizes.end());
  dim_of_.assign(sizes.size(), -1);
  reduced_.assign(sizes.size(), 0);
  for (int64_t k : reduced) {
    reduced_[k] = 1;
  }
  for (char inner : {0, 1}) {
    for (size_t k = 0; k < sizes.size(); ++k) {
      if (reduced_[k] == inner && sizes[k] != 1) {
        dim_of_[k] = piece_.rank();
        piece_.sizes.push_back(sizes[k]);
        piece_.outer += inner ? 0 : 1;
      }
    }
  }
  if (!reduced.empty() && !piece_.reduces()) {
    // A reduction over one element is still a reduction.
    piece_.sizes.push_back(1);
  }
}

Sizes Lowering::strides_for(const Layout& layout, bool rows_only) {
  Sizes strides(piece_.sizes.size(), 0);
  const int full = static_cast<int>(full_.size());
  const int rank = static_cast<int>(layout.sizes.size());
  const int missing = full - rank;
  const int reduced = static_cast<int>(std::count(reduced_.begin(), reduced_.end(), 1));
  const bool without = rows_only && missing == reduced && reduced > 0;
  int next = 0;
  for (int k = 0; k < full; ++k) {
    if (without ? reduced_[k] != 0 : k < missing) {
      continue;
    }
    const int from = without ? next++ : k - missing;
    if (from >= rank) {
      fail();
      break;
    }
    if (layout.sizes[from] == 1) {
      continue;
    }
    if (layout.sizes[from] != full_[k] || dim_of_[k] < 0) {
      fail();
      break;
    }
    strides[dim_of_[k]] = layout.strides[from];
  }
  if (missing < 0) {
    fail();
  }
  return strides;
}

int32_t Lowering::load_layout(uint32_t slot, const Layout& layout, Type type) {
  const std::optional<Type> memory = type_of(layout.dtype);
  if (!memory || layout.conj) {
    fail();
    return piece_.constant(type, 0);
  }
  Access access;
  access.slot = slot;
  access.type = *memory;
  access.offset = layout.offset;
  access.strides = strides_for(layout, false);
  int32_t term = piece_.load(std::move(access));
  if (layout.neg) {
    term = make(Opcode::neg, convert(term, compute_type(*memory)));
  }
  return convert(term, type);
}

int32_t Lowering::load_operand(int operand, Type type) {
  return load_layout(node_.operands[operand], description().operands[operand], type);
}

int32_t Lowering::load(size_t index, Type type, std::optional<Type> through) {
  if (!is_tensor(index)) {
    return number(index, type);
  }
  const int operand = argument(index).index;
  if (through) {
    return convert(load_operand(operand, *through), type);
  }
  return load_operand(operand, type);
}

int32_t Lowering::number(size_t index, Type type, size_t element) {
  const ArgumentSource& source = argument(index);
  if (source.kind == ArgumentSource::Kind::constant) {
    if (!source.value.isScalar() || source.value.toScalar().isComplex()) {
      fail();
      return piece_.constant(type, 0);
    }
    const c10::Scalar value = source.value.toScalar();
    const int32_t term = piece_.constant(type, value.toDouble());
    if (!codegen::is_float(type) && !value.isFloatingPoint()) {
      piece_.terms[term].integer = value.toLong();  // all of its bits
    }
    return term;
  }
  if (source.kind != ArgumentSource::Kind::number || element >= source.numbers.size() ||
      c10::isComplexType(source.numbers[element].type)) {
    fail();
    return piece_.constant(type, 0);
  }
  Scalar scalar;
  scalar.type = type;
  scalar.number = static_cast<int32_t>(node_.first_number) + source.index;
  scalar.element = source.numbers.size() > 1 || element > 0 ? static_cast<int32_t>(element) : -1;
  return piece_.scalar(scalar);
}

int32_t Lowering::fixed(Type type, double value) {
  Scalar scalar;
  scalar.type = type;
  scalar.fixed = value;
  return piece_.scalar(scalar);
}

int32_t Lowering::make(Opcode op, int32_t a, int32_t b, int32_t c) {
  Type type = piece_.terms[op == Opcode::select ? b : a].type;
  if (op >= Opcode::eq && op <= Opcode::ge) {
    if (!codegen::supports(op, type)) {
      fail();
    }
    type = Type::boolean;
  } else if (!codegen::supports(op, type)) {
    fail();
  }
  if (op == Opcode::reduce_argmax || op == Opcode::reduce_argmin) {
    type = Type::i64;
  }
  return piece_.add(op, type, a, b, c);
}

int32_t Lowering::convert(int32_t term, Type type) {
  return piece_.terms[term].type == type ? term : piece_.add(Opcode::convert, type, term);
}

namespace {

/// Whether no two elements share their place.
bool apart(const Sizes& sizes, const Sizes& strides) {
  std::vector<std::pair<int64_t, int64_t>> steps;
  for (size_t k = 0; k < sizes.size(); ++k) {
    if (strides[k] != 0) {
      steps.emplace_back(strides[k], sizes[k]);
    }
  }
  std::sort(steps.begin(), steps.end());
  int64_t reach = 0;
  for (auto [stride, size] : steps) {
    if (stride <= reach) {
      return false;
    }
    reach += stride * (size - 1);
  }
  return true;
}

}  // namespace

void Lowering::store_operand_like(uint32_t slot, const Layout& layout, int32_t value) {
  const std::optional<Type> memory = type_of(layout.dtype);
  if (!memory || layout.conj || layout.neg) {
    fail();
    return;
  }
  Access access;
  access.slot = slot;
  access.type = *memory;
  access.offset = layout.offset;
  access.strides = strides_for(layout, true);
  int64_t elements = 1;
  for (int64_t size : layout.sizes) {
    elements *= size;
  }
  int64_t reached = 1;
  for (int k = 0; k < piece_.rank(); ++k) {
    reached *= access.strides[k] != 0 ? piece_.sizes[k] : 1;
  }
  if (reached != elements || !apart(piece_.sizes, access.strides)) {
    fail();
  }
  piece_.store(std::move(access), convert(value, *memory));
}

void Lowering::accumulate(const View& into, const Layout& seen, c10::ArrayRef<Lookup> lookups,
                          int32_t mask, int32_t value) {
  const std::optional<Type> memory = type_of(into.layout.dtype);
  if (!memory || *memory == Type::boolean || into.layout.conj || into.layout.neg ||
      !apart({into.layout.sizes.begin(), into.layout.sizes.end()},
             {into.layout.strides.begin(), into.layout.strides.end()})) {
    fail();
    return;
  }
  Access access;
  access.slot = into.slot;
  access.type = *memory;
  access.offset = into.layout.offset;
  access.strides = strides_for(seen, false);
  access.lookups.append(lookups.begin(), lookups.end());
  access.mask = mask;
  // No two rows may add to one element.
  if (std::find(access.strides.begin(), access.strides.begin() + piece_.outer, 0) !=
      access.strides.begin() + piece_.outer) {
    fail();
  }
  piece_.accumulate(std::move(access), convert(value, *memory));
}

void Lowering::store(size_t result, int32_t value) {
  if (wanted(result)) {
    store_operand_like(static_cast<uint32_t>(node_.outputs[result]), result_layout(result), value);
  }
}

void Lowering::end() {
  Step step;
  step.kind = Step::Kind::piece;
  step.piece = std::move(piece_);
  steps_.push_back(std::move(step));
  piece_ = Piece();
}

void Lowering::product(View a, View b, View out) {
  Step step;
  step.kind = Step::Kind::product;
  step.product = {std::move(a), std::move(b), std::move(out), std::nullopt};
  step.node = index_;
  steps_.push_back(std::move(step));
}

bool Lowering::own_product(View a, View b, View out,
                           const std::optional<Convolution>& convolution) {
  product(std::move(a), std::move(b), std::move(out));
  Product& made = steps_.back().product;
  made.convolution = convolution;
  return program_.target.has && program_.target.has(made);
}

bool Lowering::complete() const {
  auto writes = [](const Step& step, uint32_t slot) {
    if (step.kind == Step::Kind::product) {
      return step.product.out.slot == slot;
    }
    const auto& terms = step.piece.terms;
    return std::any_of(terms.begin(), terms.end(), [&](const Term& term) {
      return is_write(term.op) && step.piece.accesses[term.place].slot == slot;
    });
  };
  return std::all_of(node_.outputs.begin(), node_.outputs.end(), [&](int32_t output) {
    return output < 0 ||
           std::any_of(
               steps_.begin(), steps_.end(),
               [&](const Step& step) { return writes(step, static_cast<uint32_t>(output)); });
  });
}

View Lowering::view(size_t index) const {
  return {node_.operands[argument(index).index], layout(index)};
}

View Lowering::result_view(size_t result) const {
  return {static_cast<uint32_t>(node_.outputs[result]), result_layout(result)};
}

namespace {

/// "aten::add_.Tensor" -> "add"; empty for other namespaces.
std::string row_name(const std::string& name) {
  if (name.rfind("aten::", 0) != 0) {
    return "";
  }
  std::string base =
      name.substr(6, name.find('.') == std::string::npos ? std::string::npos : name.find('.') - 6);
  if (base.size() > 1 && base.back() == '_' && base[base.size() - 2] != '_') {
    base.pop_back();
  }
  return base;
}

const OperatorRow* find_row(const OperatorInfo& op) {
  static const auto* table = [] {
    auto* made = new std::unordered_map<std::string, const OperatorRow*>();
    for (auto rows :
         {pointwise_rows(), reduction_rows(), normalization_rows(), shape_rows(), foreach_rows(),
          product_rows(), attention_rows(), convolution_rows(), pooling_rows(), activation_rows(),
          arithmetic_rows(), batch_norm_rows(), indexing_rows(), loss_rows(), optimizer_rows(),
          scan_rows(), scatter_rows()}) {
      for (const OperatorRow& row : rows) {
        const bool fresh = made->emplace(row.name, &row).second;
        TORCH_INTERNAL_ASSERT(fresh, "two rows for ", row.name);
      }
    }
    return made;
  }();
  auto it = table->find(row_name(op.name));
  return it == table->end() ? nullptr : it->second;
}

bool has_elements(const Layout& layout) {
  return std::find(layout.sizes.begin(), layout.sizes.end(), 0) == layout.sizes.end();
}

}  // namespace

bool lower_node(Lowering& lowering) {
  const Description& d = lowering.description();
  const OperatorRow* row = d.op->effect ? nullptr : find_row(*d.op);
  if (!row) {
    return false;
  }
  for (const Layout& layout : d.operands) {
    if (!has_elements(layout) && !row->takes_empty) {
      return false;
    }
  }
  // Where elements of a list share memory, PyTorch writes one after the other.
  if (d.writes.size() > 1) {
    const auto& operands = lowering.node().operands;
    for (const Write& write : d.writes) {
      if (std::count(operands.begin(), operands.end(), operands[write.operand]) > 1) {
        return false;
      }
    }
  }
  for (size_t i = 0; i < lowering.results(); ++i) {
    if (!has_elements(lowering.result_layout(i)) && !row->takes_empty) {
      return false;
    }
  }
  return row->lower(lowering) && !lowering.failed() && lowering.complete();
}

}  // namespace torch_lazy::compile
