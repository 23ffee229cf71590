// Locks of devices. A sync holds the lock of its device while it decides what runs, so whoever else
// holds it (an executor of one's own, for a run of its own) keeps syncs waiting. A lock carries
// what went wrong under it to the next one who takes it, exactly once.
#pragma once

#include <torch_lazy/export.h>

#include <c10/core/Device.h>

#include <condition_variable>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

namespace torch_lazy {

/// Devices are locked in this order, so that two who lock the same ones never wait for each other.
struct DeviceOrder {
  bool operator()(at::Device a, at::Device b) const {
    return a.type() != b.type() ? a.type() < b.type() : a.index() < b.index();
  }
};

using DeviceSet = std::set<at::Device, DeviceOrder>;

class TORCH_LAZY_API DeviceLocker {
  friend class DeviceLocksAtFork;

 public:
  explicit DeviceLocker(at::Device device) : device_(device) {}

  at::Device device() const { return device_; }

  /// Waits until nobody has the lock, then takes it; or, if the one before left an error, raises
  /// that instead.
  void lock();
  /// Gives the lock back and leaves `error`, if any, to the next lock() or barrier().
  void unlock(std::exception_ptr error);
  /// Waits until nobody has the lock, without taking it. Raises an error that was left.
  void barrier();

 private:
  void wait_until_free(std::unique_lock<std::mutex>& lock);
  void raise_error(std::unique_lock<std::mutex>& lock);

  const at::Device device_;
  std::mutex mutex_;
  std::condition_variable freed_;
  bool locked_ = false;
  std::thread::id owner_;  // while it is locked
  std::exception_ptr error_;
};

/// Holds a device's lock and gives it back at the end of its life, with its status.
class TORCH_LAZY_API DeviceUnlocker {
 public:
  explicit DeviceUnlocker(std::shared_ptr<DeviceLocker> locker) : locker_(std::move(locker)) {}
  ~DeviceUnlocker();
  DeviceUnlocker(DeviceUnlocker&& other) noexcept = default;
  DeviceUnlocker& operator=(DeviceUnlocker&&) = delete;
  DeviceUnlocker(const DeviceUnlocker&) = delete;
  DeviceUnlocker& operator=(const DeviceUnlocker&) = delete;

  at::Device device() const { return locker_->device(); }
  const std::exception_ptr& status() const { return status_; }
  void set_status(std::exception_ptr error) { status_ = std::move(error); }

 private:
  std::shared_ptr<DeviceLocker> locker_;  // null when moved from
  std::exception_ptr status_;
};

/// The lockers of all devices, one each.
class TORCH_LAZY_API DeviceLocks {
  friend class DeviceLocksAtFork;

 public:
  static DeviceLocks& instance();

  std::shared_ptr<DeviceLocker> locker(at::Device device);
  /// Takes the locks of all these devices; the time it takes is the metric DeviceLockWait.
  std::vector<DeviceUnlocker> lock(const DeviceSet& devices);
  void barrier(at::Device device);

 private:
  std::mutex mutex_;
  std::map<at::Device, std::shared_ptr<DeviceLocker>, DeviceOrder> lockers_;
};

/// A run that goes on by itself and holds the locks of its devices until this object dies.
class TORCH_LAZY_API AsyncRun {
 public:
  explicit AsyncRun(std::vector<DeviceUnlocker> locks) : locks_(std::move(locks)) {}

  /// The run has ended; `error`, if any, is the status of all its locks. Called once.
  void finish(std::exception_ptr error);
  /// Waits for the end and raises the first error, which then is nobody else's.
  void wait();

 private:
  std::mutex mutex_;
  std::condition_variable finished_;
  bool done_ = false;
  std::vector<DeviceUnlocker> locks_;
};

}  // namespace torch_lazy
