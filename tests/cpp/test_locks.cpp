// The order of locks, what becomes of them at a fork, and the pool of threads that compile.
#include "backends/cpu/compile_pool.h"
#include "base/fork.h"
#include "base/ranked_mutex.h"
#include "ir/node.h"

#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

namespace torch_lazy {
namespace {

using namespace std::chrono_literals;

template <typename Condition>
bool comes_true(const Condition& condition) {
  const auto end = std::chrono::steady_clock::now() + 60s;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) {
      return false;
    }
    std::this_thread::sleep_for(1ms);
  }
  return true;
}

// ---- Order --------------------------------------------------------------------------------------

TEST(LockOrder, GreaterRanksMayFollow) {
  lock_order::enter(Rank::execution);
  lock_order::enter(Rank::scheduling);
  lock_order::enter(Rank::execution, /*may_wait=*/true, /*again=*/true);
  lock_order::enter(Rank::graph);
  lock_order::enter(Rank::queue, /*may_wait=*/false);
  for (Rank rank : {Rank::queue, Rank::graph, Rank::execution, Rank::scheduling, Rank::execution}) {
    lock_order::leave(rank);
  }
  lock_order::check_host_may_run();
}

TEST(LockOrderDeathTest, SmallerAndEqualRanksMayNot) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        lock_order::enter(Rank::scheduling);
        lock_order::enter(Rank::execution, /*may_wait=*/true, /*again=*/true);
      },
      "taking execution while holding scheduling");
  EXPECT_DEATH(
      {
        lock_order::enter(Rank::graph);
        lock_order::enter(Rank::graph);
      },
      "taking graph while holding graph");
}

TEST(LockOrderDeathTest, TheHostLanguageMayNotRunUnderAShortLock) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  lock_order::enter(Rank::execution);
  lock_order::check_host_may_run();
  EXPECT_DEATH(
      {
        lock_order::enter(Rank::graph);
        lock_order::check_host_may_run();
      },
      "taking the host language's while holding graph");
  lock_order::leave(Rank::execution);
}

#if defined(TORCH_LAZY_CHECK_LOCKS)
TEST(LockOrderDeathTest, TheGraphLockIsChecked) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        GraphLock lock;
        hooks::check_interrupt();
      },
      "taking the host language's while holding graph");
}
#endif

// ---- Forks --------------------------------------------------------------------------------------

TEST(Fork, AChildFindsNoLockTaken) {
  auto& mutex = *new RankedMutex(Rank::log);
  std::atomic<bool> stop{false};
  int consistent[2] = {0, 0};  // equal wherever the lock is free
  std::thread other([&] {
    while (!stop) {
      std::lock_guard<RankedMutex> lock(mutex);
      ++consistent[0];
      std::this_thread::yield();
      ++consistent[1];
    }
  });
  for (int i = 0; i < 50; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      std::lock_guard<RankedMutex> lock(mutex);
      _exit(consistent[0] == consistent[1] ? 0 : 1);
    }
    int status = -1;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  stop = true;
  other.join();
}

TEST(Fork, PreparedAndNotDone) {
  prepare_fork();
  prepare_fork();
  end_fork();
  std::thread other([] { UsesCodeGenerator inside; });  // would wait if the door were closed
  other.join();
}

TEST(Fork, WaitsForTheCodeGenerator) {
  std::atomic<int> inside{0};
  std::atomic<bool> stop{false};
  std::thread other([&] {
    while (!stop) {
      UsesCodeGenerator uses;
      inside = 1;
      std::this_thread::sleep_for(1ms);
      inside = 0;
    }
  });
  for (int i = 0; i < 20; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      UsesCodeGenerator uses;
      _exit(inside);
    }
    int status = -1;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  stop = true;
  other.join();
}

// ---- The pool -----------------------------------------------------------------------------------

std::shared_ptr<CompileJob> job_of(std::function<void()> work) {
  auto job = std::make_shared<CompileJob>();
  job->work = std::move(work);
  return job;
}

TEST(CompilePool, HasFewThreadsAndABoundedQueue) {
  CompilePool& pool = CompilePool::instance();
  ASSERT_TRUE(comes_true([&] { return pool.threads() == 0; }));
  std::atomic<bool> go{false};
  std::atomic<int> ran{0};
  std::atomic<int> at_once{0};
  std::atomic<int> most{0};
  std::vector<std::shared_ptr<CompileJob>> jobs;
  bool full = false;
  for (int i = 0; i < 200 && !full; ++i) {
    auto job = job_of([&] {
      const int now = ++at_once;
      most = std::max(most.load(), now);
      comes_true([&] { return go.load(); });
      --at_once;
      ++ran;
    });
    full = pool.add(job, 2) == CompilePool::Answer::full;
    if (!full) {
      jobs.push_back(job);
    }
  }
  EXPECT_TRUE(full);
  EXPECT_LE(pool.threads(), 2U);
  jobs.back().reset();  // nobody wants it any more
  go = true;
  EXPECT_TRUE(comes_true([&] { return ran == static_cast<int>(jobs.size()) - 1; }));
  EXPECT_LE(most, 2);
  for (size_t i = 0; i + 1 < jobs.size(); ++i) {
    EXPECT_TRUE(comes_true([&] { return jobs[i]->state == CompileJob::State::done; }));
  }
  EXPECT_TRUE(comes_true([&] { return pool.threads() == 0; }));  // they end when idle
}

TEST(CompilePool, AChildDropsWhatTheParentCompiles) {
  CompilePool& pool = CompilePool::instance();
  std::atomic<bool> go{false};
  auto running = job_of([&] { comes_true([&] { return go.load(); }); });
  auto waiting = job_of([] {});
  ASSERT_EQ(pool.add(running, 1), CompilePool::Answer::accepted);
  ASSERT_EQ(pool.add(waiting, 1), CompilePool::Answer::accepted);
  ASSERT_TRUE(comes_true([&] { return pool.threads() == 1; }));
  const pid_t child = fork();
  if (child == 0) {
    const bool ok = pool.threads() == 0 && waiting->state == CompileJob::State::dropped;
    _exit(ok ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  go = true;
  EXPECT_TRUE(comes_true([&] { return waiting->state == CompileJob::State::done; }));
}

}  // namespace
}  // namespace torch_lazy
