// A CPU allocator that counts: bytes in use and their peak, the same way for eager and for lazy.
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <cstdint>

namespace {

std::atomic<int64_t> in_use{0};
std::atomic<int64_t> peak{0};

void count(int64_t bytes) {
  const int64_t now = in_use.fetch_add(bytes) + bytes;
  int64_t before = peak.load();
  while (now > before && !peak.compare_exchange_weak(before, now)) {
  }
}

c10::Allocator* plain = nullptr;

// A block's size stands in front of it, and the pointer is its own context: oneDNN asks for that.
constexpr int64_t kHeader = 64;  // as much as memory is aligned to

void free_block(void* data) {
  if (data == nullptr) {
    return;
  }
  char* block = static_cast<char*>(data) - kHeader;
  count(-*reinterpret_cast<int64_t*>(block));
  plain->raw_deallocate(block);
}

class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t nbytes) override {
    if (nbytes == 0) {
      return {nullptr, at::Device(at::kCPU)};
    }
    auto* block = static_cast<char*>(plain->raw_allocate(nbytes + kHeader));
    *reinterpret_cast<int64_t*>(block) = static_cast<int64_t>(nbytes);
    count(static_cast<int64_t>(nbytes));
    char* data = block + kHeader;
    return {data, data, &free_block, at::Device(at::kCPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }

  void copy_data(void* to, const void* from, size_t nbytes) const override {
    default_copy_data(to, from, nbytes);
  }
};

}  // namespace

extern "C" {

__attribute__((visibility("default"))) void start_counting() {
  static CountingAllocator allocator;
  plain = c10::GetDefaultCPUAllocator();
  c10::SetCPUAllocator(&allocator, /*priority=*/100);
}

__attribute__((visibility("default"))) void reset_peak() {
  peak.store(in_use.load());
}

__attribute__((visibility("default"))) int64_t bytes_in_use() {
  return in_use.load();
}

__attribute__((visibility("default"))) int64_t peak_bytes() {
  return peak.load();
}

}  // extern "C"
