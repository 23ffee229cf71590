// Layouts of convolution and its gradients: sizes, and the memory format that the CPU kernels
// choose.
#include "capture/layouts/support.h"

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/convolution_backward_ops.h>
#include <ATen/ops/convolution_ops.h>

#include <algorithm>

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

struct Geometry {
  IntArrayRef stride, padding, dilation, output_padding;
  bool transposed;
  int64_t groups;
};

// oneDNN tells by name whether the processor has the instructions for a 16-bit dtype.
bool onednn_supports(const char* question) {
  const auto op = c10::Dispatcher::singleton().findSchema({question, ""});
  if (!op) return false;
  c10::Stack stack;
  op->callBoxed(&stack);
  return stack.front().toBool();
}

// Whether eager computes with oneDNN; otherwise with its own kernels, which differ in layout here
// and there.
bool uses_onednn(const Tensor& input, const Tensor& weight, const Geometry& geometry) {
  static const bool bfloat16 = onednn_supports("mkldnn::_is_mkldnn_bf16_supported");
  static const bool half = onednn_supports("mkldnn::_is_mkldnn_fp16_supported");
  if (geometry.transposed) {
    for (size_t i = 0; i < geometry.output_padding.size(); ++i) {
      if (geometry.output_padding[i] >= geometry.stride[i % geometry.stride.size()]) return false;
    }
  }
  if (!at::globalContext().userEnabledMkldnn() || !at::globalContext().hasMKLDNN()) return false;
  if (input.scalar_type() == at::kBFloat16) return bfloat16;
  if (input.scalar_type() == at::kHalf) return half;
  if (input.scalar_type() != at::kFloat) return false;
  constexpr int64_t small_image = 20480;
  const bool large_kernel = weight.size(-1) > 3 && weight.size(-2) > 3;
  return geometry.groups > 1 || large_kernel || input.size(0) > 1 ||
         input.size(0) * input.size(1) * input.size(2) * input.size(3) > small_image;
}

// The kernels work channels-last where the input or the weight is; for volumes only oneDNN's do.
MemoryFormat chosen_format(const Tensor& input, const Tensor& weight, bool onednn) {
  if (!is_channels_last(input) && !is_channels_last(weight)) return MemoryFormat::Contiguous;
  if (input.dim() == 4) return MemoryFormat::ChannelsLast;
  return onednn ? MemoryFormat::ChannelsLast3d : MemoryFormat::Contiguous;
}

// oneDNN makes a gradient in the chosen format; most other kernels make it like the tensor in that
// format, which keeps strides that are several formats at once.
Tensor gradient(const Tensor& of, MemoryFormat format, bool canonical) {
  return canonical ? empty(of.sizes(), of.scalar_type(), format)
                   : dense_like(contiguous(of, format));
}

std::vector<int64_t> expanded(IntArrayRef values, int64_t count) {
  return values.size() == 1 ? std::vector<int64_t>(count, values[0]) : values.vec();
}

void check(const Tensor& input, const Tensor& weight, MaybeTensor bias, const Geometry& geometry) {
  const int64_t groups = geometry.groups;
  for (const IntArrayRef values :
       {geometry.stride, geometry.padding, geometry.dilation, geometry.output_padding}) {
    at_or_first(values, 0, static_cast<size_t>(std::max<int64_t>(input.dim() - 2, 0)));
  }
  TORCH_CHECK(input.dim() == weight.dim() && input.dim() >= 3 && input.dim() <= 5,
              "convolution: dimensions");
  TORCH_CHECK(input.scalar_type() == weight.scalar_type(),
              "input and weight must have the same dtype");
  TORCH_CHECK(at::isFloatingType(input.scalar_type()),
              "convolution of integers or complex numbers");
  TORCH_CHECK(groups > 0 && weight.size(0) % groups == 0,
              "convolution: groups do not divide the channels");
  TORCH_CHECK(geometry.transposed ? input.size(1) == weight.size(0)
                                  : input.size(1) == times(weight.size(1), groups),
              "convolution: channels of input and weight differ");
  const int64_t channels = geometry.transposed ? times(weight.size(1), groups) : weight.size(0);
  if (bias && bias->defined()) {
    TORCH_CHECK(
        bias->dim() == 1 && bias->size(0) == channels && bias->scalar_type() == input.scalar_type(),
        "convolution: bias does not fit");
  }
  TORCH_CHECK(input.numel() > 0 && weight.numel() > 0, "convolution of empty tensors");
}

Tensor convolution(const Tensor& input, const Tensor& weight, MaybeTensor bias,
                   SymIntArrayRef stride, SymIntArrayRef padding, SymIntArrayRef dilation,
                   bool transposed, SymIntArrayRef output_padding, SymInt groups) {
  const Geometry geometry{ints(stride),         ints(padding), ints(dilation),
                          ints(output_padding), transposed,    integer(groups)};
  check(input, weight, bias, geometry);
  const int64_t spatial = input.dim() - 2;
  const auto steps = expanded(geometry.stride, spatial);
  const auto pads = expanded(geometry.padding, spatial);
  const auto spacing = expanded(geometry.dilation, spatial);
  const auto extra = expanded(geometry.output_padding, spatial);
  Sizes sizes{input.size(0), transposed ? weight.size(1) * geometry.groups : weight.size(0)};
  for (int64_t i = 0; i < spatial; ++i) {
    TORCH_CHECK(steps[i] > 0 && spacing[i] > 0 && pads[i] >= 0,
                "convolution: bad stride, dilation or padding");
    const int64_t kernel = plus(times(spacing[i], weight.size(i + 2) - 1), 1);
    const int64_t length = input.size(i + 2);
    if (transposed) {
      TORCH_CHECK(extra[i] < steps[i] || extra[i] < spacing[i],
                  "convolution: output padding is too large");
      sizes.push_back(
          plus(plus(times(length - 1, steps[i]), times(-2, pads[i])), plus(kernel, extra[i])));
    } else {
      const int64_t padded = plus(length, times(2, pads[i]));
      TORCH_CHECK(padded >= kernel, "convolution: the kernel is larger than the input");
      sizes.push_back((padded - kernel) / steps[i] + 1);
    }
    TORCH_CHECK(sizes.back() > 0, "convolution: the output is empty");
  }
  if (spatial > 1) {
    const bool onednn = uses_onednn(input, weight, geometry);
    return empty(sizes, input.scalar_type(), chosen_format(input, weight, onednn));
  }
  const MemoryFormat format =
      chosen_format(with_height(contiguous(input)), with_height(weight), false);
  sizes.insert(sizes.begin() + 2, 1);
  return without_height(empty(sizes, input.scalar_type(), format));
}

Three convolution_backward(const Tensor& grad, const Tensor& input, const Tensor& weight,
                           at::OptionalSymIntArrayRef bias_sizes, SymIntArrayRef stride,
                           SymIntArrayRef padding, SymIntArrayRef dilation, bool transposed,
                           SymIntArrayRef output_padding, SymInt groups, std::array<bool, 3> mask) {
  const Geometry geometry{ints(stride),         ints(padding), ints(dilation),
                          ints(output_padding), transposed,    integer(groups)};
  check(input, weight, std::nullopt, geometry);
  (void)bias_sizes;
  Three result;
  if (input.dim() == 3) {
    const Tensor flat_input = with_height(contiguous(input));
    const Tensor flat_weight = with_height(weight);
    const bool onednn = uses_onednn(flat_input, flat_weight, geometry);
    const MemoryFormat format = chosen_format(flat_input, flat_weight, onednn);
    if (mask[0]) {
      std::get<0>(result) = without_height(gradient(flat_input, format, onednn || transposed));
    }
    if (mask[1]) std::get<1>(result) = without_height(gradient(flat_weight, format, onednn));
  } else {
    const bool onednn = uses_onednn(input, weight, geometry);
    const MemoryFormat format = chosen_format(input, weight, onednn);
    const bool dilated = std::any_of(geometry.dilation.begin(), geometry.dilation.end(),
                                     [](int64_t step) { return step > 1; });
    TORCH_CHECK(onednn || !dilated || format == MemoryFormat::Contiguous,
                "the kernels of dilated images have rules of their own");
    if (mask[0]) std::get<0>(result) = gradient(input, format, onednn || transposed);
    if (mask[1]) std::get<1>(result) = gradient(weight, format, onednn || weight.dim() == 5);
  }
  if (mask[2]) std::get<2>(result) = empty({grad.size(1)}, input.scalar_type());
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
