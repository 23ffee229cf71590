// The error function and what is made of it.
#include "codegen/llvm/math_coefficients.h"
#include "codegen/llvm/math_exponential.h"
#include "codegen/llvm/math_functions.h"

namespace torch_lazy::codegen::math {

/// Where erf(x) = x + x p(x^2).
static Mask is_small(Real x) {
  return abs(x) < (x.is_double() ? 1 : 0.8);
}

/// The p of that.
static Real erf_rest(Real x) {
  return polynomial(x * x, kErfF32, kErfF64);
}

/// A polynomial around the nearest multiple of 1/8; where the last one ends the result is 1.
static Real erf_by_table(Real x) {
  Real a = at_most(abs(x), 0x1.f7fffep+1);
  const double magic = kFormatF32.round_magic / 8;
  Real shifted = a + magic;
  Real t = a - (shifted - magic);
  Real result = lookup(bits(shifted), kErfTableF32[std::size(kErfTableF32) - 1]);
  for (size_t i = std::size(kErfTableF32) - 1; i-- > 0;) {
    result = fma(result, t, lookup(bits(shifted), kErfTableF32[i]));
  }
  return copysign(result, x);
}

Real erf(Real x) {
  if (has_tables(x)) {
    return erf_by_table(x);
  }
  Real a = abs(x);
  // 1 - e^p(a); beyond the bound the result is 1.
  Real bounded = at_most(a, x.is_double() ? 5.95 : 3.95);
  auto [power, fraction] = exponential(polynomial(bounded, kErfTailF32, kErfTailF64));
  Real large = fma(-power, fraction, 1 - power);
  return copysign(select(is_small(a), fma(erf_rest(a), a, a), large), x);
}

/// erfc(x) * e^(x^2) from where x is not small to where erfc(x) is 0.
static Pair scaled_erfc(Real x) {
  Pair below = exact_sum(x, x.like(x.is_double() ? 3 : 2.5));
  Real u = 1 / below.high;
  Pair one = exact_product(u, below.high);
  Real rest = u * (((1 - one.high) - one.low) - u * below.low);
  // u + rest times a polynomial, whose last step is exact.
  const double* line = x.is_double() ? kErfcLineF64 : kErfcLineF32;
  Real t = fma(rest, line[1], fma(u, line[1], line[0]));
  std::span<const double> coefficients(kErfcF32);
  if (x.is_double()) {
    coefficients = kErfcF64;
  }
  Real slope = polynomial(t, coefficients.subspan(1));
  Pair p = exact_sum(x.like(coefficients[0]), slope * t);
  return Pair{p.high, p.low + exact_product(slope, t).low} * Pair{u, rest};
}

Real erfc(Real x) {
  Real a = at_most(abs(x), x.is_double() ? 27.3 : 10.1);
  Real far = exp_times(-exact_product(a, a), scaled_erfc(a));
  far = select(x < 0, 2 - far, far);
  return select(is_small(x), fma(-x, erf_rest(x), 1 - x), far);
}

Real erfinv(Real x) {
  Real a = abs(x);
  Real w = -log((1 - a) * (1 + a));
  Real near = polynomial(w - 2.5, kErfinvF32);
  Real far = polynomial(sqrt(w) - 3, kErfinvTailF32, kErfinvTailF64);
  Real y = a * select(w < 5, near, far);
  if (x.is_double()) {
    // That was good to some 24 bits: one step of Halley's method, with the difference to the right
    // value taken on the side where it is exact.
    const double half_root_pi = 0x1.c5bf891b4ef6bp-1;
    Real growth = exp_times(exact_product(y, y), pair_like(y, 1, 0));
    Real below = fma(erf_rest(y), y, y - a) * growth;
    Real above = (1 - a) * growth - sum(scaled_erfc(y));
    Real step = select(a < 0.81, below, above) * half_root_pi;
    y = y - step / fma(y, step, 1);
  }
  return copysign(select(a == 1, kInfinity, y), x);
}

}  // namespace torch_lazy::codegen::math
