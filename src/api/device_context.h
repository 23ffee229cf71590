// What is known of each device besides its graph: that it is used, and its random seeds.
#pragma once

#include "base/ranked_mutex.h"
#include <torch_lazy/device_lock.h>

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace torch_lazy {

/// The seeds drive backends that draw random numbers inside a graph. Their formulas are the
/// original's. Each function is safe from any thread.
class DeviceContext {
 public:
  /// Starts anew from `seed`.
  void set_seed(uint64_t seed);
  uint64_t running_seed() const;

  /// The next seed as a value of the graph, and the running seed with it. The first seed of a step
  /// is data (made by `make_leaf`), later ones are computed from it in the graph.
  at::Tensor next_seed(const std::function<at::Tensor(int64_t)>& make_leaf);

  /// Another seed for the next step.
  void end_step();

 private:
  mutable RankedMutex mutex_{Rank::seeds};  // recording a seed may need the interpreter's lock
  uint64_t seed_ = 101;
  uint64_t running_seed_ = 101;
  at::Tensor seed_value_;
};

/// One context per device, made at the first use and never freed.
class DeviceContexts {
 public:
  static DeviceContexts& instance();

  DeviceContext& context(at::Device device);
  /// In the order of devices.
  std::vector<at::Device> devices() const;

 private:
  mutable RankedMutex mutex_{Rank::devices};
  std::map<at::Device, std::unique_ptr<DeviceContext>, DeviceOrder> contexts_;
};

}  // namespace torch_lazy
