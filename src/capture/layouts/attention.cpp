// Layouts of the CPU's flash attention and its gradient.
#include "capture/layouts/support.h"

#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward_ops.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_ops.h>

namespace torch_lazy {
namespace layout {
namespace {

// Stored as batch, length, heads (, width); seen as batch, heads, length (, width).
Tensor heads_inside(const Tensor& query) {
  const int64_t heads = query.size(1), length = query.size(2), width = query.size(3);
  return empty_strided(query.sizes(), {length * heads * width, width, heads * width, 1},
                       query.scalar_type());
}

void check(const Tensor& query, const Tensor& key, const Tensor& value) {
  const ScalarType dtype = query.scalar_type();
  TORCH_CHECK(at::isFloatingType(dtype), "attention needs a floating point input");
  TORCH_CHECK(key.scalar_type() == dtype && value.scalar_type() == dtype,
              "attention: dtypes differ");
  TORCH_CHECK(query.dim() == 4 && key.dim() == 4 && value.dim() == 4,
              "attention: expected 4 dimensions");
  TORCH_CHECK(query.size(3) == key.size(3) && key.size(3) == value.size(3),
              "attention: head sizes differ");
  TORCH_CHECK(query.numel() > 0 && key.numel() > 0, "attention over nothing");
}

Two flash_attention(const Tensor& query, const Tensor& key, const Tensor& value, double, bool,
                    MaybeTensor, std::optional<double>) {
  check(query, key, value);
  const int64_t batch = query.size(0), heads = query.size(1), length = query.size(2);
  const ScalarType dtype = query.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return {dense_like(query),
          empty_strided({batch, heads, length}, {length * heads, 1, heads}, dtype)};
}

Three flash_attention_backward(const Tensor& grad, const Tensor& query, const Tensor& key,
                               const Tensor& value, const Tensor&, const Tensor&, double, bool,
                               MaybeTensor, std::optional<double>) {
  if (!grad.defined()) return {};
  check(query, key, value);
  return {heads_inside(query), heads_inside(key), heads_inside(value)};
}

}  // namespace
}  // namespace layout

void add_attention_layouts(LayoutRegistry& registry) {
  namespace ops = at::_ops;
  add_layout<ops::_scaled_dot_product_flash_attention_for_cpu>(registry, layout::flash_attention);
  add_layout<ops::_scaled_dot_product_flash_attention_for_cpu_backward>(
      registry, layout::flash_attention_backward);
}

}  // namespace torch_lazy
