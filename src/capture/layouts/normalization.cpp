// Layouts of layer, batch and group normalization and of dropout, with their gradients.
#include "capture/layouts/support.h"

#include <ATen/native/layer_norm.h>
#include <ATen/ops/_batch_norm_with_update_ops.h>
#include <ATen/ops/_native_batch_norm_legit_no_training_ops.h>
#include <ATen/ops/_native_batch_norm_legit_ops.h>
#include <ATen/ops/batch_norm_backward_ops.h>
#include <ATen/ops/native_batch_norm_backward_ops.h>
#include <ATen/ops/native_batch_norm_ops.h>
#include <ATen/ops/native_dropout_backward_ops.h>
#include <ATen/ops/native_group_norm_backward_ops.h>
#include <ATen/ops/native_group_norm_ops.h>
#include <ATen/ops/native_layer_norm_backward_ops.h>
#include <ATen/ops/native_layer_norm_ops.h>

namespace torch_lazy {
namespace layout {
namespace {

bool given(MaybeTensor tensor) {
  return tensor.has_value() && tensor->defined();
}

// The parameters of a bfloat16 or half normalization may be float; then its statistics are float
// too.
template <class... Parameters>
ScalarType statistics_dtype(const Tensor& input, const Parameters&... parameters) {
  const ScalarType dtype = input.scalar_type();
  if (dtype != at::kBFloat16 && dtype != at::kHalf) return dtype;
  const bool any_float = ((given(parameters) && parameters->scalar_type() == at::kFloat) || ...);
  return any_float ? at::kFloat : dtype;
}

Three native_layer_norm(const Tensor& input, SymIntArrayRef normalized_shape, MaybeTensor weight,
                        MaybeTensor bias, double) {
  const IntArrayRef shape = ints(normalized_shape);
  at::native::_check_layer_norm_inputs(input, shape, weight.value_or(Tensor()),
                                       bias.value_or(Tensor()));
  const int64_t axis = input.dim() - static_cast<int64_t>(shape.size());
  Sizes statistics(input.sizes().begin(), input.sizes().end());
  std::fill(statistics.begin() + axis, statistics.end(), 1);
  const ScalarType dtype = statistics_dtype(input, weight, bias);
  return {contiguous_like(input), empty(statistics, dtype), empty(statistics, dtype)};
}

Three native_layer_norm_backward(const Tensor&, const Tensor& input, SymIntArrayRef, const Tensor&,
                                 const Tensor&, MaybeTensor weight, MaybeTensor bias,
                                 std::array<bool, 3> mask) {
  Three result;
  if (mask[0]) std::get<0>(result) = contiguous_like(input);
  if (mask[1] && given(weight)) std::get<1>(result) = contiguous_like(*weight);
  if (mask[2] && given(bias)) std::get<2>(result) = contiguous_like(*bias);
  return result;
}

// CPU kernels keep channels-last and make everything else contiguous.
Tensor batch_norm_output(const Tensor& input) {
  return empty(input.sizes(), input.scalar_type(), input.suggest_memory_format());
}

void check_channels(const Tensor& input, MaybeTensor per_channel) {
  TORCH_CHECK(!given(per_channel) || per_channel->numel() == input.size(1),
              "one value for each channel is needed");
}

Three batch_norm(const Tensor& input, MaybeTensor weight, MaybeTensor bias, MaybeTensor mean,
                 MaybeTensor variance, bool training) {
  TORCH_CHECK(input.dim() >= 2, "batch normalization needs two dimensions");
  for (const auto* per_channel : {&weight, &bias, &mean, &variance}) {
    check_channels(input, *per_channel);
  }
  const ScalarType dtype = statistics_dtype(input, weight, bias, mean, variance);
  const int64_t channels = training ? input.size(1) : 0;
  return {batch_norm_output(input), empty({channels}, dtype), empty({channels}, dtype)};
}

Three native_batch_norm(const Tensor& input, MaybeTensor weight, MaybeTensor bias, MaybeTensor mean,
                        MaybeTensor variance, bool training, double, double) {
  return batch_norm(input, weight, bias, mean, variance, training);
}

Three batch_norm_legit(const Tensor& input, MaybeTensor weight, MaybeTensor bias, Tensor& mean,
                       Tensor& variance, bool training, double, double) {
  return batch_norm(input, weight, bias, mean, variance, training);
}

Three batch_norm_legit_no_stats(const Tensor& input, MaybeTensor weight, MaybeTensor bias,
                                bool training, double, double) {
  return batch_norm(input, weight, bias, std::nullopt, std::nullopt, training);
}

Three batch_norm_legit_no_training(const Tensor& input, MaybeTensor weight, MaybeTensor bias,
                                   const Tensor& mean, const Tensor& variance, double, double) {
  return batch_norm(input, weight, bias, mean, variance, false);
}

Four batch_norm_with_update(const Tensor& input, MaybeTensor weight, MaybeTensor bias, Tensor& mean,
                            Tensor& variance, double, double) {
  auto [output, save_mean, save_invstd] = batch_norm(input, weight, bias, mean, variance, true);
  return {output, save_mean, save_invstd, empty({0}, at::kByte)};
}

Three batch_norm_gradients(const Tensor& input, MaybeTensor weight, MaybeTensor running_mean,
                           MaybeTensor save_mean, std::array<bool, 3> mask) {
  Three result;
  const ScalarType dtype = statistics_dtype(input, weight, running_mean, save_mean);
  if (mask[0]) std::get<0>(result) = batch_norm_output(input);
  if (mask[1]) std::get<1>(result) = empty({input.size(1)}, dtype);
  if (mask[2]) std::get<2>(result) = empty({input.size(1)}, dtype);
  return result;
}

Three native_batch_norm_backward(const Tensor&, const Tensor& input, MaybeTensor weight,
                                 MaybeTensor running_mean, MaybeTensor, MaybeTensor save_mean,
                                 MaybeTensor, bool, double, std::array<bool, 3> mask) {
  return batch_norm_gradients(input, weight, running_mean, save_mean, mask);
}

Three batch_norm_backward(const Tensor&, const Tensor& input, const Tensor& weight,
                          MaybeTensor running_mean, MaybeTensor, MaybeTensor save_mean, MaybeTensor,
                          bool, double, std::array<bool, 3> mask, const Tensor&) {
  return batch_norm_gradients(input, weight, running_mean, save_mean, mask);
}

Three native_group_norm(const Tensor& input, MaybeTensor weight, MaybeTensor bias, SymInt n, SymInt,
                        SymInt, int64_t groups, double) {
  check_channels(input, weight);
  check_channels(input, bias);
  const ScalarType dtype = statistics_dtype(input, weight, bias);
  const Sizes statistics{integer(n), groups};
  return {batch_norm_output(input), empty(statistics, dtype), empty(statistics, dtype)};
}

Three native_group_norm_backward(const Tensor&, const Tensor& input, const Tensor&, const Tensor&,
                                 MaybeTensor weight, SymInt, SymInt, SymInt, int64_t,
                                 std::array<bool, 3> mask) {
  Three result;
  if (mask[0]) std::get<0>(result) = batch_norm_output(input);
  if (mask[1] && given(weight)) std::get<1>(result) = contiguous_like(*weight);
  if (mask[2] && given(weight)) std::get<2>(result) = contiguous_like(*weight);
  return result;
}

Tensor native_dropout_backward(const Tensor& grad, const Tensor& mask, double) {
  // A tensor of another dtype is converted first, which packs it.
  const ScalarType dtype = at::result_type(grad, mask);
  const auto converted = [&](const Tensor& tensor) {
    return tensor.scalar_type() == dtype ? tensor : dense_like(tensor, dtype);
  };
  const Tensor masked = pointwise({converted(grad), converted(mask)});
  return pointwise({masked, wrapped_number(1.0)}, {.promotion = Promotion::common});
}

}  // namespace
}  // namespace layout

void add_normalization_layouts(LayoutRegistry& registry) {
  namespace ops = at::_ops;
  add_layout<ops::native_layer_norm>(registry, layout::native_layer_norm);
  add_layout<ops::native_layer_norm_backward>(registry, layout::native_layer_norm_backward);
  add_layout<ops::native_batch_norm>(registry, layout::native_batch_norm);
  add_layout<ops::_native_batch_norm_legit>(registry, layout::batch_norm_legit);
  add_layout<ops::_native_batch_norm_legit_no_stats>(registry, layout::batch_norm_legit_no_stats);
  add_layout<ops::_native_batch_norm_legit_no_training>(registry,
                                                        layout::batch_norm_legit_no_training);
  add_layout<ops::_batch_norm_with_update>(registry, layout::batch_norm_with_update);
  add_layout<ops::native_batch_norm_backward>(registry, layout::native_batch_norm_backward);
  add_layout<ops::batch_norm_backward>(registry, layout::batch_norm_backward);
  add_layout<ops::native_group_norm>(registry, layout::native_group_norm);
  add_layout<ops::native_group_norm_backward>(registry, layout::native_group_norm_backward);
  add_layout<ops::native_dropout_backward>(registry, layout::native_dropout_backward);
}

}  // namespace torch_lazy
