// Seeds, and the devices that are in use.
#include "api/device_context.h"

#include <torch_lazy/backend.h>

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

namespace torch_lazy {
namespace {

// The original's numbers: runs that depend on them can be compared.
constexpr uint64_t kSeedMultiply = 214013;
constexpr uint64_t kSeedAdd = 2531011;
constexpr uint64_t kStepMultiply = 7012063;
constexpr uint64_t kStepAdd = 1012031;

}  // namespace

void DeviceContext::set_seed(uint64_t seed) {
  at::Tensor dropped;  // freed after the lock
  auto lock = lock_patiently(mutex_);
  seed_ = seed;
  running_seed_ = seed;
  std::swap(dropped, seed_value_);
  lock.unlock();
  backend().seed(seed);
}

uint64_t DeviceContext::running_seed() const {
  auto lock = lock_patiently(mutex_);
  return running_seed_;
}

at::Tensor DeviceContext::next_seed(const std::function<at::Tensor(int64_t)>& make_leaf) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  auto lock = lock_patiently(mutex_);
  if (!seed_value_.defined()) {
    seed_value_ = make_leaf(static_cast<int64_t>(seed_));
  }
  running_seed_ = kSeedAdd + kSeedMultiply * running_seed_;
  // Whole numbers of 64 bits wrap in the graph as they do here.
  seed_value_ = seed_value_ * static_cast<int64_t>(kSeedMultiply) + static_cast<int64_t>(kSeedAdd);
  return seed_value_;
}

void DeviceContext::end_step() {
  at::Tensor dropped;  // freed after the lock
  auto lock = lock_patiently(mutex_);
  const uint64_t seed = kStepAdd + kStepMultiply * seed_;
  seed_ = seed;
  running_seed_ = seed;
  std::swap(dropped, seed_value_);
  lock.unlock();
  backend().seed(seed);
}

DeviceContexts& DeviceContexts::instance() {
  static auto* contexts = new DeviceContexts();  // never destroyed: it holds tensors
  return *contexts;
}

DeviceContext& DeviceContexts::context(at::Device device) {
  std::lock_guard<RankedMutex> lock(mutex_);
  auto& context = contexts_[device];
  if (!context) {
    context = std::make_unique<DeviceContext>();
  }
  return *context;
}

std::vector<at::Device> DeviceContexts::devices() const {
  std::lock_guard<RankedMutex> lock(mutex_);
  std::vector<at::Device> devices;
  for (const auto& [device, context] : contexts_) {
    devices.push_back(device);
  }
  return devices;
}

}  // namespace torch_lazy
