// Fourier transforms of half precision: PyTorch takes them on CUDA and refuses them by the device's
// name elsewhere. Here they are computed in single precision and converted back.
#include "base/metrics.h"
#include "capture/capture.h"
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

/// Widens the first argument. False: it is wide enough.
bool widen(const c10::OperatorHandle& op, Stack& stack) {
  const size_t first = stack.size() - op.schema().arguments().size();
  const at::Tensor self = stack[first].toTensor();
  const std::optional<at::ScalarType> dtype = wider(self.scalar_type());
  if (!dtype) {
    return false;
  }
  metrics::counter("ComputedInWiderType").add();
  stack[first] = self.to(*dtype);
  return true;
}

at::Tensor narrowed(const at::Tensor& result) {
  return result.to(result.is_complex() ? at::kComplexHalf : at::kHalf);
}

/// torch.fft's functions: composite kernels, which take the transform apart on any device.
void transform(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const bool narrow = widen(op, *stack);
  op.getComputedKernelForDispatchKey(c10::DispatchKey::CPU).callBoxed(op, keys, stack);
  if (narrow) {
    stack->back() = narrowed(stack->back().toTensor());
  }
}

/// The same into memory that is given.
void transform_into(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const at::Tensor out = stack->back().toTensor();
  if (!widen(op, *stack)) {
    op.getComputedKernelForDispatchKey(c10::DispatchKey::CPU).callBoxed(op, keys, stack);
    return;
  }
  stack->pop_back();
  const c10::OperatorHandle functional = c10::Dispatcher::singleton().findSchemaOrThrow(
      op.operator_name().name.c_str(), /*overload_name=*/"");
  functional.callBoxed(stack);
  const at::Tensor result = stack->back().toTensor();
  stack->back() = out.resize_(result.sizes()).copy_(result);
}

/// What these come down to; stft and istft call it themselves.
void basic_transform(const c10::OperatorHandle& op, Stack* stack) {
  if (!widen(op, *stack)) {
    capture(op, stack);
    return;
  }
  op.callBoxed(stack);
  stack->back() = narrowed(stack->back().toTensor());
}

}  // namespace

void register_transforms(torch::Library& m) {
  for (const char* name :
       {"fft_fft", "fft_fft2", "fft_fftn", "fft_ifft", "fft_ifft2", "fft_ifftn", "fft_rfft",
        "fft_rfft2", "fft_rfftn", "fft_irfft", "fft_irfft2", "fft_irfftn", "fft_hfft", "fft_hfft2",
        "fft_hfftn", "fft_ihfft", "fft_ihfft2", "fft_ihfftn"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&transform>());
    m.impl((std::string(name) + ".out").c_str(),
           torch::CppFunction::makeFromBoxedFunction<&transform_into>());
  }
}

void register_basic_transforms(torch::Library& m) {
  for (const char* name : {"_fft_r2c", "_fft_c2r", "_fft_c2c"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&basic_transform>());
  }
}

}  // namespace torch_lazy
