// Views: another tensor over the same storage, no node. The common ones are made here directly;
// PyTorch's own composite kernels would go through as_strided and the dispatcher once more.
#include "capture/register.h"
#include "capture/tensor.h"

#include <ATen/ATen.h>
#include <ATen/NativeFunctions.h>
#include <ATen/WrapDimUtils.h>

namespace torch_lazy {
namespace {

/// A tensor like `self` that lies otherwise in the same storage.
at::Tensor view_of(const at::Tensor& self, at::IntArrayRef sizes, at::IntArrayRef strides,
                   int64_t offset) {
  auto impl = c10::make_intrusive<c10::TensorImpl>(
      c10::TensorImpl::VIEW, c10::Storage(self.storage()), self.key_set(), self.dtype());
  impl->set_sizes_and_strides(sizes, strides, offset);
  return at::Tensor(std::move(impl));
}

at::Tensor transpose(const at::Tensor& self, int64_t first, int64_t second) {
  first = at::maybe_wrap_dim(first, self.dim());
  second = at::maybe_wrap_dim(second, self.dim());
  at::DimVector sizes(self.sizes());
  at::DimVector strides(self.strides());
  if (first != second) {
    std::swap(sizes[first], sizes[second]);
    std::swap(strides[first], strides[second]);
  }
  return view_of(self, sizes, strides, self.storage_offset());
}

at::Tensor t(const at::Tensor& self) {
  TORCH_CHECK(self.dim() <= 2, "t() expects a tensor with <= 2 dimensions, but self is ",
              self.dim(), "D");
  const int64_t last = self.dim() < 2 ? 0 : 1;
  return torch_lazy::transpose(self, 0, last);
}

at::Tensor select(const at::Tensor& self, int64_t dim, int64_t index) {
  TORCH_CHECK_INDEX(self.dim() != 0, "select() cannot be applied to a 0-dim tensor.");
  dim = at::maybe_wrap_dim(dim, self.dim());
  const int64_t size = self.size(dim);
  TORCH_CHECK_INDEX(-size <= index && index < size, "select(): index ", index,
                    " out of range for tensor of size ", self.sizes(), " at dimension ", dim);
  at::DimVector sizes(self.sizes());
  at::DimVector strides(self.strides());
  const int64_t offset = self.storage_offset() + (index < 0 ? index + size : index) * strides[dim];
  sizes.erase(sizes.begin() + dim);
  strides.erase(strides.begin() + dim);
  return view_of(self, sizes, strides, offset);
}

at::Tensor slice(const at::Tensor& self, int64_t dim, std::optional<int64_t> start,
                 std::optional<int64_t> end, int64_t step) {
  TORCH_CHECK_INDEX(self.dim() != 0, "slice() cannot be applied to a 0-dim tensor.");
  dim = at::maybe_wrap_dim(dim, self.dim());
  TORCH_CHECK(step > 0, "slice step must be positive");
  at::DimVector sizes(self.sizes());
  at::DimVector strides(self.strides());
  const int64_t size = sizes[dim];
  auto clamp = [size](int64_t position) {
    return std::clamp<int64_t>(position < 0 ? position + size : position, 0, size);
  };
  const int64_t first = clamp(start.value_or(0));
  const int64_t last = std::max(first, clamp(end.value_or(std::numeric_limits<int64_t>::max())));
  const int64_t offset = self.storage_offset() + first * strides[dim];
  sizes[dim] = last > first ? (last - first - 1) / step + 1 : 0;
  // Of one element no stride counts; eager's wraps around, too.
  strides[dim] =
      static_cast<int64_t>(static_cast<uint64_t>(strides[dim]) * static_cast<uint64_t>(step));
  return view_of(self, sizes, strides, offset);
}

at::Tensor permute(const at::Tensor& self, at::IntArrayRef dims) {
  TORCH_CHECK(self.dim() == static_cast<int64_t>(dims.size()),
              "permute: number of dimensions in the tensor input does not match the "
              "length of the desired ordering of dimensions i.e. input.dim() = ",
              self.dim(), " is not equal to len(dims) = ", dims.size());
  at::DimVector sizes(self.sizes());
  at::DimVector strides(self.strides());
  std::vector<bool> seen(dims.size());
  for (size_t i = 0; i < dims.size(); ++i) {
    const int64_t from = at::maybe_wrap_dim(dims[i], self.dim());
    TORCH_CHECK(!seen[from], "permute(): duplicate dims are not allowed.");
    seen[from] = true;
    sizes[i] = self.size(from);
    strides[i] = self.stride(from);
  }
  return view_of(self, sizes, strides, self.storage_offset());
}

at::Tensor unsqueeze(const at::Tensor& self, int64_t dim) {
  dim = at::maybe_wrap_dim(dim, self.dim() + 1);
  at::DimVector sizes(self.sizes());
  at::DimVector strides(self.strides());
  const int64_t stride = dim < self.dim() ? sizes[dim] * strides[dim] : 1;
  sizes.insert(sizes.begin() + dim, 1);
  strides.insert(strides.begin() + dim, stride);
  return view_of(self, sizes, strides, self.storage_offset());
}

/// Eager leaves it to who reads: memory that is not there.
const at::Tensor& as_strided_(const at::Tensor& self, c10::SymIntArrayRef size,
                              c10::SymIntArrayRef stride, std::optional<c10::SymInt> offset) {
  at::native::as_strided_tensorimpl(  // checks them
      self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
      offset ? std::optional<int64_t>(offset->expect_int()) : std::nullopt);
  return at::native::as_strided__symint(self, size, stride, std::move(offset));
}

}  // namespace

void register_views(torch::Library& m) {
  m.impl("t", t);
  m.impl("transpose.int", transpose);
  m.impl("select.int", select);
  m.impl("slice.Tensor", slice);
  m.impl("permute", permute);
  m.impl("unsqueeze", unsqueeze);
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("as_strided_", as_strided_);
  m.impl("view", at::native::view);
  m.impl("_reshape_alias", at::native::_reshape_alias);
  m.impl("unfold", at::native::unfold);
  m.impl("view_as_real", at::native::view_as_real);
  m.impl("view_as_complex", at::native::view_as_complex);
}

}  // namespace torch_lazy
