// The executor in use, and what it knows of devices: live tensors, seeds, constants.
#include "api/data_cache.h"
#include "api/device_context.h"
#include "api/live.h"
#include "capture/tensor.h"
#include <torch_lazy/graph_executor.h>

#include <ATen/ATen.h>

#include <atomic>
#include <typeinfo>

namespace torch_lazy {
namespace {

std::atomic<GraphExecutor*>& registered() {
  static std::atomic<GraphExecutor*> executor{new GraphExecutor()};  // never destroyed
  return executor;
}

void notify(const Buffer& buffer, bool born) {
  if (GraphExecutor* executor = registered().load(std::memory_order_acquire)) {
    if (born) {
      executor->register_tensor(describe(buffer));
    } else {
      executor->unregister_tensor(describe(buffer));
    }
  }
}

at::Device checked(at::Device device) {
  return {at::kLazy, checked_index(device)};
}

}  // namespace

GraphExecutor& GraphExecutor::get() {
  GraphExecutor* executor = registered().load(std::memory_order_acquire);
  TORCH_CHECK(executor, "Lazy graph executor not registered.");
  return *executor;
}

GraphExecutor* GraphExecutor::register_executor(GraphExecutor* executor) {
  GraphLock lock;  // no tensor comes or goes meanwhile
  GraphExecutor* before = registered().exchange(executor);
  const bool told = executor && typeid(*executor) != typeid(GraphExecutor);
  Program::instance().set_observer(told ? &notify : nullptr);
  return before;
}

void GraphExecutor::register_tensor(const LiveTensor&) {}

void GraphExecutor::unregister_tensor(const LiveTensor&) {}

std::vector<LiveTensor> GraphExecutor::get_live_tensors(std::optional<at::Device> device) {
  std::vector<LiveTensor> tensors;
  GraphLock lock;
  Program& program = Program::instance();
  for (c10::DeviceIndex index : program.devices()) {
    if (device && checked_index(*device) != index) {
      continue;
    }
    for (const Buffer* buffer : program.live_buffers(index)) {
      tensors.push_back(describe(*buffer));
    }
  }
  return tensors;
}

std::vector<at::Device> GraphExecutor::get_active_devices() {
  DeviceSet active;
  for (at::Device device : DeviceContexts::instance().devices()) {
    active.insert(device);
  }
  GraphLock lock;
  for (c10::DeviceIndex index : Program::instance().devices()) {
    active.insert({at::kLazy, index});
  }
  return {active.begin(), active.end()};
}

// ---- Seeds
// ---------------------------------------------------------------------------------------

at::Tensor GraphExecutor::get_rng_seed(at::Device device) {
  const at::Device lazy = checked(device);
  return DeviceContexts::instance().context(lazy).next_seed(
      [&](int64_t seed) { return value_from_scalar(seed, at::kLong, lazy); });
}

uint64_t GraphExecutor::get_running_seed(at::Device device) {
  return DeviceContexts::instance().context(checked(device)).running_seed();
}

void GraphExecutor::set_rng_seed(at::Device device, uint64_t seed) {
  DeviceContexts::instance().context(checked(device)).set_seed(seed);
}

at::Tensor GraphExecutor::value_from_scalar(const at::Scalar& value, at::ScalarType dtype,
                                            at::Device device) {
  return get_device_data(value, dtype, device);
}

// ---- Constants
// -----------------------------------------------------------------------------------

at::Tensor GraphExecutor::get_device_data(const at::Tensor& tensor, at::Device device) {
  return DataCache::instance().get(tensor, checked(device));
}

at::Tensor GraphExecutor::get_device_data(const at::Scalar& value, at::ScalarType dtype,
                                          at::Device device) {
  return get_device_data(at::scalar_tensor(value, at::TensorOptions().dtype(dtype)), device);
}

at::Tensor GraphExecutor::get_value_for_scalar(const at::Scalar& value, at::Device device) {
  return get_device_data(value, value.type(), device);
}

at::Tensor GraphExecutor::get_value_for_expanded_scalar(const at::Scalar& value,
                                                        at::ScalarType dtype, at::IntArrayRef sizes,
                                                        at::Device device) {
  at::Tensor number = get_device_data(value, dtype, device);
  return sizes.empty() ? number : number.expand(sizes);
}

}  // namespace torch_lazy
