// Locks of devices: who waits for whom, and to whom an error goes.
#include <torch_lazy/device_lock.h>
#include <torch_lazy/metrics.h>

#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

using torch_lazy::AsyncRun;
using torch_lazy::DeviceLocker;
using torch_lazy::DeviceLocks;
using torch_lazy::DeviceSet;

const at::Device kFirst(at::kLazy, 100);  // numbers that no other test uses
const at::Device kSecond(at::kLazy, 101);

std::exception_ptr error(const std::string& text) {
  return std::make_exception_ptr(std::runtime_error(text));
}

std::string raised_by(const std::function<void()>& action) {
  try {
    action();
  } catch (const std::runtime_error& e) {
    return e.what();
  }
  return "";
}

/// What threads did, in order.
class Log {
 public:
  void add(const std::string& what) {
    std::lock_guard<std::mutex> lock(mutex_);
    lines_.push_back(what);
  }
  std::vector<std::string> lines() {
    std::lock_guard<std::mutex> lock(mutex_);
    return lines_;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

void wait_until(const std::atomic<int>& counter, int value) {
  while (counter < value) {
    std::this_thread::yield();
  }
}

TEST(DeviceLock, B55_LockWaitsWhileLocked) {
  DeviceLocker locker(kFirst);
  Log log;
  std::atomic<int> started{0};
  locker.lock();
  std::thread other([&] {
    ++started;
    locker.lock();
    log.add("other");
    locker.unlock(nullptr);
  });
  wait_until(started, 1);
  std::this_thread::yield();
  log.add("first");
  locker.unlock(nullptr);
  other.join();
  EXPECT_EQ(log.lines(), (std::vector<std::string>{"first", "other"}));
}

TEST(DeviceLock, B55_LockRaisesAStoredErrorInsteadOfLocking) {
  DeviceLocker locker(kFirst);
  locker.lock();
  locker.unlock(error("broken"));
  EXPECT_EQ(raised_by([&] { locker.lock(); }), "broken");
  EXPECT_EQ(raised_by([&] { locker.barrier(); }), "") << "the lock was taken all the same";
  EXPECT_EQ(raised_by([&] { locker.lock(); }), "");
  locker.unlock(nullptr);
}

TEST(DeviceLock, B56_UnlockWakesAllWaiters) {
  DeviceLocker locker(kFirst);
  std::atomic<int> started{0};
  std::atomic<int> passed{0};
  locker.lock();
  std::vector<std::thread> waiters;
  for (int i = 0; i < 2; ++i) {
    waiters.emplace_back([&] {
      ++started;
      locker.barrier();
      ++passed;
    });
  }
  wait_until(started, 2);
  EXPECT_EQ(passed, 0);
  locker.unlock(nullptr);
  for (std::thread& waiter : waiters) {
    waiter.join();
  }
  EXPECT_EQ(passed, 2);
}

TEST(DeviceLock, B57_BarrierRaisesAndDoesNotTakeTheLock) {
  DeviceLocker locker(kFirst);
  locker.lock();
  locker.unlock(error("broken"));
  EXPECT_EQ(raised_by([&] { locker.barrier(); }), "broken");
  locker.barrier();
  locker.barrier();  // would never return if the one before had taken the lock
  locker.lock();
  locker.unlock(nullptr);
}

TEST(DeviceLock, B58_AStoredErrorIsDeliveredOnce) {
  DeviceLocker locker(kFirst);
  locker.lock();
  locker.unlock(error("broken"));
  std::atomic<int> raised{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      try {
        locker.barrier();
      } catch (const std::runtime_error&) {
        ++raised;
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(raised, 1);
}

TEST(DeviceLock, B59_OneLockerPerDevice) {
  DeviceLocks& locks = DeviceLocks::instance();
  EXPECT_EQ(locks.locker(kFirst), locks.locker(kFirst));
  EXPECT_NE(locks.locker(kFirst), locks.locker(kSecond));
  EXPECT_EQ(locks.locker(kSecond)->device(), kSecond);
}

TEST(DeviceLock, B60_SeveralDevicesAreLockedInOneOrder) {
  DeviceLocks& locks = DeviceLocks::instance();
  std::atomic<int> inside{0};
  std::atomic<int> crowds{0};
  auto work = [&](const DeviceSet& devices) {
    for (int i = 0; i < 500; ++i) {
      auto held = locks.lock(devices);
      crowds += ++inside != 1;
      --inside;
    }
  };
  std::thread one(work, DeviceSet{kFirst, kSecond});
  std::thread two(work, DeviceSet{kSecond, kFirst});
  one.join();
  two.join();
  EXPECT_EQ(crowds, 0);
}

TEST(DeviceLock, B60_LocksAreTakenFromTheLowestNumber) {
  auto held = DeviceLocks::instance().lock({kSecond, kFirst});
  ASSERT_EQ(held.size(), 2u);
  EXPECT_EQ(held[0].device(), kFirst);
  EXPECT_EQ(held[1].device(), kSecond);
}

TEST(DeviceLock, B60_AnErrorOfOneDeviceGivesTheOthersBack) {
  DeviceLocks& locks = DeviceLocks::instance();
  auto held = std::make_optional(locks.lock({kSecond}));
  held->front().set_status(error("second"));
  held.reset();
  EXPECT_EQ(raised_by([&] { locks.lock({kFirst, kSecond}); }), "second");
  locks.barrier(kFirst);  // would never return if the lock had been kept
  locks.barrier(kSecond);
}

TEST(DeviceLock, B61_TheUnlockerGivesTheLockBackWithItsStatus) {
  DeviceLocks& locks = DeviceLocks::instance();
  {
    auto held = locks.lock({kFirst});
    auto moved = std::move(held);
    moved[0].set_status(error("left"));
  }
  EXPECT_EQ(raised_by([&] { locks.barrier(kFirst); }), "left");
  EXPECT_EQ(raised_by([&] { locks.barrier(kFirst); }), "");
}

TEST(DeviceLock, B62_WaitingIsTimed) {
  auto samples = [] {
    auto data = torch_lazy::metrics::metric_data("DeviceLockWait");
    return data ? data->total_samples : 0;
  };
  const int64_t before = samples();
  DeviceLocks::instance().lock({kFirst});
  DeviceLocks::instance().lock({kFirst, kSecond});
  EXPECT_EQ(samples(), before + 2);
}

TEST(AsyncRun, B141_B142_HoldsTheLocksUntilItDies) {
  DeviceLocks& locks = DeviceLocks::instance();
  auto run = std::make_unique<AsyncRun>(locks.lock({kFirst}));
  Log log;
  std::atomic<int> started{0};
  std::thread next([&] {
    ++started;
    auto held = locks.lock({kFirst});
    log.add("next");
  });
  wait_until(started, 1);
  run->finish(nullptr);
  run->wait();
  log.add("done");
  run.reset();
  next.join();
  EXPECT_EQ(log.lines(), (std::vector<std::string>{"done", "next"}));
}

TEST(AsyncRun, B145_B146_WaitRaisesTheErrorOnceAndClearsIt) {
  DeviceLocks& locks = DeviceLocks::instance();
  {
    AsyncRun run(locks.lock({kFirst, kSecond}));
    std::thread worker([&] { run.finish(error("failed")); });
    EXPECT_EQ(raised_by([&] { run.wait(); }), "failed");
    EXPECT_EQ(raised_by([&] { run.wait(); }), "");
    worker.join();
  }
  locks.barrier(kFirst);  // cleared: nothing is left to raise
  locks.barrier(kSecond);
}

TEST(AsyncRun, B145_AnErrorNobodyWaitedForGoesToTheNextLock) {
  DeviceLocks& locks = DeviceLocks::instance();
  {
    AsyncRun run(locks.lock({kFirst, kSecond}));
    run.finish(error("failed"));
  }
  EXPECT_EQ(raised_by([&] { locks.lock({kFirst}); }), "failed");
  EXPECT_EQ(raised_by([&] { locks.barrier(kSecond); }), "failed") << "a status for each lock";
  EXPECT_EQ(raised_by([&] { locks.lock({kFirst}); }), "");
}

}  // namespace
