// Compiled with AVX-512.
#include "backends/cpu/convolution_kernel.h"

namespace torch_lazy {

void multiply_avx512(const ProductBlock& block, float* scratch) {
  multiply_block<Tile<16, 2, 12>>(block, scratch);
}

bool multiply_samples_avx512(const SampledProduct& product, float* scratch) {
  return multiply_samples<Tile<16, 2, 12>, Tile<16, 1, 12>>(product, scratch);
}

}  // namespace torch_lazy
