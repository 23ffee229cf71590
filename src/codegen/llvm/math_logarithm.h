// Numbers taken apart for logarithms.
#pragma once

#include "codegen/llvm/math_pair.h"

namespace torch_lazy::codegen::math {

/// x = 2^exponent * (1 + fraction) with -1/3 <= fraction < 1/3.
struct Split {
  Real exponent;
  Real fraction;
};

/// For positive and finite x, which may have a low part if it is not denormal.
Split split(Real x, const Real* low = nullptr);

}  // namespace torch_lazy::codegen::math
