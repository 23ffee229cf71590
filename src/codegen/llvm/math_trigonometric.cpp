// Sine and its kin, and their inverses.
#include "codegen/llvm/math_coefficients.h"
#include "codegen/llvm/math_functions.h"
#include "codegen/llvm/math_pair.h"
#include "codegen/llvm/math_reduction.h"

namespace torch_lazy::codegen::math {

namespace {

/// With x >= 0 small enough to be its own angle, or reduced; NaN for infinity.
Angle angle_of(Real x) {
  Angle reduced = reduce_angle(x);
  Mask small = x < 0x1.921fb5p-1;  // pi / 4
  Mask finite = x < kInfinity;
  Real high = select(small, x, select(finite, reduced.angle.high, kNotANumber));
  Real low = select(small, 0, reduced.angle.low);
  return {select(small, 0, reduced.quadrant), {high, low}};
}

// Of an angle up to pi / 4, as a number and a small rest.

Pair sin_of(Pair angle) {
  Real r = angle.high;
  Real z = r * r;
  Real rest = fma(z * r, polynomial(z, kSinF32, kSinF64), angle.low * fma(z, -0.5, 1));
  return {r, rest};
}

Pair cos_of(Pair angle) {
  Real r = angle.high;
  Real z = r * r;
  Real half = 0.5 * z;
  Real most = 1 - half;
  Real rest = ((1 - most) - half) + fma(z * z, polynomial(z, kCosF32, kCosF64), -(r * angle.low));
  return {most, rest};
}

/// The sign bit where bit `place` of the integer is set.
Integer sign_from(Integer a, int place) {
  int top = static_cast<int>(a.value->getType()->getScalarSizeInBits()) - 1;
  return (a << (top - place)) & (int64_t{-1} << top);
}

Integer sign_bit(Real x) {
  return bits(x) & (int64_t{-1} << (x.is_double() ? 63 : 31));
}

/// sin(angle + quadrant * pi / 2) with the sign turned around by a sign bit.
Real sin_in_quadrant(Integer quadrant, Pair angle, Integer sign) {
  Real sine = sum(sin_of(angle));
  Real cosine = sum(cos_of(angle));
  Real result = select((quadrant & 1) != 0, cosine, sine);
  return from_bits(bits(result) ^ sign ^ sign_from(quadrant, 1));
}

}  // namespace

Real sin(Real x) {
  Angle a = angle_of(abs(x));
  return sin_in_quadrant(a.quadrant, a.angle, sign_bit(x));
}

Real cos(Real x) {
  Angle a = angle_of(abs(x));
  return sin_in_quadrant(a.quadrant + 1, a.angle, a.quadrant.like(0));
}

Real tan(Real x) {
  Angle a = angle_of(abs(x));
  Pair sine = sin_of(a.angle);
  Pair cosine = cos_of(a.angle);
  sine = exact_sum_ordered(sine.high, sine.low);
  cosine = exact_sum_ordered(cosine.high, cosine.low);
  Mask swap = (a.quadrant & 1) != 0;
  Pair above{select(swap, cosine.high, sine.high), select(swap, cosine.low, sine.low)};
  Pair below{select(swap, sine.high, cosine.high), select(swap, sine.low, cosine.low)};
  Real result = sum(above / below);
  return from_bits(bits(result) ^ sign_bit(x) ^ sign_from(a.quadrant, 0));
}

SineAndCosine half_turns(Real x) {
  Real a = abs(x - round(x));
  Mask swap = a > 0.25;
  Real turns = select(swap, 0.5 - a, a);
  Pair half = half_pi(x);
  Pair angle = Pair{half.high * 2, half.low * 2} * turns;
  Real sine = sum(sin_of(angle));
  Real cosine = sum(cos_of(angle));
  return {select(swap, cosine, sine), select(swap, sine, cosine)};
}

// ---- Inverses
// ------------------------------------------------------------------------------------

/// asin(x) - x for 0 <= x <= 1/2, given x and x^2.
static Real asin_rest(Real x, Real z) {
  return polynomial(z, kAsinF32, kAsinF64) * z * x;
}

Real asin(Real x) {
  // asin(a) = pi / 2 - 2 asin(sqrt((1 - a) / 2))
  Real a = abs(x);
  Mask small = a < 0.5;
  Real z = select(small, x * x, (1 - a) * 0.5);
  Real y = select(small, a, sqrt(z));
  Real rest = asin_rest(y, z);
  Pair half = half_pi(x);
  Real large = half.high - (2 * y - fma(rest, -2, half.low));
  return copysign(select(small, y + rest, large), x);
}

Real acos(Real x) {
  Real a = abs(x);
  Mask small = a < 0.5;
  Real z = select(small, x * x, (1 - a) * 0.5);
  Real y = select(small, x, sqrt(z));
  Real rest = asin_rest(y, z);
  Pair half = half_pi(x);
  Real near_zero = half.high - (y - (half.low - rest));
  Real twice = 2 * (y + rest);
  Real near_ends = select(x < 0, 2 * half.high - (twice - 2 * half.low), twice);
  return select(small, near_zero, near_ends);
}

/// atan(y / x) for 0 <= y <= x, not both 0 or infinite; the result is high + low.
static Pair atan_of_quotient(Real y, Real x) {
  // atan(y / x) = pi / 4 + atan((y - x) / (y + x))
  Mask large = y > x * 0.41421356;
  Real t = select(large, y - x, y) / select(large, y + x, x);
  Real z = t * t;
  Real rest = polynomial(z, kAtanF32, kAtanF64) * z * t;
  Pair half = half_pi(x);
  Pair quarter = exact_sum_ordered(half.high * 0.5, t);
  return {select(large, quarter.high, t),
          select(large, quarter.low + fma(half.low, 0.5, rest), rest)};
}

Real atan(Real x) {
  Real a = abs(x);
  Mask large = a > 1;
  Pair r = atan_of_quotient(select(large, 1, at_most(a, 1)), select(large, a, 1));
  Pair half = half_pi(x);
  Real result = select(large, half.high - (r.high - (half.low - r.low)), sum(r));
  return copysign(result, x);
}

Real atan2(Real y, Real x) {
  Real a = abs(y);
  Real b = abs(x);
  Mask steep = a > b;
  Real above = select(steep, b, a);
  Real below = select(steep, a, b);
  // Equal infinities are like equal numbers; 0 over 0 is 0; no sum may overflow.
  Mask infinite = above == kInfinity;
  above = select(infinite, 1, above);
  below = select(infinite, 1, select(below == 0, 1, below));
  Real scale = select(below > (x.is_double() ? 0x1p1020 : 0x1p124), 0x1p-4, x.like(1));
  Pair r = atan_of_quotient(above * scale, below * scale);
  Pair half = half_pi(x);
  // Turn by a quarter, then by a half.
  Real high = select(steep, half.high - r.high, r.high);
  Real low = select(steep, (half.high - high) - r.high + (half.low - r.low), r.low);
  Mask left = bits(x) < 0;
  Real result = select(left, 2 * half.high - (high - (2 * half.low - low)), high + low);
  return select(is_nan(x, y), kNotANumber, copysign(result, y));
}

}  // namespace torch_lazy::codegen::math
