// Convolutions of our own: matrix products, of which one operand is sampled from images while it is
// packed.
#pragma once

#include "backends/cpu/convolution.h"

namespace torch_lazy {

/// Whether a convolution of floats can be computed here, and the setting does not forbid it.
bool has_own_convolution(const compile::Product& product);

std::shared_ptr<const PreparedConvolution> own_convolution(const compile::Product& product);

/// By PyTorch's operator, into memory that is planned.
std::shared_ptr<const PreparedConvolution> pytorchs_convolution(const compile::Product& product);

}  // namespace torch_lazy
