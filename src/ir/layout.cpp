// Layouts of tensors.
#include <torch_lazy/layout.h>

#include <ATen/EmptyTensor.h>

#include <sstream>

namespace torch_lazy {

Layout Layout::of(const at::Tensor& tensor) {
  Layout layout;
  layout.sizes.assign(tensor.sizes().begin(), tensor.sizes().end());
  layout.strides.assign(tensor.strides().begin(), tensor.strides().end());
  layout.offset = tensor.storage_offset();
  layout.dtype = tensor.scalar_type();
  layout.conj = tensor.is_conj();
  layout.neg = tensor.is_neg();
  return layout;
}

bool Layout::operator==(const Layout& other) const {
  return sizes == other.sizes && strides == other.strides && offset == other.offset &&
         dtype == other.dtype && conj == other.conj && neg == other.neg;
}

namespace {

/// For the few numbers that shapes have: a call of memcmp would take longer.
bool equal(at::IntArrayRef a, at::IntArrayRef b) {
  if (a.size() != b.size()) {
    return false;
  }
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] != b[i]) {
      return false;
    }
  }
  return true;
}

}  // namespace

bool Layout::matches(const at::Tensor& tensor) const {
  return tensor.scalar_type() == dtype && tensor.storage_offset() == offset &&
         equal(tensor.sizes(), sizes) && equal(tensor.strides(), strides) &&
         tensor.is_conj() == conj && tensor.is_neg() == neg;
}

std::string Layout::shape_text() const {
  std::ostringstream out;
  out << c10::toString(dtype) << "[";
  for (size_t i = 0; i < sizes.size(); ++i) {
    out << (i ? "," : "") << sizes[i];
  }
  out << "]";
  return out.str();
}

at::Tensor make_strided(c10::Storage storage, c10::DispatchKeySet keys, const Layout& layout) {
  auto impl = c10::make_intrusive<c10::TensorImpl>(std::move(storage), keys,
                                                   c10::scalarTypeToTypeMeta(layout.dtype));
  impl->set_sizes_and_strides(layout.sizes, layout.strides, layout.offset);
  if (layout.conj) {
    impl->_set_conj(true);
  }
  if (layout.neg) {
    impl->_set_neg(true);
  }
  return at::Tensor(std::move(impl));
}

/// Raises eager's error where the bytes are more than a number can say.
int64_t bytes_spanned(at::IntArrayRef sizes, at::IntArrayRef strides, int64_t offset,
                      at::ScalarType dtype) {
  return static_cast<int64_t>(at::detail::computeStorageNbytes(
      sizes, strides, c10::elementSize(dtype), static_cast<size_t>(offset)));
}

}  // namespace torch_lazy
