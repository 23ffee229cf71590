// Compiled with AVX2 and FMA.
#include "backends/cpu/convolution_kernel.h"

namespace torch_lazy {

void multiply_avx2(const ProductBlock& block, float* scratch) {
  multiply_block<Tile<8, 2, 6>>(block, scratch);
}

bool multiply_samples_avx2(const SampledProduct& product, float* scratch) {
  return multiply_samples<Tile<8, 2, 6>, Tile<8, 2, 6>>(product, scratch);
}

}  // namespace torch_lazy
