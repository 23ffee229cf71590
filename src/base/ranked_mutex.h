// The locks of ours that last as long as the process, and the order in which they are taken. Where
// TORCH_LAZY_CHECK_LOCKS is defined (debug builds and those with sanitizers), a thread that takes
// two in another order, or lets the host language run under a short one, ends the process.
#pragma once

#include "base/hooks.h"
#include <torch_lazy/export.h>

#include <cstdint>
#include <mutex>

namespace torch_lazy {

/// A thread that holds a lock takes only locks of greater ranks.
enum class Rank : uint8_t {
  // Held for long, and the host language may run under them: who waits gives its lock up.
  seeds,       // of a device
  execution,   // recursive
  scheduling,  // recursive
  backend,     // which one is in use
  plugin,      // compiles one graph at a time
  // Short: nothing under them may take the lock of the host language.
  devices,    // tables of what is known of devices
  operators,  // what is known of them
  casts,      // weights that autocast has cast
  queue,
  graph,
  watch,
  plans,
  failures,
  compile_pool,
  code_generator,
  kernels,
  memory,
  log,
  fault,
  metrics,
  late_settings,
  settings,
  recycled,  // memory of nodes and values
};

constexpr Rank kFirstShortRank = Rank::devices;

/// What this thread holds. Called by the locks below where orders are checked.
namespace lock_order {
/// `may_wait`: it would wait for a lock that another thread has. `again`: a recursive one.
TORCH_LAZY_API void enter(Rank rank, bool may_wait = true, bool again = false);
TORCH_LAZY_API void leave(Rank rank);
/// Ends the process if this thread holds a short lock.
TORCH_LAZY_API void check_host_may_run();
/// In a forked child: this thread holds nothing.
void forget();

#if defined(TORCH_LAZY_CHECK_LOCKS)
constexpr bool kChecked = true;
#else
constexpr bool kChecked = false;
#endif
}  // namespace lock_order

/// Made once, never destroyed. A fork takes all of them, so that no child finds one locked.
class TORCH_LAZY_API RankedMutex {
 public:
  explicit RankedMutex(Rank rank);
  RankedMutex(const RankedMutex&) = delete;
  RankedMutex& operator=(const RankedMutex&) = delete;

  void lock() {
    if constexpr (lock_order::kChecked) {
      lock_order::enter(rank_);
    }
    mutex_.lock();
  }

  bool try_lock() {
    const bool locked = mutex_.try_lock();
    if constexpr (lock_order::kChecked) {
      if (locked) {
        lock_order::enter(rank_, /*may_wait=*/false);
      }
    }
    return locked;
  }

  void unlock() {
    if constexpr (lock_order::kChecked) {
      lock_order::leave(rank_);
    }
    mutex_.unlock();
  }

 private:
  friend class AllMutexes;

  std::mutex mutex_;
  const Rank rank_;
  RankedMutex* next_ = nullptr;  // in the list of all
};

/// Takes a lock under which the host language may run: who waits for it lets others run meanwhile.
template <typename Mutex>
std::unique_lock<Mutex> lock_patiently(Mutex& mutex) {
  std::unique_lock<Mutex> lock(mutex, std::try_to_lock);
  if (!lock.owns_lock()) {
    hooks::AllowOtherThreads allow;
    lock.lock();
  }
  return lock;
}

}  // namespace torch_lazy
