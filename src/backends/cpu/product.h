// Matrix products of our own, where they are faster than those that PyTorch was built with.
#pragma once

#include <stdint.h>

namespace torch_lazy {

/// Rows, columns and depth that are packed at a time.
constexpr int64_t kProductRows = 192;
constexpr int64_t kProductColumns = 768;
constexpr int64_t kProductDepth = 256;
constexpr int64_t kProductScratch = (kProductRows + kProductColumns) * kProductDepth;  // floats

/// result[rows, columns] = a[rows, depth] * b[depth, columns]. Rows of the result are contiguous.
struct ProductBlock {
  const float* a = nullptr;
  int64_t a_row = 0;  // strides, in elements
  int64_t a_depth = 0;
  const float* b = nullptr;
  int64_t b_depth = 0;
  int64_t b_column = 0;
  float* result = nullptr;
  int64_t result_row = 0;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t depth = 0;
};

void multiply_avx2(const ProductBlock& block, float* scratch);
void multiply_avx512(const ProductBlock& block, float* scratch);

/// Whether products of this size should be computed here. The answer depends on the processor, the
/// setting TORCH_LAZY_PRODUCTS and the size alone, and so do the bits of the result.
bool has_product(int64_t rows, int64_t columns, int64_t depth);

/// On PyTorch's threads. The bits do not depend on their number.
void multiply(const ProductBlock& product);

}  // namespace torch_lazy
