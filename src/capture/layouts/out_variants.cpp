// Layouts of out= operators without a Meta kernel of their own: the functional operator's results
// tell to which sizes the out tensors are resized.
#include "capture/layouts/support.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <string>

namespace torch_lazy {
namespace layout {
namespace {

// "correction_out" belongs to "correction"; "out", "values" and the like to the overload without a
// name.
c10::OperatorName functional_name(const c10::OperatorName& name) {
  constexpr std::string_view suffix = "_out";
  const std::string& overload = name.overload_name;
  const bool named = overload.size() > suffix.size() && overload.ends_with(suffix);
  c10::OperatorName functional(
      name.name, named ? overload.substr(0, overload.size() - suffix.size()) : std::string());
  if (LayoutRegistry::instance().find(functional) == nullptr) functional.overload_name.clear();
  return functional;
}

void resize_like(Tensor& out, const Tensor& result) {
  at::assert_no_internal_overlap(out);  // eager looks before it resizes
  TORCH_CHECK(out.scalar_type() == result.scalar_type(), "out= of another dtype");
  if (out.sizes() == result.sizes()) return;
  TORCH_CHECK(result.is_contiguous(), "out= would be resized to strides that are not known");
  resize_out(out, result.sizes());
}

void out_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys, c10::Stack* stack) {
  const c10::OperatorName name = functional_name(op.operator_name());
  const c10::KernelFunction* kernel = LayoutRegistry::instance().find(name);
  TORCH_CHECK(kernel != nullptr, "no layout function for ", name);
  const auto functional =
      c10::Dispatcher::singleton().findSchemaOrThrow(name.name.c_str(), name.overload_name.c_str());

  const size_t count = op.schema().arguments().size();
  const size_t outs = op.schema().returns().size();
  const auto arguments = torch::jit::last(*stack, count);
  c10::Stack functional_stack(arguments.begin(), arguments.end() - static_cast<int64_t>(outs));
  if (functional_stack.size() < functional.schema().arguments().size()) {
    // Factories take dtype, layout, device and pin_memory instead of an out tensor.
    functional_stack.emplace_back(arguments[count - 1].toTensor().scalar_type());
    functional_stack.resize(functional.schema().arguments().size());
  }
  kernel->callBoxed(functional, keys, &functional_stack);
  TORCH_CHECK(functional_stack.size() == outs, "out= and functional operators differ in results");

  c10::Stack results;
  for (size_t i = 0; i < outs; ++i) {
    Tensor out = arguments[count - outs + i].toTensor();
    resize_like(out, functional_stack[i].toTensor());
    results.emplace_back(std::move(out));
  }
  torch::jit::drop(*stack, count);
  for (auto& result : results) stack->push_back(std::move(result));
}

}  // namespace
}  // namespace layout

void add_out_layouts(LayoutRegistry& registry) {
  for (const char* name : {"aten::addbmm.out",
                           "aten::addr.out",
                           "aten::bucketize.Tensor_out",
                           "aten::cummax.out",
                           "aten::cummin.out",
                           "aten::dot.out",
                           "aten::full.out",
                           "aten::index_select.out",
                           "aten::kthvalue.values",
                           "aten::linspace.Tensor_Tensor_out",
                           "aten::linspace.Tensor_Scalar_out",
                           "aten::linspace.Scalar_Tensor_out",
                           "aten::logcumsumexp.out",
                           "aten::logspace.Tensor_Tensor_out",
                           "aten::logspace.Tensor_Scalar_out",
                           "aten::logspace.Scalar_Tensor_out",
                           "aten::logsumexp.out",
                           "aten::max.unary_out",
                           "aten::min.unary_out",
                           "aten::mean.dtype_out",
                           "aten::mode.values",
                           "aten::mv.out",
                           "aten::nansum.out",
                           "aten::narrow_copy.out",
                           "aten::ones.out",
                           "aten::zeros.out",
                           "aten::searchsorted.Tensor_out",
                           "aten::sort.values",
                           "aten::stack.out",
                           "aten::_stack.out",
                           "aten::std.correction_out",
                           "aten::var.correction_out",
                           "aten::take.out",
                           "aten::where.self_out",
                           "aten::histc.out",
                           "aten::_fft_c2c.out",
                           "aten::_fft_r2c.out",
                           "aten::_fft_c2r.out",
                           "aten::cholesky.out"}) {
    registry.add(name, c10::KernelFunction::makeFromBoxedFunction<&layout::out_kernel>());
  }
}

}  // namespace torch_lazy
