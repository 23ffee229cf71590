// The functions behind Math::emit, by file.
#pragma once

#include "codegen/llvm/math_value.h"

namespace torch_lazy::codegen::math {

// math_exponential.cpp
Real exp(Real x);
Real exp2(Real x);
Real expm1(Real x);
Real sigmoid(Real x);
Real sinh(Real x);
Real cosh(Real x);
Real tanh(Real x);

// math_logarithm.cpp
Real log(Real x);
Real log2(Real x);
Real log10(Real x);
Real log1p(Real x);
Real asinh(Real x);
Real acosh(Real x);
Real atanh(Real x);

// math_trigonometric.cpp
Real sin(Real x);
Real cos(Real x);
Real tan(Real x);
Real asin(Real x);
Real acos(Real x);
Real atan(Real x);
Real atan2(Real y, Real x);

/// |sin(pi x)| and |cos(pi x)|
struct SineAndCosine {
  Real sine;
  Real cosine;
};
SineAndCosine half_turns(Real x);

// math_power.cpp
Real pow(Real x, Real y);
Real hypot(Real x, Real y);

// math_special.cpp
Real erf(Real x);
Real erfc(Real x);
Real erfinv(Real x);

// math_gamma.cpp
Real lgamma(Real x);
Real digamma(Real x);

// math_rounding.cpp
Real rsqrt(Real x);
Real floor(Real x);
Real ceil(Real x);
Real trunc(Real x);
Real round(Real x);  // to even

}  // namespace torch_lazy::codegen::math
