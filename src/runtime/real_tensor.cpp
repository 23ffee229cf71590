// Plain tensors over real memory.
#include "runtime/real_tensor.h"

#include "runtime/executor.h"
#include <torch_lazy/backend.h>

namespace torch_lazy {

at::Tensor real_tensor(c10::Storage storage, const Layout& layout) {
  return make_strided(std::move(storage), c10::DispatchKeySet(real_key()), layout);
}

Layout bytes_layout(int64_t nbytes) {
  Layout bytes;
  bytes.sizes = {nbytes};
  bytes.strides = {1};
  bytes.dtype = at::kByte;
  return bytes;
}

void copy_bytes(const c10::Storage& from, const c10::Storage& to) {
  const Layout bytes = bytes_layout(static_cast<int64_t>(from.nbytes()));
  BelowEverything below;
  real_tensor(to, bytes).copy_(real_tensor(from, bytes));
}

c10::Storage copy_of(const c10::Storage& original) {
  c10::Storage copy = allocate(static_cast<int64_t>(original.nbytes()));
  copy_bytes(original, copy);
  return copy;
}

BelowEverything::BelowEverything()
    : keys_(c10::DispatchKeySet(c10::DispatchKey::BackendSelect),
            c10::default_excluded_set | c10::autograd_dispatch_keyset_with_ADInplaceOrView) {}

}  // namespace torch_lazy
