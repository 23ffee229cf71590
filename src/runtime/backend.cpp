// The backend in use and the real device.
#include "base/settings.h"
#include <torch_lazy/backend.h>

#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace torch_lazy {
namespace {
Backend& (*factory)() = nullptr;
}

at::Device real_device() {
  static const at::Device device = [] {
    if (!settings().cuda) {
      return at::Device(at::kCPU);
    }
    TORCH_CHECK(c10::impl::hasDeviceGuardImpl(at::kCUDA) &&
                    c10::impl::getDeviceGuardImpl(at::kCUDA)->deviceCount() > 0,
                "torch-lazy: TORCH_LAZY_DEVICE is cuda, but this PyTorch sees no CUDA device");
    return at::Device(at::kCUDA, 0);
  }();
  return device;
}

c10::DispatchKey real_key() {
  return real_device().is_cuda() ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU;
}

void register_backend(Backend& (*make)()) {
  factory = make;
}

Backend& backend() {
  TORCH_CHECK(factory, "torch-lazy: no backend is registered");
  static Backend& instance = factory();
  return instance;
}

}  // namespace torch_lazy
