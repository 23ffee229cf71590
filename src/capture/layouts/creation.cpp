// Layouts of operators that make new tensors: zeros, full, *_like, new_*, arange, clone, _to_copy.
#include "capture/layouts/support.h"

#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_to_copy_ops.h>
#include <ATen/ops/arange_meta_dispatch.h>
#include <ATen/ops/arange_ops.h>
#include <ATen/ops/clone_ops.h>
#include <ATen/ops/empty_like_ops.h>
#include <ATen/ops/empty_permuted_ops.h>
#include <ATen/ops/eye_ops.h>
#include <ATen/ops/full_like_ops.h>
#include <ATen/ops/full_ops.h>
#include <ATen/ops/linspace_ops.h>
#include <ATen/ops/logspace_ops.h>
#include <ATen/ops/new_empty_ops.h>
#include <ATen/ops/new_empty_strided_ops.h>
#include <ATen/ops/new_full_ops.h>
#include <ATen/ops/new_ones_ops.h>
#include <ATen/ops/new_zeros_ops.h>
#include <ATen/ops/ones_like_ops.h>
#include <ATen/ops/ones_ops.h>
#include <ATen/ops/scalar_tensor_ops.h>
#include <ATen/ops/tril_indices_ops.h>
#include <ATen/ops/triu_indices_ops.h>
#include <ATen/ops/zeros_like_ops.h>
#include <ATen/ops/zeros_ops.h>

namespace torch_lazy {
namespace layout {
namespace {

Tensor filled(SymIntArrayRef sizes, Dtype dtype, Layout layout, Device, Flag) {
  require_strided(layout);
  return empty(ints(sizes), dtype.value_or(default_dtype()));
}

ScalarType dtype_of_value(const Scalar& value) {
  if (value.isBoolean()) return at::kBool;
  if (value.isIntegral(false)) return at::kLong;
  return value.isComplex() ? c10::toComplexType(default_dtype()) : default_dtype();
}

Tensor full(SymIntArrayRef sizes, const Scalar& value, Dtype dtype, Layout layout, Device, Flag) {
  require_strided(layout);
  return empty(ints(sizes), dtype.value_or(dtype_of_value(value)));
}

Tensor like(const Tensor& self, Dtype dtype, Layout layout, Device, Flag, Format format) {
  require_strided(layout);
  return dense_like(self, dtype, format);
}

Tensor full_like(const Tensor& self, const Scalar&, Dtype dtype, Layout layout, Device, Flag,
                 Format format) {
  require_strided(layout);
  return dense_like(self, dtype, format);
}

Tensor new_filled(const Tensor& self, SymIntArrayRef sizes, Dtype dtype, Layout layout, Device,
                  Flag) {
  require_strided(layout);
  return empty(ints(sizes), dtype.value_or(self.scalar_type()));
}

Tensor new_empty_strided(const Tensor& self, SymIntArrayRef sizes, SymIntArrayRef strides,
                         Dtype dtype, Layout layout, Device, Flag) {
  require_strided(layout);
  return empty_strided(ints(sizes), ints(strides), dtype.value_or(self.scalar_type()));
}

Tensor new_full(const Tensor& self, SymIntArrayRef sizes, const Scalar&, Dtype dtype, Layout layout,
                Device, Flag) {
  require_strided(layout);
  return empty(ints(sizes), dtype.value_or(self.scalar_type()));
}

Tensor empty_permuted(SymIntArrayRef sizes, IntArrayRef order, Dtype dtype, Layout layout, Device,
                      Flag) {
  require_strided(layout);
  const IntArrayRef logical = ints(sizes);
  TORCH_CHECK(order.size() == logical.size(), "one physical place for each dimension");
  Sizes strides(logical.size(), -1);
  int64_t stride = 1;
  for (size_t i = order.size(); i-- > 0;) {
    const int64_t dim = at::maybe_wrap_dim(order[i], static_cast<int64_t>(order.size()));
    TORCH_CHECK(strides[dim] == -1, "a dimension stands twice in the physical order");
    strides[dim] = stride;
    stride = times(stride, std::max<int64_t>(logical[dim], 1));
  }
  return empty_strided(logical, strides, dtype.value_or(default_dtype()));
}

Tensor arange(const Scalar& start, const Scalar& end, const Scalar& step, Dtype dtype,
              Layout layout, Device, Flag) {
  require_strided(layout);
  const bool integral = start.isIntegral(true) && end.isIntegral(true) && step.isIntegral(true);
  Tensor result = empty({0}, dtype.value_or(integral ? at::kLong : default_dtype()));
  return at::meta::arange_outf(start, end, step, result);
}

Tensor arange_from_start(const Scalar& start, const Scalar& end, Dtype dtype, Layout layout,
                         Device device, Flag pin) {
  return arange(start, end, 1, dtype, layout, device, pin);
}

Tensor arange_from_zero(const Scalar& end, Dtype dtype, Layout layout, Device device, Flag pin) {
  return arange(0, end, 1, dtype, layout, device, pin);
}

Tensor spaced(bool complex_ends, int64_t steps, Dtype dtype, Layout layout) {
  require_strided(layout);
  TORCH_CHECK(steps >= 0, "number of steps must be non-negative");
  if (complex_ends) {
    const ScalarType complex = c10::toComplexType(default_dtype());
    TORCH_CHECK(c10::isComplexType(dtype.value_or(complex)), "complex ends need a complex dtype");
    return empty({steps}, dtype.value_or(complex));
  }
  return empty({steps}, dtype.value_or(default_dtype()));
}

bool has_complex_value(const Scalar& end) {
  return end.isComplex();
}
bool has_complex_value(const Tensor& end) {
  TORCH_CHECK(end.dim() == 0, "the ends of a range have no dimensions");
  return end.is_complex();
}

template <class Start, class End>
Tensor linspace(const Start& start, const End& end, int64_t steps, Dtype dtype, Layout layout,
                Device, Flag) {
  return spaced(has_complex_value(start) || has_complex_value(end), steps, dtype, layout);
}

template <class Start, class End>
Tensor logspace(const Start& start, const End& end, int64_t steps, double, Dtype dtype,
                Layout layout, Device, Flag) {
  return spaced(has_complex_value(start) || has_complex_value(end), steps, dtype, layout);
}

Tensor eye(SymInt n, SymInt m, Dtype dtype, Layout layout, Device, Flag) {
  require_strided(layout);
  TORCH_CHECK(integer(n) >= 0 && integer(m) >= 0, "eye: sizes must be non-negative");
  return empty({integer(n), integer(m)}, dtype.value_or(default_dtype()));
}

Tensor square_eye(SymInt n, Dtype dtype, Layout layout, Device device, Flag pin) {
  return eye(n, n, dtype, layout, device, pin);
}

Tensor tril_indices(int64_t rows, int64_t columns, int64_t offset, Dtype dtype, Layout layout,
                    Device, Flag) {
  at::native::check_args(rows, columns, layout);
  return empty({2, at::native::get_tril_size(rows, columns, offset)}, dtype.value_or(at::kLong));
}

Tensor triu_indices(int64_t rows, int64_t columns, int64_t offset, Dtype dtype, Layout layout,
                    Device, Flag) {
  at::native::check_args(rows, columns, layout);
  const int64_t below = at::native::get_tril_size(rows, columns, offset - 1);
  return empty({2, times(rows, columns) - below}, dtype.value_or(at::kLong));
}

Tensor scalar_tensor(const Scalar&, Dtype dtype, Layout layout, Device, Flag) {
  require_strided(layout);
  return empty({}, dtype.value_or(default_dtype()));
}

Tensor clone(const Tensor& self, Format format) {
  return dense_like(self, std::nullopt, format);
}

Tensor to_copy(const Tensor& self, Dtype dtype, Layout layout, Device, Flag, bool, Format format) {
  require_strided(layout);
  return dense_like(self, dtype, format);
}

}  // namespace
}  // namespace layout

void add_creation_layouts(LayoutRegistry& registry) {
  namespace ops = at::_ops;
  add_layout<ops::zeros>(registry, layout::filled);
  add_layout<ops::ones>(registry, layout::filled);
  add_layout<ops::full>(registry, layout::full);
  add_layout<ops::empty_like>(registry, layout::like);
  add_layout<ops::zeros_like>(registry, layout::like);
  add_layout<ops::ones_like>(registry, layout::like);
  add_layout<ops::full_like>(registry, layout::full_like);
  add_layout<ops::new_empty>(registry, layout::new_filled);
  add_layout<ops::new_zeros>(registry, layout::new_filled);
  add_layout<ops::new_ones>(registry, layout::new_filled);
  add_layout<ops::new_full>(registry, layout::new_full);
  add_layout<ops::new_empty_strided>(registry, layout::new_empty_strided);
  add_layout<ops::empty_permuted>(registry, layout::empty_permuted);
  add_layout<ops::arange>(registry, layout::arange_from_zero);
  add_layout<ops::arange_start>(registry, layout::arange_from_start);
  add_layout<ops::arange_start_step>(registry, layout::arange);
  add_layout<ops::linspace>(registry, layout::linspace<at::Scalar, at::Scalar>);
  add_layout<ops::linspace_Tensor_Tensor>(registry, layout::linspace<at::Tensor, at::Tensor>);
  add_layout<ops::linspace_Tensor_Scalar>(registry, layout::linspace<at::Tensor, at::Scalar>);
  add_layout<ops::linspace_Scalar_Tensor>(registry, layout::linspace<at::Scalar, at::Tensor>);
  add_layout<ops::logspace>(registry, layout::logspace<at::Scalar, at::Scalar>);
  add_layout<ops::logspace_Tensor_Tensor>(registry, layout::logspace<at::Tensor, at::Tensor>);
  add_layout<ops::logspace_Tensor_Scalar>(registry, layout::logspace<at::Tensor, at::Scalar>);
  add_layout<ops::logspace_Scalar_Tensor>(registry, layout::logspace<at::Scalar, at::Tensor>);
  add_layout<ops::eye>(registry, layout::square_eye);
  add_layout<ops::eye_m>(registry, layout::eye);
  add_layout<ops::tril_indices>(registry, layout::tril_indices);
  add_layout<ops::triu_indices>(registry, layout::triu_indices);
  add_layout<ops::scalar_tensor>(registry, layout::scalar_tensor);
  add_layout<ops::clone>(registry, layout::clone);
  add_layout<ops::_to_copy>(registry, layout::to_copy);
}

}  // namespace torch_lazy
