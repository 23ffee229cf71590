// Numbers of twice the precision: a sum of two, the second small against the first.
#pragma once

#include "codegen/llvm/math_value.h"

namespace torch_lazy::codegen::math {

struct Pair {
  Real high;
  Real low;
};

/// a + b, exactly.
Pair exact_sum(Real a, Real b);
Pair exact_sum_ordered(Real a, Real b);  // |a| >= |b|, or a = 0

/// a * b, exactly (while nothing overflows or becomes denormal).
Pair exact_product(Real a, Real b);

Pair operator+(Pair a, Pair b);  // |a| >= |b|, or a = 0
Pair operator*(Pair a, Real b);
Pair operator*(Pair a, Pair b);
Pair operator/(Pair a, Pair b);

inline Pair operator-(Pair a) {
  return {-a.high, -a.low};
}
inline Real sum(Pair a) {
  return a.high + a.low;
}

// ---- Constants
// -----------------------------------------------------------------------------------

inline Pair pair_like(Real x, double high, double low) {
  return {x.like(high), x.like(low)};
}

/// log(2); the high part has zeros enough at its end for an exact product with an exponent.
inline Pair log_2(Real x) {
  if (x.is_double()) {
    return pair_like(x, 0x1.62e42fefa0000p-1, 0x1.cf79abc9e3b3ap-40);
  }
  return pair_like(x, 0x1.62e400p-1, 0x1.7f7d1cp-20);
}

/// pi / 2
inline Pair half_pi(Real x) {
  if (x.is_double()) {
    return pair_like(x, 0x1.921fb54442d18p+0, 0x1.1a62633145c07p-54);
  }
  return pair_like(x, 0x1.921fb6p+0, -0x1.777a5cp-25);
}

}  // namespace torch_lazy::codegen::math
