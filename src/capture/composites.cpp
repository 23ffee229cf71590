// Composite operators in which PyTorch branches on the device. On `lazy` they take the branch of
// the real device, so that a program draws eager's random numbers and runs eager's kernels.
#include "capture/register.h"
#include "capture/tensor.h"
#include "runtime/real_tensor.h"
#include <torch_lazy/backend.h>

#include <ATen/ATen.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <torch/library.h>

#include <cmath>
#include <limits>

namespace torch_lazy {
namespace {

at::Tensor scaled_noise(const at::Tensor& input, double p) {
  at::Tensor noise = at::empty_like(input);
  noise.bernoulli_(1 - p);
  return noise.div_(1 - p);
}

void check_probability(double p) {
  TORCH_CHECK(p >= 0 && p <= 1, "dropout probability has to be between 0 and 1, but got ", p);
}

at::Tensor dropout(const at::Tensor& input, double p, bool train) {
  check_probability(p);
  if (p == 0 || !train || input.sym_numel() == 0) {
    return input;
  }
  if (p == 1) {
    return input.mul(at::zeros({}, input.options()));
  }
  return input.mul(scaled_noise(input, p));
}

at::Tensor& dropout_(at::Tensor& input, double p, bool train) {
  check_probability(p);
  if (p == 0 || !train || input.sym_numel() == 0) {
    return input;
  }
  if (p == 1) {
    return input.mul_(at::zeros({}, input.options()));
  }
  return input.mul_(scaled_noise(input, p));
}

/// A tensor of the real device that looks like `lazy` and has no data: enough to choose a kernel.
at::Tensor look_alike(const at::Tensor& lazy) {
  if (!lazy.defined() || !is_lazy(lazy)) {
    return lazy;
  }
  c10::Storage nothing(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), 0, c10::DataPtr(nullptr, real_device()),
      c10::GetAllocator(real_device().type()), false));
  at::Tensor tensor = real_tensor(nothing, Layout::of(lazy));
  if (lazy.requires_grad()) {
    tensor.set_requires_grad(true);
  }
  return tensor;
}

sdp::SDPBackend choose_attention(const at::Tensor& query, const at::Tensor& key,
                                 const at::Tensor& value, const std::optional<at::Tensor>& mask,
                                 double dropout_p, bool is_causal, std::optional<double> scale,
                                 bool enable_gqa) {
  std::optional<at::Tensor> mask_alike;
  if (mask && mask->defined()) {
    mask_alike = look_alike(*mask);
  }
  return static_cast<sdp::SDPBackend>(at::_ops::_fused_sdp_choice::redispatch(
      c10::DispatchKeySet(real_key()), look_alike(query), look_alike(key), look_alike(value),
      mask_alike, dropout_p, is_causal, scale, enable_gqa));
}

/// A mask of booleans as numbers to add: 0 where attention is allowed, minus infinity elsewhere.
std::optional<at::Tensor> additive_mask(const std::optional<at::Tensor>& mask,
                                        at::ScalarType dtype) {
  if (!mask || !mask->defined()) {
    return std::nullopt;
  }
  if (mask->scalar_type() != at::kBool) {
    return mask;
  }
  at::Tensor zeros = at::zeros_like(*mask, mask->options().dtype(dtype));
  return at::where(*mask, zeros,
                   at::scalar_tensor(-std::numeric_limits<double>::infinity(), zeros.options()));
}

/// Eager's checks in eager's words. The kernels repeat them, but only when they run.
void check_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const std::optional<at::Tensor>& mask) {
  TORCH_CHECK(
      query.scalar_type() == key.scalar_type() && query.scalar_type() == value.scalar_type(),
      "Expected query, key, and value to have the same dtype, but got query.dtype: ", query.dtype(),
      " key.dtype: ", key.dtype(), " and value.dtype: ", value.dtype(), " instead.");
  TORCH_CHECK(query.device() == key.device() && query.device() == value.device(),
              "Expected query, key, and value to have the same device type, but got query.device: ",
              query.device(), " key.device: ", key.device(), " and value.device: ", value.device(),
              " instead.");
  TORCH_CHECK(query.dim() >= 2 && key.dim() >= 2 && value.dim() >= 2,
              "Expected query, key, and value to all be  at least 2 dimensional, but got "
              "query.dim: ",
              query.dim(), " key.dim: ", key.dim(), " and value.dim: ", value.dim(), " instead.");
  if (mask && mask->defined()) {
    const at::ScalarType dtype = mask->scalar_type();
    TORCH_CHECK(dtype == at::kBool || dtype == at::kFloat || dtype == query.scalar_type(),
                "Expected attn_mask dtype to be bool or float or to match query dtype, but got "
                "attn_mask.dtype: ",
                mask->dtype(), " and  query.dtype: ", query.dtype(), " instead.");
  }
}

at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const std::optional<at::Tensor>& mask, double dropout_p, bool is_causal,
                     std::optional<double> scale, bool enable_gqa) {
  check_attention(query, key, value, mask);
  const sdp::SDPBackend choice =
      choose_attention(query, key, value, mask, dropout_p, is_causal, scale, enable_gqa);
  if (choice == sdp::SDPBackend::flash_attention && real_device().is_cpu()) {
    TORCH_CHECK(dropout_p == 0,
                "scaled_dot_product_attention_flash_attention: Currently do not support dropout "
                "> 0");
    return std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(
        query, key, value, dropout_p, is_causal, additive_mask(mask, query.scalar_type()), scale));
  }
  const bool plain = dropout_p == 0 && !(mask && mask->defined()) && query.size(-1) % 8 == 0 &&
                     value.size(-1) == query.size(-1) && !enable_gqa;
  if (choice == sdp::SDPBackend::flash_attention && plain) {
    return std::get<0>(
        at::_scaled_dot_product_flash_attention(query, key, value, 0.0, is_causal, false, scale));
  }
  if (choice == sdp::SDPBackend::efficient_attention && plain) {
    const bool gradients = at::GradMode::is_enabled() &&
                           (query.requires_grad() || key.requires_grad() || value.requires_grad());
    return std::get<0>(at::_scaled_dot_product_efficient_attention(
        query, key, value, std::nullopt, gradients, 0.0, is_causal, scale));
  }
  return std::get<0>(at::_scaled_dot_product_attention_math(
      query, key, value, additive_mask(mask, query.scalar_type()), dropout_p, is_causal,
      std::nullopt, scale, enable_gqa));
}

/// Keeps channels-last, which PyTorch's own does for the CPU only.
at::Tensor group_norm(const at::Tensor& input, int64_t groups,
                      const std::optional<at::Tensor>& weight,
                      const std::optional<at::Tensor>& bias, double eps, bool) {
  TORCH_CHECK(groups > 0, "Expected num groups to be greater than 0, got ", groups);
  TORCH_CHECK(input.dim() >= 2, "Expected at least 2 dimensions for input tensor but received ",
              input.dim());
  const int64_t n = input.size(0), channels = input.size(1);
  TORCH_CHECK(channels % groups == 0,
              "Expected number of channels in input to be divisible by num_groups, but got input "
              "of shape ",
              input.sizes(), " and num_groups=", groups);
  for (const auto* parameter : {&weight, &bias}) {
    TORCH_CHECK(!*parameter || !(*parameter)->defined() ||
                    ((*parameter)->dim() == 1 && (*parameter)->numel() == channels),
                "Expected ", parameter == &weight ? "weight" : "bias",
                " to be a vector of size equal to the number of channels in input, but got ",
                parameter == &weight ? "weight" : "bias", " of shape ", (*parameter)->sizes(),
                " and input of shape ", input.sizes());
  }
  const auto format =
      real_device().is_cpu() ? input.suggest_memory_format() : at::MemoryFormat::Contiguous;
  auto plain = [](const std::optional<at::Tensor>& parameter) {
    return parameter && parameter->defined() ? parameter->contiguous() : at::Tensor();
  };
  const int64_t pixels = c10::multiply_integers(input.sizes().slice(2));
  return std::get<0>(at::native_group_norm(input.contiguous(format), plain(weight), plain(bias), n,
                                           channels, pixels, groups, eps));
}

/// The packed numbers of a list of tensors lie on the CPU, on every device.
std::vector<at::Scalar> unpacked(const at::Tensor& scalars, at::TensorList self) {
  TORCH_CHECK(scalars.is_cpu(), "Expected scalars to be on CPU, got ", scalars.device(),
              " instead.");
  TORCH_CHECK(scalars.dim() == 1, "Expected packed scalar Tensor to be of dimension 1. Got ",
              scalars.dim(), " instead.");
  TORCH_CHECK(scalars.is_contiguous(), "Expected scalars to be contiguous.");
  TORCH_CHECK(scalars.numel() == static_cast<int64_t>(self.size()),
              "Expected length of scalars to match input of length ", self.size(), " but got ",
              scalars.numel(), " instead.");
  std::vector<at::Scalar> numbers;
  for (int64_t i = 0; i < scalars.numel(); ++i) {
    numbers.push_back(scalars[i].item());
  }
  return numbers;
}

std::vector<at::Tensor> foreach_addcdiv(at::TensorList self, at::TensorList a, at::TensorList b,
                                        const at::Tensor& scalars) {
  return at::_foreach_addcdiv(self, a, b, unpacked(scalars, self));
}

std::vector<at::Tensor> foreach_addcmul(at::TensorList self, at::TensorList a, at::TensorList b,
                                        const at::Tensor& scalars) {
  return at::_foreach_addcmul(self, a, b, unpacked(scalars, self));
}

void foreach_addcdiv_(at::TensorList self, at::TensorList a, at::TensorList b,
                      const at::Tensor& scalars) {
  at::_foreach_addcdiv_(self, a, b, unpacked(scalars, self));
}

void foreach_addcmul_(at::TensorList self, at::TensorList a, at::TensorList b,
                      const at::Tensor& scalars) {
  at::_foreach_addcmul_(self, a, b, unpacked(scalars, self));
}

}  // namespace

void register_composites(torch::Library& m) {
  m.impl("_foreach_addcdiv.Tensor", foreach_addcdiv);
  m.impl("_foreach_addcdiv_.Tensor", foreach_addcdiv_);
  m.impl("_foreach_addcmul.Tensor", foreach_addcmul);
  m.impl("_foreach_addcmul_.Tensor", foreach_addcmul_);
  m.impl("dropout", dropout);
  m.impl("dropout_", dropout_);
  m.impl("group_norm", group_norm);
  m.impl("scaled_dot_product_attention", attention);
}

}  // namespace torch_lazy
