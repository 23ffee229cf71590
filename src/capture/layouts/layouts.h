// What the files of layout functions share: how one is added to the registry, and the list of the
// domains.
#pragma once

#include "capture/layouts/registry.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/boxing/KernelFunction.h>

#include <string>
#include <type_traits>

namespace torch_lazy {

// Adds `function` for the operator that `Op`, a struct of at::_ops, describes. Their types must
// agree, which makes the compiler find a schema that differs between PyTorch's versions.
template <class Op>
void add_layout(LayoutRegistry& registry, std::type_identity_t<typename Op::schema>* function) {
  std::string name = Op::name;
  if (*Op::overload_name != '\0') {
    name += '.';
    name += Op::overload_name;
  }
  registry.add(name, c10::KernelFunction::makeFromUnboxedRuntimeFunction(function));
}

void add_meta_tables(LayoutRegistry& registry);  // generated: PyTorch's own C++ Meta kernels

// One function for each file of layouts; what comes later replaces what came before.
void add_creation_layouts(LayoutRegistry& registry);
void add_pointwise_layouts(LayoutRegistry& registry);
void add_reduction_layouts(LayoutRegistry& registry);
void add_indexing_layouts(LayoutRegistry& registry);
void add_normalization_layouts(LayoutRegistry& registry);
void add_spatial_layouts(LayoutRegistry& registry);
void add_linear_algebra_layouts(LayoutRegistry& registry);
void add_shape_layouts(LayoutRegistry& registry);
void add_loss_layouts(LayoutRegistry& registry);
void add_convolution_layouts(LayoutRegistry& registry);
void add_attention_layouts(LayoutRegistry& registry);
void add_foreach_layouts(LayoutRegistry& registry);
void add_out_layouts(LayoutRegistry& registry);

}  // namespace torch_lazy
