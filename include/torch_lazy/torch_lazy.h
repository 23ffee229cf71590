// torch-lazy's public C++ interface: what a program calls besides libtorch itself.
// Including this header and linking TorchLazy::torch_lazy makes the device torch::kLazy work.
#pragma once

#include <torch_lazy/export.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace torch_lazy {

/// Runs everything that is pending on the device and ends a step.
/// Execution is synchronous, so the results are there when this returns, with or without `wait`.
TORCH_LAZY_API void mark_step(bool wait = false);

/// Runs what the given tensors need; without an argument, everything that is pending.
TORCH_LAZY_API void sync(bool wait = true);
TORCH_LAZY_API void sync(at::TensorList tensors, bool wait = true);

/// Blocks until nothing runs on the device.
TORCH_LAZY_API void wait_device_ops();

/// Runs what `tensor` needs and returns a plain tensor (on the real device) over the same memory.
TORCH_LAZY_API at::Tensor to_real(const at::Tensor& tensor);

/// A lazy tensor over the memory of a plain tensor of the real device. Nothing is copied.
TORCH_LAZY_API at::Tensor from_real(const at::Tensor& tensor);

/// The device that does the work: cpu, or cuda:0 (setting TORCH_LAZY_DEVICE).
TORCH_LAZY_API at::Device real_device();

/// A number that identifies the tensor's buffer; never used again for another.
TORCH_LAZY_API int64_t tensor_id(const at::Tensor& tensor);

/// Whether the tensor's value is recorded but not computed yet.
TORCH_LAZY_API bool is_pending(const at::Tensor& tensor);

/// How many operations are recorded and not run yet.
TORCH_LAZY_API int64_t pending_nodes();

/// The graph behind the tensors, as text or in dot's language.
TORCH_LAZY_API std::string graph_text(at::TensorList tensors);
TORCH_LAZY_API std::string graph_dot(at::TensorList tensors);

/// Counters: operators captured (`lazy::add`), executed at once (`aten::nonzero`), compilations,
/// steps.
TORCH_LAZY_API std::optional<int64_t> counter_value(const std::string& name);
TORCH_LAZY_API std::vector<std::string> counter_names();
TORCH_LAZY_API std::string metrics_report();
TORCH_LAZY_API void reset_metrics();

/// Settings by name (see docs/settings.md); an unknown name or value raises an error.
TORCH_LAZY_API std::string get_setting(const std::string& name);
TORCH_LAZY_API void set_setting(const std::string& name, const std::string& value);

}  // namespace torch_lazy
