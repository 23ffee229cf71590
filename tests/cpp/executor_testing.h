// What the tests of the graph executor share.
#pragma once

#include <torch_lazy/graph_executor.h>
#include <torch_lazy/metrics.h>
#include <torch_lazy/torch_lazy.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <vector>

namespace torch_lazy::testing {

inline const at::Device kDevice(at::kLazy, 0);

inline const at::TensorOptions kLazy = at::TensorOptions().device(kDevice);

inline at::TensorOptions on(c10::DeviceIndex index) {
  return at::TensorOptions().device(at::kLazy, index);
}

inline int64_t count(const std::string& name) {
  return counter_value(name).value_or(0);
}

inline int64_t samples(const std::string& metric) {
  auto data = metrics::metric_data(metric);
  return data ? data->total_samples : 0;
}

/// Asynchronous execution on or off while it lives.
class Mode {
 public:
  explicit Mode(bool asynchronous) : before_(get_setting("TORCH_LAZY_ASYNC")) {
    set_setting("TORCH_LAZY_ASYNC", asynchronous ? "1" : "0");
  }
  ~Mode() {
    GraphExecutor::get().wait_device_ops();
    set_setting("TORCH_LAZY_ASYNC", before_);
  }
  Mode(const Mode&) = delete;
  Mode& operator=(const Mode&) = delete;

 private:
  std::string before_;
};

/// Another value of a setting while it lives.
class Setting {
 public:
  Setting(std::string name, const std::string& value)
      : name_(std::move(name)), before_(get_setting(name_)) {
    set_setting(name_, value);
  }
  ~Setting() { set_setting(name_, before_); }
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;

 private:
  std::string name_;
  std::string before_;
};

/// An executor in the place of the usual one while it lives.
template <typename Executor>
class InPlace {
 public:
  InPlace() : before_(GraphExecutor::register_executor(&executor)) {}
  ~InPlace() { GraphExecutor::register_executor(before_); }
  InPlace(const InPlace&) = delete;
  InPlace& operator=(const InPlace&) = delete;

  Executor executor;

 private:
  GraphExecutor* before_;
};

/// Records an operation that fails when it runs, and nothing else.
inline at::Tensor record_failure(const at::Device& device = kDevice) {
  at::Tensor weight = at::ones({4, 2}, at::TensorOptions().device(device));
  at::Tensor index = at::full({1}, 9, at::TensorOptions().device(device).dtype(at::kLong));
  return at::embedding(weight, index);
}

class ExecutorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    executor().sync_live_tensors(std::nullopt, /*wait=*/true);
    executor().clear_computation_cache();
    reset_metrics();
  }

  static GraphExecutor& executor() { return GraphExecutor::get(); }

  static void step(bool wait = true) {
    executor().sync_live_tensors(kDevice, wait);
    executor().mark_step(kDevice);
  }
  static int64_t compiled() { return count("UncachedCompile"); }
  static int64_t reused() { return count("CachedCompile"); }
  static int64_t runs() { return compiled() + reused(); }
};

}  // namespace torch_lazy::testing
