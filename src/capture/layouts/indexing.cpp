// Layouts of embedding, index_select, index_put and other indexed reads and writes.
#include "capture/layouts/support.h"

#include <ATen/ops/_index_put_impl_ops.h>
#include <ATen/ops/_unsafe_index_ops.h>
#include <ATen/ops/_unsafe_index_put_ops.h>
#include <ATen/ops/_unsafe_masked_index_ops.h>
#include <ATen/ops/_unsafe_masked_index_put_accumulate_ops.h>
#include <ATen/ops/bucketize_ops.h>
#include <ATen/ops/embedding_dense_backward_ops.h>
#include <ATen/ops/embedding_ops.h>
#include <ATen/ops/index_fill_ops.h>
#include <ATen/ops/index_meta_dispatch.h>
#include <ATen/ops/index_put_ops.h>
#include <ATen/ops/index_select_ops.h>
#include <ATen/ops/isin_ops.h>
#include <ATen/ops/masked_scatter_backward_ops.h>
#include <ATen/ops/put_ops.h>
#include <ATen/ops/searchsorted_ops.h>
#include <ATen/ops/take_ops.h>

namespace torch_lazy {
namespace layout {
namespace {

void check_index(const Tensor& index) {
  TORCH_CHECK(index.scalar_type() == at::kLong || index.scalar_type() == at::kInt,
              "expected int32 or int64 indices");
}

Tensor embedding(const Tensor& weight, const Tensor& indices, SymInt, bool, bool) {
  check_index(indices);
  TORCH_CHECK(weight.dim() == 2, "embedding: weight must be a matrix");
  Sizes sizes(indices.sizes().begin(), indices.sizes().end());
  sizes.push_back(weight.size(1));
  return empty(sizes, weight.scalar_type());
}

Tensor embedding_dense_backward(const Tensor& grad, const Tensor& indices, SymInt count, SymInt,
                                bool) {
  check_index(indices);
  return empty({integer(count), grad.size(-1)}, grad.scalar_type());
}

// PyTorch's Meta kernel promises a vector without elements.
Tensor isin_scalar(const Scalar&, const Tensor&, bool, bool) {
  return empty({}, at::kBool);
}

Tensor index_select(const Tensor& self, int64_t dim, const Tensor& index) {
  const int64_t wrapped = at::maybe_wrap_dim(dim, self.dim());
  check_index(index);
  TORCH_CHECK(index.dim() <= 1, "index_select: index must be a vector");
  Sizes sizes(self.sizes().begin(), self.sizes().end());
  if (!sizes.empty()) {
    sizes[wrapped] = index.numel();
  } else {
    TORCH_CHECK(index.numel() == 1, "index_select: a scalar takes one index");
  }
  return empty(sizes, self.scalar_type());
}

void check_index_put(const Tensor& self, MaybeTensors indices, const Tensor& values) {
  TORCH_CHECK(values.scalar_type() == self.scalar_type(),
              "index_put: source and destination dtypes differ");
  bool masked = false;
  for (size_t i = 0; i < indices.size(); ++i) {
    const std::optional<Tensor> index = indices.get(i);
    masked |= index && index->defined() &&
              (index->scalar_type() == at::kBool || index->scalar_type() == at::kByte);
  }
  if (masked) {
    // How many elements a mask selects depends on data; one value fits any number of them.
    TORCH_CHECK(values.numel() == 1, "index_put: whether the values fit the mask depends on data");
  } else {
    const Tensor selected = at::meta::index(self, indices);
    TORCH_CHECK(at::is_expandable_to(values.sizes(), selected.sizes()),
                "index_put: shapes do not match");
  }
}

Tensor& index_put_in_place(Tensor& self, MaybeTensors indices, const Tensor& values, bool) {
  check_index_put(self, indices, values);
  return self;
}

Tensor& index_put_impl(Tensor& self, MaybeTensors indices, const Tensor& values, bool, bool) {
  check_index_put(self, indices, values);
  return self;
}

Tensor index_put(const Tensor& self, MaybeTensors indices, const Tensor& values, bool) {
  check_index_put(self, indices, values);
  return dense_like(self);
}

Tensor unsafe_index(const Tensor& self, MaybeTensors indices) {
  return at::meta::index(self, indices);
}

Tensor unsafe_masked_index(const Tensor& self, const Tensor& mask, MaybeTensors indices,
                           const Scalar&) {
  TORCH_CHECK(self.numel() > 0, "_unsafe_masked_index: empty input");
  return empty(at::infer_size(at::meta::index(self, indices).sizes(), mask.sizes()),
               self.scalar_type());
}

Tensor unsafe_masked_index_put_accumulate(const Tensor& self, const Tensor&, MaybeTensors,
                                          const Tensor&) {
  return dense_like(self);
}

Tensor masked_scatter_backward(const Tensor& grad, const Tensor&, SymIntArrayRef sizes) {
  return empty(ints(sizes), grad.scalar_type());
}

template <class Value>
Tensor index_fill(const Tensor& self, int64_t dim, const Tensor& index, const Value&) {
  at::maybe_wrap_dim(dim, self.dim());
  TORCH_CHECK(index.scalar_type() == at::kLong && index.dim() <= 1,
              "index_fill: expected a vector of int64");
  return dense_like(self);
}

template <class Value>
Tensor& index_fill_in_place(Tensor& self, int64_t dim, const Tensor& index, const Value&) {
  at::maybe_wrap_dim(dim, self.dim());
  TORCH_CHECK(index.scalar_type() == at::kLong && index.dim() <= 1,
              "index_fill: expected a vector of int64");
  return self;
}

Tensor take(const Tensor& self, const Tensor& index) {
  TORCH_CHECK(index.scalar_type() == at::kLong, "take: expected int64 indices");
  return empty(index.sizes(), self.scalar_type());
}

void check_put(const Tensor& self, const Tensor& index, const Tensor& source) {
  TORCH_CHECK(index.scalar_type() == at::kLong, "put_: expected int64 indices");
  TORCH_CHECK(self.scalar_type() == source.scalar_type(), "put_: dtypes differ");
  TORCH_CHECK(index.numel() == source.numel(), "put_: index and source differ in length");
}

Tensor put(const Tensor& self, const Tensor& index, const Tensor& source, bool) {
  check_put(self, index, source);
  return dense_like(self);
}

Tensor& put_in_place(Tensor& self, const Tensor& index, const Tensor& source, bool) {
  check_put(self, index, source);
  return self;
}

Tensor searchsorted(const Tensor& boundaries, const Tensor& self, bool int32, bool,
                    std::optional<std::string_view>, MaybeTensor) {
  TORCH_CHECK(boundaries.scalar_type() == self.scalar_type(), "searchsorted: dtypes differ");
  return empty(self.sizes(), int32 ? at::kInt : at::kLong);
}

Tensor bucketize(const Tensor& self, const Tensor& boundaries, bool int32, bool) {
  TORCH_CHECK(boundaries.dim() == 1, "bucketize: boundaries must be a vector");
  TORCH_CHECK(boundaries.scalar_type() == self.scalar_type(), "bucketize: dtypes differ");
  return empty(self.sizes(), int32 ? at::kInt : at::kLong);
}

}  // namespace
}  // namespace layout

void add_indexing_layouts(LayoutRegistry& registry) {
  namespace ops = at::_ops;
  add_layout<ops::embedding>(registry, layout::embedding);
  add_layout<ops::embedding_dense_backward>(registry, layout::embedding_dense_backward);
  add_layout<ops::isin_Scalar_Tensor>(registry, layout::isin_scalar);
  add_layout<ops::index_select>(registry, layout::index_select);
  add_layout<ops::index_put>(registry, layout::index_put);
  add_layout<ops::index_put_>(registry, layout::index_put_in_place);
  add_layout<ops::_index_put_impl_>(registry, layout::index_put_impl);
  add_layout<ops::_unsafe_index_Tensor>(registry, layout::unsafe_index);
  add_layout<ops::_unsafe_index_put>(registry, layout::index_put);
  add_layout<ops::_unsafe_masked_index>(registry, layout::unsafe_masked_index);
  add_layout<ops::_unsafe_masked_index_put_accumulate>(registry,
                                                       layout::unsafe_masked_index_put_accumulate);
  add_layout<ops::masked_scatter_backward>(registry, layout::masked_scatter_backward);
  add_layout<ops::index_fill_int_Scalar>(registry, layout::index_fill<at::Scalar>);
  add_layout<ops::index_fill_int_Tensor>(registry, layout::index_fill<at::Tensor>);
  add_layout<ops::index_fill__int_Scalar>(registry, layout::index_fill_in_place<at::Scalar>);
  add_layout<ops::index_fill__int_Tensor>(registry, layout::index_fill_in_place<at::Tensor>);
  add_layout<ops::take>(registry, layout::take);
  add_layout<ops::put>(registry, layout::put);
  add_layout<ops::put_>(registry, layout::put_in_place);
  add_layout<ops::searchsorted_Tensor>(registry, layout::searchsorted);
  add_layout<ops::bucketize_Tensor>(registry, layout::bucketize);
}

}  // namespace torch_lazy
