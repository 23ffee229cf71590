// Convolutions of compiled graphs: our own, oneDNN's or PyTorch's, whichever is the fastest.
#pragma once

#include "compile/program.h"

#include <memory>

namespace torch_lazy {

/// A convolution of a plan, or a gradient of one. It runs on PyTorch's threads; the bits do not
/// depend on their number, unless it is PyTorch's after all.
class PreparedConvolution {
 public:
  virtual ~PreparedConvolution() = default;

  /// The operands are where their layouts begin. `beside`: what is kept beside the weight; null:
  /// nothing can be.
  virtual void run(float* a, float* b, float* out, Beside* beside) const = 0;
};

/// Whether it is computed here and not by a call of PyTorch's operator: by the processor, the
/// setting TORCH_LAZY_PRODUCTS and the sizes alone, as are the bits of the result.
bool has_convolution(const compile::Product& product);

/// For those that are.
std::shared_ptr<const PreparedConvolution> prepare_convolution(const compile::Product& product);

}  // namespace torch_lazy
