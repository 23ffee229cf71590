// Devices as a backend names them: the hardware that does the work and a number, written `CPU0`.
// PyTorch's name for the same device is `lazy:0`.
#pragma once

#include <torch_lazy/export.h>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <compare>
#include <cstdint>
#include <optional>
#include <ostream>
#include <string>

namespace torch_lazy {

struct TORCH_LAZY_API BackendDevice {
  at::DeviceType type;
  int64_t ordinal = 0;

  /// The default device: the hardware in use, number 0.
  BackendDevice();
  BackendDevice(at::DeviceType device_type, int64_t number) : type(device_type), ordinal(number) {}

  /// From its text, `CPU0`; an error for anything else.
  static BackendDevice parse(const std::string& text);

  std::string text() const;

  /// By type, then by number.
  auto operator<=>(const BackendDevice& other) const = default;
};

TORCH_LAZY_API std::ostream& operator<<(std::ostream& out, const BackendDevice& device);

/// The backend's name for a lazy device; without a number, number 0. Another kind of device is an
/// error.
TORCH_LAZY_API BackendDevice to_backend_device(const at::Device& device);

/// PyTorch's name for it: `lazy:0` for `CPU0`.
TORCH_LAZY_API at::Device to_aten_device(const BackendDevice& device);

/// The device of the first argument that is on a lazy device: a tensor, a list, a device. Nothing
/// if none is.
TORCH_LAZY_API std::optional<BackendDevice> find_backend_device(const at::Tensor& tensor);
TORCH_LAZY_API std::optional<BackendDevice> find_backend_device(at::TensorList tensors);
TORCH_LAZY_API std::optional<BackendDevice> find_backend_device(
    const std::optional<at::Device>& device);
template <typename First, typename Second, typename... Others>
std::optional<BackendDevice> find_backend_device(const First& first, const Second& second,
                                                 const Others&... others) {
  const std::optional<BackendDevice> found = find_backend_device(first);
  return found ? found : find_backend_device(second, others...);
}

}  // namespace torch_lazy
