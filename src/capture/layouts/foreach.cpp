// Layouts of the _foreach_* operators, element by element with the rules of the single operator,
// and of the fused optimizers, which have no results.
#include "capture/layouts/support.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/mm_meta_dispatch.h>

#include <string>
#include <string_view>

namespace torch_lazy {
namespace layout {
namespace {

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

// Scalars (beta, value, weight) take no part in promotion except as an operand.
enum class Numbers { ignored, operand };
enum class Result { common, real };

void check_lengths(const c10::FunctionSchema& schema, at::ArrayRef<c10::IValue> values) {
  std::optional<size_t> length;
  const auto check = [&](size_t count) {
    TORCH_CHECK(length.value_or(count) == count, schema.name(), ": lists differ in length");
    length = count;
  };
  for (const auto& value : values) {
    if (value.isTensorList()) check(value.toTensorVector().size());
    if (value.isList() && !value.isTensorList() && !value.isIntList())
      check(value.toListRef().size());
  }
  TORCH_CHECK(length.value_or(0) > 0, schema.name(), ": a list of tensors is needed");
}

bool all_packed_alike(at::ArrayRef<Tensor> inputs) {
  for (const Tensor& input : inputs) {
    if (!input.is_contiguous() || input.scalar_type() != inputs[0].scalar_type() ||
        input.sizes() != inputs[0].sizes()) {
      return false;
    }
  }
  return true;
}

Tensor element(at::ArrayRef<Tensor> inputs, Pointwise rule, const Tensor& out) {
  const bool keeps_dtype =
      rule.promotion != Promotion::floating || at::isFloatingType(inputs[0].scalar_type());
  if (keeps_dtype && !rule.real_result && all_packed_alike(inputs)) {
    return out.defined() ? out : contiguous_like(inputs[0]);
  }
  return pointwise(inputs, rule, out);
}

template <Promotion promotion, Numbers numbers, Result result>
void foreach_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet, c10::Stack* stack) {
  const auto& schema = op.schema();
  const auto& arguments = schema.arguments();
  const auto values = torch::jit::last(*stack, arguments.size());
  check_lengths(schema, values);

  c10::SmallVector<std::vector<Tensor>, 3> lists;  // operands that differ from element to element
  c10::SmallVector<Tensor, 2> shared;              // one operand for all
  std::vector<Tensor> outputs;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto& value = values[i];
    if (value.isTensorList()) {
      lists.push_back(value.toTensorVector());
      if (is_written(arguments[i])) outputs = lists.back();
    } else if (numbers == Numbers::operand && arguments[i].name() != "alpha") {
      if (value.isTensor()) {
        shared.push_back(value.toTensor());
      } else if (value.isScalar()) {
        shared.push_back(wrapped_number(value.toScalar()));
      } else if (value.isList()) {
        std::vector<Tensor> each;
        for (const auto& number : value.toListRef())
          each.push_back(wrapped_number(number.toScalar()));
        lists.push_back(std::move(each));
      }
    }
  }
  std::vector<Tensor> results;
  for (size_t i = 0; i < lists[0].size(); ++i) {
    c10::SmallVector<Tensor, 4> inputs;
    for (const auto& list : lists) inputs.push_back(list.at(i));
    inputs.append(shared.begin(), shared.end());
    const Tensor out = outputs.empty() ? Tensor() : outputs[i];
    results.push_back(
        element(inputs, {.promotion = promotion, .real_result = result == Result::real}, out));
  }
  torch::jit::drop(*stack, arguments.size());
  if (outputs.empty()) stack->emplace_back(std::move(results));
}

template <Promotion promotion, Numbers numbers = Numbers::ignored, Result result = Result::common>
void add_rule(LayoutRegistry& registry, std::initializer_list<const char*> names,
              std::initializer_list<const char*> overloads) {
  for (const std::string name : names) {
    for (const std::string suffix : {"", "_"}) {
      for (const std::string overload : overloads) {
        registry.add("aten::_foreach_" + name + suffix + (overload.empty() ? "" : ".") + overload,
                     c10::KernelFunction::makeFromBoxedFunction<
                         &foreach_kernel<promotion, numbers, result>>());
      }
    }
  }
}

std::vector<Tensor> foreach_norm(Tensors self, const Scalar&, Dtype dtype) {
  std::vector<Tensor> results;
  for (const Tensor& tensor : self) {
    TORCH_CHECK(at::isFloatingType(tensor.scalar_type()) || tensor.is_complex(),
                "norm of integers");
    results.push_back(empty({}, c10::toRealValueType(dtype.value_or(tensor.scalar_type()))));
  }
  return results;
}

std::vector<Tensor> foreach_clone(Tensors self, Format format) {
  std::vector<Tensor> results;
  for (const Tensor& tensor : self) results.push_back(dense_like(tensor, std::nullopt, format));
  return results;
}

std::vector<Tensor> foreach_mm(Tensors self, Tensors mat2) {
  TORCH_CHECK(self.size() == mat2.size(), "_foreach_mm: lists differ in length");
  std::vector<Tensor> results;
  for (size_t i = 0; i < self.size(); ++i) results.push_back(at::meta::mm(self[i], mat2[i]));
  return results;
}

std::vector<Tensor> foreach_max(Tensors self) {
  std::vector<Tensor> results;
  for (const Tensor& tensor : self) {
    TORCH_CHECK(tensor.numel() > 0 && !tensor.is_complex(), "max of an empty or complex tensor");
    results.push_back(empty({}, tensor.scalar_type()));
  }
  return results;
}

// In-place operators over lists whose elements may have any layout: only the lengths matter.
void without_results(const c10::OperatorHandle& op, c10::DispatchKeySet, c10::Stack* stack) {
  const size_t count = op.schema().arguments().size();
  check_lengths(op.schema(), torch::jit::last(*stack, count));
  torch::jit::drop(*stack, count);
}

// The lists of a fused optimizer may be empty (no momentum, no maximum): nothing is checked here.
void fused_step(const c10::OperatorHandle& op, c10::DispatchKeySet, c10::Stack* stack) {
  torch::jit::drop(*stack, op.schema().arguments().size());
}

}  // namespace
}  // namespace layout

void add_foreach_layouts(LayoutRegistry& registry) {
  using layout::add_rule;
  using layout::Numbers;
  using layout::Promotion;
  using layout::Result;
  const auto operand_overloads = {"List", "Scalar", "ScalarList", "Tensor"};
  add_rule<Promotion::common, Numbers::operand>(
      registry, {"add", "sub", "mul", "maximum", "minimum", "clamp_min", "clamp_max", "pow"},
      operand_overloads);
  add_rule<Promotion::floating, Numbers::operand>(registry, {"div"}, operand_overloads);
  add_rule<Promotion::common>(registry, {"addcmul", "addcdiv"}, {"Scalar", "ScalarList", "Tensor"});
  add_rule<Promotion::none>(registry, {"lerp"}, {"List", "Scalar", "ScalarList"});
  add_rule<Promotion::none>(registry, {"ceil", "floor", "round", "trunc", "frac", "neg", "sign"},
                            {""});
  add_rule<Promotion::none, Numbers::ignored, Result::real>(registry, {"abs"}, {""});
  add_rule<Promotion::floating>(
      registry, {"acos",    "asin",   "atan", "cos",   "cosh",  "erf",  "erfc",       "exp",
                 "expm1",   "lgamma", "log",  "log10", "log1p", "log2", "reciprocal", "rsqrt",
                 "sigmoid", "sin",    "sinh", "sqrt",  "tan",   "tanh"},
      {""});
  registry.add("aten::_foreach_norm.Scalar",
               c10::KernelFunction::makeFromUnboxedRuntimeFunction(&layout::foreach_norm));
  registry.add("aten::_foreach_clone",
               c10::KernelFunction::makeFromUnboxedRuntimeFunction(&layout::foreach_clone));
  registry.add("aten::_foreach_mm",
               c10::KernelFunction::makeFromUnboxedRuntimeFunction(&layout::foreach_mm));
  registry.add("aten::_foreach_max",
               c10::KernelFunction::makeFromUnboxedRuntimeFunction(&layout::foreach_max));
  for (const char* name : {"aten::_foreach_copy_", "aten::_foreach_zero_"}) {
    registry.add(name, c10::KernelFunction::makeFromBoxedFunction<&layout::without_results>());
  }
  for (const char* name :
       {"aten::_fused_adam_", "aten::_fused_adam_.tensor_lr", "aten::_fused_adamw_",
        "aten::_fused_adamw_.tensor_lr", "aten::_fused_sgd_", "aten::_fused_sgd_.tensor_lr",
        "aten::_fused_adagrad_", "aten::_fused_adagrad_.tensor_lr"}) {
    registry.add(name, c10::KernelFunction::makeFromBoxedFunction<&layout::fused_step>());
  }
}

}  // namespace torch_lazy
