// The pool of threads that compile, and the door of the code generator at a fork.
#include "backends/cpu/compile_pool.h"

#include "base/fork.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <new>
#include <system_error>
#include <thread>

namespace torch_lazy {
namespace {

constexpr size_t kMostWaiting = 64;
constexpr std::chrono::seconds kIdle{2};  // then a thread ends

thread_local bool of_pool = false;
std::atomic<CompilePool*> made{nullptr};

/// Who is inside, and whether more may come.
struct Door {
  RankedMutex mutex{Rank::code_generator};
  std::condition_variable_any moved;
  size_t inside = 0;
  bool closed = false;
};

Door& door() {
  static auto* instance = new Door();
  return *instance;
}

void close_door() {
  hooks::AllowOtherThreads allow;
  Door& d = door();
  std::unique_lock<RankedMutex> lock(d.mutex);
  d.closed = true;
  d.moved.wait(lock, [&] { return d.inside == 0; });
}

void open_door() {
  Door& d = door();
  {
    std::lock_guard<RankedMutex> lock(d.mutex);
    d.closed = false;
  }
  d.moved.notify_all();
}

void open_door_in_child() {
  Door& d = door();
  new (&d.moved) std::condition_variable_any();
  d.inside = 0;
  d.closed = false;
}

[[maybe_unused]] const bool fork_handled = [] {
  add_fork_part(ForkOrder::code_generator, {&close_door, &open_door, &open_door_in_child});
  add_fork_part(ForkOrder::leaves, {nullptr, nullptr, &CompilePool::start_anew});
  return true;
}();

}  // namespace

UsesCodeGenerator::UsesCodeGenerator() {
  if constexpr (lock_order::kChecked) {
    lock_order::check_host_may_run();  // nobody waits at the door with a lock that a fork needs
  }
  Door& d = door();
  std::unique_lock<RankedMutex> lock(d.mutex);
  while (d.closed) {
    lock.unlock();
    {
      hooks::AllowOtherThreads allow;
      std::unique_lock<RankedMutex> waiting(d.mutex);
      d.moved.wait(waiting, [&] { return !d.closed; });
    }
    lock.lock();
  }
  ++d.inside;
}

UsesCodeGenerator::~UsesCodeGenerator() {
  Door& d = door();
  bool last = false;
  {
    std::lock_guard<RankedMutex> lock(d.mutex);
    last = --d.inside == 0 && d.closed;
  }
  if (last) {
    d.moved.notify_all();
  }
}

CompilePool& CompilePool::instance() {
  static auto* pool = new CompilePool();  // never destroyed: threads may use it at exit
  return *pool;
}

CompilePool::CompilePool() {
  made = this;
  // A compilation uses libraries that the end of the process takes down.
  std::atexit([] { instance().finish(); });
}

CompilePool::Answer CompilePool::add(const std::shared_ptr<CompileJob>& job, size_t threads) {
  std::lock_guard<RankedMutex> lock(mutex_);
  if (finishing_ || waiting_.size() >= kMostWaiting) {
    return Answer::full;
  }
  most_ = std::max<size_t>(threads, 1);
  if (idle_ <= waiting_.size() && threads_ < most_) {
    try {
      std::thread([this] { work(); }).detach();
      ++threads_;
    } catch (const std::system_error&) {
      if (threads_ == 0) {
        return Answer::no_thread;
      }
    }
  }
  waiting_.push_back(job);
  arrived_.notify_one();
  return Answer::accepted;
}

void CompilePool::work() {
  of_pool = true;
  // Whatever else there is to do comes first.
  setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), 10);
  std::unique_lock<RankedMutex> lock(mutex_);
  while (true) {
    ++idle_;
    const bool woken =
        arrived_.wait_for(lock, kIdle, [&] { return finishing_ || !waiting_.empty(); });
    --idle_;
    if (!woken || finishing_) {
      break;
    }
    std::shared_ptr<CompileJob> job = waiting_.front().lock();
    waiting_.pop_front();
    if (!job) {
      continue;
    }
    const CompileJob* place = job.get();
    running_.emplace(place, job);
    ++busy_;
    lock.unlock();
    job->work();
    job->work = nullptr;
    job->state.store(CompileJob::State::done, std::memory_order_release);
    job.reset();  // not under the lock: what was compiled may go with it
    lock.lock();
    --busy_;
    running_.erase(running_.find(place));
  }
  --threads_;
  ended_.notify_all();
}

void CompilePool::drop(const std::weak_ptr<CompileJob>& job) {
  if (const std::shared_ptr<CompileJob> there = job.lock()) {
    there->state = CompileJob::State::dropped;
  }
}

void CompilePool::finish() {
  std::unique_lock<RankedMutex> lock(mutex_);
  finishing_ = true;
  std::for_each(waiting_.begin(), waiting_.end(), &drop);
  waiting_.clear();
  arrived_.notify_all();
  ended_.wait(lock, [&] { return threads_ == 0; });
}

void CompilePool::start_anew() {
  if (CompilePool* pool = made) {
    pool->forget_all();
  }
}

void CompilePool::forget_all() {
  new (&arrived_) std::condition_variable_any();
  new (&ended_) std::condition_variable_any();
  std::for_each(waiting_.begin(), waiting_.end(), &drop);
  for (const auto& [place, job] : running_) {
    drop(job);
  }
  waiting_.clear();
  running_.clear();
  threads_ = 0;
  idle_ = 0;
  busy_ = 0;
}

bool CompilePool::is_own_thread() {
  return of_pool;
}

size_t CompilePool::helpers() const {
  return of_pool ? std::max<size_t>(1, most_ / std::max<size_t>(1, busy_))
                 : std::max(1U, std::thread::hardware_concurrency());
}

size_t CompilePool::threads() {
  std::lock_guard<RankedMutex> lock(mutex_);
  return threads_;
}

}  // namespace torch_lazy
