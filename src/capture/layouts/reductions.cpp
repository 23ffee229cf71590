// Layouts of reductions, statistics, sorting and scans that have no Meta kernel of their own.
#include "capture/layouts/support.h"

#include <ATen/ops/_safe_softmax_ops.h>
#include <ATen/ops/count_nonzero_ops.h>
#include <ATen/ops/cummax_ops.h>
#include <ATen/ops/cummin_ops.h>
#include <ATen/ops/dist_ops.h>
#include <ATen/ops/dot_ops.h>
#include <ATen/ops/kthvalue_ops.h>
#include <ATen/ops/logcumsumexp_ops.h>
#include <ATen/ops/logsumexp_ops.h>
#include <ATen/ops/max_ops.h>
#include <ATen/ops/mean_ops.h>
#include <ATen/ops/median_ops.h>
#include <ATen/ops/min_ops.h>
#include <ATen/ops/mode_ops.h>
#include <ATen/ops/mv_ops.h>
#include <ATen/ops/nanmedian_ops.h>
#include <ATen/ops/nansum_ops.h>
#include <ATen/ops/prod_ops.h>
#include <ATen/ops/sort_meta_dispatch.h>
#include <ATen/ops/sort_ops.h>
#include <ATen/ops/std_mean_ops.h>
#include <ATen/ops/std_ops.h>
#include <ATen/ops/sum_ops.h>
#include <ATen/ops/trace_ops.h>
#include <ATen/ops/var_mean_ops.h>
#include <ATen/ops/var_ops.h>
#include <ATen/ops/vdot_ops.h>

namespace torch_lazy {
namespace layout {
namespace {

using OptionalDims = at::OptionalIntArrayRef;
using OptionalScalar = const std::optional<at::Scalar>&;

// Sums and products of integers are 64 bits wide.
ScalarType accumulated(const Tensor& self, Dtype dtype) {
  if (dtype) return *dtype;
  return at::isIntegralType(self.scalar_type(), true) ? at::kLong : self.scalar_type();
}

Tensor scalar_of(const Tensor& self) {
  return empty({}, self.scalar_type());
}

ScalarType variance_dtype(const Tensor& self) {
  TORCH_CHECK(at::isFloatingType(self.scalar_type()) || self.is_complex(),
              "std and var need a floating point input");
  return c10::toRealValueType(self.scalar_type());
}

/// Warns as eager does, by its own warning, where as many or fewer numbers are reduced to one as
/// `correction` takes away.
template <typename Operator>
void warn_of_few(const Tensor& self, const Sizes& sizes, OptionalScalar correction) {
  const int64_t results = c10::multiply_integers(sizes);
  const int64_t reduced = results == 0 ? 0 : self.numel() / results;
  if (static_cast<double>(reduced) <= correction.value_or(1).toDouble()) {
    const ScalarType dtype = self.is_complex() ? at::kComplexFloat : at::kFloat;
    Operator::call(at::zeros({1}, dtype), std::nullopt, /*correction=*/1, false);
  }
}

template <typename Operator>
Tensor variance(const Tensor& self, OptionalDims dims, OptionalScalar correction, bool keepdim) {
  const Sizes sizes = reduced_sizes(self, dims, keepdim);
  const ScalarType dtype = variance_dtype(self);
  warn_of_few<Operator>(self, sizes, correction);
  return empty(sizes, dtype);
}

template <typename Operator>
Two variance_and_mean(const Tensor& self, OptionalDims dims, OptionalScalar correction,
                      bool keepdim) {
  Tensor result = variance<Operator>(self, dims, correction, keepdim);
  return {result, empty(result.sizes(), self.scalar_type())};
}

Tensor sum_all(const Tensor& self, Dtype dtype) {
  return empty({}, accumulated(self, dtype));
}

Tensor mean_all(const Tensor& self, Dtype dtype) {
  const ScalarType type = dtype.value_or(self.scalar_type());
  TORCH_CHECK(at::isFloatingType(type) || at::isComplexType(type),
              "mean needs a floating point input");
  return empty({}, type);
}

Tensor nansum(const Tensor& self, OptionalDims dims, bool keepdim, Dtype dtype) {
  TORCH_CHECK(!self.is_complex(), "nansum does not support complex inputs");
  return empty(reduced_sizes(self, dims, keepdim), accumulated(self, dtype));
}

Tensor extremum_all(const Tensor& self) {
  TORCH_CHECK(self.numel() > 0, "an empty tensor has no extremum");
  TORCH_CHECK(!self.is_complex(), "complex numbers are not ordered");
  return scalar_of(self);
}

Tensor median_all(const Tensor& self) {
  TORCH_CHECK(!self.is_complex(), "complex numbers are not ordered");
  return scalar_of(self);
}

Sizes along(const Tensor& self, int64_t dim, bool keepdim) {
  const int64_t wrapped = at::maybe_wrap_dim(dim, self.dim());
  TORCH_CHECK(self.dim() == 0 || self.size(wrapped) > 0, "the reduced dimension is empty");
  return reduced_sizes(self, IntArrayRef(wrapped), keepdim);
}

Two selected(const Tensor& self, int64_t dim, bool keepdim) {
  TORCH_CHECK(!self.is_complex(), "complex numbers are not ordered");
  const Sizes sizes = along(self, dim, keepdim);
  return {empty(sizes, self.scalar_type()), empty(sizes, at::kLong)};
}

Two kthvalue(const Tensor& self, SymInt k, int64_t dim, bool keepdim) {
  const int64_t wrapped = at::maybe_wrap_dim(dim, self.dim());
  const int64_t length = self.dim() == 0 ? 1 : self.size(wrapped);
  TORCH_CHECK(integer(k) >= 1 && integer(k) <= length, "kthvalue: k is out of range");
  return selected(self, dim, keepdim);
}

Two scan_with_indices(const Tensor& self, int64_t dim) {
  at::maybe_wrap_dim(dim, self.dim());
  TORCH_CHECK(!self.is_complex(), "complex numbers are not ordered");
  return {contiguous_like(self), contiguous_like(self, at::kLong)};
}

Tensor logcumsumexp(const Tensor& self, int64_t dim) {
  at::maybe_wrap_dim(dim, self.dim());
  return contiguous_like(self);
}

Tensor logsumexp(const Tensor& self, IntArrayRef dims, bool keepdim) {
  const bool integral = at::isIntegralType(self.scalar_type(), true);
  return empty(reduced_sizes(self, dims, keepdim), integral ? default_dtype() : self.scalar_type());
}

Two sort(const Tensor& self, int64_t dim, bool descending) {
  return at::meta::sort(self, /*stable=*/false, dim, descending);
}

Tensor count_nonzero_dims(const Tensor& self, IntArrayRef dims) {
  return empty(reduced_sizes(self, dims, false), at::kLong);
}

Tensor count_nonzero_maybe_dim(const Tensor& self, std::optional<int64_t> dim) {
  return dim ? count_nonzero_dims(self, IntArrayRef(*dim)) : empty({}, at::kLong);
}

Tensor trace(const Tensor& self) {
  TORCH_CHECK(self.dim() == 2, "trace: expected a matrix");
  return empty({}, accumulated(self, std::nullopt));
}

Tensor dot(const Tensor& self, const Tensor& other) {
  TORCH_CHECK(self.dim() == 1 && other.dim() == 1, "1D tensors expected");
  TORCH_CHECK(self.scalar_type() == other.scalar_type(), "dot: dtypes differ");
  TORCH_CHECK(self.numel() == other.numel(), "dot: lengths differ");
  TORCH_CHECK(!self.is_conj() && !other.is_conj(),
              "the result of conjugated vectors may be conjugated");
  return scalar_of(self);
}

Tensor mv(const Tensor& self, const Tensor& vec) {
  TORCH_CHECK(self.dim() == 2 && vec.dim() == 1 && self.size(1) == vec.size(0), "mv: sizes differ");
  TORCH_CHECK(self.scalar_type() == vec.scalar_type(), "mv: dtypes differ");
  return empty({self.size(0)}, self.scalar_type());
}

}  // namespace
}  // namespace layout

void add_reduction_layouts(LayoutRegistry& registry) {
  namespace ops = at::_ops;
  add_layout<ops::var_correction>(registry, layout::variance<ops::var_correction>);
  add_layout<ops::std_correction>(registry, layout::variance<ops::std_correction>);
  add_layout<ops::var_mean_correction>(registry,
                                       layout::variance_and_mean<ops::var_mean_correction>);
  add_layout<ops::std_mean_correction>(registry,
                                       layout::variance_and_mean<ops::std_mean_correction>);
  add_layout<ops::sum>(registry, layout::sum_all);
  add_layout<ops::prod>(registry, layout::sum_all);
  add_layout<ops::mean>(registry, layout::mean_all);
  add_layout<ops::nansum>(registry, layout::nansum);
  add_layout<ops::max>(registry, layout::extremum_all);
  add_layout<ops::min>(registry, layout::extremum_all);
  add_layout<ops::median>(registry, layout::median_all);
  add_layout<ops::nanmedian>(registry, layout::median_all);
  add_layout<ops::median_dim>(registry, layout::selected);
  add_layout<ops::nanmedian_dim>(registry, layout::selected);
  add_layout<ops::mode>(registry, layout::selected);
  add_layout<ops::kthvalue>(registry, layout::kthvalue);
  add_layout<ops::cummax>(registry, layout::scan_with_indices);
  add_layout<ops::cummin>(registry, layout::scan_with_indices);
  add_layout<ops::logcumsumexp>(registry, layout::logcumsumexp);
  add_layout<ops::logsumexp>(registry, layout::logsumexp);
  add_layout<ops::sort>(registry, layout::sort);
  add_layout<ops::count_nonzero>(registry, layout::count_nonzero_maybe_dim);
  add_layout<ops::count_nonzero_dim_IntList>(registry, layout::count_nonzero_dims);
  add_layout<ops::trace>(registry, layout::trace);
  add_layout<ops::dot>(registry, layout::dot);
  add_layout<ops::vdot>(registry, layout::dot);
  add_layout<ops::mv>(registry, layout::mv);
}

}  // namespace torch_lazy
