// The key of a call: every fact on which its results' layouts, and the meaning of its node, depend.
#include "base/hash.h"
#include "base/settings.h"
#include "capture/call.h"
#include "capture/misfits.h"
#include "capture/tensor.h"

#include <ATen/ATen.h>
#include <c10/core/DefaultDtype.h>
#include <c10/util/Exception.h>
#include <c10/util/flat_hash_map.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string_view>

namespace torch_lazy {
namespace {

// Tags that keep different kinds of arguments apart.
enum Tag : uint64_t {
  kNone = 1,
  kUndefined,
  kLazyTensor,
  kConstantTensor,
  kScalarTensor,
  kInt,
  kBool,
  kDouble,
  kString,
  kDevice,
  kIntList,
  kBoolList,
  kDoubleList,
  kTensorList,
  kGenericList,
  kNumber,
  kNumberList,
};

uint64_t word_of(double value) {
  uint64_t word;
  std::memcpy(&word, &value, sizeof(word));
  return word;
}

uint64_t number_kind(const c10::IValue& value) {
  return value.isInt() ? 1 : value.isDouble() ? 2 : value.isBool() ? 3 : 4;
}

// Values of one class are treated alike by every kernel that looks at a number.
uint64_t number_class(const c10::IValue& value) {
  if (value.isComplexDouble()) {
    return kClassUnknown;
  }
  double number = value.isInt()      ? static_cast<double>(value.toInt())
                  : value.isDouble() ? value.toDouble()
                                     : static_cast<double>(value.toBool());
  if (std::isnan(number)) {
    return kClassNaN;
  }
  if (std::isinf(number)) {
    return number > 0 ? kClassInfinity : kClassMinusInfinity;
  }
  for (uint64_t i = 0; i < 4; ++i) {
    if (number == static_cast<double>(i)) {
      return kClassZero + i;
    }
  }
  if (number == 0.5) {
    return kClassHalf;
  }
  return kClassOther +
         (number < 0   ? 0
          : number < 1 ? 1
                       : 2) +
         (number == std::trunc(number) ? 16 : 0);
}

/// What of a number's value is part of the graph.
uint64_t class_under(NumberPolicy policy, const c10::IValue& value) {
  switch (policy) {
    case NumberPolicy::by_class:
      return number_class(value);
    case NumberPolicy::factor:
      return (value.isInt() && value.toInt() == 1) || (value.isDouble() && value.toDouble() == 1)
                 ? kClassOne
                 : kClassUnknown;
    default:
      return kClassUnknown;
  }
}

/// A number that many programs use and a compiler can do something with: 0, 1, -1.
bool is_special(const c10::IValue& value) {
  const Settings& s = settings();
  if (!s.handle_special_scalars.load(std::memory_order_relaxed)) {
    return false;
  }
  if (s.all_numbers_special_scalars.load(std::memory_order_relaxed)) {
    return true;
  }
  const double number = value.isInt()      ? static_cast<double>(value.toInt())
                        : value.isDouble() ? value.toDouble()
                                           : 2;
  return number == 0 || std::abs(number) == 1;
}

/// Whether a number is an input of the graph; otherwise it is part of it.
bool travels(const c10::IValue& value, const ArgumentInfo& info) {
  return value.isScalar() && info.policy != NumberPolicy::attribute && !is_special(value);
}

[[noreturn]] void raise_mixed_devices(const Call& call, c10::DeviceIndex device,
                                      const at::Tensor& t) {
  TORCH_CHECK(false,
              "Expected all tensors to be on the same device, but found at least two "
              "devices, lazy:",
              static_cast<int>(std::max<c10::DeviceIndex>(device, 0)), " and ", t.device(),
              "! (when calling ", call.op.name,
              is_lazy(t) ? "" : ": Input tensor is not a lazy tensor: ",
              is_lazy(t) ? "" : t.toString(), ")");
}

/// Operators that want an argument on the CPU, or take it there, on every device.
constexpr std::string_view kTakesHostTensors[] = {
    "aten::_pack_padded_sequence", "aten::_ctc_loss.Tensor", "aten::_ctc_loss_backward.Tensor"};

class Identifier {
 public:
  explicit Identifier(Call& call) : call_(call), key_(call.key) {}

  bool argument(const c10::IValue& value, const ArgumentInfo& info) {
    switch (info.kind) {
      case ArgumentKind::tensor:
        if (value.isTensor()) {
          return tensor(value.toTensor(), /*accepts_cpu=*/false);
        }
        break;
      case ArgumentKind::tensor_list:
        if (value.isList()) {
          return tensor_list(value);
        }
        break;
      case ArgumentKind::number:
        fits_ &= surely_fits(value);
        if (travels(value, info)) {
          number(value, info.policy);
          return true;
        }
        break;
      case ArgumentKind::number_list:
        if (value.isList() && info.policy != NumberPolicy::attribute) {
          return number_list(value, info.policy);
        }
        break;
      case ArgumentKind::other:
        break;
    }
    return attribute(value);
  }

  /// False: some number may be too large for some dtype.
  bool fits() const { return fits_; }

 private:
  void put(uint64_t word) { key_.push_back(word); }

  bool tensor(const at::Tensor& t, bool accepts_cpu) {
    if (!t.defined()) {
      put(kUndefined);
      return true;
    }
    const c10::TensorImpl* impl = t.unsafeGetTensorImpl();
    if (impl->device_type() == at::kLazy) {
      if (!impl->has_storage()) {
        return false;
      }
      same_device(impl->device().index());
      put_layout(t, kLazyTensor);
      call_.tensors.push_back(&t);
      return true;
    }
    if (t.layout() != at::kStrided) {
      TORCH_CHECK_NOT_IMPLEMENTED(false, "torch-lazy: ", call_.op.name, " was given a ",
                                  t.toString(), " beside a lazy tensor; device lazy works with ",
                                  "plain strided tensors");
    }
    if (t.dim() == 0 && t.is_cpu()) {
      put(kScalarTensor | static_cast<uint64_t>(t.scalar_type()) << 8 |
          static_cast<uint64_t>(impl->is_wrapped_number()) << 16);
      fits_ &= surely_fits(t);
      // A wrapped number belongs to nobody; any other tensor may change right after the call.
      call_.numbers.emplace_back(impl->is_wrapped_number() ? t : t.detach().clone());
      return true;
    }
    if (accepts_cpu && t.is_cpu()) {
      put_layout(t, kConstantTensor);
      if (t.storage_offset() == 0 && t.is_contiguous()) {
        call_.tensors.push_back(&t);
      } else {
        call_.copies.push_back(t.detach().clone(at::MemoryFormat::Contiguous));
        call_.tensors.push_back(&call_.copies.back());
      }
      return true;
    }
    raise_mixed_devices(call_, call_.device, t);
  }

  void same_device(c10::DeviceIndex index) {
    TORCH_CHECK(call_.device < 0 || call_.device == index,
                "Expected all tensors to be on the same device, but found at least two devices, "
                "lazy:",
                static_cast<int>(call_.device), " and lazy:", static_cast<int>(index),
                "! (when calling ", call_.op.name, ")");
    call_.device = index;
  }

  void put_layout(const at::Tensor& t, Tag tag) {
    const c10::TensorImpl* impl = t.unsafeGetTensorImpl();
    at::IntArrayRef sizes = impl->sizes();
    at::IntArrayRef strides = impl->strides();
    put(tag | static_cast<uint64_t>(t.scalar_type()) << 8 | (t.is_conj() ? 1 << 16 : 0) |
        (t.is_neg() ? 1 << 17 : 0) | (impl->is_wrapped_number() ? 1 << 18 : 0) |
        static_cast<uint64_t>(sizes.size()) << 24 |
        static_cast<uint64_t>(static_cast<uint8_t>(impl->device().index())) << 40);
    put(static_cast<uint64_t>(impl->storage_offset()));
    put(impl->unsafe_storage().nbytes());
    for (int64_t size : sizes) {
      put(static_cast<uint64_t>(size));
    }
    for (int64_t stride : strides) {
      put(static_cast<uint64_t>(stride));
    }
  }

  bool tensor_list(const c10::IValue& value) {
    c10::ArrayRef<c10::IValue> list = value.toListRef();
    const bool optional = value.isOptionalTensorList();
    put(kTensorList | static_cast<uint64_t>(optional) << 8 |
        static_cast<uint64_t>(list.size()) << 16);
    for (const c10::IValue& element : list) {
      if (element.isNone()) {
        put(kNone);
      } else if (!tensor(element.toTensor(), optional)) {
        return false;
      }
    }
    return true;
  }

  void number(const c10::IValue& value, NumberPolicy policy) {
    put(kNumber | number_kind(value) << 8 | class_under(policy, value) << 16);
    call_.numbers.push_back(value);
  }

  bool number_list(const c10::IValue& value, NumberPolicy policy) {
    c10::ArrayRef<c10::IValue> owned;
    std::vector<c10::IValue> doubles;
    if (value.isDoubleList()) {
      for (double d : value.toDoubleVector()) {
        doubles.emplace_back(d);
      }
      owned = doubles;
    } else {
      owned = value.toListRef();
    }
    put(kNumberList | static_cast<uint64_t>(value.isDoubleList()) << 8 |
        static_cast<uint64_t>(owned.size()) << 16);
    for (const c10::IValue& element : owned) {
      if (!element.isScalar()) {
        return false;
      }
      put(number_kind(element) | class_under(policy, element) << 16);
      fits_ &= surely_fits(element);
    }
    call_.numbers.push_back(value);
    return true;
  }

  bool attribute(const c10::IValue& value) {
    if (value.isNone()) {
      put(kNone);
    } else if (value.isInt()) {
      put(kInt);
      put(static_cast<uint64_t>(value.toInt()));
    } else if (value.isBool()) {
      put(kBool | static_cast<uint64_t>(value.toBool()) << 8);
    } else if (value.isDouble()) {
      put(kDouble);
      put(word_of(value.toDouble()));
    } else if (value.isString()) {
      const std::string& text = value.toStringRef();
      put(kString | static_cast<uint64_t>(text.size()) << 8);
      for (size_t i = 0; i < text.size(); i += 8) {
        uint64_t word = 0;
        std::memcpy(&word, text.data() + i, std::min<size_t>(8, text.size() - i));
        put(word);
      }
    } else if (value.isDevice()) {
      at::Device device = value.toDevice();
      if (device.type() == at::kLazy) {
        device = at::Device(at::kLazy, checked_index(device));
        same_device(device.index());
      }
      put(kDevice | static_cast<uint64_t>(device.type()) << 8 |
          static_cast<uint64_t>(static_cast<uint8_t>(device.index())) << 16);
    } else if (value.isIntList()) {
      auto list = value.toIntList();
      put(kIntList | static_cast<uint64_t>(list.size()) << 8);
      for (int64_t element : list) {
        put(static_cast<uint64_t>(element));
      }
    } else if (value.isBoolList()) {
      auto list = value.toBoolList();
      put(kBoolList | static_cast<uint64_t>(list.size()) << 8);
      for (bool element : list) {
        put(element);
      }
    } else if (value.isDoubleList()) {
      auto list = value.toDoubleList();
      put(kDoubleList | static_cast<uint64_t>(list.size()) << 8);
      for (double element : list) {
        put(word_of(element));
      }
    } else if (value.isTensor()) {
      return tensor(value.toTensor(), false);
    } else if (value.isComplexDouble()) {
      put(kDouble | 1 << 8);
      put(word_of(value.toComplexDouble().real()));
      put(word_of(value.toComplexDouble().imag()));
    } else if (value.isList()) {
      c10::ArrayRef<c10::IValue> list = value.toListRef();
      put(kGenericList | static_cast<uint64_t>(list.size()) << 8);
      for (const c10::IValue& element : list) {
        if (element.isTensor() || !attribute(element)) {
          return false;
        }
      }
    } else {
      return false;  // a generator, an object, a symbolic size
    }
    return true;
  }

  Call& call_;
  Key& key_;
  bool fits_ = true;
};

/// Switches of the process that change the layout of results, what executes them, or which
/// warnings a call gives: a graph that
/// was compiled under one is not used under another.
uint64_t process_state() {
  const at::Context& context = at::globalContext();
  return static_cast<uint64_t>(c10::get_default_dtype_as_scalartype()) |
         static_cast<uint64_t>(context.userEnabledMkldnn()) << 8 |
         static_cast<uint64_t>(context.deterministicAlgorithms()) << 9 |
         static_cast<uint64_t>(c10::WarningUtils::get_warnAlways()) << 10 |
         static_cast<uint64_t>(settings().compiler.load(std::memory_order_relaxed)) << 11;
}

/// Which operands share memory decides whether a write is legal (and eager checks it): for each
/// operand, the first one over the same storage.
void identify_aliases(Call& call) {
  auto storage = [&](size_t i) {
    return call.tensors[i]->unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  };
  const size_t count = call.tensors.size();
  if (count <= 8) {
    for (size_t i = 1; i < count; ++i) {
      size_t first = 0;
      while (storage(first) != storage(i)) {
        ++first;
      }
      call.key.push_back(first);
    }
    return;
  }
  thread_local ska::flat_hash_map<const void*, size_t> firsts;
  firsts.clear();
  for (size_t i = 0; i < count; ++i) {
    call.key.push_back(firsts.emplace(storage(i), i).first->second);
  }
}

NumberKind kind_of(const c10::IValue& value, NumberPolicy policy) {
  NumberKind kind;
  if (value.isTensor()) {
    kind.type = value.toTensor().scalar_type();
    kind.wrapped = value.toTensor().unsafeGetTensorImpl()->is_wrapped_number();
  } else {
    kind.type = value.toScalar().type();
    kind.value_class = static_cast<uint8_t>(class_under(policy, value));
  }
  return kind;
}

class SourceBuilder {
 public:
  int operand() { return operands_++; }
  int number() { return numbers_++; }

  int tensor(const c10::IValue& value) {
    if (value.isNone() || !value.toTensor().defined()) {
      return -1;
    }
    const at::Tensor& t = value.toTensor();
    if (!is_lazy(t) && t.dim() == 0) {
      return -2 - number();
    }
    return operand();
  }

 private:
  int operands_ = 0;
  int numbers_ = 0;
};

}  // namespace

void check_devices(const Call& call) {
  if (!call.op.aten || std::find(std::begin(kTakesHostTensors), std::end(kTakesHostTensors),
                                 call.op.name) != std::end(kTakesHostTensors)) {
    return;
  }
  c10::DeviceIndex first = -1;
  auto check = [&](const at::Tensor& t) {
    if (!t.defined() || (t.dim() == 0 && t.is_cpu())) {
      return;
    }
    if (!is_lazy(t) || (first >= 0 && t.device().index() != first)) {
      raise_mixed_devices(call, first, t);
    }
    first = t.device().index();
  };
  for (const c10::IValue& value : call.arguments) {
    if (value.isTensor()) {
      check(value.toTensor());
    } else if (value.isTensorList()) {  // lists of indices may lie on the CPU
      for (const c10::IValue& element : value.toListRef()) {
        check(element.toTensor());
      }
    }
  }
}

bool identify(Call& call) {
  call.key.push_back(call.op.identity);
  call.key.push_back(process_state());
  Identifier identifier(call);
  for (size_t i = 0; i < call.arguments.size(); ++i) {
    if (!identifier.argument(call.arguments[i], call.op.arguments[i])) {
      return false;
    }
  }
  if (call.op.writes && call.tensors.size() > 1) {
    identify_aliases(call);
  }
  if (!identifier.fits()) {
    identify_misfits(call, call.key);
  }
  return true;
}

std::vector<ArgumentSource> argument_sources(const Call& call) {
  std::vector<ArgumentSource> sources;
  SourceBuilder next;
  for (size_t i = 0; i < call.arguments.size(); ++i) {
    const c10::IValue& value = call.arguments[i];
    const ArgumentInfo& info = call.op.arguments[i];
    ArgumentSource source;
    if (value.isTensor()) {
      int which = next.tensor(value);
      if (which >= 0) {
        source.kind = ArgumentSource::Kind::operand;
        source.index = which;
      } else if (which == -1) {
        source.value = at::Tensor();
      } else {
        source.kind = ArgumentSource::Kind::number;
        source.index = -2 - which;
        source.numbers.push_back(kind_of(value, info.policy));
      }
    } else if (info.kind == ArgumentKind::tensor_list && value.isList()) {
      source.kind = value.isOptionalTensorList() ? ArgumentSource::Kind::optional_list
                                                 : ArgumentSource::Kind::operand_list;
      for (const c10::IValue& element : value.toListRef()) {
        source.elements.push_back(next.tensor(element));
      }
    } else if (info.policy != NumberPolicy::attribute &&
               ((info.kind == ArgumentKind::number && travels(value, info)) ||
                (info.kind == ArgumentKind::number_list && value.isList()))) {
      source.kind = ArgumentSource::Kind::number;
      source.index = next.number();
      if (value.isDoubleList()) {
        source.numbers.resize(value.toDoubleVector().size());
      } else if (value.isList()) {
        for (const c10::IValue& element : value.toListRef()) {
          source.numbers.push_back(kind_of(element, info.policy));
        }
      } else {
        source.numbers.push_back(kind_of(value, info.policy));
      }
    } else {
      source.value = value;
    }
    sources.push_back(std::move(source));
  }
  return sources;
}

std::vector<Write> written_operands(const Call& call) {
  std::vector<Write> writes;
  std::vector<ArgumentSource> sources = argument_sources(call);
  bool statistics = call.op.writes_unannotated_statistics;
  if (statistics && call.op.name == "aten::native_batch_norm") {
    statistics = call.arguments[5].toBool();  // training
  }
  const auto& schema = call.op.handle.schema().arguments();
  for (size_t i = 0; i < sources.size(); ++i) {
    bool written =
        call.op.arguments[i].written ||
        (statistics && (schema[i].name() == "running_mean" || schema[i].name() == "running_var"));
    if (!written) {
      continue;
    }
    if (sources[i].kind == ArgumentSource::Kind::operand) {
      writes.push_back({sources[i].index});
    }
    for (int element : sources[i].elements) {
      if (element >= 0) {
        writes.push_back({element});
      }
    }
    TORCH_CHECK(sources[i].kind != ArgumentSource::Kind::number,
                "Expected all tensors to be on the same device, but found at least two devices, "
                "lazy:0 and cpu! (when calling ",
                call.op.name, ": argument ", schema[i].name(),
                " is written but is not a lazy tensor)");
  }
  return writes;
}

}  // namespace torch_lazy
