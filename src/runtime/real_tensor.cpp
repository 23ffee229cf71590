// Plain tensors over real memory.
#include "runtime/real_tensor.h"

#include <torch_lazy/backend.h>

namespace torch_lazy {

at::Tensor real_tensor(c10::Storage storage, const Layout& layout) {
  return make_strided(std::move(storage), c10::DispatchKeySet(real_key()), layout);
}

BelowEverything::BelowEverything()
    : keys_(c10::DispatchKeySet(c10::DispatchKey::BackendSelect),
            c10::default_excluded_set | c10::autograd_dispatch_keyset_with_ADInplaceOrView) {}

}  // namespace torch_lazy
