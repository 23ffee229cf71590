// `linear` as one differentiable operator. On the CPU autograd sees its parts, a transposed view
// and a product; here it sees one node for both, which halves what a linear layer costs in
// autograd. The operators recorded are the same, forward and backward, and so are the bits.
#include "capture/register.h"
#include "capture/tensor.h"

#include <ATen/ATen.h>
#include <ATen/NativeFunctions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/accumulate.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/generated/Functions.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

namespace torch_lazy {
namespace {

/// Whether all dimensions but the last can be seen as one.
bool is_matrix_of_rows(const at::Tensor& input) {
  for (int64_t i = 0; i + 2 < input.dim(); ++i) {
    if (input.stride(i) != input.stride(i + 1) * input.size(i + 1)) {
      return false;
    }
  }
  return true;
}

/// Eager multiplies batch by batch where rows are scattered and the weight needs no gradient.
bool is_batched(const at::Tensor& input, const at::Tensor& weight) {
  return input.dim() >= 3 && input.numel() != 0 && !weight.requires_grad() &&
         !is_matrix_of_rows(input);
}

/// All dimensions but the last as one.
at::Tensor rows_of(const at::Tensor& t) {
  return t.dim() == 2
             ? t
             : t.reshape({c10::multiply_integers(t.sizes().slice(0, t.dim() - 1)), t.size(-1)});
}

at::Tensor linear(const at::Tensor& input, const at::Tensor& weight,
                  const std::optional<at::Tensor>& bias) {
  const bool biased = bias && bias->defined();
  const bool folded = input.dim() >= 3 && (weight.dim() == 2 || (weight.dim() == 1 && !biased)) &&
                      weight.requires_grad() && at::GradMode::is_enabled() &&
                      !(biased && input.is_contiguous());
  if (!folded) {
    return at::native::linear(input, weight, bias);
  }
  // Eager's matmul looks at the gradient that the transposed weight needs. Down here it needs none.
  at::DimVector sizes(input.sizes());
  if (weight.dim() == 1) {
    sizes.pop_back();
    return at::_unsafe_view(rows_of(input).mv(weight), sizes);
  }
  sizes.back() = weight.size(0);
  at::Tensor result = at::_unsafe_view(rows_of(input).mm(weight.t()), sizes);
  return biased ? result.add_(*bias) : result;
}

bool is_column_major(const at::Tensor& matrix) {
  return matrix.stride(0) == 1 && matrix.stride(1) == matrix.size(0);
}

/// The gradients of input.mm(weight.t()), by the kernels that eager's formulas choose.
at::Tensor input_gradient(const at::Tensor& grad, const at::Tensor& input,
                          const at::Tensor& weight) {
  return is_column_major(input) ? weight.t().conj().mm(grad.t()).t() : grad.mm(weight.conj());
}

at::Tensor batched_input_gradient(const at::Tensor& grad, const at::Tensor& input,
                                  const at::Tensor& weight) {
  at::Tensor batches = grad.reshape({-1, grad.size(-2), grad.size(-1)});
  return batches.bmm(weight.expand({batches.size(0), weight.size(0), weight.size(1)}).conj())
      .reshape(input.sizes());
}

at::Tensor weight_gradient(const at::Tensor& grad, const at::Tensor& input,
                           const at::Tensor& weight) {
  return is_column_major(weight.t()) ? grad.t().mm(input.conj()) : input.t().conj().mm(grad).t();
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> linear_backward(const at::Tensor& input,
                                                               const at::Tensor& grad,
                                                               const at::Tensor& weight,
                                                               std::array<bool, 3> wanted) {
  at::Tensor flat_input = rows_of(input);
  std::tuple<at::Tensor, at::Tensor, at::Tensor> result;
  if (weight.dim() == 1) {
    at::Tensor flat = grad.reshape({-1});
    if (wanted[0]) {
      std::get<0>(result) = flat.outer(weight.conj()).reshape(input.sizes());
    }
    if (wanted[1]) {
      std::get<1>(result) = flat_input.t().conj().mv(flat);
    }
    if (wanted[2]) {
      std::get<2>(result) = flat.sum();
    }
    return result;
  }
  at::Tensor flat = rows_of(grad);
  const bool fused_bias = wanted[2] && input.is_contiguous();  // then eager's forward was addmm
  if (wanted[0] && !fused_bias && is_batched(input, weight)) {
    std::get<0>(result) = batched_input_gradient(grad, input, weight);
  } else if (wanted[0]) {
    at::Tensor gradient = input_gradient(flat, flat_input, weight);
    std::get<0>(result) = input.dim() == 2 ? gradient : gradient.reshape(input.sizes());
  }
  if (wanted[1]) {
    std::get<1>(result) = weight_gradient(flat, flat_input, weight);
  }
  if (wanted[2]) {
    std::get<2>(result) = flat.sum(0);
  }
  return result;
}

}  // namespace

void register_linear(torch::Library& m) {
  m.impl("linear", linear);
  m.impl("linear_backward", linear_backward);
}

namespace {

/// PyTorch's own autograd kernel of linear, which it uses for us because linear has a kernel.
const c10::SafeKernelFunction& autograd_kernel() {
  static auto* kernel = new c10::SafeKernelFunction(
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("aten::linear", "")
          .getComputedKernelForDispatchKey(c10::DispatchKey::AutogradLazy));
  return *kernel;
}

/// Whether autograd would keep a tensor that the CPU's does not: the formula of linear saves input
/// and weight, those of its parts save what the wanted gradients need. Whoever changes the other
/// one in place before backward must not be told that it was needed.
bool saves_too_much(const at::Tensor& input, const at::Tensor& weight,
                    const std::optional<at::Tensor>& bias) {
  const bool both = input.requires_grad() && weight.requires_grad();
  const bool any = input.requires_grad() || weight.requires_grad() ||
                   (bias && bias->defined() && bias->requires_grad());
  return any && !both && at::GradMode::is_enabled();
}

/// What a formula saves of a tensor that it sees through a view: such a view does not follow
/// `tensor.data = other`, as the tensor itself does. This one is the same variable: it has the edge
/// of the graph, without a node of its own, and the version.
at::Tensor as_view_of_now(const at::Tensor& tensor) {
  c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  c10::impl::ExcludeDispatchKeyGuard unseen(c10::DispatchKey::Python);  // by modes
  at::Tensor view(impl.shallow_copy_and_detach(impl.version_counter(),
                                               /*allow_tensor_metadata_change=*/true));
  torch::autograd::impl::set_gradient_edge(view, torch::autograd::impl::gradient_edge(tensor));
  return view;
}

/// Not a transform's wrapper, nor a subclass, nor with a tangent.
bool is_ordinary(const at::Tensor& tensor) {
  return own_buffer(tensor) && !tensor.unsafeGetTensorImpl()->is_python_dispatch() &&
         !tensor.is_inference() && !tensor._fw_grad(/*level=*/0).defined();
}

using LinearNode = torch::autograd::generated::LinearBackward0;
using NodePointer = std::remove_cvref_t<decltype(torch::autograd::Edge::function)>;

/// A node and what holds it: an intrusive pointer, in PyTorch before 2.12 a shared one.
template <typename Pointer>
std::pair<Pointer, LinearNode*> new_node() {
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<torch::autograd::Node>>) {
    auto node = std::make_shared<LinearNode>();
    return {node, node.get()};
  } else {
    auto node = c10::make_intrusive<LinearNode>();
    LinearNode* raw = node.get();
    return {std::move(node), raw};
  }
}

/// What autograd's kernel does where input and weight want gradients, but for what it saves: that
/// is what the CPU's formulas save, the transposed weight and the input as rows.
at::Tensor with_views_saved(c10::DispatchKeySet keys, const at::Tensor& input,
                            const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  using torch::autograd::SavedVariable;
  static const auto linear = c10::Dispatcher::singleton()
                                 .findSchemaOrThrow("aten::linear", "")
                                 .typed<at::Tensor(const at::Tensor&, const at::Tensor&,
                                                   const std::optional<at::Tensor>&)>();
  auto [holder, node] = new_node<NodePointer>();
  node->set_next_edges(torch::autograd::collect_next_edges(input, weight, bias));
  node->input_ = SavedVariable(input.dim() == 2 ? input : as_view_of_now(input), false);
  node->weight_ = SavedVariable(as_view_of_now(weight), false);
  at::Tensor result = [&] {
    at::AutoDispatchBelowADInplaceOrView below;
    return linear.redispatch(keys & c10::after_autograd_keyset, input, weight, bias);
  }();
  torch::autograd::set_history(result, holder);
  return result;
}

/// Its formula does not know complex numbers; for those autograd sees the parts, as on the CPU.
at::Tensor differentiable_linear(c10::DispatchKeySet keys, const at::Tensor& input,
                                 const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  if (input.is_complex() || weight.is_complex() || saves_too_much(input, weight, bias)) {
    return at::native::linear(input, weight, bias);
  }
  const bool biased = bias && bias->defined();
  if (at::GradMode::is_enabled() && weight.requires_grad() && is_ordinary(input) &&
      is_ordinary(weight) && (!biased || is_ordinary(*bias))) {
    return with_views_saved(keys, input, weight, bias);
  }
  torch::jit::Stack stack{input, weight, bias};
  autograd_kernel().callBoxed(autograd_kernel().opHandle(), keys, &stack);
  return stack[0].toTensor();
}

}  // namespace

void register_differentiable_linear(torch::Library& m) {
  autograd_kernel();  // before ours takes its place
  m.impl("linear", TORCH_FN(differentiable_linear));
}

}  // namespace torch_lazy
