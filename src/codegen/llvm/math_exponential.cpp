// e^x and what is made of it.
#include "codegen/llvm/math_exponential.h"

#include "codegen/llvm/math_coefficients.h"
#include "codegen/llvm/math_functions.h"

namespace torch_lazy::codegen::math {

namespace {

constexpr double kLog2E = 0x1.71547652b82fep+0;

/// e^r - 1 for |r| <= log(2) / 2.
Real exp_fraction(Real r) {
  return fma(r * r, polynomial(r, kExpF32, kExpF64), r);
}

/// x + this has x, rounded to an integer, plus the bias of exponents in its low bits.
double exponent_magic(Real x, int shift) {
  return format(x).round_magic + format(x).bias + shift;
}

Exponential exponential_with(Real x, Real magic, const Real* low) {
  Real shifted = fma(x, x.like(kLog2E), magic);
  Real n = shifted - magic;
  Pair unit = log_2(x);
  Real r = fma(n, -unit.low, fma(n, -unit.high, x));
  if (low) {
    r = r + *low;
  }
  return {from_bits(bits(shifted) << format(x).mantissa), exp_fraction(r)};
}

/// e^x = power * (1 + fraction) * scale for all x. The power stays in the range of normal numbers;
/// the multiplication with the scale, the last one, makes a result denormal or infinite.
struct ScaledExponential {
  Real power;
  Real fraction;
  Real scale;
};

ScaledExponential scaled_exponential(Real x, const Real* low) {
  // Beyond these bounds the result is infinite or 0, and stays so.
  x = at_most(at_least(x, x.is_double() ? -746 : -104), x.is_double() ? 710 : 89);
  Mask tiny = x < (x.is_double() ? -707 : -86);
  Real magic = select(tiny, exponent_magic(x, 64), x.like(exponent_magic(x, -1)));
  auto [power, fraction] = exponential_with(x, magic, low);
  return {power, fraction, select(tiny, 0x1p-64, x.like(2))};
}

}  // namespace

Exponential exponential(Real x, int shift) {
  return exponential_with(x, x.like(exponent_magic(x, shift)), nullptr);
}

/// e^x = 2^n e^r with n a multiple of 1/16: four bits of n are the place of 2^n in a table.
static Real exp_by_table(Real x) {
  x = at_most(at_least(x, -104), 89);
  const double magic = kFormatF32.round_magic / 16;
  Real shifted = fma(x, kLog2E, magic);
  Real n = shifted - magic;
  Pair unit = log_2(x);
  Real r = fma(n, -unit.low, fma(n, -unit.high, x));
  Real slope = fma(fma(r, kExpPartF32[1], kExpPartF32[0]), r, 1);
  Real power = lookup(bits(shifted), kExpTableF32[0]);
  Real rest = fma(slope, r, lookup(bits(shifted), kExpTableF32[1]));
  return scale(fma(power, rest, power), n);
}

Real exp(Real x) {
  if (has_tables(x)) {
    return exp_by_table(x);
  }
  auto [power, fraction, scale] = scaled_exponential(x, nullptr);
  return (fraction + 1) * power * scale;
}

Real exp_times(Pair x, Pair factor) {
  auto [power, fraction, scale] = scaled_exponential(x.high, &x.low);
  Real rest = fma(fraction, factor.high, fma(fraction, factor.low, factor.low));
  return (factor.high + rest) * power * scale;
}

Real exp2(Real x) {
  x = at_most(at_least(x, x.is_double() ? -1080 : -152), x.is_double() ? 1025 : 129);
  Mask tiny = x < (x.is_double() ? -1020 : -124);
  Real magic = select(tiny, exponent_magic(x, 64), x.like(exponent_magic(x, -2)));
  Real shifted = x + magic;
  Real fraction = exp_fraction((x - (shifted - magic)) * 0x1.62e42fefa39efp-1);
  Real power = from_bits(bits(shifted) << format(x).mantissa);
  return (fraction + 1) * power * select(tiny, 0x1p-64, x.like(4));
}

Real expm1(Real x) {
  Real bounded = at_most(at_least(x, x.is_double() ? -40 : -20), x.is_double() ? 710 : 89);
  auto [power, fraction] = exponential(bounded, -1);
  Real result = fma(power, fraction, power - 0.5) * 2;
  return select(abs(x) < 0x1p-60, x, result);
}

Real sigmoid(Real x) {
  // 1 / (1 + e^-x), for large e^-x as 2^-64 / (2^-64 + e^-x 2^-64). What the sum loses is known and
  // given back to the quotient.
  Real y = at_most(at_least(-x, x.is_double() ? -40 : -20), x.is_double() ? 746 : 104);
  Mask huge = y > (x.is_double() ? 707 : 86);
  Real one = select(huge, 0x1p-64, x.like(1));
  Real magic = select(huge, exponent_magic(x, -64), x.like(exponent_magic(x, 0)));
  auto [power, fraction] = exponential_with(y, magic, nullptr);
  Real base = power + one;
  Real sum = fma(power, fraction, base);
  Real rest = fma(power, fraction, base - sum) + (one - (base - power));
  Real inverse = 1 / sum;
  return fma(-(inverse * rest), inverse, inverse) * one;
}

Real tanh(Real x) {
  Real a = abs(x);
  Real z = x * x;
  Real small = fma(polynomial(z, kTanhF32, kTanhF64) * z, a, a);
  auto [power, fraction] = exponential(at_most(a + a, 40));
  Real large = 1 - 2 / fma(power, fraction, power + 1);
  return copysign(select(a < 0.625, small, large), x);
}

/// e^x / 2 for x >= 0.
static Real half_exp(Real x) {
  auto [power, fraction] = exponential(at_most(x, x.is_double() ? 711 : 90), -2);
  return (fraction + 1) * power * 2;
}

Real sinh(Real x) {
  Real a = abs(x);
  Real z = x * x;
  Real small = fma(polynomial(z, kSinhF32, kSinhF64) * z, a, a);
  Real e = half_exp(a);
  return copysign(select(a < 1, small, e - 0.25 / e), x);
}

Real cosh(Real x) {
  Real e = half_exp(abs(x));
  return e + 0.25 / e;
}

}  // namespace torch_lazy::codegen::math
