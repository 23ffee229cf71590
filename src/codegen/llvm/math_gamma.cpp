// The gamma function's logarithm and the derivative of that. In f64; for f32 the result is rounded.
#include "codegen/llvm/math_coefficients.h"
#include "codegen/llvm/math_functions.h"
#include "codegen/llvm/math_pair.h"

namespace torch_lazy::codegen::math {

namespace {

/// log(gamma(x)) for x >= 0.
Real lgamma_of_positive(Real x) {
  Mask large = x >= 8;
  Mask low = x < 0.8;
  // gamma(x) = product * gamma(y + 1) with y between 1/2 and 3/2, or for low x gamma(x + 1) / x.
  Real y = x - 1;
  Real product = x.like(1);
  for (int i = 0; i < 6; ++i) {
    Mask more = y >= 1.5;
    product = select(more, product * y, product);
    y = select(more, y - 1, y);
  }
  y = select(low, x, y);
  // A polynomial around each root, and one between.
  Mask first = y < 0.25;
  Mask second = y < 0.75;
  Real t = y - select(first, 0, select(second, 0.5, x.like(1)));
  Real sum = x.like(0);
  for (size_t i = std::size(kLgammaNear1F64); i-- > 0;) {
    Real coefficient = select(second, kLgammaBetweenF64[i], x.like(kLgammaNear2F64[i]));
    sum = fma(sum, t, select(first, kLgammaNear1F64[i], coefficient));
  }
  sum = select(second & !first, sum, sum * t);

  Real logarithm = log(select(large | low, x, product));
  Real inverse = 1 / x;
  Real tail = fma(polynomial(inverse * inverse, kStirlingF64), inverse, 0x1.acfe390c97d69p-2);
  Real stirling = fma(x - 0.5, logarithm - 1, tail);
  return select(large, stirling, sum + select(low, -logarithm, logarithm));
}

Real lgamma_of(Real x) {
  Real a = abs(x);
  Real result = lgamma_of_positive(a);
  // gamma(x) gamma(-x) = -pi / (x sin(pi x)); near 0 both are alike.
  Real pi = x.like(0x1.921fb54442d18p+1);
  Real sine = half_turns(a).sine;
  Real mirrored = log(pi / (a * sine)) - result;
  mirrored = select(sine == 0, kInfinity, mirrored);
  result = select(x < -0x1p-60, mirrored, result);
  return select(a == kInfinity, a, result);
}

/// The derivative of that, for x > 0.
Real digamma_of_positive(Real x) {
  Mask large = x >= 6;
  Mask low = x < 1;
  // digamma(x) = digamma(y) + above / below with y from 1 to 2.
  Real y = x;
  Real above = x.like(0);
  Real below = x.like(1);
  for (int i = 0; i < 4; ++i) {
    Mask more = y >= 2;
    Real next = y - 1;
    above = select(more, fma(above, next, below), above);
    below = select(more, below * next, below);
    y = select(more, next, y);
  }
  y = select(low, x + 1, y);
  above = select(low, -1, select(large, 1, above));
  below = select(low | large, x, below);
  Real quotient = above / below;
  Real from_root = (y - kDigammaRootF64[0]) - kDigammaRootF64[1];
  Real small = fma(from_root, polynomial(y - 1.5, kDigammaF64), quotient);
  Real z = quotient * quotient;
  Real tail = fma(z, polynomial(z, kDigammaTailF64), quotient * -0.5);
  return select(large, log(x) + tail, small);
}

Real digamma_of(Real x) {
  // digamma(x) = digamma(1 - x) - pi / tan(pi x)
  Mask negative = x < 0;
  Real result = digamma_of_positive(select(negative, 1 - x, x));
  Real away = x - round(x);
  auto [sine, cosine] = half_turns(x);
  Real pi = x.like(0x1.921fb54442d18p+1);
  Real mirrored = result - copysign(pi * cosine / sine, away);
  mirrored = select(away == 0, kNotANumber, mirrored);
  return select(negative, mirrored, result);
}

}  // namespace

Real lgamma(Real x) {
  return x.is_double() ? lgamma_of(x) : lgamma_of(x.widen()).narrow();
}

Real digamma(Real x) {
  return x.is_double() ? digamma_of(x) : digamma_of(x.widen()).narrow();
}

}  // namespace torch_lazy::codegen::math
