// Casts the arguments of an operator to the type that autocast's policy asks for, and calls the
// operator again. Operators are rows of the policy (autocast_policy.cpp); the kernel is one.
#include "capture/autocast.h"

#include "base/ranked_mutex.h"
#include "base/settings.h"
#include "capture/autocast_policy.h"
#include <torch_lazy/autocast.h>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include <mutex>
#include <unordered_map>

namespace torch_lazy {
namespace {

using torch::jit::Stack;

at::ScalarType lower_precision() {
  return at::autocast::get_autocast_dtype(kLazyAutocastDeviceType);
}

bool is_eligible(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == c10::kLazy && tensor.is_floating_point() &&
         tensor.scalar_type() != at::kDouble;
}

// ---- Weights that were cast -------------------------------------------------------------------

// A weight used by several operators of a region is cast once. An entry is good for one version of
// the weight and for one grad mode: a cast made without gradients must not hide the weight from
// autograd later. The weak pointer keeps the key's address from being used for another tensor.
struct CachedCast {
  c10::weak_intrusive_ptr<c10::TensorImpl> weight;
  uint32_t version;
  at::Tensor cast;
};

struct CastCache {
  RankedMutex mutex{Rank::casts};
  std::unordered_map<const c10::TensorImpl*, CachedCast> entries;
};

CastCache& cast_cache() {
  static auto* cache = new CastCache();
  return *cache;
}

bool is_cacheable(const at::Tensor& tensor, at::ScalarType type) {
  return at::autocast::is_autocast_cache_enabled() && type == lower_precision() &&
         tensor.scalar_type() == at::kFloat && tensor.requires_grad() && tensor.is_leaf() &&
         !tensor.is_view() && !tensor.is_inference();
}

at::Tensor cached_cast(const at::Tensor& weight, at::ScalarType type) {
  CastCache& cache = cast_cache();
  const c10::TensorImpl* key = weight.unsafeGetTensorImpl();
  const auto version = static_cast<uint32_t>(weight._version());
  {
    std::lock_guard lock(cache.mutex);
    auto entry = cache.entries.find(key);
    if (entry != cache.entries.end() && entry->second.version == version &&
        entry->second.cast.scalar_type() == type &&
        entry->second.cast.requires_grad() == at::GradMode::is_enabled()) {
      return entry->second.cast;
    }
  }
  at::Tensor cast = weight.to(type);
  CachedCast fresh{c10::weak_intrusive_ptr<c10::TensorImpl>(weight.getIntrusivePtr()), version,
                   cast};
  std::lock_guard lock(cache.mutex);
  auto [entry, is_new] = cache.entries.try_emplace(key, std::move(fresh));
  if (!is_new) {
    std::swap(entry->second, fresh);  // the old entry is freed after the lock
  }
  return cast;
}

at::Tensor cast_to(const at::Tensor& tensor, at::ScalarType type) {
  if (!is_eligible(tensor) || tensor.scalar_type() == type) {
    return tensor;
  }
  return is_cacheable(tensor, type) ? cached_cast(tensor, type) : tensor.to(type);
}

// ---- Arguments --------------------------------------------------------------------------------

template <class Function>
void for_each_tensor(c10::ArrayRef<c10::IValue> arguments, Function&& function) {
  for (const c10::IValue& argument : arguments) {
    if (argument.isTensor()) {
      function(argument.toTensor());
    } else if (argument.isTensorList()) {
      for (const at::Tensor& tensor : argument.toTensorList()) {
        function(tensor);
      }
    }
  }
}

/// Lists of optional tensors are left alone: they are indices.
void cast_argument(c10::IValue& argument, at::ScalarType type) {
  if (argument.isTensor()) {
    argument = cast_to(argument.toTensor(), type);
  } else if (argument.isTensorList()) {
    c10::List<at::Tensor> casts;
    for (const at::Tensor& tensor : argument.toTensorList()) {
      casts.push_back(cast_to(tensor, type));
    }
    argument = std::move(casts);
  }
}

void cast_arguments(const c10::OperatorHandle& op, Stack* stack, at::ScalarType type) {
  for (auto argument = stack->end() - op.schema().arguments().size(); argument != stack->end();
       ++argument) {
    cast_argument(*argument, type);
  }
}

/// float if any eligible argument is, else the region's type.
at::ScalarType widest_type(const c10::OperatorHandle& op, const Stack& stack) {
  at::ScalarType widest = lower_precision();
  for_each_tensor(
      torch::jit::last(stack, op.schema().arguments().size()), [&](const at::Tensor& tensor) {
        if (!is_eligible(tensor)) {
          return;
        }
        const at::ScalarType type = tensor.scalar_type();
        TORCH_CHECK(type == at::kFloat || type == lower_precision(), "autocast(\"lazy\", ",
                    lower_precision(), "): ", op.schema().name(), " got a tensor of type ", type,
                    ", and only ", lower_precision(), " and Float can be mixed here");
        if (type == at::kFloat) {
          widest = at::kFloat;
        }
      });
  return widest;
}

// ---- Kernel -----------------------------------------------------------------------------------

bool first_is_eligible(const c10::OperatorHandle& op, const Stack& stack) {
  const c10::IValue& first = torch::jit::peek(stack, 0, op.schema().arguments().size());
  return first.isTensor() && is_eligible(first.toTensor());
}

/// A result type that the caller left open becomes float.
void set_result_type(const c10::OperatorHandle& op, Stack* stack) {
  const size_t count = op.schema().arguments().size();
  const int index = op.schema().argumentIndexWithName("dtype").value();
  c10::IValue& dtype = torch::jit::peek(*stack, index, count);
  if (dtype.isNone()) {
    dtype = at::kFloat;
  }
}

/// norm's overloads without a result type are called as those that have one.
void call_with_result_type(const c10::OperatorHandle& op, Stack* stack) {
  const bool has_dimensions = op.schema().overload_name() == "ScalarOpt_dim";
  const auto& first = torch::jit::peek(*stack, 0, op.schema().arguments().size()).toTensor();
  const at::ScalarType type = is_eligible(first) ? at::kFloat : first.scalar_type();
  stack->emplace_back(type);
  c10::Dispatcher::singleton()
      .findSchemaOrThrow("aten::norm", has_dimensions ? "ScalarOpt_dim_dtype" : "ScalarOpt_dtype")
      .callBoxed(stack);
}

class AutocastKernel : public c10::OperatorKernel {
 public:
  explicit AutocastKernel(AutocastRule rule) : rule_(rule) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) const {
    c10::impl::ExcludeDispatchKeyGuard no_autocast(kLazyAutocastKey);
    switch (settings().cuda ? rule_.cuda : rule_.cpu) {
      case Cast::none:
        break;
      case Cast::lower_precision:
        cast_arguments(op, stack, lower_precision());
        break;
      case Cast::to_float:
        cast_arguments(op, stack, at::kFloat);
        break;
      case Cast::promote:
        cast_arguments(op, stack, widest_type(op, *stack));
        break;
      case Cast::float_result:
        if (first_is_eligible(op, *stack)) {
          set_result_type(op, stack);
        }
        break;
      case Cast::norm_float_result:
        call_with_result_type(op, stack);
        return;
      case Cast::refuse:
        TORCH_CHECK(false, op.schema().name(),
                    " is unsafe under autocast: its logarithms overflow in ", lower_precision(),
                    ". Use binary_cross_entropy_with_logits (BCEWithLogitsLoss), or ",
                    "call it in a region with autocast disabled, on float tensors.");
    }
    op.callBoxed(stack);
  }

 private:
  AutocastRule rule_;
};

TORCH_LIBRARY_IMPL(_, AutocastIPU, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, AutocastIPU, m) {
  for (const auto& [name, rule] : autocast_policy()) {
    m.impl(name.c_str(),
           torch::CppFunction::makeFromBoxedFunctor(std::make_unique<AutocastKernel>(rule)));
  }
}

}  // namespace

void add_autocast_key(const at::Tensor& tensor) {
  // TensorImpl gives its key set away only to classes derived from it.
  struct Access : c10::TensorImpl {
    static auto key_set() { return &Access::key_set_; }
  };
  c10::DispatchKeySet& keys = tensor.unsafeGetTensorImpl()->*Access::key_set();
  keys = keys.add(kLazyAutocastKey);
}

void clear_autocast_cache() {
  decltype(CastCache::entries) dropped;  // tensors are freed after the lock is released
  CastCache& cache = cast_cache();
  std::lock_guard lock(cache.mutex);
  dropped.swap(cache.entries);
}

Autocast::Autocast(at::ScalarType dtype, bool enabled, bool cache_enabled)
    : previous_dtype_(lower_precision()),
      previous_enabled_(at::autocast::is_autocast_enabled(kLazyAutocastDeviceType)),
      previous_cache_enabled_(at::autocast::is_autocast_cache_enabled()) {
  at::autocast::set_autocast_dtype(kLazyAutocastDeviceType, dtype);
  at::autocast::set_autocast_enabled(kLazyAutocastDeviceType, enabled);
  at::autocast::set_autocast_cache_enabled(cache_enabled);
  at::autocast::increment_nesting();
}

Autocast::~Autocast() {
  if (at::autocast::decrement_nesting() == 0) {
    at::autocast::clear_cache();
    clear_autocast_cache();
  }
  at::autocast::set_autocast_cache_enabled(previous_cache_enabled_);
  at::autocast::set_autocast_enabled(kLazyAutocastDeviceType, previous_enabled_);
  at::autocast::set_autocast_dtype(kLazyAutocastDeviceType, previous_dtype_);
}

}  // namespace torch_lazy
