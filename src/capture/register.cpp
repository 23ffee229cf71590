// Registers the boxed kernel: as the fallback for every operator, and by name for operators that
// PyTorch would otherwise take apart before we see them.
#include "capture/register.h"

#include "capture/capture.h"
#include "capture/layouts/registry.h"
#include "capture/tensor.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace torch_lazy {
namespace {

/// Composite operators that read memory by its address, or call a kernel of the tensor's device
/// past the dispatcher, which has none for ours. All overloads of a name, or one.
constexpr std::string_view kReadsMemory[] = {
    "aten::_batch_norm_no_update",
    "aten::_grid_sampler_2d_cpu_fallback",
    "aten::_grid_sampler_2d_cpu_fallback_backward",
    "aten::_grouped_mm",  // for its alignment
    "aten::_reshape_from_tensor",
    "aten::_saturate_weight_to_fp16",
    "aten::_sobol_engine_draw",
    "aten::_sobol_engine_ff_",
    "aten::_sobol_engine_initialize_state_",
    "aten::_sobol_engine_scramble_",
    "aten::choose_qparams_optimized",
    "aten::fbgemm_linear_fp16_weight",
    "aten::fbgemm_linear_fp16_weight_fp32_activation",
    "aten::fbgemm_linear_int8_weight",
    "aten::fbgemm_linear_int8_weight_fp32_activation",
    "aten::fbgemm_linear_quantize_weight",
    "aten::fbgemm_pack_gemm_matrix_fp16",
    "aten::fbgemm_pack_quantized_matrix",
    "aten::kaiser_window",
    "aten::range.out_",
};

bool is_explicit_composite(const c10::OperatorHandle& op) {
  using c10::DispatchKey;
  return op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) ||
         op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutogradNonFunctional);
}

/// Kept whole: what reads memory, what has a kernel of the CPU's own besides the composite one
/// (eager uses that), and composite operators for which we have a layout function.
bool keep_whole(const c10::OperatorHandle& op) {
  using c10::DispatchKey;
  if (op.hasKernelForDispatchKey(DispatchKey::Lazy)) {
    return false;
  }
  const bool explicit_composite = is_explicit_composite(op);
  const bool implicit_composite =
      op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd);
  if (!explicit_composite && !implicit_composite) {
    return false;  // the fallback sees it anyway
  }
  const std::string overload = c10::toString(op.operator_name());
  if (op.hasKernelForDispatchKey(DispatchKey::CPU) ||
      std::any_of(std::begin(kReadsMemory), std::end(kReadsMemory), [&](std::string_view name) {
        return name == op.operator_name().name || name == overload;
      })) {
    return true;
  }
  if (op.operator_name().name.rfind("aten::empty", 0) == 0) {
    return false;  // makes memory, computes nothing: no node
  }
  const OperatorInfo& info = operator_info(op);
  return explicit_composite && !info.only_views && info.immediate == Immediate::no &&
         LayoutRegistry::instance().find(op.operator_name()) != nullptr;
}

bool is_device(const c10::Argument& argument) {
  return argument.type()->isSubtypeOf(*c10::OptionalType::create(c10::DeviceObjType::get()));
}

/// Whether a factory that takes a tensor (zeros_like, new_full) was asked for another device.
bool is_elsewhere(const c10::OperatorHandle& op, const Stack& stack) {
  std::optional<at::Device> asked;
  std::optional<at::Device> own;
  const size_t count = op.schema().arguments().size();
  for (size_t i = stack.size() - count; i < stack.size(); ++i) {
    const c10::IValue& value = stack[i];
    if (value.isDevice()) {
      asked = value.toDevice();
    } else if (value.isTensor() && !own && is_lazy(value.toTensor())) {
      own = value.toTensor().device();
    }
  }
  return asked && own &&
         (asked->type() != at::kLazy || (asked->has_index() && asked->index() != own->index()));
}

/// Results on another device than the tensor's are made by PyTorch's own composition.
void capture_factory(const c10::OperatorHandle& op, Stack* stack) {
  if (is_elsewhere(op, *stack)) {
    return op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  }
  capture(op, stack);
}

/// Composite, so that its kernel for the CPU takes tensors of any device.
bool is_factory(const c10::OperatorHandle& op) {
  const auto& arguments = op.schema().arguments();
  return is_explicit_composite(op) && !op.hasKernelForDispatchKey(c10::DispatchKey::CPU) &&
         std::any_of(arguments.begin(), arguments.end(), is_device);
}

void register_kept_whole(torch::Library& library) {
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    auto op = dispatcher.findSchema(name);
    if (name.name.rfind("aten::", 0) == 0 && op && keep_whole(*op)) {
      std::string text = c10::toString(name).substr(6);
      library.impl(text.c_str(), is_factory(*op)
                                     ? torch::CppFunction::makeFromBoxedFunction<&capture_factory>()
                                     : torch::CppFunction::makeFromBoxedFunction<&capture>());
    }
  }
}

/// Sparse, quantized and nested tensors have no place on the device; PyTorch's own words for that
/// name dispatch keys, ours name the mistake.
void refuse(const c10::OperatorHandle& op, Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "torch-lazy: ", c10::toString(op.operator_name()),
      " was called with, or would give, a sparse, quantized or nested tensor; device lazy holds "
      "plain strided tensors only. Call it on the CPU: tensor.cpu()");
}

torch::Library& library_for(const char* space, c10::DispatchKey key) {
  // Registrations last as long as the process: tensors may die after static objects.
  static auto* libraries = new std::vector<std::unique_ptr<torch::Library>>();
  libraries->push_back(std::make_unique<torch::Library>(torch::Library::IMPL, space, key, __FILE__,
                                                        static_cast<uint32_t>(__LINE__)));
  return *libraries->back();
}

const bool registered = [] {
  torch::Library& lazy = library_for("aten", c10::DispatchKey::Lazy);
  register_kernels(lazy);
  register_views(lazy);
  register_linear(lazy);
  register_composites(lazy);
  register_transforms(lazy);
  register_basic_transforms(lazy);
  torch::Library& autograd = library_for("aten", c10::DispatchKey::AutogradLazy);
  register_composites(autograd);
  register_transforms(autograd);
  register_differentiable_linear(autograd);
  for (const char* name :
       {"_nested_tensor_from_tensor_list", "_nested_tensor_from_mask", "_nested_from_padded"}) {
    lazy.impl(name, torch::CppFunction::makeFromBoxedFunction<&refuse>());
  }
  register_kept_whole(lazy);  // after the others: it takes only what they left
  library_for("_", c10::DispatchKey::Lazy)
      .fallback(torch::CppFunction::makeFromBoxedFunction<&capture>());
  for (c10::DispatchKey key :
       {c10::DispatchKey::SparseLazy, c10::DispatchKey::SparseCsrLazy,
        c10::DispatchKey::QuantizedLazy, c10::DispatchKey::NestedTensorLazy}) {
    library_for("_", key).fallback(torch::CppFunction::makeFromBoxedFunction<&refuse>());
  }
  return true;
}();

}  // namespace
}  // namespace torch_lazy
