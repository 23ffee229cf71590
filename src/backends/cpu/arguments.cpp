#include "backends/cpu/arguments.h"

#include <cstring>

namespace torch_lazy {
namespace {

using codegen::Type;
using compile::Scalar;

template <typename T>
int64_t bits_of(T value) {
  int64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(value));
  return bits;
}

c10::Scalar scalar_of(const Scalar& scalar, const Run& run) {
  if (scalar.number < 0) {
    return codegen::is_float(scalar.type) ? c10::Scalar(scalar.fixed)
                                          : c10::Scalar(static_cast<int64_t>(scalar.fixed));
  }
  const c10::IValue& number = run.numbers[scalar.number];
  if (scalar.element < 0) {
    if (number.isDoubleList()) {
      return number.toDoubleVector()[0];
    }
    return number.isList() ? number_value(number.toListRef()[0]) : number_value(number);
  }
  return number.isDoubleList() ? c10::Scalar(number.toDoubleVector()[scalar.element])
                               : number_value(number.toListRef()[scalar.element]);
}

}  // namespace

int64_t argument_bits(const Scalar& scalar, const Run& run) {
  const c10::Scalar value = scalar_of(scalar, run);
  if (scalar.type == Type::f32) {
    return bits_of(static_cast<float>(value.toDouble()));
  }
  if (scalar.type == Type::f64) {
    return bits_of(value.toDouble());
  }
  if (scalar.type == Type::boolean) {
    return bits_of(value.isFloatingPoint() ? value.toDouble() != 0 : value.toLong() != 0);
  }
  const int64_t integer =
      value.isFloatingPoint() ? static_cast<int64_t>(value.toDouble()) : value.toLong();
  return scalar.type == Type::i32 ? bits_of(static_cast<int32_t>(integer)) : integer;
}

}  // namespace torch_lazy
