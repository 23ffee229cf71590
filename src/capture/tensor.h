// Lazy tensors: plain at::Tensors whose storage leads to a Buffer.
#pragma once

#include "ir/node.h"
#include "runtime/executor.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

namespace torch_lazy {

/// The keys of every lazy tensor (autograd's are added by the tensor itself).
c10::DispatchKeySet lazy_keys();

inline bool is_lazy(const at::Tensor& tensor) {
  return tensor.defined() && tensor.unsafeGetTensorImpl()->device_type() == at::kLazy;
}

/// The buffer behind a lazy tensor; raises a clear error for a lazy tensor that is not ours.
Buffer& buffer_of(const at::Tensor& tensor);

/// Deletes a buffer: every storage that leads to one has this deleter.
void free_buffer(void* context);

/// The buffer behind a lazy tensor; null: it was not made by torch-lazy.
inline Buffer* own_buffer(const at::Tensor& tensor) {
  const c10::Storage& storage = tensor.unsafeGetTensorImpl()->unsafe_storage();
  return storage && storage.data_ptr().get_deleter() == &free_buffer
             ? static_cast<Buffer*>(storage.data_ptr().get_context())
             : nullptr;
}

/// The buffer behind a storage that torch-lazy made.
inline Buffer& buffer_of(const c10::Storage& storage) {
  return *static_cast<Buffer*>(storage.data_ptr().get_context());
}

/// Counts a write that autograd does not see.
inline void bump_version(const at::Tensor& tensor) {
  c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  if (impl.version_counter().enabled()) {  // not that of an inference tensor
    impl.bump_version();
  }
}

/// The id of the buffer that was made last.
uint64_t last_buffer_id();

/// The number of a lazy device; raises a clear error for one that does not exist.
c10::DeviceIndex checked_index(at::Device device);

/// A storage over a new buffer with undefined content.
c10::Storage make_storage(int64_t nbytes, c10::DeviceIndex device);

/// A lazy tensor that lies in `storage` as `layout` says.
at::Tensor make_tensor(c10::Storage storage, const Layout& layout);

/// Whether writing all of the tensor writes every byte of its storage.
bool covers_storage(const at::Tensor& tensor);

/// A lazy tensor over a new buffer.
at::Tensor make_undefined(const Layout& layout, int64_t nbytes, c10::DeviceIndex device);

/// A lazy tensor that takes over the memory of a plain tensor of the real device.
at::Tensor adopt(const at::Tensor& real, c10::DeviceIndex device);

/// Gives the buffer real memory as its current value, and returns that.
Value* set_buffer_data(Buffer& buffer, c10::Storage data);

/// The same for data that comes from a plain tensor, which lies there as `layout` says.
void upload_to_buffer(Buffer& buffer, const at::Tensor& source, const Layout& layout);

/// Grows a storage, keeping its content.
void grow_storage(const c10::Storage& storage, int64_t nbytes);

/// The real tensor behind a lazy one, computed if need be. The caller holds the execution lock.
at::Tensor real_of(const at::Tensor& lazy, bool to_write = false);

/// The same for who only reads, and needs no lock: nothing overwrites it while this is alive.
class RealCopySource {
 public:
  explicit RealCopySource(const at::Tensor& lazy);
  const at::Tensor& tensor() const { return tensor_; }

 private:
  Reading reading_;
  at::Tensor tensor_;
};

}  // namespace torch_lazy
