#include "codegen/llvm/math_pair.h"

namespace torch_lazy::codegen::math {

Pair exact_sum(Real a, Real b) {
  Real sum = a + b;
  Real part = sum - a;
  return {sum, (a - (sum - part)) + (b - part)};
}

Pair exact_sum_ordered(Real a, Real b) {
  Real sum = a + b;
  return {sum, b - (sum - a)};
}

/// Two numbers of half the digits.
static Pair halves(Real a) {
  Real shifted = a * (a.is_double() ? 0x1p27 + 1 : 0x1p12 + 1);
  Real high = shifted - (shifted - a);
  return {high, a - high};
}

Pair exact_product(Real a, Real b) {
  Real product = a * b;
  if (a.emitter->has_fma) {
    return {product, fma(a, b, -product)};
  }
  Pair x = halves(a);
  Pair y = halves(b);
  Real rest = ((x.high * y.high - product) + x.high * y.low + x.low * y.high) + x.low * y.low;
  return {product, rest};
}

Pair operator+(Pair a, Pair b) {
  Pair sum = exact_sum_ordered(a.high, b.high);
  return exact_sum_ordered(sum.high, sum.low + (a.low + b.low));
}

Pair operator*(Pair a, Real b) {
  Pair product = exact_product(a.high, b);
  return exact_sum_ordered(product.high, fma(a.low, b, product.low));
}

Pair operator*(Pair a, Pair b) {
  Pair product = exact_product(a.high, b.high);
  Real rest = fma(a.high, b.low, fma(a.low, b.high, product.low));
  return exact_sum_ordered(product.high, rest);
}

Pair operator/(Pair a, Pair b) {
  Real inverse = 1 / b.high;
  Real quotient = a.high * inverse;
  Pair product = exact_product(quotient, b.high);
  Real rest = ((a.high - product.high) - product.low) + (a.low - quotient * b.low);
  return exact_sum_ordered(quotient, rest * inverse);
}

}  // namespace torch_lazy::codegen::math
