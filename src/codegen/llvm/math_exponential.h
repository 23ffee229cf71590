// e^x taken apart, for functions made of it.
#pragma once

#include "codegen/llvm/math_pair.h"

namespace torch_lazy::codegen::math {

/// e^x = power * (1 + fraction) with |fraction| < 0.42; the power of two is exact.
struct Exponential {
  Real power;
  Real fraction;
};

/// The power is multiplied by 2^shift; it must then lie between 1/2 of the smallest normal number
/// and infinity.
Exponential exponential(Real x, int shift = 0);

/// e^x * factor, for all x and factors near 1, rounded once.
Real exp_times(Pair x, Pair factor);

}  // namespace torch_lazy::codegen::math
