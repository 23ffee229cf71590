// Layouts of pooling, padding, sampling and pixel rearrangement over images and volumes.
#include "capture/layouts/support.h"

#include <ATen/native/Pool.h>
#include <ATen/ops/_adaptive_avg_pool2d_backward_ops.h>
#include <ATen/ops/_adaptive_avg_pool2d_ops.h>
#include <ATen/ops/_adaptive_avg_pool3d_backward_ops.h>
#include <ATen/ops/_adaptive_avg_pool3d_ops.h>
#include <ATen/ops/channel_shuffle_ops.h>
#include <ATen/ops/col2im_ops.h>
#include <ATen/ops/fractional_max_pool2d_meta_dispatch.h>
#include <ATen/ops/fractional_max_pool2d_ops.h>
#include <ATen/ops/fractional_max_pool3d_backward_ops.h>
#include <ATen/ops/fractional_max_pool3d_meta_dispatch.h>
#include <ATen/ops/fractional_max_pool3d_ops.h>
#include <ATen/ops/grid_sampler_2d_backward_ops.h>
#include <ATen/ops/grid_sampler_2d_ops.h>
#include <ATen/ops/grid_sampler_3d_backward_ops.h>
#include <ATen/ops/grid_sampler_3d_ops.h>
#include <ATen/ops/im2col_ops.h>
#include <ATen/ops/max_pool3d_with_indices_backward_ops.h>
#include <ATen/ops/max_pool3d_with_indices_ops.h>
#include <ATen/ops/max_unpool2d_ops.h>
#include <ATen/ops/max_unpool3d_ops.h>
#include <ATen/ops/pixel_shuffle_ops.h>
#include <ATen/ops/pixel_unshuffle_ops.h>
#include <ATen/ops/reflection_pad2d_backward_ops.h>
#include <ATen/ops/reflection_pad2d_ops.h>
#include <ATen/ops/reflection_pad3d_backward_ops.h>
#include <ATen/ops/reflection_pad3d_meta_dispatch.h>
#include <ATen/ops/reflection_pad3d_ops.h>
#include <ATen/ops/replication_pad2d_backward_ops.h>
#include <ATen/ops/replication_pad2d_meta_dispatch.h>
#include <ATen/ops/replication_pad2d_ops.h>
#include <ATen/ops/replication_pad3d_backward_ops.h>
#include <ATen/ops/replication_pad3d_meta_dispatch.h>
#include <ATen/ops/replication_pad3d_ops.h>

namespace torch_lazy {
namespace layout {
namespace {

// Kernels over images keep channels-last and make everything else contiguous.
Tensor in_format_of(const Tensor& self, IntArrayRef sizes) {
  return empty(sizes, self.scalar_type(), self.suggest_memory_format());
}

template <size_t spatial>
Tensor adaptive_avg_pool(const Tensor& self, SymIntArrayRef output_size) {
  const IntArrayRef wanted = ints(output_size);
  const int64_t dims = self.dim();
  TORCH_CHECK(wanted.size() == spatial, "adaptive_avg_pool: output size");
  TORCH_CHECK(
      dims == static_cast<int64_t>(spatial) + 1 || dims == static_cast<int64_t>(spatial) + 2,
      "adaptive_avg_pool: dimensions");
  Sizes sizes(self.sizes().begin(), self.sizes().end());
  for (size_t i = 0; i < spatial; ++i) {
    TORCH_CHECK(sizes[dims - spatial + i] > 0, "adaptive_avg_pool: empty image");
    sizes[dims - spatial + i] = wanted[i];
  }
  return spatial == 2 ? in_format_of(self, sizes) : empty(sizes, self.scalar_type());
}

Tensor adaptive_avg_pool2d_backward(const Tensor&, const Tensor& self) {
  return in_format_of(self, self.sizes());
}
Tensor adaptive_avg_pool3d_backward(const Tensor&, const Tensor& self) {
  return contiguous_like(self);
}

Two max_pool3d_with_indices(const Tensor& self, IntArrayRef kernel, IntArrayRef stride,
                            IntArrayRef padding, IntArrayRef dilation, bool ceil_mode) {
  TORCH_CHECK(self.dim() == 4 || self.dim() == 5, "max_pool3d: dimensions");
  Sizes sizes(self.sizes().begin(), self.sizes().end());
  for (size_t i = 0; i < 3; ++i) {
    int64_t& size = sizes[sizes.size() - 3 + i];
    const int64_t window = at_or_first(kernel, i, 3);
    const int64_t pad = at_or_first(padding, i, 3);
    const int64_t step = stride.empty() ? window : at_or_first(stride, i, 3);
    const int64_t gap = at_or_first(dilation, i, 3);
    TORCH_CHECK(size > 0 && window > 0 && pad >= 0 && pad <= window / 2 && gap > 0,
                "max_pool3d: bad window or padding, or empty input");
    plus(plus(size, times(gap, window)), plus(times(pad, 2), step));  // as large as it gets
    size = at::native::pooling_output_shape<int64_t>(size, window, pad, step, gap, ceil_mode);
    TORCH_CHECK(size > 0, "max_pool3d: the output would be empty");
  }
  const MemoryFormat format = self.suggest_memory_format();
  if (self.dim() == 4) {
    // Without a batch: the CPU keeps channels last of three dimensions, and refuses those of two.
    const bool ambiguous =
        std::find(self.sizes().begin(), self.sizes().end(), 1) != self.sizes().end();
    TORCH_CHECK(format == MemoryFormat::Contiguous && (!ambiguous || self.is_contiguous()),
                "max_pool3d: strides that are not known here");
    auto channels_last = [](IntArrayRef s) {
      return Sizes{1, s[2] * s[3] * s[0], s[3] * s[0], s[0]};
    };
    if (!ambiguous && self.strides() == IntArrayRef(channels_last(self.sizes()))) {
      const Sizes strides = channels_last(sizes);
      return {empty_strided(sizes, strides, self.scalar_type()),
              empty_strided(sizes, strides, at::kLong)};
    }
  }
  return {empty(sizes, self.scalar_type(), format), empty(sizes, at::kLong, format)};
}

Tensor max_pool3d_with_indices_backward(const Tensor&, const Tensor& self, IntArrayRef, IntArrayRef,
                                        IntArrayRef, IntArrayRef, bool, const Tensor&) {
  TORCH_CHECK(self.dim() == 5 || self.is_contiguous(),
              "max_pool3d: strides that are not known here");
  return in_format_of(self, self.sizes());
}

/// Eager's kernels check the samples, Meta's do not.
template <int64_t spatial, auto meta>
Two fractional_max_pool(const Tensor& self, IntArrayRef kernel, IntArrayRef output_size,
                        const Tensor& samples) {
  const bool batched = self.dim() == spatial + 2;
  TORCH_CHECK(samples.dim() == 3 && samples.size(0) >= (batched ? self.size(0) : 1) &&
                  samples.size(1) == self.size(-spatial - 1) && samples.size(2) == spatial,
              "fractional_max_pool: samples");
  return meta(self, kernel, output_size, samples);
}

Tensor fractional_max_pool3d_backward(const Tensor&, const Tensor& self, IntArrayRef, IntArrayRef,
                                      const Tensor&) {
  return contiguous_like(self);
}

Tensor unpooled(const Tensor& self, const Tensor& indices, IntArrayRef output_size) {
  TORCH_CHECK(indices.scalar_type() == at::kLong && indices.sizes() == self.sizes(),
              "max_unpool: indices");
  Sizes sizes(self.sizes().begin(), self.sizes().end());
  TORCH_CHECK(sizes.size() > output_size.size(), "max_unpool: dimensions");
  std::copy(output_size.begin(), output_size.end(),
            sizes.end() - static_cast<int64_t>(output_size.size()));
  return in_format_of(self, sizes);
}

Tensor max_unpool2d(const Tensor& self, const Tensor& indices, SymIntArrayRef output_size) {
  return unpooled(self, indices, ints(output_size));
}

Tensor max_unpool3d(const Tensor& self, const Tensor& indices, SymIntArrayRef output_size,
                    IntArrayRef, IntArrayRef) {
  return empty(unpooled(self, indices, ints(output_size)).sizes(), self.scalar_type());
}

Tensor reflection_pad2d(const Tensor& self, SymIntArrayRef padding) {
  const IntArrayRef pads = ints(padding);
  TORCH_CHECK(self.dim() == 3 || self.dim() == 4, "reflection_pad2d: dimensions");
  TORCH_CHECK(pads.size() == 4, "reflection_pad2d: padding");
  Sizes sizes(self.sizes().begin(), self.sizes().end());
  for (size_t i = 0; i < 2; ++i) {
    int64_t& size = sizes[sizes.size() - 1 - i];
    TORCH_CHECK(pads[2 * i] < size && pads[2 * i + 1] < size,
                "reflection_pad2d: padding is too large");
    size = plus(size, plus(pads[2 * i], pads[2 * i + 1]));
    TORCH_CHECK(size >= 1, "reflection_pad2d: the output would be empty");
  }
  return in_format_of(self, sizes);
}

// PyTorch's Meta kernel has the sizes; the CPU kernel also keeps channels-last.
template <Tensor (*sizes_of)(const Tensor&, SymIntArrayRef)>
Tensor padded(const Tensor& self, SymIntArrayRef padding) {
  return in_format_of(self, sizes_of(self, padding).sizes());
}

Tensor pad_backward(const Tensor&, const Tensor& self, SymIntArrayRef) {
  return in_format_of(self, self.sizes());
}

template <int64_t spatial>
Tensor grid_sampler(const Tensor& input, const Tensor& grid, int64_t, int64_t, bool) {
  TORCH_CHECK(input.dim() == spatial + 2 && grid.dim() == spatial + 2, "grid_sampler: dimensions");
  TORCH_CHECK(input.size(0) == grid.size(0) && grid.size(-1) == spatial,
              "grid_sampler: sizes differ");
  TORCH_CHECK(input.scalar_type() == grid.scalar_type(), "grid_sampler: dtypes differ");
  Sizes sizes{input.size(0), input.size(1)};
  for (int64_t i = 1; i <= spatial; ++i) {
    TORCH_CHECK(input.size(i + 1) > 0, "grid_sampler: empty input");
    sizes.push_back(grid.size(i));
  }
  return empty(sizes, input.scalar_type());
}

Two grid_sampler_backward(const Tensor&, const Tensor& input, const Tensor& grid, int64_t, int64_t,
                          bool, std::array<bool, 2> mask) {
  return {mask[0] ? contiguous_like(input) : Tensor(), contiguous_like(grid)};
}

Tensor pixel_shuffle(const Tensor& self, int64_t factor) {
  TORCH_CHECK(self.dim() >= 3 && factor > 0, "pixel_shuffle: dimensions");
  Sizes sizes(self.sizes().begin(), self.sizes().end());
  const size_t channels = sizes.size() - 3;
  TORCH_CHECK(sizes[channels] % times(factor, factor) == 0, "pixel_shuffle: channels");
  sizes[channels] /= times(factor, factor);
  sizes[channels + 1] = times(sizes[channels + 1], factor);
  sizes[channels + 2] = times(sizes[channels + 2], factor);
  return in_format_of(self, sizes);
}

Tensor pixel_unshuffle(const Tensor& self, int64_t factor) {
  TORCH_CHECK(self.dim() >= 3 && factor > 0 && self.numel() > 0, "pixel_unshuffle: dimensions");
  Sizes sizes(self.sizes().begin(), self.sizes().end());
  const size_t channels = sizes.size() - 3;
  TORCH_CHECK(sizes[channels + 1] % factor == 0 && sizes[channels + 2] % factor == 0,
              "pixel_unshuffle: sizes");
  sizes[channels] = times(sizes[channels], times(factor, factor));
  sizes[channels + 1] /= factor;
  sizes[channels + 2] /= factor;
  return in_format_of(self, sizes);
}

Tensor channel_shuffle(const Tensor& self, SymInt groups) {
  TORCH_CHECK(self.dim() > 2 && integer(groups) > 0 && self.size(1) % integer(groups) == 0,
              "channel_shuffle: groups");
  return in_format_of(self, self.sizes());
}

Tensor im2col(const Tensor& self, IntArrayRef kernel, IntArrayRef dilation, IntArrayRef padding,
              IntArrayRef stride) {
  TORCH_CHECK(self.dim() == 3 || self.dim() == 4, "im2col: dimensions");
  TORCH_CHECK(
      kernel.size() == 2 && dilation.size() == 2 && padding.size() == 2 && stride.size() == 2,
      "im2col: arguments");
  int64_t blocks = 1;
  for (int64_t i = 0; i < 2; ++i) {
    TORCH_CHECK(stride[i] > 0 && kernel[i] > 0 && dilation[i] > 0 && padding[i] >= 0,
                "im2col: arguments");
    const int64_t extent = plus(times(dilation[i], kernel[i] - 1), 1);
    const int64_t length = plus(self.size(i - 2), times(2, padding[i]));
    TORCH_CHECK(length >= extent, "im2col: the kernel does not fit");
    blocks = times(blocks, (length - extent) / stride[i] + 1);
  }
  const int64_t rows = times(times(self.size(-3), kernel[0]), kernel[1]);
  TORCH_CHECK(self.numel() > 0, "im2col: empty input");
  return self.dim() == 3 ? empty({rows, blocks}, self.scalar_type())
                         : empty({self.size(0), rows, blocks}, self.scalar_type());
}

Tensor col2im(const Tensor& self, SymIntArrayRef output_size, IntArrayRef kernel, IntArrayRef,
              IntArrayRef, IntArrayRef) {
  const IntArrayRef image = ints(output_size);
  TORCH_CHECK(self.dim() == 2 || self.dim() == 3, "col2im: dimensions");
  TORCH_CHECK(image.size() == 2 && kernel.size() == 2, "col2im: arguments");
  TORCH_CHECK(kernel[0] > 0 && kernel[1] > 0, "col2im: arguments");
  const int64_t window = times(kernel[0], kernel[1]);
  TORCH_CHECK(self.numel() > 0 && self.size(-2) % window == 0, "col2im: sizes");
  const int64_t channels = self.size(-2) / window;
  return self.dim() == 2 ? empty({channels, image[0], image[1]}, self.scalar_type())
                         : empty({self.size(0), channels, image[0], image[1]}, self.scalar_type());
}

}  // namespace
}  // namespace layout

void add_spatial_layouts(LayoutRegistry& registry) {
  namespace ops = at::_ops;
  add_layout<ops::_adaptive_avg_pool2d>(registry, layout::adaptive_avg_pool<2>);
  add_layout<ops::_adaptive_avg_pool3d>(registry, layout::adaptive_avg_pool<3>);
  add_layout<ops::_adaptive_avg_pool2d_backward>(registry, layout::adaptive_avg_pool2d_backward);
  add_layout<ops::_adaptive_avg_pool3d_backward>(registry, layout::adaptive_avg_pool3d_backward);
  add_layout<ops::max_pool3d_with_indices>(registry, layout::max_pool3d_with_indices);
  add_layout<ops::max_pool3d_with_indices_backward>(registry,
                                                    layout::max_pool3d_with_indices_backward);
  add_layout<ops::fractional_max_pool2d>(
      registry, layout::fractional_max_pool<2, at::meta::fractional_max_pool2d>);
  add_layout<ops::fractional_max_pool3d>(
      registry, layout::fractional_max_pool<3, at::meta::fractional_max_pool3d>);
  add_layout<ops::fractional_max_pool3d_backward>(registry, layout::fractional_max_pool3d_backward);
  add_layout<ops::max_unpool2d>(registry, layout::max_unpool2d);
  add_layout<ops::max_unpool3d>(registry, layout::max_unpool3d);
  add_layout<ops::reflection_pad2d>(registry, layout::reflection_pad2d);
  add_layout<ops::reflection_pad3d>(registry, layout::padded<at::meta::reflection_pad3d_symint>);
  add_layout<ops::replication_pad2d>(registry, layout::padded<at::meta::replication_pad2d_symint>);
  add_layout<ops::replication_pad3d>(registry, layout::padded<at::meta::replication_pad3d_symint>);
  add_layout<ops::reflection_pad2d_backward>(registry, layout::pad_backward);
  add_layout<ops::reflection_pad3d_backward>(registry, layout::pad_backward);
  add_layout<ops::replication_pad2d_backward>(registry, layout::pad_backward);
  add_layout<ops::replication_pad3d_backward>(registry, layout::pad_backward);
  add_layout<ops::grid_sampler_2d>(registry, layout::grid_sampler<2>);
  add_layout<ops::grid_sampler_3d>(registry, layout::grid_sampler<3>);
  add_layout<ops::grid_sampler_2d_backward>(registry, layout::grid_sampler_backward);
  add_layout<ops::grid_sampler_3d_backward>(registry, layout::grid_sampler_backward);
  add_layout<ops::pixel_shuffle>(registry, layout::pixel_shuffle);
  add_layout<ops::pixel_unshuffle>(registry, layout::pixel_unshuffle);
  add_layout<ops::channel_shuffle>(registry, layout::channel_shuffle);
  add_layout<ops::im2col>(registry, layout::im2col);
  add_layout<ops::col2im>(registry, layout::col2im);
}

}  // namespace torch_lazy
