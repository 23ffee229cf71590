// Convolutions by the oneDNN that is built in (src/onednn): those of float32 with AVX-512, and the
// gradients of their inputs.
#pragma once

#include "backends/cpu/convolution.h"
#include <torch_lazy/export.h>

namespace torch_lazy {

/// Whether oneDNN is there, and the processor one that it is built for.
TORCH_LAZY_API bool has_onednn();

/// Null: it has nothing for this one.
std::shared_ptr<const PreparedConvolution> blocked_convolution(const compile::Product& product);

}  // namespace torch_lazy
