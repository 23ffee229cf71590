// Roots and rounding to integers.
#include "codegen/llvm/math_functions.h"

namespace torch_lazy::codegen::math {

Real rsqrt(Real x) {
  return 1 / sqrt(x);
}

static Real instruction(llvm::Intrinsic::ID id, Real x) {
  return {x.emitter, x.emitter->builder.CreateUnaryIntrinsic(id, x.value)};
}

/// To even, in arithmetic: a number this large has no digits after the point.
static Real round_by_addition(Real x) {
  const double large = x.is_double() ? 0x1p52 : 0x1p23;
  Real a = abs(x);
  return select(a < large, copysign((a + large) - large, x), x);
}

Real round(Real x) {
  if (x.emitter->has_rounding) {
    return instruction(llvm::Intrinsic::nearbyint, x);
  }
  return round_by_addition(x);
}

Real floor(Real x) {
  if (x.emitter->has_rounding) {
    return instruction(llvm::Intrinsic::floor, x);
  }
  Real r = round_by_addition(x);
  return copysign(select(r > x, r - 1, r), x);
}

Real ceil(Real x) {
  if (x.emitter->has_rounding) {
    return instruction(llvm::Intrinsic::ceil, x);
  }
  return -floor(-x);
}

Real trunc(Real x) {
  if (x.emitter->has_rounding) {
    return instruction(llvm::Intrinsic::trunc, x);
  }
  return copysign(floor(abs(x)), x);
}

}  // namespace torch_lazy::codegen::math
