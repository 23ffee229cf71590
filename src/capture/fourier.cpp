// Fourier transforms of half precision: PyTorch takes them on CUDA and refuses them by the device's
// name elsewhere. Here they are computed in single precision and converted back.
#include "base/metrics.h"
#include "capture/register.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>

namespace torch_lazy {
namespace {

using torch::jit::Stack;

std::optional<at::ScalarType> wider(at::ScalarType dtype) {
  switch (dtype) {
    case at::kHalf:
      return at::kFloat;
    case at::kComplexHalf:
      return at::kComplexFloat;
    default:
      return std::nullopt;
  }
}

void transform(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const size_t first = stack->size() - op.schema().arguments().size();
  const at::Tensor self = (*stack)[first].toTensor();
  const std::optional<at::ScalarType> dtype = wider(self.scalar_type());
  if (dtype) {
    metrics::counter("ComputedInWiderType").add();
    (*stack)[first] = self.to(*dtype);
  }
  // The composite kernel, which takes the transform apart on any device.
  op.getComputedKernelForDispatchKey(c10::DispatchKey::CPU).callBoxed(op, keys, stack);
  if (dtype) {
    const at::Tensor result = stack->back().toTensor();
    stack->back() = result.to(result.is_complex() ? at::kComplexHalf : at::kHalf);
  }
}

}  // namespace

void register_transforms(torch::Library& m) {
  for (const char* name :
       {"fft_fft", "fft_fft2", "fft_fftn", "fft_ifft", "fft_ifft2", "fft_ifftn", "fft_rfft",
        "fft_rfft2", "fft_rfftn", "fft_irfft", "fft_irfft2", "fft_irfftn", "fft_hfft", "fft_hfft2",
        "fft_hfftn", "fft_ihfft", "fft_ihfft2", "fft_ihfftn"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&transform>());
  }
}

}  // namespace torch_lazy
