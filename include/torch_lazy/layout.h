// How a tensor lies in its buffer: exactly what an at::Tensor holds besides its storage.
#pragma once

#include <torch_lazy/export.h>

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/ScalarType.h>
#include <c10/core/Storage.h>
#include <c10/util/DimVector.h>

#include <string>

namespace torch_lazy {

struct TORCH_LAZY_API Layout {
  at::DimVector sizes;
  at::DimVector strides;
  int64_t offset = 0;
  at::ScalarType dtype = at::kFloat;
  bool conj = false;
  bool neg = false;

  static Layout of(const at::Tensor& tensor);

  bool operator==(const Layout& other) const;

  /// Whether `tensor` lies in its storage as this layout says.
  bool matches(const at::Tensor& tensor) const;

  /// Like "Float[2,3]".
  std::string shape_text() const;
};

/// A tensor with these keys that lies in `storage` as `layout` says.
TORCH_LAZY_API at::Tensor make_strided(c10::Storage storage, c10::DispatchKeySet keys,
                                       const Layout& layout);

/// Bytes a storage must have to hold a tensor that lies like this.
TORCH_LAZY_API int64_t bytes_spanned(at::IntArrayRef sizes, at::IntArrayRef strides, int64_t offset,
                                     at::ScalarType dtype);

}  // namespace torch_lazy
