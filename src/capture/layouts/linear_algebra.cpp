// Layouts of decompositions, solvers, Fourier transforms and distances.
#include "capture/layouts/support.h"

#include <ATen/Context.h>
#include <ATen/ops/_cdist_backward_ops.h>
#include <ATen/ops/_cdist_forward_ops.h>
#include <ATen/ops/_fft_c2c_ops.h>
#include <ATen/ops/_fft_c2r_ops.h>
#include <ATen/ops/_fft_r2c_ops.h>
#include <ATen/ops/_pdist_backward_ops.h>
#include <ATen/ops/_pdist_forward_ops.h>
#include <ATen/ops/addbmm_ops.h>
#include <ATen/ops/addr_ops.h>
#include <ATen/ops/cholesky_inverse_ops.h>
#include <ATen/ops/cholesky_ops.h>
#include <ATen/ops/cholesky_solve_ops.h>
#include <ATen/ops/dist_ops.h>
#include <ATen/ops/geqrf_ops.h>
#include <ATen/ops/histc_ops.h>
#include <ATen/ops/linalg_eig_ops.h>
#include <ATen/ops/linalg_householder_product_ops.h>
#include <ATen/ops/linalg_solve_triangular_ops.h>
#include <ATen/ops/ormqr_ops.h>

#include <algorithm>

namespace torch_lazy {
namespace layout {
namespace {

// A batch of matrices whose columns are contiguous, as LAPACK wants them.
Tensor column_major(IntArrayRef sizes, ScalarType dtype) {
  Sizes turned(sizes.begin(), sizes.end());
  std::swap(turned[turned.size() - 1], turned[turned.size() - 2]);
  const Tensor result = empty(turned, dtype);
  Sizes strides(result.strides().begin(), result.strides().end());
  std::swap(strides[strides.size() - 1], strides[strides.size() - 2]);
  return empty_strided(sizes, strides, dtype);
}

void check_matrices(const Tensor& self) {
  TORCH_CHECK(self.dim() >= 2, "expected a batch of matrices");
  TORCH_CHECK(at::isFloatingType(self.scalar_type()) || self.is_complex(),
              "expected floating point matrices");
}

void check_square(const Tensor& self) {
  check_matrices(self);
  TORCH_CHECK(self.size(-1) == self.size(-2), "expected square matrices");
}

Two linalg_eig(const Tensor& self) {
  check_square(self);
  const ScalarType dtype = c10::toComplexType(self.scalar_type());
  return {empty(self.sizes().slice(0, self.dim() - 1), dtype), column_major(self.sizes(), dtype)};
}

Two geqrf(const Tensor& self) {
  check_matrices(self);
  Sizes tau(self.sizes().begin(), self.sizes().end() - 1);
  tau.back() = std::min(self.size(-1), self.size(-2));
  return {column_major(self.sizes(), self.scalar_type()), empty(tau, self.scalar_type())};
}

Tensor householder_product(const Tensor& input, const Tensor& tau) {
  check_matrices(input);
  TORCH_CHECK(input.size(-2) >= input.size(-1) && input.size(-1) >= tau.size(-1),
              "householder_product: sizes");
  TORCH_CHECK(input.dim() - tau.dim() == 1 && tau.scalar_type() == input.scalar_type(),
              "householder_product");
  return column_major(input.sizes(), input.scalar_type());
}

Tensor cholesky(const Tensor& self, bool) {
  check_square(self);
  TORCH_CHECK(self.numel() > 0, "cholesky of nothing");
  return column_major(self.sizes(), self.scalar_type());
}

Sizes batch_of(const Tensor& a, const Tensor& b) {
  const auto batch =
      at::infer_size(a.sizes().slice(0, a.dim() - 2), b.sizes().slice(0, b.dim() - 2));
  return Sizes(batch.begin(), batch.end());
}

Tensor solved(const Tensor& right_side, const Tensor& matrix) {
  check_matrices(right_side);
  check_square(matrix);
  TORCH_CHECK(right_side.scalar_type() == matrix.scalar_type(), "solve: dtypes differ");
  TORCH_CHECK(right_side.numel() > 0 && matrix.numel() > 0, "solve: empty input");
  Sizes sizes = batch_of(right_side, matrix);
  sizes.push_back(right_side.size(-2));
  sizes.push_back(right_side.size(-1));
  return column_major(sizes, right_side.scalar_type());
}

Tensor cholesky_solve(const Tensor& self, const Tensor& factor, bool) {
  TORCH_CHECK(self.dim() >= 2 && self.size(-2) == factor.size(-1), "cholesky_solve: sizes differ");
  return solved(self, factor);
}

Tensor solve_triangular(const Tensor& self, const Tensor& right_side, bool, bool left, bool) {
  TORCH_CHECK(
      self.dim() >= 2 && right_side.dim() >= 2 && self.size(-1) == right_side.size(left ? -2 : -1),
      "solve_triangular: sizes differ");
  TORCH_CHECK(!self.is_conj() && !right_side.is_conj(), "the result may be conjugated");
  return solved(right_side, self);
}

Tensor ormqr(const Tensor& self, const Tensor& tau, const Tensor& other, bool left, bool) {
  check_matrices(self);
  check_matrices(other);
  TORCH_CHECK(self.scalar_type() == other.scalar_type() && tau.dim() == self.dim() - 1 &&
                  self.dim() == other.dim() && self.size(-2) == other.size(left ? -2 : -1),
              "ormqr: sizes differ");
  return column_major(other.sizes(), other.scalar_type());
}

// Where a transform puts its result, for the transforms of MKL: the transformed dimensions inside,
// in the order given; the others outside, in the order of the input's strides.
Tensor transformed(const Tensor& self, IntArrayRef out_sizes, IntArrayRef dims, ScalarType dtype) {
  TORCH_CHECK(at::globalContext().hasMKL(), "the layout of a transform is known for MKL only");
  Sizes order;
  for (int64_t i = 0; i < self.dim(); ++i) {
    if (std::find(dims.begin(), dims.end(), i) == dims.end()) order.push_back(i);
  }
  std::sort(order.begin(), order.end(),
            [&](int64_t a, int64_t b) { return self.stride(a) > self.stride(b); });
  order.append(dims.begin(), dims.end());
  Sizes inner_first(order.rbegin(), order.rend());
  Sizes strides(order.size());
  int64_t stride = 1;
  for (const int64_t dim : inner_first) {
    strides[dim] = stride;
    stride *= std::max<int64_t>(out_sizes[dim], 1);
  }
  return empty_strided(out_sizes, strides, dtype);
}

Sizes outermost_first(const Tensor& self, IntArrayRef dims, bool keep_last) {
  Sizes sorted(dims.begin(), dims.end());
  for (int64_t& dim : sorted) dim = at::maybe_wrap_dim(dim, self.dim());
  std::sort(sorted.begin(), sorted.end() - (keep_last ? 1 : 0),
            [&](int64_t a, int64_t b) { return self.stride(a) > self.stride(b); });
  return sorted;
}

Tensor complex_to_complex(const Tensor& self, IntArrayRef dims) {
  TORCH_CHECK(self.is_complex() && self.numel() > 0, "fft: expected complex numbers");
  if (dims.empty()) return dense_like(self);
  return transformed(self, self.sizes(), outermost_first(self, dims, false), self.scalar_type());
}

Tensor fft_c2c(const Tensor& self, SymIntArrayRef dims, int64_t, bool) {
  return complex_to_complex(self, ints(dims));
}

Tensor fft_r2c(const Tensor& self, IntArrayRef dims, int64_t, bool onesided) {
  TORCH_CHECK(
      at::isFloatingType(self.scalar_type()) && !dims.empty() && self.dim() > 0 && self.numel() > 0,
      "fft: real input");
  const Sizes sorted = outermost_first(self, dims, true);
  Sizes sizes(self.sizes().begin(), self.sizes().end());
  if (onesided) sizes[sorted.back()] = sizes[sorted.back()] / 2 + 1;
  return transformed(self, sizes, sorted, c10::toComplexType(self.scalar_type()));
}

Tensor fft_c2r(const Tensor& self, IntArrayRef dims, int64_t, SymInt last_size) {
  TORCH_CHECK(self.is_complex() && !dims.empty() && self.dim() > 0 && self.numel() > 0,
              "fft: expected complex numbers");
  const Tensor input =
      dims.size() > 1 ? complex_to_complex(self, dims.slice(0, dims.size() - 1)) : self;
  const int64_t last = at::maybe_wrap_dim(dims.back(), self.dim());
  Sizes sizes(self.sizes().begin(), self.sizes().end());
  sizes[last] = integer(last_size);
  return transformed(input, sizes, IntArrayRef(last), c10::toRealValueType(self.scalar_type()));
}

Tensor cdist_forward(const Tensor& x1, const Tensor& x2, double, std::optional<int64_t>) {
  TORCH_CHECK(x1.dim() >= 2 && x2.dim() >= 2 && x1.size(-1) == x2.size(-1), "cdist: sizes differ");
  TORCH_CHECK(x1.scalar_type() == x2.scalar_type(), "cdist: dtypes differ");
  const auto batch =
      at::infer_size(x1.sizes().slice(0, x1.dim() - 2), x2.sizes().slice(0, x2.dim() - 2));
  Sizes sizes(batch.begin(), batch.end());
  sizes.push_back(x1.size(-2));
  sizes.push_back(x2.size(-2));
  return empty(sizes, x1.scalar_type());
}

Tensor cdist_backward(const Tensor&, const Tensor& x1, const Tensor& x2, double, const Tensor&) {
  TORCH_CHECK(x1.numel() > 0 && x2.numel() > 0, "cdist: empty input");
  const auto batch =
      at::infer_size(x1.sizes().slice(0, x1.dim() - 2), x2.sizes().slice(0, x2.dim() - 2));
  Sizes sizes(batch.begin(), batch.end());
  sizes.push_back(x1.size(-2));
  sizes.push_back(x1.size(-1));
  return empty(sizes, x1.scalar_type());
}

Tensor pdist_forward(const Tensor& self, double) {
  TORCH_CHECK(self.dim() == 2, "pdist: expected a matrix");
  const int64_t count = self.size(0);
  return empty({std::max<int64_t>(count * (count - 1) / 2, 0)}, self.scalar_type());
}

Tensor pdist_backward(const Tensor&, const Tensor& self, double, const Tensor&) {
  return contiguous_like(self);
}

Tensor column(const Tensor& vector) {
  return empty_strided({vector.size(0), 1}, {vector.stride(0), 1}, vector.scalar_type());
}

void check_addr(const Tensor& vec1, const Tensor& vec2) {
  TORCH_CHECK(vec1.dim() == 1 && vec2.dim() == 1, "addr: expected vectors");
}

Tensor addr(const Tensor& self, const Tensor& vec1, const Tensor& vec2, const Scalar&,
            const Scalar&) {
  check_addr(vec1, vec2);
  const Sizes sizes{vec1.size(0), vec2.size(0)};
  TORCH_CHECK(at::is_expandable_to(self.sizes(), sizes), "addr: self does not broadcast");
  // Expanded, a scalar counts as a tensor with dimensions where the common dtype is found.
  const auto expanded = at::inferExpandGeometry_dimvector(self.sizes(), self.strides(), sizes);
  const Tensor matrix = empty_strided(expanded.sizes, expanded.strides, self.scalar_type());
  return pointwise({matrix, column(vec1), vec2}, {.promotion = Promotion::common});
}

Tensor& addr_in_place(Tensor& self, const Tensor& vec1, const Tensor& vec2, const Scalar&,
                      const Scalar&) {
  check_addr(vec1, vec2);
  pointwise({self, column(vec1), vec2}, {.promotion = Promotion::common}, self);
  return self;
}

void check_addbmm(const Tensor& batch1, const Tensor& batch2) {
  TORCH_CHECK(batch1.dim() == 3 && batch2.dim() == 3, "addbmm: expected batches");
  TORCH_CHECK(batch1.size(0) == batch2.size(0) && batch1.size(2) == batch2.size(1),
              "addbmm: sizes differ");
  TORCH_CHECK(batch1.scalar_type() == batch2.scalar_type(), "addbmm: dtypes differ");
}

Tensor addbmm(const Tensor& self, const Tensor& batch1, const Tensor& batch2, const Scalar&,
              const Scalar&) {
  check_addbmm(batch1, batch2);
  const Sizes sizes{batch1.size(1), batch2.size(2)};
  TORCH_CHECK(at::is_expandable_to(self.sizes(), sizes), "addbmm: self does not broadcast");
  return empty(sizes, self.scalar_type());
}

Tensor& addbmm_in_place(Tensor& self, const Tensor& batch1, const Tensor& batch2, const Scalar&,
                        const Scalar&) {
  check_addbmm(batch1, batch2);
  TORCH_CHECK(self.sizes() == IntArrayRef({batch1.size(1), batch2.size(2)}),
              "addbmm_: sizes differ");
  return self;
}

// PyTorch's Meta kernels of these two let different dtypes pass.
Tensor mm(const Tensor& self, const Tensor& other) {
  TORCH_CHECK(self.dim() == 2 && other.dim() == 2 && self.size(1) == other.size(0), "mm: sizes");
  TORCH_CHECK(self.scalar_type() == other.scalar_type(), "mm: dtypes differ");
  return empty({self.size(0), other.size(1)}, self.scalar_type());
}

Tensor bmm(const Tensor& self, const Tensor& other) {
  TORCH_CHECK(self.dim() == 3 && other.dim() == 3 && self.size(0) == other.size(0) &&
                  self.size(2) == other.size(1),
              "bmm: sizes");
  TORCH_CHECK(self.scalar_type() == other.scalar_type(), "bmm: dtypes differ");
  return empty({self.size(0), self.size(1), other.size(2)}, self.scalar_type());
}

Tensor histc(const Tensor& self, int64_t bins, const Scalar&, const Scalar&) {
  TORCH_CHECK(bins > 0 && at::isFloatingType(self.scalar_type()), "histc: bins");
  return empty({bins}, self.scalar_type());
}

Tensor dist(const Tensor& self, const Tensor& other, const Scalar&) {
  at::infer_size(self.sizes(), other.sizes());
  return empty({}, c10::toRealValueType(at::result_type(self, other)));
}

}  // namespace
}  // namespace layout

void add_linear_algebra_layouts(LayoutRegistry& registry) {
  namespace ops = at::_ops;
  add_layout<ops::linalg_eig>(registry, layout::linalg_eig);
  add_layout<ops::geqrf>(registry, layout::geqrf);
  add_layout<ops::linalg_householder_product>(registry, layout::householder_product);
  add_layout<ops::cholesky>(registry, layout::cholesky);
  add_layout<ops::cholesky_inverse>(registry, layout::cholesky);
  add_layout<ops::cholesky_solve>(registry, layout::cholesky_solve);
  add_layout<ops::linalg_solve_triangular>(registry, layout::solve_triangular);
  add_layout<ops::ormqr>(registry, layout::ormqr);
  add_layout<ops::_fft_c2c>(registry, layout::fft_c2c);
  add_layout<ops::_fft_r2c>(registry, layout::fft_r2c);
  add_layout<ops::_fft_c2r>(registry, layout::fft_c2r);
  add_layout<ops::_cdist_forward>(registry, layout::cdist_forward);
  add_layout<ops::_cdist_backward>(registry, layout::cdist_backward);
  add_layout<ops::_pdist_forward>(registry, layout::pdist_forward);
  add_layout<ops::_pdist_backward>(registry, layout::pdist_backward);
  add_layout<ops::addr>(registry, layout::addr);
  add_layout<ops::addr_>(registry, layout::addr_in_place);
  add_layout<ops::addbmm>(registry, layout::addbmm);
  add_layout<ops::addbmm_>(registry, layout::addbmm_in_place);
  add_layout<ops::mm>(registry, layout::mm);
  add_layout<ops::bmm>(registry, layout::bmm);
  add_layout<ops::histc>(registry, layout::histc);
  add_layout<ops::dist>(registry, layout::dist);
}

}  // namespace torch_lazy
