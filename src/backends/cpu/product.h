// Matrix products of our own, where they are faster than those that PyTorch was built with.
#pragma once

#include "backends/cpu/product_arguments.h"

#include <functional>

namespace torch_lazy {

struct ProductKernels {
  void (*multiply)(const ProductBlock&, float* scratch);
  bool (*multiply_samples)(const SampledProduct&, float* scratch);
};

/// Those for this processor, if there are any.
const ProductKernels* product_kernels();

/// Whether the processor has AVX-512, and the setting TORCH_LAZY_CODEGEN_TARGET allows it.
bool has_avx512();

/// Whether products of this size should be computed here. The answer depends on the processor, the
/// setting TORCH_LAZY_PRODUCTS and the size alone, and so do the bits of the result.
bool has_product(int64_t rows, int64_t columns, int64_t depth);

/// Whether they can be computed here, and the setting does not forbid it.
bool can_multiply(int64_t rows, int64_t columns, int64_t depth);

/// The library that PyTorch's wheels multiply with is Intel's, and the processor too.
bool is_for_pytorch();

/// On PyTorch's threads. The bits do not depend on their number.
void multiply(const ProductBlock& product);

/// A batch of products of one size: `product(i)` is one of them.
void multiply_each(int64_t count, const std::function<ProductBlock(int64_t)>& product);

/// A part of a result that one thread computes.
struct ResultBlock {
  int64_t row;
  int64_t rows;
  int64_t column;
  int64_t columns;
};

/// Cuts a product's result into blocks, and calls `compute` for each on PyTorch's threads.
void for_blocks(int64_t rows, int64_t columns, int64_t depth,
                const std::function<void(const ResultBlock&)>& compute);

}  // namespace torch_lazy
