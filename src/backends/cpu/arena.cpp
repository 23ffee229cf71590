#include "backends/cpu/arena.h"

#include "base/ranked_mutex.h"

#include <c10/core/CPUAllocator.h>

#include <iterator>
#include <map>
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
      std::lock_guard<RankedMutex> lock(mutex_);
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
    std::lock_guard<RankedMutex> lock(mutex_);
    free_.emplace_back(std::move(data), capacity);
  }

 private:
  RankedMutex mutex_{Rank::memory};
  std::vector<std::pair<c10::DataPtr, size_t>> free_;
};

/// Blocks that nobody uses at present, by size. The next run asks for the same sizes again.
class BlockPool {
 public:
  static BlockPool& instance() {
    static auto* pool = new BlockPool();
    return *pool;
  }

  void* take(size_t nbytes) {
    std::lock_guard<RankedMutex> lock(mutex_);
    auto it = free_.find(nbytes);
    if (it == free_.end()) {
      return nullptr;
    }
    void* data = it->second;
    free_.erase(it);
    return data;
  }

  void give(void* data, size_t nbytes) {
    std::lock_guard<RankedMutex> lock(mutex_);
    free_.emplace(nbytes, data);
  }

  /// Takes blocks out of the pool, of at least so many bytes together if there are any.
  std::vector<void*> remove(int64_t nbytes) {
    std::vector<void*> removed;
    std::lock_guard<RankedMutex> lock(mutex_);
    while (nbytes > 0 && !free_.empty()) {
      auto it = free_.lower_bound(static_cast<size_t>(nbytes));
      it = it == free_.end() ? std::prev(it) : it;
      nbytes -= static_cast<int64_t>(it->first);
      removed.push_back(it->second);
      free_.erase(it);
    }
    return removed;
  }

 private:
  RankedMutex mutex_{Rank::memory};
  std::multimap<size_t, void*> free_;
};

struct Block {
  void* data;
  size_t nbytes;
};

void give_back(void* context) {
  auto* block = static_cast<Block*>(context);
  BlockPool::instance().give(block->data, block->nbytes);
  delete block;
}

}  // namespace

c10::Storage take_block(int64_t nbytes) {
  const auto size = static_cast<size_t>(nbytes);
  void* data = BlockPool::instance().take(size);
  if (data == nullptr) {
    make_room(nbytes);
    data = c10::GetCPUAllocator()->raw_allocate(size);
  }
  return c10::Storage(c10::Storage::use_byte_size_t(), size,
                      c10::DataPtr(data, new Block{data, size}, &give_back, c10::Device(c10::kCPU)),
                      nullptr, false);
}

void make_room(int64_t nbytes) {
  for (void* data : BlockPool::instance().remove(nbytes)) {
    c10::GetCPUAllocator()->raw_deallocate(data);
  }
}

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
