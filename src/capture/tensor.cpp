// Lazy tensors, their storages and addresses.
#include "capture/tensor.h"

#include "capture/autocast.h"
#include "runtime/executor.h"
#include "runtime/real_tensor.h"
#include "runtime/watch.h"
#include <torch_lazy/backend.h>

#include <ATen/ATen.h>
#include <c10/core/StorageImpl.h>

#include <sys/mman.h>

#include <atomic>

namespace torch_lazy {
namespace {

// A storage needs an address of its own that is not null: serialisation and the detection of shared
// tensors compare addresses. They come from a region that may be neither read nor written.
class Addresses {
 public:
  Addresses() {
    for (size_ = size_t{1} << 44; size_ >= size_t{1} << 32; size_ >>= 2) {
      void* region =
          mmap(nullptr, size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (region != MAP_FAILED) {
        base_ = static_cast<char*>(region);
        return;
      }
    }
    TORCH_CHECK(false, "torch-lazy: no address space could be reserved for lazy tensors");
  }

  void* next(int64_t nbytes) {
    constexpr uint64_t kLargest = uint64_t{1} << 20;  // distinct starts matter more than extents
    uint64_t step =
        std::min<uint64_t>((static_cast<uint64_t>(nbytes) + 64) & ~uint64_t{63}, kLargest);
    uint64_t offset = used_.fetch_add(step, std::memory_order_relaxed);
    return base_ + offset % (size_ - kLargest);
  }

 private:
  char* base_ = nullptr;
  size_t size_ = 0;
  std::atomic<uint64_t> used_{0};
};

std::atomic<uint64_t> last_id{0};

c10::DataPtr make_buffer(size_t nbytes, c10::DeviceIndex device) {
  static auto* addresses = new Addresses();
  auto* buffer = new Buffer();
  buffer->id = ++last_id;
  buffer->nbytes = static_cast<int64_t>(nbytes);
  buffer->device = device;
  return c10::DataPtr(addresses->next(buffer->nbytes), buffer, &free_buffer,
                      at::Device(at::kLazy, device));
}

/// Called where code asks for the address of a storage to write, or as data_ptr() does.
void refuse_access(c10::StorageImpl*) {
  TORCH_CHECK(false,
              "torch-lazy: the memory of a lazy tensor was asked for by its address, and lazy "
              "tensors have none. C++ code, or an operator that is written for the CPU and has no "
              "kernel for other devices, did so. Call it on the CPU: tensor.cpu()");
}

/// Makes asking for a pointer an error, where the pointer would lead to memory that cannot be read.
/// A pointer to const is still handed out: is_alias_of and what identifies storages compare it.
template <typename Impl>
void refuse_pointers(Impl& storage) {
  if constexpr (requires { storage.set_materializer(&refuse_access); }) {
    storage.set_materializer(&refuse_access);
  } else {
    storage.set_throw_on_mutable_data_ptr();  // with PyTorch's own words
  }
}

class LazyAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t nbytes) override { return make_buffer(nbytes, 0); }

  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }

  void copy_data(void*, const void*, size_t) const override {
    TORCH_CHECK(false, "torch-lazy: the bytes of a lazy tensor cannot be copied by address");
  }
};

LazyAllocator& allocator() {
  static auto* instance = new LazyAllocator();
  return *instance;
}

/// Memory that no machine has is refused when it is asked for, by the allocator that would refuse
/// it later. Sums of what is left cannot overflow.
void check_possible(int64_t nbytes) {
  constexpr int64_t kMost = int64_t{1} << 46;
  if (nbytes > kMost) {
    allocate(nbytes);
  }
}

const bool registered = [] {
  c10::SetAllocator(c10::DeviceType::Lazy, &allocator());
  return true;
}();

}  // namespace

c10::DispatchKeySet lazy_keys() {
  static const c10::DispatchKeySet keys =
      c10::DispatchKeySet(c10::DispatchKey::Lazy) | c10::DispatchKeySet(kLazyAutocastKey);
  return keys;
}

void free_buffer(void* context) {
  auto* buffer = static_cast<Buffer*>(context);
  {
    GraphLock lock;
    if (buffer->replay != Buffer::Replay::none) {
      buffer->abandoned = true;  // the replay that another thread executes frees it
      return;
    }
    Program::instance().assign(*buffer, nullptr, lock);
    Program::instance().unlist(*buffer);
  }
  delete buffer;
}

Buffer& buffer_of(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.unsafeGetTensorImpl()->has_storage() && is_lazy(tensor),
              "torch-lazy: expected a tensor on device lazy, but got ", tensor.toString(), " on ",
              tensor.device(), ": it is not a lazy tensor");
  Buffer* buffer = own_buffer(tensor);
  TORCH_CHECK(
      buffer != nullptr,
      "torch-lazy: this lazy tensor was not made by torch-lazy (its storage has no buffer)");
  return *buffer;
}

uint64_t last_buffer_id() {
  return last_id;
}

c10::DeviceIndex checked_index(at::Device device) {
  TORCH_CHECK(device.type() == at::kLazy, "torch-lazy: expected a lazy device, but got ", device);
  // On the CPU all lazy devices are the same memory and cores, so any number will do.
  TORCH_CHECK(device.index() <= 0 || real_device().is_cpu(),
              "torch-lazy: there is one lazy device, lazy:0, but ", device, " was asked for");
  return std::max<c10::DeviceIndex>(device.index(), 0);
}

c10::Storage make_storage(int64_t nbytes, c10::DeviceIndex device) {
  check_possible(nbytes);
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), nbytes,
                                                       make_buffer(nbytes, device), &allocator(),
                                                       /*resizable=*/true);
  refuse_pointers(*storage);
  return c10::Storage(std::move(storage));
}

at::Tensor make_tensor(c10::Storage storage, const Layout& layout) {
  return make_strided(std::move(storage), lazy_keys(), layout);
}

bool covers_storage(const at::Tensor& tensor) {
  return tensor.storage_offset() == 0 && tensor.is_non_overlapping_and_dense() &&
         tensor.nbytes() == tensor.storage().nbytes();
}

at::Tensor make_undefined(const Layout& layout, int64_t nbytes, c10::DeviceIndex device) {
  return make_tensor(make_storage(nbytes, device), layout);
}

Value* set_buffer_data(Buffer& buffer, c10::Storage data) {
  GraphLock lock(buffer);
  Program& program = Program::instance();
  Value* value = program.make_value(buffer.nbytes);
  program.assign(buffer, value, lock);
  program.set_data(value, std::move(data));
  return value;
}

void upload_to_buffer(Buffer& buffer, const at::Tensor& source, const Layout& layout) {
  c10::Storage memory = allocate(buffer.nbytes);
  {
    BelowEverything below;
    real_tensor(memory, layout).copy_(source);
  }
  Value* value = set_buffer_data(buffer, std::move(memory));
  if (Watch* w = watch()) {
    GraphLock lock;
    w->add_upload(value, source, layout, lock);
  }
}

at::Tensor adopt(const at::Tensor& real, c10::DeviceIndex device) {
  TORCH_CHECK(real.layout() == at::kStrided && !real.is_quantized() && !real.is_nested(),
              "torch-lazy: device lazy holds plain strided tensors; this one is ", real.toString());
  at::Tensor lazy =
      make_undefined(Layout::of(real), static_cast<int64_t>(real.storage().nbytes()), device);
  set_buffer_data(buffer_of(lazy), real.storage());
  return lazy;
}

void grow_storage(const c10::Storage& storage, int64_t nbytes) {
  if (static_cast<int64_t>(storage.nbytes()) >= nbytes) {
    return;
  }
  check_possible(nbytes);
  Buffer* buffer = &buffer_of(storage);
  bool undefined = false;
  {
    GraphLock lock(*buffer);
    undefined = buffer->nbytes == 0 || !buffer->current || buffer->current->undefined();
    if (undefined) {
      Program::instance().assign(*buffer, nullptr, lock);
      buffer->nbytes = nbytes;
    }
  }
  if (!undefined) {
    ExecutionLock execution;
    c10::Storage old = materialize(*buffer);
    c10::Storage grown = allocate(nbytes);
    const Layout bytes = bytes_layout(buffer->nbytes);
    {
      BelowEverything below;
      real_tensor(grown, bytes).copy_(real_tensor(old, bytes));
    }
    {
      GraphLock lock;
      buffer->nbytes = nbytes;
    }
    set_buffer_data(*buffer, std::move(grown));
  }
  storage.unsafeGetStorageImpl()->set_nbytes(nbytes);
}

at::Tensor real_of(const at::Tensor& lazy, bool to_write) {
  c10::Storage storage = materialize(buffer_of(lazy), to_write);
  return real_tensor(std::move(storage), Layout::of(lazy));
}

RealCopySource::RealCopySource(const at::Tensor& lazy)
    : reading_(buffer_of(lazy)), tensor_(real_tensor(reading_.storage(), Layout::of(lazy))) {}

}  // namespace torch_lazy
