// A pointwise call in the table of operators: arguments in the type of the computation, one result.
#pragma once

#include "compile/lowering.h"
#include "compile/places.h"

namespace torch_lazy::compile {

enum class Promotion : uint8_t { arithmetic, to_float, compare };

/// What becomes of a number, or a tensor of rank 0, beside half precision. PyTorch rounds it to the
/// common dtype as it does all operands; mul and div take the second one as it is.
enum class Numbers : uint8_t { rounded, second_as_given };

/// A pointwise call: the piece is begun, arguments come in the type of the computation.
class Pointwise {
 public:
  Pointwise(Lowering& l, c10::ArrayRef<size_t> operands, Promotion promotion,
            Numbers numbers = Numbers::rounded)
      : l_(l) {
    if (numbers == Numbers::second_as_given) {
      as_given_ = static_cast<int>(operands[1]);
    }
    dtype_ = l.common_dtype(operands);
    if (promotion == Promotion::to_float && c10::isIntegralType(dtype_, true)) {
      dtype_ = l.description().default_dtype;
    }
    const std::optional<Type> common = type_of(dtype_);
    if (!common) {
      l.fail();
    }
    common_ = common.value_or(Type::f32);
    type = compute_type(common_);
    l.begin(l.result_layout(0).sizes);
  }

  int32_t operator()(size_t index) {
    const bool as_given = static_cast<int>(index) == as_given_ && codegen::is_float(type);
    if (l_.is_tensor(index)) {
      return as_given && l_.layout(index).sizes.empty() ? l_.load(index, type)
                                                        : l_.load(index, type, common_);
    }
    return as_given ? l_.number(index, type) : rounded_number(index);
  }
  /// A number in the type of the computation, and one that PyTorch rounds to the common dtype.
  int32_t number(size_t index) { return l_.number(index, type); }
  int32_t rounded_number(size_t index) { return rounded(l_.number(index, type)); }
  int32_t rounded(int32_t term) { return l_.convert(l_.convert(term, common_), type); }
  int32_t constant(double value) { return l_.constant_of(type, value); }
  int32_t make(Opcode op, int32_t a, int32_t b = -1, int32_t c = -1) {
    return l_.make(op, a, b, c);
  }

  /// Stores the result; PyTorch rounds it to the common dtype first.
  bool finish(int32_t value) {
    if (l_.type(value) != Type::boolean) {
      value = l_.convert(value, common_);
    }
    l_.store(0, value);
    l_.end();
    return true;
  }

  bool is_float() const { return codegen::is_float(type); }
  bool is_boolean() const { return type == Type::boolean; }
  /// The number's value belongs to the class, or is the constant.
  bool number_is(size_t index, NumberClass cls, double value) const {
    return compile::number_is(l_, index, cls, value);
  }

  Type type = Type::f32;

 private:
  Lowering& l_;
  int as_given_ = -1;  // the argument that is not rounded
  at::ScalarType dtype_ = at::kFloat;
  Type common_ = Type::f32;
};

}  // namespace torch_lazy::compile
