// Arguments converted to a wider dtype, and results converted back.
#include "runtime/wider.h"

#include "base/metrics.h"
#include "runtime/real_tensor.h"
#include <torch_lazy/backend.h>

#include <ATen/ATen.h>
#include <ATen/native/Resize.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace torch_lazy {
namespace {

using torch::jit::Stack;

struct Widening {
  at::ScalarType from;
  at::ScalarType to;
};

/// Operators that CUDA computes on integers. Others refuse integers on every device.
constexpr std::string_view kIntegersOnCuda[] = {"aten::histc"};
/// The same for truth values.
constexpr std::string_view kBooleansOnCuda[] = {"aten::abs", "aten::trace"};

template <size_t N>
bool contains(const std::string_view (&names)[N], const OperatorInfo& op) {
  return std::find(std::begin(names), std::end(names), op.operator_name.name) != std::end(names);
}

/// Factorisations and solvers, by how their names begin: no device computes them in 16 bits.
constexpr std::string_view kLinearAlgebra[] = {
    "aten::linalg_",   "aten::_linalg_", "aten::lu_",   "aten::_lu_",  "aten::cholesky",
    "aten::_cholesky", "aten::geqrf",    "aten::orgqr", "aten::ormqr", "aten::triangular_solve",
};

bool is_linear_algebra(const OperatorInfo& op) {
  return std::any_of(
      std::begin(kLinearAlgebra), std::end(kLinearAlgebra),
      [&](std::string_view start) { return op.operator_name.name.starts_with(start); });
}

/// What the operator computes exactly as much in.
std::optional<at::ScalarType> wider(const OperatorInfo& op, at::ScalarType dtype) {
  if (is_linear_algebra(op)) {
    return std::nullopt;
  }
  switch (dtype) {
    case at::kHalf:
    case at::kBFloat16:
      return at::kFloat;
    case at::kComplexHalf:
      return at::kComplexFloat;
    case at::kBool:
      return contains(kBooleansOnCuda, op) ? std::optional(at::kByte) : std::nullopt;
    case at::kByte:
    case at::kChar:
    case at::kShort:
    case at::kInt:
    case at::kLong:
      return contains(kIntegersOnCuda, op) ? std::optional(at::kDouble) : std::nullopt;
    default:
      return std::nullopt;
  }
}

/// The dtype for which, by the words of the error, there is no kernel.
std::optional<at::ScalarType> refused_dtype(const c10::Error& error) {
  constexpr std::string_view kWords = "not implemented for '";
  const std::string text = error.what_without_backtrace();
  const size_t start = text.find(kWords);
  if (start == std::string::npos) {
    return std::nullopt;
  }
  const std::string_view name = std::string_view(text).substr(
      start + kWords.size(), text.find('\'', start + kWords.size()) - start - kWords.size());
  for (int i = 0; i < static_cast<int>(at::ScalarType::NumOptions); ++i) {
    if (name == c10::toString(static_cast<at::ScalarType>(i))) {
      return static_cast<at::ScalarType>(i);
    }
  }
  return std::nullopt;
}

/// An in-place operator may have begun to write when it refuses; a pointwise one has not.
bool can_be_repeated(const OperatorInfo& op) {
  if (!op.aten || !real_device().is_cpu() || op.only_views) {
    return false;
  }
  return !op.arguments.empty() && (!op.arguments[0].written || op.pointwise);
}

class WiderCall {
 public:
  WiderCall(const OperatorInfo& op, Widening widening) : op_(op), widening_(widening) {}

  /// False: no argument has the dtype.
  bool widen(Stack& stack) {
    if (!widen_arguments(stack) && widening_.from == at::kComplexHalf) {
      // A complex number made a call of half precision one of complex halves.
      widening_ = {at::kHalf, at::kFloat};
      widen_arguments(stack);
    }
    return any_;
  }

  void narrow(Stack& stack) {
    for (auto& [original, wide] : written_) {
      at::native::resize_output(original, wide.sizes());
      original.copy_(wide);
    }
    for (c10::IValue& value : stack) {
      if (value.isTensor()) {
        value = narrowed(value.toTensor());
      } else if (value.isTensorList()) {
        c10::List<at::Tensor> list;
        for (const c10::IValue& element : value.toListRef()) {
          list.push_back(narrowed(element.toTensor()));
        }
        value = std::move(list);
      }
    }
  }

 private:
  bool widen_arguments(Stack& stack) {
    for (size_t i = 0; i < stack.size(); ++i) {
      if (stack[i].isTensor()) {
        stack[i] = widened(stack[i].toTensor(), op_.arguments[i].written);
      } else if (stack[i].isTensorList()) {
        c10::List<at::Tensor> list;
        for (const c10::IValue& element : stack[i].toListRef()) {
          list.push_back(widened(element.toTensor(), op_.arguments[i].written));
        }
        stack[i] = std::move(list);
      }
    }
    return any_;
  }

  at::Tensor widened(const at::Tensor& tensor, bool written) {
    if (!tensor.defined() || tensor.scalar_type() != widening_.from) {
      return tensor;
    }
    any_ = true;
    at::Tensor wide = tensor.to(widening_.to);
    if (written) {
      written_.emplace_back(tensor, wide);
    }
    return wide;
  }

  at::Tensor narrowed(const at::Tensor& result) {
    for (const auto& [original, wide] : written_) {
      if (wide.is_same(result)) {
        return original;
      }
    }
    if (!result.defined()) {
      return result;
    }
    const at::ScalarType dtype = result.scalar_type();
    if (dtype == widening_.to) {
      return result.to(widening_.from);
    }
    // Complex results of real arguments, and the other way round.
    if (c10::isFloatingType(widening_.from) && dtype == c10::toComplexType(widening_.to)) {
      return result.to(c10::toComplexType(widening_.from));
    }
    if (c10::isComplexType(widening_.from) && dtype == c10::toRealValueType(widening_.to)) {
      return result.to(c10::toRealValueType(widening_.from));
    }
    return result;
  }

  const OperatorInfo& op_;
  Widening widening_;
  bool any_ = false;
  std::vector<std::pair<at::Tensor, at::Tensor>> written_;
};

}  // namespace

void call_real(const OperatorInfo& op, Stack& stack, c10::function_ref<void(Stack&)> arguments) {
  try {
    op.handle.redispatchBoxed(c10::DispatchKeySet(real_key()), &stack);
    return;
  } catch (const c10::Error& error) {
    const std::optional<at::ScalarType> refused = refused_dtype(error);
    const std::optional<at::ScalarType> to = refused ? wider(op, *refused) : std::nullopt;
    if (!to || !can_be_repeated(op)) {
      throw;
    }
    stack.clear();
    arguments(stack);
    WiderCall call(op, {*refused, *to});
    if (!call.widen(stack)) {
      throw;
    }
    const std::exception_ptr refusal = std::current_exception();
    try {
      op.handle.redispatchBoxed(c10::DispatchKeySet(real_key()), &stack);
    } catch (const c10::Error&) {
      std::rethrow_exception(refusal);  // in the words of the dtype that the program uses
    }
    call.narrow(stack);
    metrics::counter("ComputedInWiderType").add();
  }
}

}  // namespace torch_lazy
