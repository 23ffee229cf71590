// Memory for objects that come and go by the thousand: each thread keeps some, and hands batches to
// the others, so that what one thread records and another frees costs neither a call of malloc.
#pragma once

#include "base/ranked_mutex.h"

#include <cstddef>
#include <mutex>
#include <new>
#include <vector>

namespace torch_lazy {

template <typename T>
class Recycled {
 public:
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  static void* operator new(std::size_t size) {
    Local& own = local();
    if (!own.first && !refill(own)) {
      return ::operator new(size, std::align_val_t(alignof(T)));
    }
    Chunk* chunk = own.first;
    own.first = chunk->next;
    --own.count;
    return chunk;
  }

  static void operator delete(void* memory) {
    Local& own = local();
    own.first = new (memory) Chunk{own.first};
    if (++own.count >= 2 * kBatch) {
      own.hand_on(kBatch);
    }
  }
#endif

 private:
  static constexpr std::size_t kBatch = 256;
  static constexpr std::size_t kMostBatches = 256;

  struct Chunk {
    Chunk* next;
  };

  /// Batches that no thread has at hand.
  struct Shared {
    RankedMutex mutex{Rank::recycled};
    std::vector<Chunk*> batches;
  };

  struct Local {
    Chunk* first = nullptr;
    std::size_t count = 0;

    ~Local() { hand_on(count); }

    void hand_on(std::size_t number) {
      Chunk* batch = nullptr;
      for (std::size_t i = 0; i < number; ++i) {
        Chunk* chunk = first;
        first = chunk->next;
        chunk->next = batch;
        batch = chunk;
      }
      count -= number;
      if (number == kBatch) {
        std::lock_guard<RankedMutex> lock(shared().mutex);
        if (shared().batches.size() < kMostBatches) {
          shared().batches.push_back(batch);
          return;
        }
      }
      while (batch) {
        Chunk* next = batch->next;
        ::operator delete(batch, std::align_val_t(alignof(T)));
        batch = next;
      }
    }
  };

  static Shared& shared() {
    static auto* instance = new Shared();  // never destroyed: objects die at exit
    return *instance;
  }

  static Local& local() {
    thread_local Local instance;
    return instance;
  }

  static bool refill(Local& own) {
    std::lock_guard<RankedMutex> lock(shared().mutex);
    if (shared().batches.empty()) {
      return false;
    }
    own.first = shared().batches.back();
    own.count = kBatch;
    shared().batches.pop_back();
    return true;
  }
};

}  // namespace torch_lazy
