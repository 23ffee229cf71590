// Layouts of convolution and its gradients: sizes, and the memory format that the CPU kernels choose.
#include "capture/layouts/support.h"

#include <ATen/native/ConvUtils.h>
#include <ATen/ops/convolution_backward_ops.h>
#include <ATen/ops/convolution_ops.h>

namespace torch_lazy {
namespace layout {
namespace {

// One-dimensional convolutions run as two-dimensional ones of height 1.
Tensor with_height(const Tensor& tensor) {
  Sizes sizes(tensor.sizes().begin(), tensor.sizes().end());
  Sizes strides(tensor.strides().begin(), tensor.strides().end());
  strides.insert(strides.begin() + 2, sizes[2] * strides[2]);
  sizes.insert(sizes.begin() + 2, 1);
  return empty_strided(sizes, strides, tensor.scalar_type());
}

Tensor without_height(const Tensor& tensor) {
  Sizes sizes(tensor.sizes().begin(), tensor.sizes().end());
  Sizes strides(tensor.strides().begin(), tensor.strides().end());
  sizes.erase(sizes.begin() + 2);
  strides.erase(strides.begin() + 2);
  return empty_strided(sizes, strides, tensor.scalar_type());
}

bool is_channels_last(const Tensor& tensor) {
  const MemoryFormat format = tensor.suggest_memory_format();
  return format == MemoryFormat::ChannelsLast || format == MemoryFormat::ChannelsLast3d;
}

// The kernels work channels-last where the input or the weight is; for volumes only oneDNN's do, which take
// neither doubles nor complex or integer numbers.
MemoryFormat chosen_format(const Tensor& input, const Tensor& weight) {
  if (!is_channels_last(input) && !is_channels_last(weight)) return MemoryFormat::Contiguous;
  if (input.dim() == 4) return MemoryFormat::ChannelsLast;
  TORCH_CHECK(
      input.scalar_type() == at::kDouble || at::globalContext().userEnabledMkldnn(),
      "without oneDNN the kernels of volumes differ");
  return input.scalar_type() == at::kDouble ? MemoryFormat::Contiguous : MemoryFormat::ChannelsLast3d;
}

struct Geometry {
  IntArrayRef stride, padding, dilation, output_padding;
  bool transposed;
  int64_t groups;
};

std::vector<int64_t> expanded(IntArrayRef values, int64_t count) {
  TORCH_CHECK(
      values.size() == 1 || static_cast<int64_t>(values.size()) == count, "one value for each dimension");
  return values.size() == 1 ? std::vector<int64_t>(count, values[0]) : values.vec();
}

void check(const Tensor& input, const Tensor& weight, MaybeTensor bias, const Geometry& geometry) {
  const int64_t groups = geometry.groups;
  TORCH_CHECK(input.dim() == weight.dim() && input.dim() >= 3 && input.dim() <= 5, "convolution: dimensions");
  TORCH_CHECK(input.scalar_type() == weight.scalar_type(), "input and weight must have the same dtype");
  TORCH_CHECK(at::isFloatingType(input.scalar_type()), "convolution of integers or complex numbers");
  TORCH_CHECK(groups > 0 && weight.size(0) % groups == 0, "convolution: groups do not divide the channels");
  TORCH_CHECK(
      geometry.transposed ? input.size(1) == weight.size(0) : input.size(1) == weight.size(1) * groups,
      "convolution: channels of input and weight differ");
  const int64_t channels = geometry.transposed ? weight.size(1) * groups : weight.size(0);
  if (bias && bias->defined()) {
    TORCH_CHECK(
        bias->dim() == 1 && bias->size(0) == channels && bias->scalar_type() == input.scalar_type(),
        "convolution: bias does not fit");
  }
  TORCH_CHECK(input.numel() > 0 && weight.numel() > 0, "convolution of empty tensors");
}

Tensor convolution(
    const Tensor& input, const Tensor& weight, MaybeTensor bias, SymIntArrayRef stride,
    SymIntArrayRef padding, SymIntArrayRef dilation, bool transposed, SymIntArrayRef output_padding,
    SymInt groups) {
  const Geometry geometry{ints(stride), ints(padding), ints(dilation), ints(output_padding), transposed,
                          integer(groups)};
  check(input, weight, bias, geometry);
  const int64_t spatial = input.dim() - 2;
  const auto steps = expanded(geometry.stride, spatial);
  const auto pads = expanded(geometry.padding, spatial);
  const auto spacing = expanded(geometry.dilation, spatial);
  const auto extra = expanded(geometry.output_padding, spatial);
  Sizes sizes{input.size(0), transposed ? weight.size(1) * geometry.groups : weight.size(0)};
  for (int64_t i = 0; i < spatial; ++i) {
    TORCH_CHECK(steps[i] > 0 && spacing[i] > 0 && pads[i] >= 0, "convolution: bad stride, dilation or padding");
    const int64_t kernel = spacing[i] * (weight.size(i + 2) - 1) + 1;
    const int64_t length = input.size(i + 2);
    if (transposed) {
      TORCH_CHECK(extra[i] < steps[i] || extra[i] < spacing[i], "convolution: output padding is too large");
      sizes.push_back((length - 1) * steps[i] - 2 * pads[i] + kernel + extra[i]);
    } else {
      TORCH_CHECK(length + 2 * pads[i] >= kernel, "convolution: the kernel is larger than the input");
      sizes.push_back((length + 2 * pads[i] - kernel) / steps[i] + 1);
    }
    TORCH_CHECK(sizes.back() > 0, "convolution: the output is empty");
  }
  if (spatial > 1) return empty(sizes, input.scalar_type(), chosen_format(input, weight));
  const MemoryFormat format = chosen_format(with_height(contiguous(input)), with_height(weight));
  sizes.insert(sizes.begin() + 2, 1);
  return without_height(empty(sizes, input.scalar_type(), format));
}

Three convolution_backward(
    const Tensor& grad, const Tensor& input, const Tensor& weight, at::OptionalSymIntArrayRef bias_sizes,
    SymIntArrayRef stride, SymIntArrayRef padding, SymIntArrayRef dilation, bool transposed,
    SymIntArrayRef output_padding, SymInt groups, std::array<bool, 3> mask) {
  const Geometry geometry{ints(stride), ints(padding), ints(dilation), ints(output_padding), transposed,
                          integer(groups)};
  check(input, weight, std::nullopt, geometry);
  (void)bias_sizes;
  const ScalarType dtype = input.scalar_type();
  Three result;
  if (input.dim() == 3) {
    const Tensor flat_input = with_height(contiguous(input));
    const Tensor flat_weight = with_height(weight);
    const MemoryFormat format = chosen_format(flat_input, flat_weight);
    if (mask[0]) std::get<0>(result) = without_height(empty(flat_input.sizes(), dtype, format));
    if (mask[1]) std::get<1>(result) = without_height(empty(flat_weight.sizes(), dtype, format));
  } else {
    const MemoryFormat format = chosen_format(input, weight);
    if (mask[0]) std::get<0>(result) = empty(input.sizes(), dtype, format);
    if (mask[1]) std::get<1>(result) = empty(weight.sizes(), dtype, format);
  }
  if (mask[2]) std::get<2>(result) = empty({grad.size(1)}, dtype);
  return result;
}

}  // namespace
}  // namespace layout

void add_convolution_layouts(LayoutRegistry& registry) {
  namespace ops = at::_ops;
  add_layout<ops::convolution>(registry, layout::convolution);
  add_layout<ops::convolution_backward>(registry, layout::convolution_backward);
}

}  // namespace torch_lazy
