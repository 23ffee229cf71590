// Names of devices.
#include <torch_lazy/backend.h>
#include <torch_lazy/device.h>

#include <charconv>

namespace torch_lazy {

BackendDevice::BackendDevice() : type(real_device().type()) {}

BackendDevice BackendDevice::parse(const std::string& text) {
  for (at::DeviceType type : {at::kCPU, at::kCUDA}) {
    const std::string name = c10::DeviceTypeName(type);
    if (text.rfind(name, 0) != 0) {
      continue;
    }
    BackendDevice device(type, 0);
    const char* end = text.data() + text.size();
    auto [stopped, error] = std::from_chars(text.data() + name.size(), end, device.ordinal);
    if (error == std::errc() && stopped == end && device.ordinal >= 0) {
      return device;
    }
  }
  TORCH_CHECK(false, "torch-lazy: '", text, "' is no device of a backend; they look like CPU0");
}

std::string BackendDevice::text() const {
  return c10::DeviceTypeName(type) + std::to_string(ordinal);
}

std::ostream& operator<<(std::ostream& out, const BackendDevice& device) {
  return out << device.text();
}

BackendDevice to_backend_device(const at::Device& device) {
  TORCH_CHECK(device.type() == at::kLazy, "torch-lazy: expected a lazy device, but got ", device);
  return {real_device().type(), device.has_index() ? device.index() : 0};
}

at::Device to_aten_device(const BackendDevice& device) {
  return {at::kLazy, static_cast<c10::DeviceIndex>(device.ordinal)};
}

std::optional<BackendDevice> find_backend_device(const at::Tensor& tensor) {
  return tensor.defined() ? find_backend_device(std::optional(tensor.device())) : std::nullopt;
}

std::optional<BackendDevice> find_backend_device(at::TensorList tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (std::optional<BackendDevice> device = find_backend_device(tensor)) {
      return device;
    }
  }
  return std::nullopt;
}

std::optional<BackendDevice> find_backend_device(const std::optional<at::Device>& device) {
  if (device && device->type() == at::kLazy) {
    return to_backend_device(*device);
  }
  return std::nullopt;
}

}  // namespace torch_lazy
