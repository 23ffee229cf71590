// The scalar arguments of kernels, from the numbers of a run.
#pragma once

#include "compile/piece.h"
#include <torch_lazy/backend.h>

#include <cstdint>

namespace torch_lazy {

/// The scalar in its own type, at the front of eight bytes, as kernels expect it.
int64_t argument_bits(const compile::Scalar& scalar, const Run& run);

}  // namespace torch_lazy
