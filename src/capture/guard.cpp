// The device guard of `lazy`: one device, no streams of its own.
#include "capture/tensor.h"
#include "runtime/executor.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace torch_lazy {
namespace {

class LazyGuard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return c10::DeviceType::Lazy; }

  c10::Device exchangeDevice(c10::Device device) const override {
    setDevice(device);
    return kLazyDevice;
  }

  c10::Device getDevice() const override { return kLazyDevice; }

  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.type() == c10::DeviceType::Lazy && device.index() <= 0,
                "torch-lazy: there is one lazy device, lazy:0, but ", device, " was asked for");
  }

  void uncheckedSetDevice(c10::Device) const noexcept override {}

  c10::Stream getStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }

  c10::Stream exchangeStream(c10::Stream stream) const override {
    return c10::Stream(c10::Stream::DEFAULT, stream.device());
  }

  c10::DeviceIndex deviceCount() const noexcept override { return 1; }

  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override { wait_for_device(); }
  void synchronizeDevice(const c10::DeviceIndex) const override { wait_for_device(); }
};

C10_REGISTER_GUARD_IMPL(Lazy, LazyGuard);

}  // namespace
}  // namespace torch_lazy
