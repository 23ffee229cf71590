// Compiled with AVX-512.
#include "backends/cpu/product_kernel.h"

namespace torch_lazy {

void multiply_avx512(const ProductBlock& block, float* scratch) {
  multiply_block<16, 2, 12>(block, scratch);
}

}  // namespace torch_lazy
