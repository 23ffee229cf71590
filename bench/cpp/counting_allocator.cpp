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

/// What is allocated, and how much it counts for.
struct Block {
  c10::DataPtr data;
  int64_t nbytes;
};

void free_block(void* context) {
  auto* block = static_cast<Block*>(context);
  count(-block->nbytes);
  delete block;
}

class CountingAllocator final : public c10::Allocator {
 public:
  explicit CountingAllocator(c10::Allocator& plain) : plain_(plain) {}

  c10::DataPtr allocate(size_t nbytes) override {
    auto* block = new Block{plain_.allocate(nbytes), static_cast<int64_t>(nbytes)};
    count(block->nbytes);
    return {block->data.get(), block, &free_block, at::Device(at::kCPU)};
  }

  void copy_data(void* to, const void* from, size_t nbytes) const override {
    default_copy_data(to, from, nbytes);
  }

 private:
  c10::Allocator& plain_;
};

}  // namespace

extern "C" {

__attribute__((visibility("default"))) void start_counting() {
  static CountingAllocator allocator(*c10::GetDefaultCPUAllocator());
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
