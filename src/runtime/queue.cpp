// The queue, the worker, waiting, and what happens to both at fork and exit.
#include "runtime/queue.h"

#include "base/fork.h"
#include "base/hooks.h"
#include "base/metrics.h"
#include "base/ranked_mutex.h"
#include "base/settings.h"
#include "runtime/failure.h"

#include <ATen/Parallel.h>

#include <sched.h>

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <functional>
#include <new>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace torch_lazy {
namespace {

constexpr size_t kLongestQueue = 256;  // as far as a program may be ahead of its device

struct Queue {
  std::recursive_mutex execution;
  std::recursive_mutex scheduling;
  RankedMutex mutex{Rank::queue};
  std::condition_variable_any arrived;   // for the worker
  std::condition_variable_any finished;  // for who waits
  std::deque<FlightPtr> waiting;
  size_t running = 0;  // flights being executed; more than one: a run inside a run
  bool worker_started = false;
  std::atomic<bool> no_worker{false};  // there was no thread to be had: execution is synchronous
  std::atomic<bool> stop{false};
  std::thread worker;
};

Queue& queue() {
  static auto* instance = new Queue();  // never destroyed: threads may use it at exit
  return *instance;
}

thread_local int execution_depth = 0;  // of the execution lock, on this thread
thread_local int scheduling_depth = 0;
thread_local int runs_inside = 0;     // flights that this thread is executing
thread_local int on_this_thread = 0;  // of OnThisThread

/// The cores that this process may use.
int cores() {
  static const int count = [] {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof(set), &set) == 0
               ? CPU_COUNT(&set)
               : static_cast<int>(std::thread::hardware_concurrency());
  }();
  return count;
}

/// Kernels behave as on the thread that scheduled them: number of threads, denormal numbers.
class ThreadState {
 public:
  explicit ThreadState(const Flight& flight) {
    if (at::get_num_threads() != flight.threads) {
      at::set_num_threads(flight.threads);
    }
#if defined(__x86_64__)
    before_ = _mm_getcsr();
    _mm_setcsr(flight.float_control);
#endif
  }
  ~ThreadState() {
#if defined(__x86_64__)
    _mm_setcsr(before_);
#endif
  }
  ThreadState(const ThreadState&) = delete;
  ThreadState& operator=(const ThreadState&) = delete;

 private:
  unsigned before_ = 0;
};

void read_thread_state(Flight& flight) {
  flight.threads = at::get_num_threads();
#if defined(__x86_64__)
  flight.float_control = _mm_getcsr();
#endif
}

/// Executes the first flight of the queue; false: there is none. The execution lock is held.
bool execute_first(bool on_worker) {
  Queue& q = queue();
  FlightPtr flight;
  {
    std::lock_guard<RankedMutex> lock(q.mutex);
    if (q.waiting.empty()) {
      return false;
    }
    flight = std::move(q.waiting.front());
    q.waiting.pop_front();
    flight->state = Flight::State::running;
    ++q.running;
  }
  ++runs_inside;
  {
    static metrics::Metric& time = metrics::metric("ExecuteTime", metrics::Kind::time);
    metrics::TimedSection timed(time);
    std::optional<ThreadState> state;
    if (on_worker) {
      state.emplace(*flight);
    }
    fly(*flight);
  }
  --runs_inside;
  {
    std::lock_guard<RankedMutex> lock(q.mutex);
    flight->state = Flight::State::done;
    --q.running;
  }
  q.finished.notify_all();
  return true;
}

void work() {
  Queue& q = queue();
  while (true) {
    {
      std::unique_lock<RankedMutex> lock(q.mutex);
      q.arrived.wait(lock, [&] { return q.stop || !q.waiting.empty(); });
      if (q.waiting.empty()) {
        return;
      }
    }
    ExecutionLock execution;
    execute_first(/*on_worker=*/true);
  }
}

/// Locks of a thread that may take them again. Who waits lets the host language run.
void enter(std::recursive_mutex& mutex, Rank rank, int& depth) {
  if constexpr (lock_order::kChecked) {
    lock_order::enter(rank, /*may_wait=*/true, /*again=*/true);
  }
  if (!mutex.try_lock()) {
    hooks::AllowOtherThreads allow;
    mutex.lock();
  }
  ++depth;
}

void leave(std::recursive_mutex& mutex, Rank rank, int& depth) {
  --depth;
  mutex.unlock();
  if constexpr (lock_order::kChecked) {
    lock_order::leave(rank);
  }
}

// A forked child has no worker. Work in flight is finished before the fork, so that parent and
// child both have its results, and no lock is held by a thread that the child does not have.

bool executes_at_fork = false;  // the thread that forks holds the execution lock

void stop_work() {
  Queue& q = queue();
  FlightPtr last;  // left to the worker where there is one: the child can then use OpenMP
  if (execution_depth == 0) {
    std::lock_guard<RankedMutex> lock(q.mutex);
    last = q.worker_started && !q.waiting.empty() ? q.waiting.back() : nullptr;
  }
  if (last) {
    hooks::AllowOtherThreads allow;
    std::unique_lock<RankedMutex> lock(q.mutex);
    q.finished.wait(lock, [&] { return last->state == Flight::State::done; });
  }
  if (scheduling_depth > 0 && execution_depth == 0) {
    // A compiler that forks while its graph is being scheduled cannot wait for what is running. Its
    // child, which is about to become another program, does without.
    executes_at_fork = q.execution.try_lock();
    execution_depth += executes_at_fork;
    if constexpr (lock_order::kChecked) {
      if (executes_at_fork) {
        lock_order::enter(Rank::execution, /*may_wait=*/false);
      }
    }
  } else {
    executes_at_fork = true;
    enter(q.execution, Rank::execution, execution_depth);
  }
  enter(q.scheduling, Rank::scheduling, scheduling_depth);
  if (!executes_at_fork) {
    return;
  }
  const int threads = at::get_num_threads();
  while (execute_first(/*on_worker=*/true)) {  // with the state of the thread that scheduled it
  }
  if (at::get_num_threads() != threads) {
    at::set_num_threads(threads);
  }
}

void go_on_with_work() {
  Queue& q = queue();
  leave(q.scheduling, Rank::scheduling, scheduling_depth);
  if (executes_at_fork) {
    leave(q.execution, Rank::execution, execution_depth);
  }
}

void start_work_anew() {
  Queue& q = queue();
  new (&q.arrived) std::condition_variable_any();
  new (&q.finished) std::condition_variable_any();
  new (&q.worker) std::thread();
  q.worker_started = false;
  // The mutexes know the thread by the number it has in the parent.
  auto lock_anew = [](std::recursive_mutex& mutex, Rank rank, int& depth, int times) {
    new (&mutex) std::recursive_mutex();
    for (depth = 0; times > 0; --times) {
      enter(mutex, rank, depth);
    }
  };
  lock_anew(q.execution, Rank::execution, execution_depth, execution_depth - executes_at_fork);
  lock_anew(q.scheduling, Rank::scheduling, scheduling_depth, scheduling_depth - 1);
}

const bool fork_handled = [] {
  add_fork_part(ForkOrder::work, {&stop_work, &go_on_with_work, &start_work_anew});
  return true;
}();

/// Where there is no thread to be had, execution is synchronous from now on.
void start_worker(Queue& q) {
  if (q.worker_started || q.stop) {
    return;
  }
  static const bool prepared = [] {
    std::atexit(&finish);
    return true;
  }();
  (void)prepared;
  try {
    q.worker = std::thread(&work);
    q.worker_started = true;
  } catch (const std::system_error&) {
    q.no_worker = true;
  }
}

/// Waits on the queue's lock until `done`, with other threads of the host language running; lets
/// the user interrupt.
template <typename Condition>
void wait_until(Condition done) {
  Queue& q = queue();
  {
    std::lock_guard<RankedMutex> lock(q.mutex);
    if (done()) {
      return;
    }
  }
  static metrics::Metric& time = metrics::metric("WaitTime", metrics::Kind::time);
  metrics::TimedSection timed(time);
  while (true) {
    {
      hooks::AllowOtherThreads allow;
      std::unique_lock<RankedMutex> lock(q.mutex);
      const auto period = std::chrono::milliseconds(execution_depth > 0 ? 2 : 50);
      if (q.finished.wait_for(lock, period, done)) {
        return;
      }
    }
    // Who holds the execution lock keeps the worker from it: what has come to the queue since is
    // this thread's to execute.
    while (execution_depth > 0 && execute_first(/*on_worker=*/false)) {
    }
    hooks::check_interrupt();
  }
}

void execute_until(const std::function<bool()>& done) {
  ExecutionLock execution;
  while (!done() && execute_first(/*on_worker=*/false)) {
  }
}

}  // namespace

SchedulingLock::SchedulingLock() {
  enter(queue().scheduling, Rank::scheduling, scheduling_depth);
}

SchedulingLock::~SchedulingLock() {
  leave(queue().scheduling, Rank::scheduling, scheduling_depth);
}

ExecutionLock::ExecutionLock() {
  enter(queue().execution, Rank::execution, execution_depth);
}

ExecutionLock::~ExecutionLock() {
  leave(queue().execution, Rank::execution, execution_depth);
}

OnThisThread::OnThisThread() {
  ++on_this_thread;
}

OnThisThread::~OnThisThread() {
  --on_this_thread;
}

bool inside_run() {
  return runs_inside > 0;
}

bool is_asynchronous() {
  if (execution_depth > 0 || on_this_thread > 0 || queue().stop || queue().no_worker ||
      settings().check.load(std::memory_order_relaxed)) {
    return false;
  }
  switch (settings().async_mode.load(std::memory_order_relaxed)) {
    case AsyncMode::on:
      return true;
    case AsyncMode::off:
      return false;
    case AsyncMode::automatic:
      break;
  }
  // Without a core to spare the worker would only take time from the kernels' own threads.
  return real_device().is_cuda() || at::get_num_threads() < cores();
}

void enqueue(const FlightPtr& flight) {
  Queue& q = queue();
  read_thread_state(*flight);
  const bool asynchronous = is_asynchronous();
  {
    std::lock_guard<RankedMutex> lock(q.mutex);
    q.waiting.push_back(flight);
    if (asynchronous) {
      start_worker(q);
    }
  }
  if (asynchronous && q.no_worker) {
    TORCH_WARN_ONCE(
        "torch-lazy: no thread could be had for the worker; graphs run when their results are "
        "needed");
  } else if (asynchronous) {
    q.arrived.notify_one();
  }
}

void execute(Executable& executable, Run& run) {
  struct Inside {
    Inside() { ++runs_inside; }
    ~Inside() { --runs_inside; }
  } inside;
  static metrics::Metric& time = metrics::metric("ExecuteTime", metrics::Kind::time);
  metrics::TimedSection timed(time);
  hooks::AllowOtherThreads allow;
  executable.run(run);
}

void wait_for(const FlightPtr& flight) {
  auto done = [&] { return flight->state == Flight::State::done; };
  if (!is_asynchronous()) {
    execute_until(done);
    if (!done() && inside_run()) {
      TORCH_CHECK(false, "torch-lazy: ",
                  flight->collection
                      .nodes[std::min(flight->run.completed, flight->collection.nodes.size() - 1)]
                      ->description->op->name,
                  " is being executed by this thread; its result cannot be read from inside it");
    }
  }
  wait_until(done);
}

void wait_for_all() {
  Queue& q = queue();
  if (!is_asynchronous()) {
    execute_until([] { return false; });
  }
  const size_t inside = static_cast<size_t>(runs_inside);
  wait_until([&] { return q.waiting.empty() && q.running <= inside; });
}

void wait_while_far_ahead() {
  Queue& q = queue();
  wait_until([&] { return q.waiting.size() < kLongestQueue; });
}

void finish() {
  Queue& q = queue();
  {
    std::lock_guard<RankedMutex> lock(q.mutex);
    q.stop = true;
  }
  q.arrived.notify_all();
  if (q.worker.joinable()) {
    hooks::AllowOtherThreads allow;
    q.worker.join();
  }
  q.worker_started = false;
  report_undelivered();
}

}  // namespace torch_lazy
