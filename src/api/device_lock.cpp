// Waiting for devices and handing errors over.
#include "base/fork.h"
#include "base/hooks.h"
#include "base/metrics.h"
#include <torch_lazy/device_lock.h>

#include <new>
#include <thread>
#include <utility>

namespace torch_lazy {

void DeviceLocker::wait_until_free(std::unique_lock<std::mutex>& lock) {
  while (locked_) {
    lock.unlock();
    {
      // Who has the device may need the interpreter's lock, also while giving the device back.
      hooks::AllowOtherThreads allow;
      std::unique_lock<std::mutex> waiting(mutex_);
      freed_.wait(waiting, [this] { return !locked_; });
    }
    lock.lock();
  }
}

void DeviceLocker::raise_error(std::unique_lock<std::mutex>& lock) {
  if (std::exception_ptr error = std::exchange(error_, nullptr)) {
    lock.unlock();
    std::rethrow_exception(error);
  }
}

void DeviceLocker::lock() {
  std::unique_lock<std::mutex> lock(mutex_);
  wait_until_free(lock);
  raise_error(lock);
  locked_ = true;
  owner_ = std::this_thread::get_id();
}

void DeviceLocker::unlock(std::exception_ptr error) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    locked_ = false;
    std::swap(error_, error);  // the one before is freed after the lock: it may be Python's
  }
  freed_.notify_all();
}

void DeviceLocker::barrier() {
  std::unique_lock<std::mutex> lock(mutex_);
  wait_until_free(lock);
  raise_error(lock);
}

/// A child has none of the threads that hold or await a device.
class DeviceLocksAtFork {
 public:
  static void stop() {
    DeviceLocks& locks = DeviceLocks::instance();
    locks.mutex_.lock();
    for (auto& [device, locker] : locks.lockers_) {
      locker->mutex_.lock();
    }
  }

  static void go_on() {
    DeviceLocks& locks = DeviceLocks::instance();
    for (auto& [device, locker] : locks.lockers_) {
      locker->mutex_.unlock();
    }
    locks.mutex_.unlock();
  }

  static void start_anew() {
    for (auto& [device, locker] : DeviceLocks::instance().lockers_) {
      new (&locker->freed_) std::condition_variable();
      locker->locked_ = locker->locked_ && locker->owner_ == std::this_thread::get_id();
    }
    go_on();
  }
};

namespace {

[[maybe_unused]] const bool fork_handled = [] {
  add_fork_part(ForkOrder::leaves, {&DeviceLocksAtFork::stop, &DeviceLocksAtFork::go_on,
                                    &DeviceLocksAtFork::start_anew});
  return true;
}();

}  // namespace

DeviceUnlocker::~DeviceUnlocker() {
  if (locker_) {
    locker_->unlock(std::move(status_));
  }
}

DeviceLocks& DeviceLocks::instance() {
  static auto* locks = new DeviceLocks();  // never destroyed: used by threads at exit
  return *locks;
}

std::shared_ptr<DeviceLocker> DeviceLocks::locker(at::Device device) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto& locker = lockers_[device];
  if (!locker) {
    locker = std::make_shared<DeviceLocker>(device);
  }
  return locker;
}

std::vector<DeviceUnlocker> DeviceLocks::lock(const DeviceSet& devices) {
  static metrics::Metric& waiting = metrics::metric("DeviceLockWait", metrics::Kind::time);
  metrics::TimedSection timed(waiting);
  std::vector<DeviceUnlocker> locks;
  for (at::Device device : devices) {
    std::shared_ptr<DeviceLocker> locker = this->locker(device);
    locker->lock();
    locks.emplace_back(std::move(locker));
  }
  return locks;
}

void DeviceLocks::barrier(at::Device device) {
  locker(device)->barrier();
}

void AsyncRun::finish(std::exception_ptr error) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (DeviceUnlocker& unlocker : locks_) {
      unlocker.set_status(error);
    }
    done_ = true;
  }
  finished_.notify_all();
}

void AsyncRun::wait() {
  hooks::AllowOtherThreads allow;
  std::unique_lock<std::mutex> lock(mutex_);
  finished_.wait(lock, [this] { return done_; });
  std::exception_ptr error;
  for (DeviceUnlocker& unlocker : locks_) {
    if (unlocker.status()) {
      error = unlocker.status();
      unlocker.set_status(nullptr);
    }
  }
  if (error) {
    lock.unlock();
    std::rethrow_exception(error);
  }
}

}  // namespace torch_lazy
