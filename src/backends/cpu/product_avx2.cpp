// Compiled with AVX2 and FMA.
#include "backends/cpu/product_kernel.h"

namespace torch_lazy {

void multiply_avx2(const ProductBlock& block, float* scratch) {
  multiply_block<8, 2, 6>(block, scratch);
}

}  // namespace torch_lazy
