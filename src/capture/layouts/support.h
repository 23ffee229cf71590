// Building blocks for layout functions: new Meta tensors, TensorIterator over Meta tensors, sizes
// of reductions.
#pragma once

#include "capture/layouts/layouts.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/WrapDimUtilsMulti.h>
#include <ATen/core/Tensor.h>

#include <array>
#include <optional>
#include <tuple>
#include <vector>

namespace torch_lazy::layout {

using at::IntArrayRef;
using at::MemoryFormat;
using at::Scalar;
using at::ScalarType;
using at::Tensor;
using c10::SymInt;
using c10::SymIntArrayRef;

// The spellings of PyTorch's schemas, shortened: signatures of layout functions are long.
using Dtype = std::optional<at::ScalarType>;
using Layout = std::optional<at::Layout>;
using Device = std::optional<at::Device>;
using Flag = std::optional<bool>;
using Format = std::optional<at::MemoryFormat>;
using MaybeTensor = const std::optional<at::Tensor>&;
using MaybeTensors = const c10::List<std::optional<at::Tensor>>&;
using Tensors = at::TensorList;
using Two = std::tuple<at::Tensor, at::Tensor>;
using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using Four = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
using Sizes = c10::SmallVector<int64_t, 6>;

inline IntArrayRef ints(SymIntArrayRef values) {
  return C10_AS_INTARRAYREF_SLOW(values);
}
inline int64_t integer(const SymInt& value) {
  return value.guard_int(__FILE__, __LINE__);
}

// Sizes computed from numbers that a program gave: they may be anything.
inline int64_t times(int64_t a, int64_t b) {
  int64_t product = 0;
  TORCH_CHECK(!__builtin_mul_overflow(a, b, &product), "a size overflows");
  return product;
}
inline int64_t plus(int64_t a, int64_t b) {
  int64_t sum = 0;
  TORCH_CHECK(!__builtin_add_overflow(a, b, &sum), "a size overflows");
  return sum;
}

// Lists with one number for each dimension, or one for all.
inline int64_t at_or_first(IntArrayRef values, size_t i, size_t count) {
  TORCH_CHECK(values.size() == 1 || values.size() == count, "one value for each dimension");
  return values.size() == 1 ? values[0] : values[i];
}

inline Tensor empty(IntArrayRef sizes, ScalarType dtype, Format format = std::nullopt) {
  return at::detail::empty_meta(sizes, dtype, format);
}
inline Tensor empty_strided(IntArrayRef sizes, IntArrayRef strides, ScalarType dtype) {
  return at::detail::empty_strided_meta(sizes, strides, dtype);
}

// The result of at::empty_like: "preserve" keeps a dense layout and packs any other in the same
// order.
Tensor dense_like(const Tensor& self, Dtype dtype = std::nullopt, Format format = std::nullopt);

// at::dense_like(self, contiguous).
inline Tensor contiguous_like(const Tensor& self, Dtype dtype = std::nullopt) {
  return empty(self.sizes(), dtype.value_or(self.scalar_type()));
}

// What self.contiguous(format) is: self where it already has that format.
Tensor contiguous(const Tensor& self, MemoryFormat format = MemoryFormat::Contiguous);

ScalarType default_dtype();
void require_strided(Layout layout);

// Results of at::TensorIterator. `promote`: to the common dtype of the inputs; otherwise they must
// agree.
enum class Promotion { none, common, floating };
struct Pointwise {
  Promotion promotion = Promotion::none;
  std::optional<ScalarType> result = std::nullopt;  // instead of the common dtype
  bool real_result = false;                         // of a complex common dtype
};
// `out` is written in place, or resized like an `out=` argument, where it is defined.
Tensor pointwise(at::ArrayRef<Tensor> inputs, Pointwise rule = {}, Tensor out = {});

// at::Scalar as a zero-dimensional tensor that takes part in promotion as a number does.
Tensor wrapped_number(const Scalar& scalar);

// Sizes after reducing `dims` (all where empty or missing).
Sizes reduced_sizes(const Tensor& self, at::OptionalIntArrayRef dims, bool keepdim);

// Resizes an `out=` argument to `sizes`, as at::native::resize_output does.
Tensor& resize_out(Tensor& out, IntArrayRef sizes);

}  // namespace torch_lazy::layout
