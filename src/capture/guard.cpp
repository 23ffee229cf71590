// The device guard of `lazy`: no streams of its own.
#include "capture/tensor.h"
#include "runtime/executor.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace torch_lazy {
namespace {

thread_local c10::DeviceIndex current = 0;

class LazyGuard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return c10::DeviceType::Lazy; }

  c10::Device exchangeDevice(c10::Device device) const override {
    c10::Device before = getDevice();
    setDevice(device);
    return before;
  }

  c10::Device getDevice() const override { return {at::kLazy, current}; }

  void setDevice(c10::Device device) const override { current = checked_index(device); }

  void uncheckedSetDevice(c10::Device device) const noexcept override { current = device.index(); }

  c10::Stream getStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }

  c10::Stream getDefaultStream(c10::Device device) const override { return getStream(device); }

  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return getStream(device);
  }

  c10::Stream exchangeStream(c10::Stream stream) const override {
    return c10::Stream(c10::Stream::DEFAULT, stream.device());
  }

  c10::DeviceIndex deviceCount() const noexcept override { return 1; }

  bool queryStream(const c10::Stream&) const override { return true; }

  // Events for those who carry lazy tensors from thread to thread (futures). Order is the graph's.
  void record(void**, const c10::Stream&, const c10::DeviceIndex,
              const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
  void synchronizeEvent(void*) const override {}
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}

  void synchronizeStream(const c10::Stream&) const override { wait_for_device(); }
  void synchronizeDevice(const c10::DeviceIndex) const override { wait_for_device(); }
};

C10_REGISTER_GUARD_IMPL(Lazy, LazyGuard);

}  // namespace
}  // namespace torch_lazy
