// Plain tensors over real memory, and the dispatch state in which ATen's kernels are called on
// them.
#pragma once

#include <torch_lazy/layout.h>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/Storage.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace torch_lazy {

/// A tensor of the real device that lies in `storage` as `layout` says.
at::Tensor real_tensor(c10::Storage storage, const Layout& layout);

/// A whole memory as bytes.
Layout bytes_layout(int64_t nbytes);

/// Copies all bytes of one memory to another of the same size; both may be of any device.
void copy_bytes(const c10::Storage& from, const c10::Storage& to);

/// A copy in fresh memory of the real device.
c10::Storage copy_of(const c10::Storage& original);

/// While alive, operators go straight to the kernels of their arguments' backend: no autograd, no
/// autocast, no Python modes, whatever the calling thread has switched on.
class BelowEverything {
 public:
  BelowEverything();

 private:
  c10::impl::ForceDispatchKeyGuard keys_;
  at::AutoGradMode grad_mode_{false};
};

/// The default dtype that was in force when a call was recorded decides what it computes.
class DefaultDtypeGuard {
 public:
  explicit DefaultDtypeGuard(at::ScalarType dtype) : before_(c10::get_default_dtype()) {
    c10::set_default_dtype(c10::scalarTypeToTypeMeta(dtype));
  }
  ~DefaultDtypeGuard() { c10::set_default_dtype(before_); }
  DefaultDtypeGuard(const DefaultDtypeGuard&) = delete;
  DefaultDtypeGuard& operator=(const DefaultDtypeGuard&) = delete;

 private:
  caffe2::TypeMeta before_;
};

}  // namespace torch_lazy
