// Which numbers a dtype cannot hold: kernels that convert a Scalar refuse those.
#pragma once

#include <c10/core/Scalar.h>
#include <c10/core/ScalarType.h>
#include <c10/util/overflows.h>

namespace torch_lazy {

/// Every dtype holds these; negative floats are no unsigned integers.
inline bool always_fits(double value) {
  return value >= 0 && value <= 127;
}

template <typename From>
bool overflows(From value, at::ScalarType dtype) {
  switch (c10::toRealValueType(dtype)) {
    case at::kByte:
      return c10::overflows<uint8_t, From>(value);
    case at::kChar:
      return c10::overflows<int8_t, From>(value);
    case at::kShort:
      return c10::overflows<int16_t, From>(value);
    case at::kInt:
      return c10::overflows<int32_t, From>(value);
    case at::kLong:
      return c10::overflows<int64_t, From>(value);
    case at::kUInt16:
      return c10::overflows<uint16_t, From>(value);
    case at::kUInt32:
      return c10::overflows<uint32_t, From>(value);
    case at::kUInt64:
      return c10::overflows<uint64_t, From>(value);
    case at::kHalf:
      return c10::overflows<c10::Half, From>(value);
    case at::kBFloat16:
      return c10::overflows<c10::BFloat16, From>(value);
    case at::kFloat:
      return c10::overflows<float, From>(value);
    case at::kDouble:
      return c10::overflows<double, From>(value);
    default:
      return false;  // a bool takes any number
  }
}

inline bool overflows(const c10::Scalar& value, at::ScalarType dtype) {
  if (value.isBoolean()) {
    return false;
  }
  if (value.isComplex()) {
    const c10::complex<double> number = value.toComplexDouble();
    return (number.imag() != 0 && !c10::isComplexType(dtype)) || overflows(number.real(), dtype) ||
           overflows(number.imag(), dtype);
  }
  return value.isFloatingPoint() ? overflows(value.toDouble(), dtype)
                                 : overflows(value.toLong(), dtype);
}

}  // namespace torch_lazy
