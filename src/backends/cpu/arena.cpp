#include "backends/cpu/arena.h"

#include <c10/core/CPUAllocator.h>

#include <mutex>
#include <utility>
#include <vector>

namespace torch_lazy {
namespace {

/// Arenas are kept from run to run. Runs can be nested (an operator that uses lazy tensors itself).
class ArenaPool {
 public:
  static ArenaPool& instance() {
    static auto* pool = new ArenaPool();
    return *pool;
  }

  c10::DataPtr take(size_t bytes, size_t& capacity) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!free_.empty()) {
        auto [data, size] = std::move(free_.back());
        free_.pop_back();
        if (size >= bytes) {
          capacity = size;
          return std::move(data);
        }
      }
    }
    capacity = bytes;
    return c10::GetCPUAllocator()->allocate(bytes);
  }

  void give(c10::DataPtr data, size_t capacity) {
    std::lock_guard<std::mutex> lock(mutex_);
    free_.emplace_back(std::move(data), capacity);
  }

 private:
  std::mutex mutex_;
  std::vector<std::pair<c10::DataPtr, size_t>> free_;
};

}  // namespace

Arena::Arena(int64_t bytes) {
  if (bytes > 0) {
    data_ = ArenaPool::instance().take(static_cast<size_t>(bytes), capacity_);
  }
}

Arena::~Arena() {
  if (capacity_ > 0) {
    ArenaPool::instance().give(std::move(data_), capacity_);
  }
}

c10::Storage borrowed(char* data, int64_t nbytes) {
  return c10::Storage(c10::Storage::use_byte_size_t(), static_cast<size_t>(nbytes),
                      c10::DataPtr(data, c10::Device(c10::kCPU)), nullptr, false);
}

char* scratch_memory(int64_t bytes) {
  thread_local std::vector<char> memory;
  if (static_cast<int64_t>(memory.size()) < bytes + 64) {
    memory.resize(static_cast<size_t>(bytes) + 64);
  }
  auto address = reinterpret_cast<uintptr_t>(memory.data());
  return memory.data() + (64 - address % 64) % 64;
}

}  // namespace torch_lazy
