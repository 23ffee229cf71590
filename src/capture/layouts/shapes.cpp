// Layouts of operators that copy, join, pad, repeat or scatter whole pieces, and of the gradients
// of views.
#include "capture/layouts/support.h"

#include <ATen/InferSize.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/TensorUtils.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/TypeProperties.h>
#include <ATen/ops/_stack_ops.h>
#include <ATen/ops/as_strided_scatter_ops.h>
#include <ATen/ops/block_diag_ops.h>
#include <ATen/ops/cat_meta_dispatch.h>
#include <ATen/ops/constant_pad_nd_ops.h>
#include <ATen/ops/copy_ops.h>
#include <ATen/ops/diag_embed_ops.h>
#include <ATen/ops/diagonal_backward_ops.h>
#include <ATen/ops/diagonal_scatter_ops.h>
#include <ATen/ops/fill_ops.h>
#include <ATen/ops/flip_ops.h>
#include <ATen/ops/narrow_copy_ops.h>
#include <ATen/ops/nonzero_static_ops.h>
#include <ATen/ops/repeat_ops.h>
#include <ATen/ops/roll_ops.h>
#include <ATen/ops/rot90_ops.h>
#include <ATen/ops/select_backward_ops.h>
#include <ATen/ops/select_scatter_ops.h>
#include <ATen/ops/slice_backward_ops.h>
#include <ATen/ops/slice_scatter_ops.h>
#include <ATen/ops/split_with_sizes_copy_ops.h>
#include <ATen/ops/stack_ops.h>
#include <ATen/ops/unfold_backward_ops.h>
#include <ATen/ops/view_copy_ops.h>

#include <algorithm>

namespace torch_lazy {
namespace layout {
namespace {

Sizes sizes_of(const Tensor& self) {
  return Sizes(self.sizes().begin(), self.sizes().end());
}

Tensor& copy_in_place(Tensor& self, const Tensor& source, bool) {
  TORCH_CHECK(at::is_expandable_to(source.sizes(), self.sizes()),
              "copy_: the source does not broadcast");
  return self;
}

template <class Value>
Tensor fill(const Tensor& self, const Value&) {
  return dense_like(self);
}

// Elements of a slice along a dimension of `length`.
int64_t slice_length(int64_t length, const std::optional<SymInt>& start,
                     const std::optional<SymInt>& end, int64_t step) {
  const auto clamped = [&](const std::optional<SymInt>& value, int64_t fallback, int64_t least) {
    int64_t position = value ? integer(*value) : fallback;
    if (position < 0) position += length;
    return std::clamp<int64_t>(position, least, length);
  };
  TORCH_CHECK(step > 0, "a slice's step must be positive");
  const int64_t first = clamped(start, 0, 0);
  const int64_t count = clamped(end, length, first) - first;
  return count / step + (count % step != 0);
}

int64_t dimension(int64_t dim, IntArrayRef sizes) {
  return at::maybe_wrap_dim(dim, static_cast<int64_t>(sizes.size()), /*wrap_scalar=*/false);
}

int64_t check_selected(int64_t dim, int64_t index, IntArrayRef sizes) {
  const int64_t wrapped = dimension(dim, sizes);
  TORCH_CHECK(index < sizes[wrapped] && index >= -sizes[wrapped], "select: index");
  return wrapped;
}

// Gradients of views: zeros of the original sizes, written to; a smaller gradient is broadcast.
Tensor slice_backward(const Tensor& grad, SymIntArrayRef sizes, int64_t dim, SymInt start,
                      SymInt end, SymInt step) {
  Sizes part(ints(sizes).begin(), ints(sizes).end());
  const int64_t wrapped = dimension(dim, part);
  part[wrapped] = slice_length(part[wrapped], start, end, integer(step));
  TORCH_CHECK(at::is_expandable_to(grad.sizes(), part), "slice_backward: the gradient's sizes");
  return empty(ints(sizes), grad.scalar_type());
}
Tensor select_backward(const Tensor& grad, SymIntArrayRef sizes, int64_t dim, SymInt index) {
  Sizes part(ints(sizes).begin(), ints(sizes).end());
  part.erase(part.begin() + check_selected(dim, integer(index), part));
  TORCH_CHECK(at::is_expandable_to(grad.sizes(), part), "select_backward: the gradient's sizes");
  return empty(ints(sizes), grad.scalar_type());
}
Tensor diagonal_backward(const Tensor& grad, SymIntArrayRef sizes, int64_t, int64_t, int64_t) {
  return empty(ints(sizes), grad.scalar_type());
}
Tensor unfold_backward(const Tensor& grad, SymIntArrayRef sizes, int64_t, int64_t, int64_t) {
  return empty(ints(sizes), grad.scalar_type());
}

// A scatter clones the whole storage, so that strides and offset stay, unless elements overlap.
Tensor clone_of_storage(const Tensor& self) {
  if (at::has_internal_overlap(self) == at::MemOverlap::Yes) return dense_like(self);
  Tensor result = empty({static_cast<int64_t>(self.storage().nbytes() / self.dtype().itemsize())},
                        self.scalar_type());
  result.unsafeGetTensorImpl()->set_sizes_and_strides(self.sizes(), self.strides(),
                                                      self.storage_offset());
  return result;
}

Tensor slice_scatter(const Tensor& self, const Tensor& source, int64_t dim,
                     std::optional<SymInt> start, std::optional<SymInt> end, SymInt step) {
  const int64_t wrapped = dimension(dim, self.sizes());
  Sizes expected = sizes_of(self);
  expected[wrapped] = slice_length(self.size(wrapped), start, end, integer(step));
  TORCH_CHECK(source.sizes() == IntArrayRef(expected),
              "slice_scatter: the source does not fit the slice");
  return clone_of_storage(self);
}

Tensor select_scatter(const Tensor& self, const Tensor& source, int64_t dim, SymInt index) {
  const int64_t wrapped = check_selected(dim, integer(index), self.sizes());
  Sizes expected = sizes_of(self);
  expected.erase(expected.begin() + wrapped);
  TORCH_CHECK(source.sizes() == IntArrayRef(expected), "select_scatter: the source does not fit");
  return clone_of_storage(self);
}

Tensor diagonal_scatter(const Tensor& self, const Tensor&, int64_t, int64_t, int64_t) {
  return clone_of_storage(self);
}

Tensor as_strided_scatter(const Tensor& self, const Tensor& source, SymIntArrayRef sizes,
                          SymIntArrayRef, std::optional<SymInt>) {
  TORCH_CHECK(source.sizes() == ints(sizes), "as_strided_scatter: the source does not fit");
  return clone_of_storage(self);
}

Tensor constant_pad_nd(const Tensor& self, SymIntArrayRef pad, const Scalar&) {
  const IntArrayRef amounts = ints(pad);
  TORCH_CHECK(amounts.size() % 2 == 0 && static_cast<int64_t>(amounts.size()) <= 2 * self.dim(),
              "constant_pad_nd: pad");
  Sizes sizes = sizes_of(self);
  bool only_crops = true;
  for (size_t i = 0; i < amounts.size() / 2; ++i) {
    int64_t& size = sizes[sizes.size() - 1 - i];
    only_crops &= amounts[2 * i] <= 0 && amounts[2 * i + 1] <= 0;
    size = plus(plus(size, amounts[2 * i]), amounts[2 * i + 1]);
    TORCH_CHECK(size >= 0, "constant_pad_nd: a size would be negative");
  }
  if (only_crops) {
    // A clone of the cropped view.
    return dense_like(empty_strided(sizes, self.strides(), self.scalar_type()));
  }
  return empty(sizes, self.scalar_type(), self.suggest_memory_format());
}

Tensor stack(Tensors tensors, int64_t dim) {
  TORCH_CHECK(!tensors.empty(), "stack expects a non-empty list of tensors");
  const int64_t wrapped = at::maybe_wrap_dim(dim, tensors[0].dim() + 1);
  for (const Tensor& tensor : tensors) {
    TORCH_CHECK(tensor.sizes() == tensors[0].sizes(), "stack expects tensors of equal size");
  }
  Sizes sizes = sizes_of(tensors[0]);
  sizes.insert(sizes.begin() + wrapped, static_cast<int64_t>(tensors.size()));
  const ScalarType dtype = at::native::result_type(tensors);
  if (tensors[0].suggest_memory_format() == MemoryFormat::Contiguous) {
    return empty(sizes, dtype);
  }
  if (wrapped == tensors[0].dim()) {
    const bool ambiguous = std::find(sizes.begin(), sizes.end(), 1) != sizes.end();
    TORCH_CHECK(!ambiguous, "strides of dimensions of size 1 are not known here");
    return empty(sizes, dtype);
  }
  // Joined along the dimension, which is then split in two.
  const Tensor joined = at::meta::cat(tensors, wrapped);
  const auto strides =
      at::detail::computeStride(joined.sizes(), joined.strides(), IntArrayRef(sizes));
  return strides ? empty_strided(sizes, *strides, dtype) : empty(sizes, dtype);
}

Tensor block_diag(Tensors tensors) {
  TORCH_CHECK(!tensors.empty(), "block_diag: expected at least one tensor");
  int64_t rows = 0, columns = 0;
  for (const Tensor& tensor : tensors) {
    TORCH_CHECK(tensor.dim() <= 2, "block_diag: expected matrices");
    rows += tensor.dim() == 2 ? tensor.size(0) : 1;
    columns += tensor.dim() == 0 ? 1 : tensor.size(-1);
  }
  return empty({rows, columns}, at::native::result_type(tensors));
}

Tensor flip(const Tensor& self, IntArrayRef dims) {
  at::dim_list_to_bitset(dims, self.dim());
  return dense_like(self);
}

// A piece of `self`, as a view has it.
Tensor narrowed(const Tensor& self, int64_t dim, int64_t length) {
  Sizes sizes = sizes_of(self);
  sizes[dim] = length;
  return empty_strided(sizes, self.strides(), self.scalar_type());
}

// Along one dimension: two pieces joined again.
Tensor rolled(const Tensor& self, int64_t shift, int64_t dim) {
  if (self.numel() == 0) return dense_like(self);
  const int64_t wrapped = at::maybe_wrap_dim(dim, self.dim());
  const int64_t length = self.size(wrapped);
  const int64_t start = ((length - shift) % length + length) % length;
  const std::array<Tensor, 2> pieces{narrowed(self, wrapped, length - start),
                                     narrowed(self, wrapped, start)};
  return at::meta::cat(at::ITensorListRef(pieces.data(), pieces.size()), wrapped);
}

Tensor roll(const Tensor& self, SymIntArrayRef shifts, IntArrayRef dims) {
  const IntArrayRef steps = ints(shifts);
  TORCH_CHECK(!steps.empty(), "roll: shifts are required");
  if (dims.empty()) {
    TORCH_CHECK(steps.size() == 1, "roll: shifts and dimensions must align");
    return contiguous_like(self);
  }
  TORCH_CHECK(steps.size() == dims.size(), "roll: shifts and dimensions must align");
  Tensor result = self;
  for (size_t i = 0; i < dims.size(); ++i) result = rolled(result, steps[i], dims[i]);
  return result;
}

Tensor rot90(const Tensor& self, int64_t turns, IntArrayRef dims) {
  TORCH_CHECK(dims.size() == 2 && self.dim() >= 2, "rot90: expected two dimensions");
  const int64_t first = at::maybe_wrap_dim(dims[0], self.dim());
  const int64_t second = at::maybe_wrap_dim(dims[1], self.dim());
  TORCH_CHECK(first != second, "rot90: the dimensions must differ");
  const int64_t quarter = ((turns % 4) + 4) % 4;
  if (quarter == 0) return contiguous_like(self);
  const Tensor flipped = dense_like(self);
  if (quarter == 2) return flipped;
  Sizes sizes = sizes_of(flipped), strides(flipped.strides().begin(), flipped.strides().end());
  std::swap(sizes[first], sizes[second]);
  std::swap(strides[first], strides[second]);
  return empty_strided(sizes, strides, self.scalar_type());
}

Tensor repeat(const Tensor& self, SymIntArrayRef repeats) {
  const IntArrayRef counts = ints(repeats);
  TORCH_CHECK(static_cast<int64_t>(counts.size()) >= self.dim(), "repeat: too few repeats");
  Sizes sizes(counts.begin(), counts.end());
  for (int64_t i = 0; i < self.dim(); ++i) {
    int64_t& size = sizes[sizes.size() - 1 - i];
    size = times(size, self.size(self.dim() - 1 - i));
  }
  return empty(sizes, self.scalar_type());
}

Tensor diag_embed(const Tensor& self, int64_t offset, int64_t dim1, int64_t dim2) {
  TORCH_CHECK(self.dim() > 0, "diag_embed: dimensions");
  const int64_t dims = self.dim() + 1;
  const int64_t first = at::maybe_wrap_dim(dim1, dims), second = at::maybe_wrap_dim(dim2, dims);
  TORCH_CHECK(first != second, "diag_embed: the dimensions must differ");
  Sizes sizes = sizes_of(self);
  const int64_t length = plus(sizes.back(), offset < 0 ? times(offset, -1) : offset);
  sizes.pop_back();
  sizes.insert(sizes.begin() + std::min(first, second), length);
  sizes.insert(sizes.begin() + std::max(first, second), length);
  return empty(sizes, self.scalar_type());
}

Tensor narrow_copy(const Tensor& self, int64_t dim, SymInt start, SymInt length) {
  const int64_t wrapped = at::maybe_wrap_dim(dim, self.dim());
  const int64_t size = self.size(wrapped), count = integer(length);
  const int64_t first = integer(start) < 0 ? integer(start) + size : integer(start);
  TORCH_CHECK(first >= 0 && count >= 0 && count <= size && first <= size - count,
              "narrow_copy: out of range");
  Sizes sizes = sizes_of(self);
  sizes[wrapped] = count;
  return empty(sizes, self.scalar_type());
}

Tensor nonzero_static(const Tensor& self, SymInt size, int64_t) {
  TORCH_CHECK(integer(size) >= 0, "nonzero_static: size must be non-negative");
  return empty({integer(size), self.dim()}, at::kLong);
}

Tensor view_copy(const Tensor& self, SymIntArrayRef size) {
  return empty(at::infer_size_dv(ints(size), self.numel()), self.scalar_type());
}

// The other copies of views: the view, cloned into contiguous memory.
void copy_of_view(const c10::OperatorHandle& op, c10::DispatchKeySet, c10::Stack* stack) {
  std::string name = op.operator_name().name;
  name.resize(name.size() - std::string_view("_copy").size());
  const auto view = c10::Dispatcher::singleton().findSchemaOrThrow(
      name.c_str(), op.operator_name().overload_name.c_str());
  view.callBoxed(stack);
  c10::IValue result = stack->back();
  stack->pop_back();
  if (result.isTensor()) {
    stack->emplace_back(contiguous_like(result.toTensor()));
  } else {
    std::vector<Tensor> copies;
    for (const Tensor& piece : result.toTensorVector()) copies.push_back(contiguous_like(piece));
    stack->emplace_back(std::move(copies));
  }
}

}  // namespace
}  // namespace layout

void add_shape_layouts(LayoutRegistry& registry) {
  namespace ops = at::_ops;
  add_layout<ops::copy_>(registry, layout::copy_in_place);
  add_layout<ops::fill_Scalar>(registry, layout::fill<at::Scalar>);
  add_layout<ops::fill_Tensor>(registry, layout::fill<at::Tensor>);
  add_layout<ops::slice_backward>(registry, layout::slice_backward);
  add_layout<ops::select_backward>(registry, layout::select_backward);
  add_layout<ops::diagonal_backward>(registry, layout::diagonal_backward);
  add_layout<ops::unfold_backward>(registry, layout::unfold_backward);
  add_layout<ops::slice_scatter>(registry, layout::slice_scatter);
  add_layout<ops::select_scatter>(registry, layout::select_scatter);
  add_layout<ops::diagonal_scatter>(registry, layout::diagonal_scatter);
  add_layout<ops::as_strided_scatter>(registry, layout::as_strided_scatter);
  add_layout<ops::constant_pad_nd>(registry, layout::constant_pad_nd);
  add_layout<ops::stack>(registry, layout::stack);
  add_layout<ops::_stack>(registry, layout::stack);
  add_layout<ops::block_diag>(registry, layout::block_diag);
  add_layout<ops::flip>(registry, layout::flip);
  add_layout<ops::roll>(registry, layout::roll);
  add_layout<ops::rot90>(registry, layout::rot90);
  add_layout<ops::repeat>(registry, layout::repeat);
  add_layout<ops::diag_embed>(registry, layout::diag_embed);
  add_layout<ops::narrow_copy>(registry, layout::narrow_copy);
  add_layout<ops::nonzero_static>(registry, layout::nonzero_static);
  add_layout<ops::view_copy>(registry, layout::view_copy);
  for (const char* name :
       {"aten::alias_copy", "aten::as_strided_copy", "aten::diagonal_copy", "aten::expand_copy",
        "aten::permute_copy", "aten::select_copy.int", "aten::slice_copy.Tensor",
        "aten::split_copy.Tensor", "aten::split_with_sizes_copy", "aten::squeeze_copy",
        "aten::squeeze_copy.dim", "aten::squeeze_copy.dims", "aten::t_copy",
        "aten::transpose_copy.int", "aten::unbind_copy.int", "aten::unfold_copy",
        "aten::unsqueeze_copy", "aten::detach_copy"}) {
    registry.add(name, c10::KernelFunction::makeFromBoxedFunction<&layout::copy_of_view>());
  }
}

}  // namespace torch_lazy
