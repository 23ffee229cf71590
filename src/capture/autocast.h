// Mixed precision for lazy tensors. PyTorch has no autocast key for the device lazy, so every lazy
// tensor carries one that no maintained device uses, and our casting kernels are registered on it.
#pragma once

#include <torch_lazy/export.h>

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>
#include <c10/core/DispatchKey.h>

namespace torch_lazy {

/// Part of every lazy tensor's key set. Inactive until autocast is switched on for the device type
/// below, which is what `torch.autocast("lazy")` does.
inline constexpr c10::DispatchKey kLazyAutocastKey = c10::DispatchKey::AutocastIPU;

/// The name under which PyTorch keeps our autocast state (on or off, data type), per thread.
inline constexpr c10::DeviceType kLazyAutocastDeviceType = c10::DeviceType::IPU;

/// Lets `tensor` take part in autocast; for tensors made elsewhere that stand for lazy ones
/// (FakeTensor).
TORCH_LAZY_API void add_autocast_key(const at::Tensor& tensor);

/// Forgets the weights that were cast and kept. Called when the outermost region ends.
TORCH_LAZY_API void clear_autocast_cache();

}  // namespace torch_lazy
