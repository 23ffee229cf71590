// From at::Tensor to LazyTensor and back.
#include "capture/tensor.h"
#include "runtime/real_tensor.h"
#include <torch_lazy/bridge.h>

#include <ATen/ATen.h>

namespace torch_lazy::bridge {

LazyTensor try_get(const at::Tensor& tensor) {
  return is_lazy(tensor) ? get(tensor) : LazyTensor();
}

LazyTensor get(const at::Tensor& tensor) {
  return LazyTensor::create(std::make_shared<LazyTensor::Data>(tensor));
}

std::vector<LazyTensor> get_all(at::TensorList tensors) {
  std::vector<LazyTensor> result;
  result.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    result.push_back(get(tensor));
  }
  return result;
}

LazyTensor get_or_create(const std::optional<at::Tensor>& tensor, at::Device device) {
  if (!tensor || !tensor->defined()) {
    return {};
  }
  return is_lazy(*tensor) ? get(*tensor) : LazyTensor::create(*tensor, device);
}

LazyTensor get_or_create_number(const at::Tensor& tensor, at::Device device) {
  const bool number = tensor.defined() && tensor.dim() == 0 && !is_lazy(tensor);
  return number ? LazyTensor::create(tensor, device) : get(tensor);
}

std::vector<IrValue> ir_values(at::TensorList tensors) {
  std::vector<IrValue> result;
  result.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    result.push_back(get(tensor).ir_value());
  }
  return result;
}

at::Tensor to_aten(const LazyTensor& tensor) {
  return tensor ? make_tensor(tensor.tensor().storage(), tensor.layout()) : at::Tensor();
}

at::Tensor to_lazy(const at::Tensor& tensor, const at::TensorOptions& options, at::Device device,
                   bool non_blocking) {
  TORCH_CHECK(!is_lazy(tensor), "torch-lazy: this is a lazy tensor already");
  BelowEverything below;
  return at::_to_copy(tensor, options.device(device).memory_format(std::nullopt), non_blocking,
                      options.memory_format_opt());
}

}  // namespace torch_lazy::bridge
