// Convolutions of our own, where they are faster than those that PyTorch was built with. They are
// matrix products, of which one operand is sampled from images while it is packed.
#pragma once

#include "compile/program.h"

namespace torch_lazy {

/// Whether a convolution, or a gradient of one, should be computed here: by the processor, the
/// setting TORCH_LAZY_PRODUCTS and the sizes alone, as are the bits of the result.
bool has_convolution(const compile::Product& product);

/// On PyTorch's threads; the bits do not depend on their number. The operands are where their
/// layouts begin.
void convolve(const compile::Product& product, float* a, float* b, float* out);

}  // namespace torch_lazy
