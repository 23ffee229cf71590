// Random kernels that are valid and whose results do not depend on rounding.
#pragma once

#include "problem.h"

namespace torch_lazy::codegen {

/// The same seed gives the same kernel and data.
Problem random_problem(unsigned seed);

}  // namespace torch_lazy::codegen
