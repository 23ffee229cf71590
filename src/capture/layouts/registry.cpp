#include "capture/layouts/registry.h"

#include "capture/layouts/layouts.h"

#include <string>
#include <utility>

namespace torch_lazy {

LayoutRegistry& LayoutRegistry::instance() {
  static LayoutRegistry registry;
  return registry;
}

LayoutRegistry::LayoutRegistry() {
  add_meta_tables(*this);
  add_creation_layouts(*this);
  add_pointwise_layouts(*this);
  add_reduction_layouts(*this);
  add_indexing_layouts(*this);
  add_normalization_layouts(*this);
  add_spatial_layouts(*this);
  add_linear_algebra_layouts(*this);
  add_shape_layouts(*this);
  add_loss_layouts(*this);
  add_convolution_layouts(*this);
  add_attention_layouts(*this);
  add_foreach_layouts(*this);
  add_out_layouts(*this);
}

void LayoutRegistry::add(std::string_view name, c10::KernelFunction kernel) {
  const auto dot = name.find('.');
  c10::OperatorName key(std::string(name.substr(0, dot)), dot == std::string_view::npos
                                                              ? std::string()
                                                              : std::string(name.substr(dot + 1)));
  entries_.insert_or_assign(std::move(key), std::move(kernel));
}

const c10::KernelFunction* LayoutRegistry::find(const c10::OperatorName& name) const {
  const auto found = entries_.find(name);
  return found == entries_.end() ? nullptr : &found->second;
}

}  // namespace torch_lazy
