// Plain tensors over real memory.
#include "runtime/real_tensor.h"

#include "runtime/backend.h"

namespace torch_lazy {

at::Tensor real_tensor(c10::Storage storage, const Layout& layout) {
  auto impl = c10::make_intrusive<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(real_key()), c10::scalarTypeToTypeMeta(layout.dtype));
  impl->set_sizes_and_strides(layout.sizes, layout.strides, layout.offset);
  if (layout.conj) {
    impl->_set_conj(true);
  }
  if (layout.neg) {
    impl->_set_neg(true);
  }
  return at::Tensor(std::move(impl));
}

BelowEverything::BelowEverything()
    : keys_(c10::DispatchKeySet(c10::DispatchKey::BackendSelect),
            c10::default_excluded_set | c10::autograd_dispatch_keyset_with_ADInplaceOrView) {}

}  // namespace torch_lazy
