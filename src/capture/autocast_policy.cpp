// Autocast's rules. The CPU's are listed here; CUDA's come from PyTorch's own header, which lists
// them for every accelerator.
#include "capture/autocast_policy.h"

#include <ATen/autocast_mode.h>

namespace torch_lazy {
namespace {

using Policy = std::unordered_map<std::string, AutocastRule>;
using Names = std::initializer_list<const char*>;

void add(Policy& policy, Cast AutocastRule::* device, Cast cast, Names names) {
  for (const char* name : names) {
    policy[name].*device = cast;
  }
}

void add_cpu(Policy& policy) {
  add(policy, &AutocastRule::cpu, Cast::lower_precision,
      {// Matrix products and attention.
       "_addmm_activation", "_native_multi_head_attention", "addbmm", "addmm", "baddbmm", "bmm",
       "linalg_vecdot", "linear", "matmul", "mm", "scaled_dot_product_attention",
       // Convolutions and others.
       "_convolution.deprecated", "conv1d", "conv1d.padding", "conv2d", "conv2d.padding", "conv3d",
       "conv3d.padding", "conv_tbc", "conv_transpose1d", "conv_transpose2d.input",
       "conv_transpose3d.input", "mkldnn_rnn_layer", "prelu"});
  add(policy, &AutocastRule::cpu, Cast::to_float,
      {// Pooling, padding, sampling.
       "_grid_sampler_2d_cpu_fallback", "adaptive_avg_pool3d", "adaptive_max_pool3d", "avg_pool3d",
       "fractional_max_pool2d", "fractional_max_pool3d", "grid_sampler", "grid_sampler_2d",
       "grid_sampler_3d", "max_pool3d", "max_unpool2d", "max_unpool3d", "reflection_pad1d",
       "reflection_pad2d", "replication_pad1d", "replication_pad2d", "replication_pad3d",
       // Losses.
       "binary_cross_entropy", "binary_cross_entropy_with_logits", "cosine_embedding_loss",
       "cross_entropy_loss", "ctc_loss.IntList", "ctc_loss.Tensor", "hinge_embedding_loss",
       "huber_loss", "kl_div", "l1_loss", "margin_ranking_loss", "mse_loss", "multi_margin_loss",
       "multilabel_margin_loss", "multilabel_margin_loss_forward", "nll_loss", "nll_loss2d",
       "poisson_nll_loss", "smooth_l1_loss", "soft_margin_loss", "triplet_margin_loss",
       // Linear algebra.
       "_lu_with_info", "cdist", "cholesky", "cholesky_inverse", "cholesky_solve", "geqrf",
       "inverse", "linalg_cholesky", "linalg_cholesky_ex", "linalg_cond", "linalg_cond.p_str",
       "linalg_eig", "linalg_eigh", "linalg_eigvals", "linalg_eigvalsh",
       "linalg_householder_product", "linalg_inv", "linalg_inv_ex", "linalg_lstsq",
       "linalg_matrix_rank", "linalg_matrix_rank.atol_rtol_float",
       "linalg_matrix_rank.atol_rtol_tensor", "linalg_matrix_rank.tol_tensor", "linalg_qr",
       "linalg_solve", "linalg_svd", "linalg_svdvals", "linalg_tensorinv", "linalg_tensorsolve",
       "lu_solve", "orgqr", "ormqr", "pinverse", "qr", "svd", "trace", "triangular_solve",
       // Fourier transforms.
       "fft_fft", "fft_fft2", "fft_fftn", "fft_hfft", "fft_ifft", "fft_ifft2", "fft_ifftn",
       "fft_ihfft", "fft_irfft", "fft_irfft2", "fft_irfftn", "fft_rfft", "fft_rfft2", "fft_rfftn",
       "stft", "stft.center", "polar", "view_as_complex",
       // Others.
       "fake_quantize_per_tensor_affine", "nanquantile", "nanquantile.scalar", "prod",
       "prod.dim_int", "quantile", "quantile.scalar"});
  add(policy, &AutocastRule::cpu, Cast::promote, {"cat", "index_copy", "stack"});
}

// PyTorch's lists call a macro with the operator's name and, if it has one, its overload.
#define TORCH_LAZY_NAME(op) #op,
#define TORCH_LAZY_OVERLOAD(op, overload) #op "." #overload,
#define TORCH_LAZY_PICK(first, second, chosen, ...) chosen
#define TORCH_LAZY_ROW(...) \
  TORCH_LAZY_PICK(__VA_ARGS__, TORCH_LAZY_OVERLOAD, TORCH_LAZY_NAME, )(__VA_ARGS__)

void add_cuda(Policy& policy) {
  add(policy, &AutocastRule::cuda, Cast::lower_precision,
      {AT_FORALL_LOWER_PRECISION_FP(TORCH_LAZY_ROW)});
  add(policy, &AutocastRule::cuda, Cast::to_float, {AT_FORALL_FP32(TORCH_LAZY_ROW)});
  add(policy, &AutocastRule::cuda, Cast::promote, {AT_FORALL_PROMOTE(TORCH_LAZY_ROW)});
  add(policy, &AutocastRule::cuda, Cast::float_result,
      {AT_FORALL_FP32_SET_OPT_DTYPE(TORCH_LAZY_ROW)});
  add(policy, &AutocastRule::cuda, Cast::norm_float_result, {"norm.Scalar", "norm.ScalarOpt_dim"});
  add(policy, &AutocastRule::cuda, Cast::refuse, {"binary_cross_entropy"});
}

}  // namespace

const Policy& autocast_policy() {
  static const Policy policy = [] {
    Policy rules;
    add_cpu(rules);
    add_cuda(rules);
    return rules;
  }();
  return policy;
}

}  // namespace torch_lazy
