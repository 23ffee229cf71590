// Layouts of loss functions and their gradients.
#include "capture/layouts/support.h"

#include <ATen/core/Reduction.h>
#include <ATen/ops/_ctc_loss_backward_ops.h>
#include <ATen/ops/binary_cross_entropy_backward_ops.h>
#include <ATen/ops/binary_cross_entropy_ops.h>
#include <ATen/ops/binary_cross_entropy_with_logits_ops.h>
#include <ATen/ops/huber_loss_backward_ops.h>
#include <ATen/ops/huber_loss_ops.h>
#include <ATen/ops/mse_loss_backward_ops.h>
#include <ATen/ops/multi_margin_loss_backward_ops.h>
#include <ATen/ops/multi_margin_loss_ops.h>
#include <ATen/ops/multilabel_margin_loss_backward_ops.h>
#include <ATen/ops/multilabel_margin_loss_forward_ops.h>
#include <ATen/ops/nll_loss2d_backward_ops.h>
#include <ATen/ops/nll_loss2d_forward_ops.h>
#include <ATen/ops/smooth_l1_loss_backward_ops.h>
#include <ATen/ops/soft_margin_loss_backward_ops.h>
#include <ATen/ops/soft_margin_loss_ops.h>

namespace torch_lazy {
namespace layout {
namespace {

bool reduces(int64_t reduction) {
  return reduction != at::Reduction::None;
}

Tensor scalar_of(const Tensor& self) {
  return empty({}, self.scalar_type());
}

// Gradients start as contiguous zeros of the input's sizes, resized where the target is larger.
Tensor gradient(const Tensor& self, const Tensor& target) {
  const auto sizes = at::infer_size(self.sizes(), target.sizes());
  TORCH_CHECK(IntArrayRef(sizes) == self.sizes(),
              "the gradient of a broadcast input is not covered");
  return empty(sizes, self.scalar_type());
}

Tensor mse_loss_backward(const Tensor&, const Tensor& self, const Tensor& target, int64_t) {
  return gradient(self, target);
}

Tensor smooth_l1_loss_backward(const Tensor&, const Tensor& self, const Tensor& target, int64_t,
                               double) {
  return gradient(self, target);
}

Tensor huber_loss(const Tensor& self, const Tensor& target, int64_t reduction, double delta) {
  TORCH_CHECK(delta > 0, "huber_loss: delta");
  // Written to what is like the input, whatever the target's dtype is.
  const auto sizes = at::infer_size(self.sizes(), target.sizes());
  TORCH_CHECK(IntArrayRef(sizes) == self.sizes(), "the loss of a broadcast input is not covered");
  const Tensor loss = pointwise({self, target}, {.promotion = Promotion::common}, dense_like(self));
  return reduces(reduction) ? scalar_of(loss) : loss;
}

Tensor soft_margin_loss(const Tensor& self, const Tensor& target, int64_t reduction) {
  TORCH_CHECK(at::isFloatingType(self.scalar_type()), "soft_margin_loss of integers");
  // The negated input, which the target is multiplied into.
  const Tensor loss =
      pointwise({self}, {.promotion = Promotion::common}, empty({0}, self.scalar_type()));
  pointwise({loss, target}, {.promotion = Promotion::common}, loss);
  return reduces(reduction) ? scalar_of(loss) : loss;
}

Tensor soft_margin_loss_backward(const Tensor& grad, const Tensor& self, const Tensor& target,
                                 int64_t) {
  TORCH_CHECK(at::isFloatingType(self.scalar_type()), "soft_margin_loss of integers");
  const Pointwise promoted{.promotion = Promotion::common};
  const Tensor z = pointwise({pointwise({target}), self}, promoted);
  const Tensor result = pointwise({target, z}, promoted, empty({0}, self.scalar_type()));
  pointwise({result, grad}, promoted, result);
  return result;
}

void check_entropy(const Tensor& self, const Tensor& target, MaybeTensor weight) {
  TORCH_CHECK(self.sizes() == target.sizes(), "binary_cross_entropy: sizes differ");
  TORCH_CHECK(self.scalar_type() == target.scalar_type(), "binary_cross_entropy: dtypes differ");
  if (weight && weight->defined()) {
    TORCH_CHECK(at::is_expandable_to(weight->sizes(), self.sizes()),
                "binary_cross_entropy: weight");
  }
}

Tensor binary_cross_entropy(const Tensor& self, const Tensor& target, MaybeTensor weight,
                            int64_t reduction) {
  check_entropy(self, target, weight);
  return reduces(reduction) ? scalar_of(self) : dense_like(self);
}

Tensor binary_cross_entropy_backward(const Tensor&, const Tensor& self, const Tensor& target,
                                     MaybeTensor weight, int64_t) {
  check_entropy(self, target, weight);
  return dense_like(self);
}

// Computed from 1 - target in place, so that the result looks like the target.
Tensor binary_cross_entropy_with_logits(const Tensor& self, const Tensor& target, MaybeTensor,
                                        MaybeTensor, int64_t reduction) {
  TORCH_CHECK(self.sizes() == target.sizes() && self.scalar_type() == target.scalar_type(),
              "binary_cross_entropy_with_logits: sizes or dtypes differ");
  return reduces(reduction) ? scalar_of(self) : pointwise({target});
}

void check_nll2d(const Tensor& self, const Tensor& target) {
  TORCH_CHECK(self.dim() == 4 && target.dim() == 3, "nll_loss2d: dimensions");
  TORCH_CHECK(self.size(0) == target.size(0) && self.size(2) == target.size(1) &&
                  self.size(3) == target.size(2),
              "nll_loss2d: sizes differ");
  TORCH_CHECK(target.scalar_type() == at::kLong, "nll_loss2d: expected int64 targets");
}

Two nll_loss2d_forward(const Tensor& self, const Tensor& target, MaybeTensor, int64_t reduction,
                       SymInt) {
  check_nll2d(self, target);
  return {reduces(reduction) ? scalar_of(self) : empty(target.sizes(), self.scalar_type()),
          scalar_of(self)};
}

Tensor nll_loss2d_backward(const Tensor&, const Tensor& self, const Tensor& target, MaybeTensor,
                           int64_t, SymInt, const Tensor&) {
  check_nll2d(self, target);
  return contiguous_like(self);
}

Tensor multi_margin_loss(const Tensor& self, const Tensor& target, const Scalar&, const Scalar&,
                         MaybeTensor weight, int64_t reduction) {
  TORCH_CHECK(self.numel() > 0 && self.dim() <= 2, "multi_margin_loss: dimensions");
  TORCH_CHECK(target.dim() <= 1 && target.numel() == (self.dim() == 2 ? self.size(0) : 1),
              "multi_margin_loss: targets");
  TORCH_CHECK(target.scalar_type() == at::kLong, "multi_margin_loss: expected int64 targets");
  TORCH_CHECK(!weight || !weight->defined() ||
                  (weight->dim() <= 1 && weight->numel() == (self.dim() ? self.size(-1) : 1)),
              "multi_margin_loss: weight");
  return reduces(reduction) ? scalar_of(self) : empty(target.sizes(), self.scalar_type());
}

Tensor multi_margin_loss_backward(const Tensor&, const Tensor& self, const Tensor&, const Scalar&,
                                  const Scalar&, MaybeTensor, int64_t) {
  return contiguous_like(self);
}

Two multilabel_margin_loss_forward(const Tensor& self, const Tensor& target, int64_t reduction) {
  TORCH_CHECK(self.dim() <= 2 && self.numel() > 0 && self.sizes() == target.sizes(),
              "multilabel_margin_loss: sizes differ");
  const bool one = reduces(reduction) || self.dim() <= 1;
  return {one ? scalar_of(self) : empty({self.size(0)}, self.scalar_type()),
          contiguous_like(target, self.scalar_type())};
}

Tensor multilabel_margin_loss_backward(const Tensor&, const Tensor& self, const Tensor&, int64_t,
                                       const Tensor&) {
  return contiguous_like(self);
}

Tensor ctc_loss_backward(const Tensor&, const Tensor& log_probs, const Tensor&, IntArrayRef,
                         IntArrayRef, const Tensor&, const Tensor&, int64_t, bool) {
  return contiguous_like(log_probs);
}

}  // namespace
}  // namespace layout

void add_loss_layouts(LayoutRegistry& registry) {
  namespace ops = at::_ops;
  add_layout<ops::_ctc_loss_backward>(registry, layout::ctc_loss_backward);
  add_layout<ops::mse_loss_backward>(registry, layout::mse_loss_backward);
  add_layout<ops::smooth_l1_loss_backward>(registry, layout::smooth_l1_loss_backward);
  add_layout<ops::huber_loss>(registry, layout::huber_loss);
  add_layout<ops::huber_loss_backward>(registry, layout::smooth_l1_loss_backward);
  add_layout<ops::soft_margin_loss>(registry, layout::soft_margin_loss);
  add_layout<ops::soft_margin_loss_backward>(registry, layout::soft_margin_loss_backward);
  add_layout<ops::binary_cross_entropy>(registry, layout::binary_cross_entropy);
  add_layout<ops::binary_cross_entropy_backward>(registry, layout::binary_cross_entropy_backward);
  add_layout<ops::binary_cross_entropy_with_logits>(registry,
                                                    layout::binary_cross_entropy_with_logits);
  add_layout<ops::nll_loss2d_forward>(registry, layout::nll_loss2d_forward);
  add_layout<ops::nll_loss2d_backward>(registry, layout::nll_loss2d_backward);
  add_layout<ops::multi_margin_loss>(registry, layout::multi_margin_loss);
  add_layout<ops::multi_margin_loss_backward>(registry, layout::multi_margin_loss_backward);
  add_layout<ops::multilabel_margin_loss_forward>(registry, layout::multilabel_margin_loss_forward);
  add_layout<ops::multilabel_margin_loss_backward>(registry,
                                                   layout::multilabel_margin_loss_backward);
}

}  // namespace torch_lazy
