// From at::Tensor to LazyTensor and back.
#pragma once

#include <torch_lazy/export.h>
#include <torch_lazy/lazy_tensor.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

namespace torch_lazy::bridge {

/// Absent for a tensor that is not lazy, or not defined.
TORCH_LAZY_API LazyTensor try_get(const at::Tensor& tensor);

/// An error that says "not a lazy tensor" for any other.
TORCH_LAZY_API LazyTensor get(const at::Tensor& tensor);
TORCH_LAZY_API std::vector<LazyTensor> get_all(at::TensorList tensors);

/// A plain tensor is copied to `device`; an undefined one, or none, is absent.
TORCH_LAZY_API LazyTensor get_or_create(const std::optional<at::Tensor>& tensor, at::Device device);

/// Plain tensors are accepted where operators accept them beside lazy ones: numbers that PyTorch
/// wrapped, and tensors without dimensions. Any other plain tensor is an error.
TORCH_LAZY_API LazyTensor get_or_create_number(const at::Tensor& tensor, at::Device device);

/// The values that the tensors of a list stand for, in order; data becomes leaves.
TORCH_LAZY_API std::vector<IrValue> ir_values(at::TensorList tensors);

/// A tensor over the same memory, without autograd's history; undefined for an absent one.
TORCH_LAZY_API at::Tensor to_aten(const LazyTensor& tensor);

namespace detail {
template <size_t... Index>
auto to_aten_tuple(const std::vector<LazyTensor>& tensors, std::index_sequence<Index...>) {
  return std::make_tuple(to_aten(tensors.at(Index))...);
}
}  // namespace detail

/// The first N as a tuple, the way operators return several results.
template <size_t N>
auto to_aten_tuple(const std::vector<LazyTensor>& tensors) {
  return detail::to_aten_tuple(tensors, std::make_index_sequence<N>{});
}

/// A copy of a plain tensor on `device`, with the dtype and memory format of `options` where they
/// are given.
TORCH_LAZY_API at::Tensor to_lazy(const at::Tensor& tensor, const at::TensorOptions& options,
                                  at::Device device, bool non_blocking = false);

}  // namespace torch_lazy::bridge
