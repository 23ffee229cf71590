// Angles modulo a quarter of a turn.
#pragma once

#include "codegen/llvm/math_pair.h"

namespace torch_lazy::codegen::math {

/// x = quadrant * pi / 2 + angle with |angle| <= pi / 4; of the quadrant the last two bits count.
struct Angle {
  Integer quadrant;
  Pair angle;
};

/// For any finite x >= 0, to twice the precision.
Angle reduce_angle(Real x);

}  // namespace torch_lazy::codegen::math
