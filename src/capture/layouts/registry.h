// Layout functions: sizes, strides, dtypes and offsets of an operator's results, found without
// running it. Each is a kernel over Meta tensors that is called directly, so that neither the
// dispatcher nor Python's Meta registrations take part.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/operator_name.h>

#include <string_view>
#include <unordered_map>

namespace torch_lazy {

class LayoutRegistry {
 public:
  // Filled on first use; read-only and safe to share between threads afterwards.
  static LayoutRegistry& instance();

  // `name` as in "aten::add.Tensor", or "aten::mm" where there is no overload name. Replaces an
  // earlier entry.
  void add(std::string_view name, c10::KernelFunction kernel);

  // Null where nothing is known: run the operator and look at its results.
  const c10::KernelFunction* find(const c10::OperatorName& name) const;

  const std::unordered_map<c10::OperatorName, c10::KernelFunction>& entries() const {
    return entries_;
  }

 private:
  LayoutRegistry();

  std::unordered_map<c10::OperatorName, c10::KernelFunction> entries_;
};

}  // namespace torch_lazy
