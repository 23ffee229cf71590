#include "capture/layouts/support.h"

#include <ATen/ScalarOps.h>
#include <ATen/TensorIterator.h>
#include <ATen/native/Resize.h>
#include <c10/core/DefaultDtype.h>

#include <bitset>

namespace torch_lazy::layout {

Tensor dense_like(const Tensor& self, Dtype dtype, Format format) {
  const ScalarType type = dtype.value_or(self.scalar_type());
  const MemoryFormat wanted = format.value_or(MemoryFormat::Preserve);
  if (wanted != MemoryFormat::Preserve) {
    return empty(self.sizes(), type, wanted);
  }
  if (self.is_non_overlapping_and_dense()) {
    return empty_strided(self.sizes(), self.strides(), type);
  }
  return empty_strided(self.sizes(), at::infer_dense_strides(self.sizes(), self.strides()), type);
}

Tensor contiguous(const Tensor& self, MemoryFormat format) {
  return self.is_contiguous(format) ? self : empty(self.sizes(), self.scalar_type(), format);
}

ScalarType default_dtype() {
  return c10::typeMetaToScalarType(c10::get_default_dtype());
}

void require_strided(Layout layout) {
  TORCH_CHECK(layout.value_or(at::kStrided) == at::kStrided,
              "only strided results have a layout function");
}

Tensor pointwise(at::ArrayRef<Tensor> inputs, Pointwise rule, Tensor out) {
  at::TensorIteratorConfig config;
  config.set_check_mem_overlap(true).allow_cpu_scalars(true);
  const bool promote = rule.promotion != Promotion::none;
  if (promote) {
    config.promote_inputs_to_common_dtype(true);
    config.promote_integer_inputs_to_float(rule.promotion == Promotion::floating);
  } else {
    config.check_all_same_dtype(!rule.result && !rule.real_result);
  }
  std::optional<ScalarType> result = rule.result;
  if (rule.real_result && inputs[0].is_complex()) {
    result = c10::toRealValueType(inputs[0].scalar_type());
  }
  if (out.defined()) {
    config.cast_common_dtype_to_outputs(promote && !result);
    config.enforce_safe_casting_to_output(promote && !result);
  } else if (result) {
    config.declare_static_dtype(*result);
  }
  config.add_owned_output(out);
  for (const Tensor& input : inputs) {
    config.add_owned_const_input(input);
  }
  return config.build().output();
}

Tensor wrapped_number(const Scalar& scalar) {
  return at::native::wrapped_scalar_tensor(scalar);
}

Sizes reduced_sizes(const Tensor& self, at::OptionalIntArrayRef dims, bool keepdim) {
  std::bitset<64> reduced;
  if (!dims || dims->empty()) {
    reduced.set();
  } else {
    reduced = at::dim_list_to_bitset(*dims, self.dim());
  }
  Sizes sizes;
  for (int64_t i = 0; i < self.dim(); ++i) {
    if (!reduced[i]) {
      sizes.push_back(self.size(i));
    } else if (keepdim) {
      sizes.push_back(1);
    }
  }
  return sizes;
}

Tensor& resize_out(Tensor& out, IntArrayRef sizes) {
  at::native::resize_output(out, sizes);
  return out;
}

}  // namespace torch_lazy::layout
