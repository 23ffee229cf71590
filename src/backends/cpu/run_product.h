// Products and convolutions of a plan.
#pragma once

#include "backends/cpu/convolution.h"
#include "compile/program.h"

#include <ATen/core/Tensor.h>

namespace torch_lazy {

/// Whether our own kernels compute a product that is no convolution. Decided once for a plan: its
/// runs have the same bits.
bool is_own(const compile::Product& product);

/// Whether they can: for steps that are made only where they do.
bool has_own(const compile::Product& product);

/// The memory is that of the views' slots.
void run_own(const compile::Product& product, char* a, char* b, char* out);
void run_convolution(const compile::Product& product, const PreparedConvolution& convolution,
                     char* a, char* b, char* out, Beside* beside);
void run_aten(const at::Tensor& a, const at::Tensor& b, at::Tensor out);

}  // namespace torch_lazy
