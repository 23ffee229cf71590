// Layouts of results: from a layout function, from a custom operator's Meta kernel, or as observed.
#include "base/hash.h"
#include "base/warnings.h"
#include "capture/call.h"
#include "capture/layouts/registry.h"
#include "capture/tensor.h"
#include "runtime/real_tensor.h"
#include <torch_lazy/backend.h>

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/native/TypeProperties.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/StorageImpl.h>

namespace torch_lazy {
namespace {

/// Meta tensors that stand for lazy ones; tensors that share memory share it here too.
class MetaWorld {
 public:
  /// Operands of another type than this are converted first, as the CPU's kernels do.
  std::optional<at::ScalarType> common_dtype;

  at::Tensor stand_in(const at::Tensor& lazy) {
    if (common_dtype && lazy.scalar_type() != *common_dtype &&
        !lazy.is_non_overlapping_and_dense()) {
      operands.push_back(
          at::empty_strided(lazy.sizes(), at::infer_dense_strides(lazy.sizes(), lazy.strides()),
                            at::TensorOptions().dtype(*common_dtype).device(at::kMeta)));
      return operands.back();
    }
    const c10::StorageImpl* original = lazy.storage().unsafeGetStorageImpl();
    c10::Storage storage;
    for (const auto& [from, to] : storages_) {
      if (from == original) {
        storage = to;
      }
    }
    if (!storage) {
      storage = c10::Storage(c10::make_intrusive<c10::StorageImpl>(
          c10::StorageImpl::use_byte_size_t(), lazy.storage().nbytes(),
          c10::DataPtr(nullptr, at::Device(at::kMeta)), c10::GetAllocator(at::kMeta),
          /*resizable=*/true));
      storages_.emplace_back(original, storage);
    }
    auto impl = c10::make_intrusive<c10::TensorImpl>(
        std::move(storage), c10::DispatchKeySet(c10::DispatchKey::Meta), lazy.dtype());
    impl->set_sizes_and_strides(lazy.sizes(), lazy.strides(), lazy.storage_offset());
    impl->_set_conj(lazy.is_conj());
    impl->_set_neg(lazy.is_neg());
    at::Tensor meta(std::move(impl));
    if (lazy.unsafeGetTensorImpl()->is_wrapped_number()) {
      meta.unsafeGetTensorImpl()->set_wrapped_number(true);
    }
    operands.push_back(meta);
    return meta;
  }

  std::vector<at::Tensor> operands;  // in the order of the call's tensors

 private:
  std::vector<std::pair<const c10::StorageImpl*, c10::Storage>> storages_;
};

bool is_operand(const c10::IValue& value) {
  if (!value.isTensor() || !value.toTensor().defined()) {
    return false;
  }
  const at::Tensor& t = value.toTensor();
  return is_lazy(t) || t.dim() > 0;
}

Stack meta_arguments(const Call& call, MetaWorld& world) {
  Stack stack;
  for (const c10::IValue& value : call.arguments) {
    if (is_operand(value)) {
      stack.emplace_back(world.stand_in(value.toTensor()));
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const c10::IValue& element : value.toListRef()) {
        list.push_back(is_operand(element) ? world.stand_in(element.toTensor())
                                           : element.toTensor());
      }
      stack.emplace_back(std::move(list));
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const c10::IValue& element : value.toListRef()) {
        if (element.isNone()) {
          list.push_back(std::nullopt);
        } else {
          list.push_back(is_operand(element) ? world.stand_in(element.toTensor())
                                             : element.toTensor());
        }
      }
      stack.emplace_back(std::move(list));
    } else if (value.isDevice() && value.toDevice().type() == at::kLazy) {
      stack.emplace_back(at::Device(at::kMeta));
    } else {
      stack.push_back(value);
    }
  }
  return stack;
}

/// A device among the attributes means the real one when the node is executed.
void translate_devices(std::vector<ArgumentSource>& sources, at::Device real) {
  for (ArgumentSource& source : sources) {
    if (source.kind == ArgumentSource::Kind::constant && source.value.isDevice() &&
        source.value.toDevice().type() == at::kLazy) {
      source.value = real;
    }
  }
}

bool is_plain(const at::Tensor& t) {
  return t.layout() == at::kStrided && !t.is_quantized() && !t.is_nested() && !t._is_zerotensor() &&
         t.unsafeGetTensorImpl()->has_storage();
}

/// Whether the tensor lies inside its memory. Meta's resize_ leaves one that does not where its
/// bytes are more than a number can say; the real operator then raises eager's error.
bool fits_storage(const at::Tensor& t) {
  try {
    return bytes_spanned(t.sizes(), t.strides(), t.storage_offset(), t.scalar_type()) <=
           static_cast<int64_t>(t.storage().nbytes());
  } catch (const c10::Error&) {
    return false;
  }
}

/// Describes results that `operands` (stand-ins or real tensors, in order) led to.
class ResultReader {
 public:
  ResultReader(const Call& call, Description& description)
      : call_(call), description_(description) {}

  bool read(const Stack& results) {
    for (size_t i = 0; i < results.size(); ++i) {
      if (!read(results[i], call_.op.returns[i])) {
        return false;
      }
    }
    return true;
  }

 private:
  bool read(const c10::IValue& value, const ReturnInfo& info) {
    ReturnSource source;
    if (info.kind == ReturnInfo::Kind::written) {
      source.kind = ReturnSource::Kind::argument;
      source.index = info.argument;
    } else if (info.kind == ReturnInfo::Kind::view ||
               (call_.op.returns_alias_unannotated && value.isTensor())) {
      source.kind = value.isTensor() ? ReturnSource::Kind::view : ReturnSource::Kind::view_list;
      source.index = std::max(info.argument, 0);
      if (!call_.arguments[source.index].isTensor() ||
          (!value.isTensor() && !value.isTensorList())) {
        return false;
      }
      for (const at::Tensor& t : tensors_of(value)) {
        if (!t.defined() || !is_plain(t)) {
          return false;
        }
        source.views.push_back(Layout::of(t));
      }
    } else if (value.isTensor() && !value.toTensor().defined()) {
      source.kind = ReturnSource::Kind::undefined;
    } else if (value.isTensor() || value.isTensorList()) {
      source.kind = value.isTensor() ? ReturnSource::Kind::fresh : ReturnSource::Kind::fresh_list;
      source.index = static_cast<int>(description_.fresh.size());
      std::vector<at::Tensor> tensors = tensors_of(value);
      source.count = static_cast<int>(tensors.size());
      for (const at::Tensor& t : tensors) {
        if (!t.defined() || !is_plain(t) || !fits_storage(t)) {
          return false;
        }
        description_.fresh.push_back({Layout::of(t), static_cast<int64_t>(t.storage().nbytes())});
      }
    } else if (value.isNone() || value.isInt()) {
      source.value = value;
    } else {
      return false;
    }
    description_.returns.push_back(std::move(source));
    return true;
  }

  static std::vector<at::Tensor> tensors_of(const c10::IValue& value) {
    return value.isTensor() ? std::vector<at::Tensor>{value.toTensor()} : value.toTensorVector();
  }

  const Call& call_;
  Description& description_;
};

DescriptionPtr begin(const Call& call) {
  auto description = c10::make_intrusive<Description>();
  description->op = &call.op;
  description->key = call.key;
  description->hash = hash_words(call.key);
  description->arguments = argument_sources(call);
  translate_devices(description->arguments, real_device());
  for (const at::Tensor* tensor : call.tensors) {
    description->operands.push_back(Layout::of(*tensor));
  }
  description->numbers = static_cast<int>(call.numbers.size());
  description->writes = written_operands(call);
  description->device = std::max<c10::DeviceIndex>(call.device, 0);
  description->default_dtype = c10::get_default_dtype_as_scalartype();
  return description;
}

/// The type in which a pointwise operator computes, if some operand would be converted to it in a
/// way that shows in the result's strides: the CPU's kernels convert operands that are not dense
/// into dense copies, which Meta kernels do not know.
std::optional<at::ScalarType> converted_to(const Call& call, const Description& description) {
  if (!real_device().is_cpu() || !call.op.pointwise || description.fresh.size() != 1 ||
      !description.writes.empty()) {
    return std::nullopt;
  }
  at::ScalarType dtype = description.fresh[0].layout.dtype;
  if (dtype == at::kBool) {
    at::native::ResultTypeState state;  // a comparison
    for (const at::Tensor* tensor : call.tensors) {
      state = at::native::update_result_type_state(*tensor, state);
    }
    dtype = at::native::result_type(state);
  }
  bool shows = false;
  for (const at::Tensor* tensor : call.tensors) {
    if (c10::promoteTypes(tensor->scalar_type(), dtype) != dtype) {
      return std::nullopt;  // the magnitude of complex numbers: nothing is converted
    }
    shows |= tensor->scalar_type() != dtype && !tensor->is_non_overlapping_and_dense();
  }
  return shows ? std::optional<at::ScalarType>(dtype) : std::nullopt;
}

/// Whether the call writes memory through several elements at once, or beside another operand.
bool writes_overlap(const Call& call, const Description& description) {
  for (const Write& write : description.writes) {
    const at::Tensor& written = *call.tensors[write.operand];
    if (at::has_internal_overlap(written) == at::MemOverlap::Yes) {
      return true;
    }
    for (const at::Tensor* other : call.tensors) {
      if (is_lazy(*other) &&
          at::get_overlap_status(written, *other) == at::MemOverlapStatus::Partial) {
        return true;
      }
    }
  }
  return false;
}

/// Whether the Meta kernel of an operator that is not aten's is to be believed. PyTorch's own ones
/// for quantized operators give wrong dtypes, and read sizes that a tensor does not have.
bool has_true_meta_kernel(const c10::OperatorHandle& op) {
  const std::string& name = op.operator_name().name;
  return !name.starts_with("quantized::") && !name.starts_with("_quantized::") &&
         op.hasComputedKernelForDispatchKey(c10::DispatchKey::Meta);
}

bool run_layout_function(const Call& call, MetaWorld& world, Stack& stack) {
  try {
    BelowEverything below;
    stack = meta_arguments(call, world);
    constexpr c10::DispatchKeySet meta(c10::DispatchKey::Meta);
    if (const c10::KernelFunction* layout =
            LayoutRegistry::instance().find(call.op.handle.schema().operator_name())) {
      layout->callBoxed(call.op.handle, meta, &stack);
      return true;
    }
    if (!call.op.aten && has_true_meta_kernel(call.op.handle)) {
      call.op.handle.redispatchBoxed(meta, &stack);
      return true;
    }
    return false;  // an aten operator without a layout function: what it gives is observed
  } catch (const std::exception&) {
    return false;  // the real operator works, or raises eager's own message
  }
}

}  // namespace

DescriptionPtr infer(const Call& call) {
  DescriptionPtr description = begin(call);
  if (writes_overlap(call, *description)) {
    return nullptr;  // some operators refuse that, some do it: let the real one say
  }
  MetaWorld world;
  Stack stack;
  CollectedWarnings collected;
  if (!run_layout_function(call, world, stack)) {
    return nullptr;
  }
  description->warnings = std::move(collected.warnings);  // with equal ones, of two results
  if (!ResultReader(call, *description).read(stack)) {
    return nullptr;
  }
  if (std::optional<at::ScalarType> dtype = converted_to(call, *description)) {
    MetaWorld converted;
    converted.common_dtype = dtype;
    if (run_layout_function(call, converted, stack)) {
      description->fresh.clear();
      description->returns.clear();
      ResultReader(call, *description).read(stack);
    }
  }
  for (const Write& write : description->writes) {
    const at::Tensor& after = world.operands[write.operand];
    if (!description->operands[write.operand].matches(after)) {
      if (!fits_storage(after)) {
        return nullptr;
      }
      description->resizes.push_back(
          {write.operand, Layout::of(after), static_cast<int64_t>(after.storage().nbytes())});
    }
  }
  return description;
}

DescriptionPtr observe(const Call& call, const Stack& results) {
  DescriptionPtr description = begin(call);
  return ResultReader(call, *description).read(results) ? description : nullptr;
}

}  // namespace torch_lazy
