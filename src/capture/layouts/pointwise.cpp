// Layouts of element-wise operators without a Meta kernel of their own: rules over
// at::TensorIterator that serve the functional, in-place and out= forms of an operator alike, found
// from its schema.
#include "capture/layouts/support.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_prelu_kernel_backward_ops.h>
#include <ATen/ops/_prelu_kernel_ops.h>
#include <ATen/ops/_safe_softmax_ops.h>
#include <ATen/ops/_softmax_meta_dispatch.h>
#include <ATen/ops/abs_ops.h>
#include <ATen/ops/angle_ops.h>
#include <ATen/ops/frexp_ops.h>
#include <ATen/ops/glu_backward_ops.h>
#include <ATen/ops/hardtanh_ops.h>
#include <ATen/ops/ldexp_ops.h>
#include <ATen/ops/log_sigmoid_backward_ops.h>
#include <ATen/ops/log_sigmoid_forward_ops.h>
#include <ATen/ops/masked_fill_ops.h>
#include <ATen/ops/masked_scatter_ops.h>
#include <ATen/ops/mvlgamma_ops.h>
#include <ATen/ops/nan_to_num_ops.h>
#include <ATen/ops/rsub_ops.h>
#include <ATen/ops/where_ops.h>

namespace torch_lazy {
namespace layout {
namespace {

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

// What the result's dtype is, given the inputs' common dtype.
enum class Result { common, boolean, real, complex };
// Which arguments take part.
enum class Inputs { tensors, tensors_and_other_number };

template <Promotion promotion, Result result, Inputs inputs>
void pointwise_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet, c10::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const auto values = torch::jit::last(*stack, arguments.size());
  c10::SmallVector<Tensor, 4> tensors;
  Tensor out;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (values[i].isTensor()) {
      const Tensor& tensor = values[i].toTensor();
      if (is_written(arguments[i])) out = tensor;
      if (!tensor.defined() || (is_written(arguments[i]) && i != 0)) continue;
      tensors.push_back(tensor);
    } else if (inputs == Inputs::tensors_and_other_number && arguments[i].name() == "other" &&
               values[i].isScalar()) {
      tensors.push_back(wrapped_number(values[i].toScalar()));
    }
  }
  Pointwise rule{.promotion = promotion};
  if (result == Result::boolean) rule.result = at::kBool;
  if (result == Result::complex) {
    rule.result = c10::toComplexType(tensors[0].scalar_type());
    TORCH_CHECK(!out.defined() || out.scalar_type() == *rule.result, "out has another dtype");
  }
  if (result == Result::real) {
    rule.real_result = tensors[0].is_complex();
    TORCH_CHECK(!rule.real_result || !out.is_same(tensors[0]),
                "a real result cannot replace a complex tensor");
  }
  Tensor computed = pointwise(tensors, rule, out);
  torch::jit::drop(*stack, arguments.size());
  stack->emplace_back(out.defined() ? out : computed);
}

template <Promotion promotion, Result result = Result::common, Inputs inputs = Inputs::tensors>
void add_rule(LayoutRegistry& registry, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    registry.add(
        name,
        c10::KernelFunction::makeFromBoxedFunction<&pointwise_kernel<promotion, result, inputs>>());
  }
}

// A scalar operand changes the result's dtype where its category is higher, as in add.Scalar.
template <Promotion promotion>
void add_number_rule(LayoutRegistry& registry, std::initializer_list<const char*> names) {
  add_rule<promotion, Result::common, Inputs::tensors_and_other_number>(registry, names);
}

// other - self
Tensor reversed_sub(const Tensor& self, const Tensor& other, const Scalar&) {
  return pointwise({other, self}, {.promotion = Promotion::common});
}

Tensor where_self(const Tensor& condition, const Tensor& self, const Tensor& other) {
  const ScalarType dtype = at::result_type(self, other);
  TORCH_CHECK(condition.scalar_type() == at::kBool || condition.scalar_type() == at::kByte,
              "where expects a boolean condition");
  // A tensor of another dtype is converted first, which packs it.
  const auto converted = [&](const Tensor& tensor) {
    return tensor.scalar_type() == dtype ? tensor : dense_like(tensor, dtype);
  };
  return pointwise({condition, converted(self), converted(other)}, {.result = dtype});
}

// Out of place these are a contiguous copy of the broadcast tensor, written to.
Tensor masked_copy(const Tensor& self, const Tensor& mask) {
  TORCH_CHECK(mask.scalar_type() == at::kBool, "the mask must be boolean");
  return empty(at::infer_size(self.sizes(), mask.sizes()), self.scalar_type());
}

Tensor& masked_in_place(Tensor& self, const Tensor& mask) {
  TORCH_CHECK(mask.scalar_type() == at::kBool, "the mask must be boolean");
  TORCH_CHECK(at::is_expandable_to(mask.sizes(), self.sizes()),
              "the mask does not broadcast to the tensor");
  return self;
}

void check_fill(const Tensor& self, const Scalar& value) {
  TORCH_CHECK(self.is_complex() || !value.isComplex(),
              "a complex value cannot be stored in a real tensor");
}
void check_fill(const Tensor& self, const Tensor& value) {
  TORCH_CHECK(value.dim() == 0, "masked_fill supports a zero-dimensional value only");
  TORCH_CHECK(self.is_complex() || !value.is_complex(),
              "a complex value cannot be stored in a real tensor");
}

template <class Value>
Tensor masked_fill(const Tensor& self, const Tensor& mask, const Value& value) {
  check_fill(self, value);
  return masked_copy(self, mask);
}

template <class Value>
Tensor& masked_fill_in_place(Tensor& self, const Tensor& mask, const Value& value) {
  check_fill(self, value);
  return masked_in_place(self, mask);
}

void check_scatter(const Tensor& self, const Tensor& source) {
  TORCH_CHECK(self.scalar_type() == source.scalar_type(),
              "masked_scatter: dtypes of self and source differ");
}

Tensor masked_scatter(const Tensor& self, const Tensor& mask, const Tensor& source) {
  check_scatter(self, source);
  return masked_copy(self, mask);
}

Tensor& masked_scatter_in_place(Tensor& self, const Tensor& mask, const Tensor& source) {
  check_scatter(self, source);
  return masked_in_place(self, mask);
}

// Its result comes out of a sum over a new last dimension.
Tensor mvlgamma(const Tensor& self, int64_t) {
  return contiguous_like(
      self, at::isIntegralType(self.scalar_type(), true) ? default_dtype() : self.scalar_type());
}

Tensor hardtanh(const Tensor& self, const Scalar&, const Scalar&) {
  return dense_like(self);
}

Tensor nan_to_num(const Tensor& self, std::optional<double>, std::optional<double>,
                  std::optional<double>) {
  return dense_like(self);
}

Tensor abs(const Tensor& self) {
  return self.is_complex() ? dense_like(self, c10::toRealValueType(self.scalar_type()))
                           : pointwise({self});
}

Tensor angle(const Tensor& self) {
  return self.is_complex() ? contiguous_like(self, c10::toRealValueType(self.scalar_type()))
                           : pointwise({self}, {.promotion = Promotion::floating});
}

Tensor prelu_kernel(const Tensor& self, const Tensor& weight) {
  TORCH_CHECK(at::is_expandable_to(weight.sizes(), self.sizes()) &&
                  weight.scalar_type() == self.scalar_type(),
              "prelu: the weight does not fit");
  return dense_like(self);
}

Two prelu_kernel_backward(const Tensor& grad, const Tensor& self, const Tensor& weight) {
  const Tensor result = pointwise({self, weight, grad});
  return {result, dense_like(result)};
}

Tensor glu_backward(const Tensor&, const Tensor& self, int64_t dim) {
  TORCH_CHECK(self.size(dim) % 2 == 0, "glu: the halving dimension must be even");
  return contiguous_like(self);
}

Two frexp(const Tensor& self) {
  TORCH_CHECK(at::isFloatingType(self.scalar_type()), "frexp: expected floating point numbers");
  return {dense_like(self), dense_like(self, at::kInt)};
}

// self * 2 ** other
Tensor power_of_two(const Tensor& other) {
  return pointwise({other, wrapped_number(2.0)}, {.promotion = Promotion::common});
}

Tensor& ldexp_in_place(Tensor& self, const Tensor& other) {
  pointwise({self, power_of_two(other)}, {.promotion = Promotion::common}, self);
  return self;
}

Tensor safe_softmax(const Tensor& self, int64_t dim, Dtype dtype) {
  const Tensor input =
      dtype.value_or(self.scalar_type()) == self.scalar_type() ? self : dense_like(self, dtype);
  return pointwise({at::meta::_softmax(input, dim, /*half_to_float=*/false)});
}

Two log_sigmoid_forward(const Tensor& self) {
  return {contiguous_like(self), contiguous_like(self)};
}

Tensor log_sigmoid_backward(const Tensor& grad, const Tensor& self, const Tensor& buffer) {
  TORCH_CHECK(at::is_expandable_to(self.sizes(), grad.sizes()) &&
                  at::is_expandable_to(buffer.sizes(), grad.sizes()),
              "log_sigmoid_backward: sizes");
  return dense_like(grad);
}

}  // namespace
}  // namespace layout

void add_pointwise_layouts(LayoutRegistry& registry) {
  using layout::add_number_rule;
  using layout::add_rule;
  using layout::Promotion;
  using layout::Result;
  add_rule<Promotion::none>(
      registry, {"aten::relu", "aten::relu_", "aten::hardswish", "aten::hardswish_",
                 "aten::hardswish.out", "aten::hardswish_backward", "aten::hardtanh_",
                 "aten::hardtanh.out", "aten::hardtanh_backward", "aten::celu", "aten::celu_",
                 "aten::nan_to_num_", "aten::nan_to_num.out",

                 "aten::mish_backward", "aten::_conj_physical", "aten::conj_physical_",
                 "aten::conj_physical.out", "aten::polygamma_", "aten::rrelu_with_noise_backward"});
  add_rule<Promotion::none, Result::real>(registry, {"aten::abs_", "aten::abs.out"});
  add_rule<Promotion::floating, Result::real>(registry, {"aten::angle.out"});
  add_rule<Promotion::none, Result::complex>(
      registry, {"aten::complex", "aten::complex.out", "aten::polar", "aten::polar.out"});
  add_rule<Promotion::floating>(
      registry,
      {"aten::deg2rad", "aten::deg2rad_", "aten::deg2rad.out", "aten::rad2deg", "aten::rad2deg_",
       "aten::rad2deg.out", "aten::logit", "aten::logit_", "aten::logit.out", "aten::mvlgamma_"});
  add_rule<Promotion::common>(
      registry, {"aten::floor_divide", "aten::floor_divide_.Tensor", "aten::floor_divide.out"});
  add_rule<Promotion::common, Result::boolean>(
      registry,
      {"aten::logical_and", "aten::logical_and_", "aten::logical_and.out", "aten::logical_or",
       "aten::logical_or_", "aten::logical_or.out", "aten::logical_xor", "aten::logical_xor_",
       "aten::logical_xor.out", "aten::logical_not", "aten::logical_not_", "aten::logical_not.out",
       "aten::isnan", "aten::isinf"});
  add_number_rule<Promotion::common>(
      registry,
      {"aten::add.Scalar", "aten::add_.Scalar", "aten::sub.Scalar", "aten::sub_.Scalar",
       "aten::mul.Scalar", "aten::mul_.Scalar", "aten::rsub.Scalar", "aten::remainder.Scalar",
       "aten::remainder_.Scalar", "aten::floor_divide.Scalar", "aten::floor_divide_.Scalar"});
  add_number_rule<Promotion::floating>(registry, {"aten::div.Scalar", "aten::div_.Scalar"});

  namespace ops = at::_ops;
  add_layout<ops::rsub_Tensor>(registry, layout::reversed_sub);
  add_layout<ops::mvlgamma>(registry, layout::mvlgamma);
  add_layout<ops::hardtanh>(registry, layout::hardtanh);
  add_layout<ops::nan_to_num>(registry, layout::nan_to_num);
  add_layout<ops::abs>(registry, layout::abs);
  add_layout<ops::angle>(registry, layout::angle);
  add_layout<ops::_prelu_kernel>(registry, layout::prelu_kernel);
  add_layout<ops::_prelu_kernel_backward>(registry, layout::prelu_kernel_backward);
  add_layout<ops::glu_backward>(registry, layout::glu_backward);
  add_layout<ops::frexp_Tensor>(registry, layout::frexp);
  add_layout<ops::ldexp_>(registry, layout::ldexp_in_place);
  add_layout<ops::_safe_softmax>(registry, layout::safe_softmax);
  add_layout<ops::where_self>(registry, layout::where_self);
  add_layout<ops::masked_fill_Scalar>(registry, layout::masked_fill<at::Scalar>);
  add_layout<ops::masked_fill_Tensor>(registry, layout::masked_fill<at::Tensor>);
  add_layout<ops::masked_fill__Scalar>(registry, layout::masked_fill_in_place<at::Scalar>);
  add_layout<ops::masked_fill__Tensor>(registry, layout::masked_fill_in_place<at::Tensor>);
  add_layout<ops::masked_scatter>(registry, layout::masked_scatter);
  add_layout<ops::masked_scatter_>(registry, layout::masked_scatter_in_place);
  add_layout<ops::log_sigmoid_forward>(registry, layout::log_sigmoid_forward);
  add_layout<ops::log_sigmoid_backward>(registry, layout::log_sigmoid_backward);
}

}  // namespace torch_lazy
