// Logarithms, and the inverse hyperbolic functions made of them.
#include "codegen/llvm/math_logarithm.h"

#include "codegen/llvm/math_coefficients.h"
#include "codegen/llvm/math_functions.h"

namespace torch_lazy::codegen::math {

Split split(Real x, const Real* low) {
  const Format& f = format(x);
  const int64_t two_thirds = x.is_double() ? 0x3fe5555555555555 : 0x3f2aaaab;
  const int64_t mantissa_bits = (int64_t{1} << f.mantissa) - 1;
  Mask denormal = x < f.smallest;
  const double up = x.is_double() ? 0x1p52 : 0x1p23;
  Integer b = bits(low ? x : select(denormal, x * up, x));
  Integer above = b - two_thirds;
  Real fraction = from_bits((above & mantissa_bits) + two_thirds) - 1;
  Integer exponent = above >> f.mantissa;
  Real n = to_real(exponent);
  if (low) {
    Integer bounded = select(exponent < f.bias, exponent, f.bias);
    Real down = from_bits((exponent.like(f.bias) - bounded) << f.mantissa);
    fraction = fma(*low, down, fraction);
  } else {
    n = n - select(denormal, f.mantissa, x.like(0));
  }
  return {n, fraction};
}

namespace {

/// log(1 + m) as m and a rest.
Pair log_fraction(Real m) {
  if (!m.is_double()) {
    return {m, m * m * fma(polynomial(m, kLogF32), m, -0.5)};
  }
  // 2 atanh(s) = 2 s + s z p(z), and 2 s = m - m^2 / 2 + s m^2 / 2.
  Real s = m / (m + 2);
  Real z = s * s;
  Real half = 0.5 * m * m;
  return {m, fma(s, fma(z, polynomial(z, kLogF64), half), -half)};
}

/// n * log(2) + the sum of the pair.
Real add_exponent(Real n, Pair x) {
  Pair unit = log_2(n);
  if (n.is_double()) {
    return fma(n, unit.high, x.high + fma(n, unit.low, x.low));
  }
  // With one rounding the nearest f32 to log(2) is near enough (2^-29), else the product is exact.
  if (n.emitter->has_fma) {
    return fma(n, 0x1.62e430p-1, sum(x));
  }
  return n * unit.high + (n * unit.low + sum(x));
}

/// The result for 0, infinity, negative numbers and NaN instead.
Real with_special_values(Real x, Real result) {
  result = select(x == kInfinity, kInfinity, result);
  result = select(x == 0, -kInfinity, result);
  return select(x >= 0, result, kNotANumber);
}

/// n * unit + log(x) * scale
Real scaled_log(Real x, Pair unit, Pair scale) {
  auto [n, m] = split(x);
  Pair fraction = log_fraction(m);
  Pair scaled = exact_sum_ordered(fraction.high, fraction.low) * scale;
  Pair result = exact_sum_ordered(n * unit.high, scaled.high);
  return with_special_values(x, result.high + (result.low + fma(n, unit.low, scaled.low)));
}

/// log of a pair, positive and finite; the exponent counts `more`.
Real log_of(Pair x, Real more) {
  auto [n, m] = split(x.high, &x.low);
  return add_exponent(n + more, log_fraction(m));
}

}  // namespace

Real log(Real x) {
  auto [n, m] = split(x);
  return with_special_values(x, add_exponent(n, log_fraction(m)));
}

Real log2(Real x) {
  Pair scale = x.is_double() ? pair_like(x, 0x1.71547652b82fep+0, 0x1.777d0ffda0d24p-56)
                             : pair_like(x, 0x1.715476p+0, 0x1.4ae0cp-26);
  return scaled_log(x, pair_like(x, 1, 0), scale);
}

Real log10(Real x) {
  // The high part of log10(2) has zeros enough at its end for an exact product.
  Pair unit = x.is_double() ? pair_like(x, 0x1.34413509f8000p-2, -0x1.80433b83b532ap-44)
                            : pair_like(x, 0x1.344000p-2, 0x1.3509f8p-18);
  Pair scale = x.is_double() ? pair_like(x, 0x1.bcb7b1526e50ep-2, 0x1.95355baaafad3p-57)
                             : pair_like(x, 0x1.bcb7b2p-2, -0x1.5b235ep-27);
  return scaled_log(x, unit, scale);
}

Real log1p(Real x) {
  Real result = log_of(exact_sum(x.like(1), x), x.like(0));
  result = select(x == kInfinity, kInfinity, result);
  result = select(x == -1, -kInfinity, result);
  result = select(x >= -1, result, kNotANumber);
  return select(abs(x) < 0x1p-60, x, result);
}

// ---- Inverse hyperbolic functions
// ----------------------------------------------------------------

// Beyond this the root of x^2 + 1 or x^2 - 1 is x.
constexpr double kRootIsX = 0x1p30;

Real asinh(Real x) {
  Real a = abs(x);
  Real z = x * x;
  Real small = fma(polynomial(z, kAsinhF32, kAsinhF64) * z, a, a);
  Mask large = a > kRootIsX;
  Real root = select(large, 0, sqrt(z + 1));
  Real result = log_of(exact_sum_ordered(select(large, a, root), select(large, root, a)),
                       select(large, 1, x.like(0)));
  result = select(a < kInfinity, result, a);
  return copysign(select(a < 1, small, result), x);
}

Real acosh(Real x) {
  Real t = x - 1;
  Real small = sqrt(t + t) * polynomial(t, kAcoshF32, kAcoshF64);
  Mask large = x > kRootIsX;
  Real root = select(large, 0, sqrt(t * (x + 1)));
  Real result = log_of(exact_sum_ordered(x, root), select(large, 1, x.like(0)));
  result = select(x < kInfinity, result, x);
  return select(x < 1.5, small, result);
}

Real atanh(Real x) {
  Real a = abs(x);
  Real z = x * x;
  Real small = fma(polynomial(z, kAtanhF32, kAtanhF64) * z, a, a);
  // (1 + a) / (1 - a) = 1 + 2 a / (1 - a)
  Real result = 0.5 * log_of(exact_sum(x.like(1), (a + a) / (1 - a)), x.like(0));
  result = select(a == 1, kInfinity, result);
  result = select(a <= 1, result, kNotANumber);
  return copysign(select(a < 0.5, small, result), x);
}

}  // namespace torch_lazy::codegen::math
