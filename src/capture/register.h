// Who registers what with PyTorch's dispatcher; register.cpp calls these in order.
#pragma once

#include <torch/library.h>

namespace torch_lazy {

/// Operators with kernels of their own, for the key Lazy.
void register_kernels(torch::Library& library);

/// View operators, for the key Lazy.
void register_views(torch::Library& library);

/// linear and its gradient, for the key Lazy, and then for AutogradLazy.
void register_linear(torch::Library& library);
void register_differentiable_linear(torch::Library& library);

/// Composite operators that take the real device's branch, for Lazy and AutogradLazy.
void register_composites(torch::Library& library);

/// Fourier transforms, for Lazy and AutogradLazy, and what they come down to, for Lazy.
void register_transforms(torch::Library& library);
void register_basic_transforms(torch::Library& library);

}  // namespace torch_lazy
