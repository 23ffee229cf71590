// Powers and lengths.
#include "codegen/llvm/math_coefficients.h"
#include "codegen/llvm/math_exponential.h"
#include "codegen/llvm/math_functions.h"
#include "codegen/llvm/math_logarithm.h"

namespace torch_lazy::codegen::math {

namespace {

/// -infinity for 0 and infinity for infinity instead.
Real with_ends(Real x, Real log) {
  return select(x == kInfinity, kInfinity, select(x == 0, -kInfinity, log));
}

/// x^y for f32 and x >= 0, in f64: rounded once.
Real power_f32(Real x, Real y) {
  Real wide = x.widen();
  auto [n, m] = split(wide);
  Real s = m / (m + 2);
  Real log2 = with_ends(wide, fma(s, polynomial(s * s, kPowerLog2F64), n));
  Real product = at_most(at_least(y.widen() * log2, -200), 200);
  Real magic = product.like(kFormatF64.round_magic + kFormatF64.bias);
  Real shifted = product + magic;
  Real rest = product - (shifted - magic);
  Real power = from_bits(bits(shifted) << kFormatF64.mantissa);
  return (fma(rest, polynomial(rest, kPowerExp2F64), 1) * power).narrow();
}

/// log(x) for f64, x >= 0, to some 65 bits.
Pair log_in_pair(Real x) {
  auto [n, m] = split(x);
  Pair s = Pair{m, m.like(0)} / exact_sum_ordered(m.like(2), m);
  Pair z = s * s;
  // 2 s + s z (2/3 + z p(z))
  Pair two_thirds = pair_like(m, 0x1.5555555555555p-1, 0x1.5555555555555p-55);
  Pair p = two_thirds + Pair{z.high * polynomial(z.high, kPowerLogF64), m.like(0)};
  Pair fraction = Pair{s.high * 2, s.low * 2} + s * z * p;
  Pair unit = log_2(x);
  return Pair{n * unit.high, n * unit.low} + fraction;
}

/// x^y for f64 and x >= 0.
Real power_f64(Real x, Real y) {
  Pair log = log_in_pair(x);
  log.high = with_ends(x, log.high);
  Pair product = log * y;
  // Far outside the range of exponents the pair may be no number.
  Real rough = log.high * y;
  Mask inside = abs(rough) < 1000;
  Pair exponent{select(inside, product.high, rough), select(inside, product.low, 0)};
  return exp_times(exponent, pair_like(x, 1, 0));
}

Mask is_integer(Real x) {
  return trunc(x) == x;
}

}  // namespace

Real pow(Real x, Real y) {
  Real a = abs(x);
  Real result = x.is_double() ? power_f64(a, y) : power_f32(a, y);
  result = select(a == 1, 1, result);
  Mask integer = is_integer(y);
  Mask odd = integer & !is_integer(y * 0.5);
  result = select(odd, copysign(result, x), result);
  result = select((x < 0) & (a < kInfinity) & !integer, kNotANumber, result);
  result = select(is_nan(x, y), kNotANumber, result);
  return select((y == 0) | (x == 1), 1, result);
}

Real hypot(Real x, Real y) {
  Real a = abs(x);
  Real b = abs(y);
  Mask infinite = (a == kInfinity) | (b == kInfinity);
  if (!x.is_double()) {
    Real wide_a = a.widen();
    Real wide_b = b.widen();
    return select(infinite, kInfinity, sqrt(wide_a * wide_a + wide_b * wide_b).narrow());
  }
  // Scaled, so that squares neither overflow nor vanish.
  Real larger = select(a < b, b, a);
  Mask large = larger > 0x1p500;
  Mask small = larger < 0x1p-500;
  Real down = select(large, 0x1p-600, select(small, 0x1p600, x.like(1)));
  Real up = select(large, 0x1p600, select(small, 0x1p-600, x.like(1)));
  a = a * down;
  b = b * down;
  return select(infinite, kInfinity, sqrt(fma(a, a, b * b)) * up);
}

}  // namespace torch_lazy::codegen::math
