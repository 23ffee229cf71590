// The check of the order, and all locks at a fork.
#include "base/ranked_mutex.h"

#include "base/fork.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace torch_lazy {
namespace {

constexpr const char* kNames[] = {
    "seeds",     "execution",    "scheduling",     "backend",  "plugin",  "devices",
    "operators", "casts",        "queue",          "graph",    "watch",   "plans",
    "failures",  "compile pool", "code generator", "kernels",  "memory",  "log",
    "fault",     "metrics",      "late settings",  "settings", "recycled"};
constexpr size_t kRanks = std::size(kNames);
static_assert(kRanks == static_cast<size_t>(Rank::recycled) + 1);

/// How often this thread holds locks of each rank.
thread_local uint16_t held[kRanks];

[[noreturn]] void complain(const char* what, size_t wanted, size_t other) {
  std::fprintf(stderr, "torch-lazy: lock order: %s %s while holding %s\n", what,
               wanted < kRanks ? kNames[wanted] : "the host language's", kNames[other]);
  std::abort();
}

}  // namespace

void lock_order::enter(Rank rank, bool may_wait, bool again) {
  const auto wanted = static_cast<size_t>(rank);
  if (may_wait && !(again && held[wanted] > 0)) {
    for (size_t other = wanted; other < kRanks; ++other) {
      if (held[other] > 0) {
        complain("taking", wanted, other);
      }
    }
  }
  ++held[wanted];
}

void lock_order::leave(Rank rank) {
  --held[static_cast<size_t>(rank)];
}

void lock_order::check_host_may_run() {
  for (auto other = static_cast<size_t>(kFirstShortRank); other < kRanks; ++other) {
    if (held[other] > 0) {
      complain("taking", kRanks, other);
    }
  }
}

void lock_order::forget() {
  std::fill(std::begin(held), std::end(held), uint16_t{0});
}

/// The list of all mutexes: they come, from any thread and under any lock, and never go.
class AllMutexes {
 public:
  static void add(RankedMutex& mutex) {
    mutex.next_ = first().load(std::memory_order_relaxed);
    while (!first().compare_exchange_weak(mutex.next_, &mutex, std::memory_order_release)) {
    }
  }

  static void lock() {
    while (true) {
      RankedMutex* newest = first().load(std::memory_order_acquire);
      std::vector<RankedMutex*>& all = locked();
      for (RankedMutex* mutex = newest; mutex; mutex = mutex->next_) {
        all.push_back(mutex);
      }
      std::stable_sort(all.begin(), all.end(), [](const RankedMutex* a, const RankedMutex* b) {
        return a->rank_ < b->rank_;
      });
      for (RankedMutex* mutex : all) {
        mutex->mutex_.lock();
      }
      if (first().load(std::memory_order_acquire) == newest) {
        return;
      }
      unlock();  // one more has come meanwhile
    }
  }

  /// A child's only thread is the one that has locked them.
  static void unlock() {
    for (RankedMutex* mutex : locked()) {
      mutex->mutex_.unlock();
    }
    locked().clear();
  }

 private:
  static std::atomic<RankedMutex*>& first() {
    static std::atomic<RankedMutex*> newest{nullptr};
    return newest;
  }

  static std::vector<RankedMutex*>& locked() {
    static auto* mutexes = new std::vector<RankedMutex*>();
    return *mutexes;
  }
};

RankedMutex::RankedMutex(Rank rank) : rank_(rank) {
  AllMutexes::add(*this);
}

namespace {

[[maybe_unused]] const bool added = [] {
  add_fork_part(ForkOrder::locks, {&AllMutexes::lock, &AllMutexes::unlock, &AllMutexes::unlock});
  return true;
}();

}  // namespace
}  // namespace torch_lazy
