// Trials of calls, and what is remembered of them.
#include "capture/rehearse.h"

#include "base/hash.h"
#include "base/metrics.h"
#include "base/warnings.h"
#include "capture/misfits.h"
#include "capture/tensor.h"
#include "runtime/real_tensor.h"
#include <torch_lazy/backend.h>

#include <ATen/ATen.h>
#include <c10/util/ParallelGuard.h>

#include <algorithm>
#include <bitset>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace torch_lazy {
namespace {

constexpr int64_t kSmallBytes = 1 << 16;  // of all memory of a call, to be tried as it is
constexpr size_t kSmallCount = 64;        // of its tensors
constexpr int kTrials = 256;              // of one kind of call, each with other layouts
constexpr size_t kKinds = 1 << 14;        // that are remembered

// Elementwise operators that lack the tag. Layout functions check the shapes of these, so only
// dtypes are left to try.
constexpr std::string_view kElementwise[] = {
    "aten::copy_",     "aten::fill_",      "aten::zero_",        "aten::clone",
    "aten::_to_copy",  "aten::where",      "aten::floor_divide", "aten::floor_divide_",
    "aten::remainder", "aten::remainder_", "aten::fmod",         "aten::fmod_",
};

// Linear algebra that zeros make fail: a singular matrix, pivots that begin at one. The identity of
// one element is tried instead, which shows what their layout functions leave open: dtypes.
constexpr std::string_view kTriedOnIdentity[] = {
    "aten::_linalg_",
    "aten::linalg_",
    "aten::lu_",
    "aten::cholesky",
    "aten::triangular_solve",
    "aten::ormqr",
    "aten::_cholesky_solve_helper",
};

// What has such a name all the same, and is tried like others.
constexpr std::string_view kTakesZeros[] = {"aten::linalg_cross", "aten::linalg_vector_norm"};

bool is_elementwise(const OperatorInfo& op) {
  return op.pointwise || op.operator_name.name.starts_with("aten::_foreach_") ||
         std::find(std::begin(kElementwise), std::end(kElementwise), op.operator_name.name) !=
             std::end(kElementwise);
}

bool is_tried_on_identity(const OperatorInfo& op) {
  const std::string_view name = op.operator_name.name;
  auto is_prefix = [&](std::string_view prefix) { return name.starts_with(prefix); };
  return std::any_of(std::begin(kTriedOnIdentity), std::end(kTriedOnIdentity), is_prefix) &&
         std::none_of(std::begin(kTakesZeros), std::end(kTakesZeros), is_prefix);
}

bool is_tried(const Call& call, const Description& description) {
  const OperatorInfo& op = call.op;
  return op.aten && description.makes_node() && !op.effect && real_device().is_cpu() &&
         op.immediate == Immediate::no;
}

/// Whether the call can be tried as it is in no time.
bool is_small(const Call& call, const Description& description) {
  int64_t bytes = 0;
  for (const at::Tensor* tensor : call.tensors) {
    bytes += static_cast<int64_t>(tensor->storage().nbytes());
  }
  for (const FreshOutput& output : description.fresh) {
    bytes += output.nbytes;
  }
  for (const Resize& resize : description.resizes) {
    bytes += resize.nbytes;
  }
  return bytes <= kSmallBytes && call.tensors.size() <= kSmallCount;
}

/// Whether the attributes of the call may be sizes of a result that takes time to make.
bool may_be_large(const Call& call) {
  constexpr int64_t many = int64_t{1} << 20;  // elements
  for (size_t i = 0; i < call.arguments.size(); ++i) {
    const c10::IValue& value = call.arguments[i];
    if (call.op.arguments[i].kind != ArgumentKind::other) {
      continue;  // a Scalar is no size
    }
    double product = value.isInt() ? static_cast<double>(value.toInt()) : 1;
    if (value.isIntList()) {
      for (int64_t size : value.toIntVector()) {
        product *= static_cast<double>(std::max<int64_t>(size, 1));
      }
    }
    if (product > many) {
      return true;
    }
  }
  return false;
}

/// The size of each dimension in a trial on scratch tensors other than the call's own.
int64_t extent(const Call& call) {
  if (is_elementwise(call.op)) {
    // Kernels have ways of their own for one element: fill_ then takes a number that is too large.
    int64_t most = 0;
    for (const at::Tensor* tensor : call.tensors) {
      most = std::max(most, tensor->numel());
    }
    return std::min<int64_t>(most, 2);
  }
  return call.op.operator_name.name == "aten::linalg_cross" ? 3 : 1;  // vectors of three
}

/// What a trial with few elements for each tensor depends on.
Key kind_of(const Call& call) {
  Key kind;
  kind.push_back(call.key[0]);  // the operator
  kind.push_back(call.key[1]);  // switches of the process
  kind.push_back(static_cast<uint64_t>(extent(call)));
  auto put_tensor = [&](const at::Tensor& tensor) {
    const uint64_t word =
        !tensor.defined()
            ? 1
            : 2 | static_cast<uint64_t>(tensor.scalar_type()) << 8 |
                  static_cast<uint64_t>(tensor.unsafeGetTensorImpl()->is_wrapped_number()) << 16 |
                  static_cast<uint64_t>(tensor.dim()) << 24;
    if (kind.size() == 3 || kind.back() != word) {  // a list of many tensors of one dtype
      kind.push_back(word);
    }
  };
  for (size_t i = 0; i < call.arguments.size(); ++i) {
    const c10::IValue& value = call.arguments[i];
    kind.push_back(0);
    if (value.isTensor()) {
      put_tensor(value.toTensor());
    } else if (value.isTensorList() || value.isOptionalTensorList()) {
      for (const c10::IValue& element : value.toListRef()) {
        put_tensor(element.isNone() ? at::Tensor() : element.toTensor());
      }
    } else if (value.isScalar() && call.op.arguments[i].kind == ArgumentKind::number) {
      // A kernel may have ways of its own for 0 and 1 that take more dtypes: pow.
      const c10::Scalar number = value.toScalar();
      kind.push_back(6 | static_cast<uint64_t>(number.type()) << 8 |
                     static_cast<uint64_t>(number.equal(0)) << 16 |
                     static_cast<uint64_t>(number.equal(1)) << 17);
    } else if (value.isInt()) {  // a dtype, perhaps
      kind.push_back(4 | static_cast<uint64_t>(value.toInt()) << 8);
    } else if (value.isBool()) {
      kind.push_back(5 | static_cast<uint64_t>(value.toBool()) << 8);
    } else if (value.isString()) {
      kind.push_back(std::hash<std::string>()(value.toStringRef()));
    } else {
      kind.push_back(value.isNone() ? 3 : 7);
    }
  }
  identify_misfits(call, kind);
  return kind;
}

/// What is known of a kind of call.
struct Known {
  int trials = 0;        // with layouts of calls
  bool refuted = false;  // trials fail though calls work
  bool dtypes = false;   // its dtypes have been tried
  Warnings warnings;     // that belong to its dtypes
};

struct HashKey {
  size_t operator()(const Key& key) const { return hash_words(key); }
};

struct Kinds {
  std::mutex mutex;
  std::unordered_map<Key, Known, HashKey> known;

  static Kinds& instance() {
    static auto* kinds = new Kinds();
    return *kinds;
  }

  Known find(const Key& kind) {
    std::lock_guard<std::mutex> lock(mutex);
    const auto found = known.find(kind);
    return found == known.end() ? Known() : found->second;
  }

  template <typename Change>
  void change(const Key& kind, Change change) {
    std::lock_guard<std::mutex> lock(mutex);
    if (known.size() >= kKinds) {
      known.clear();
    }
    change(known[kind]);
  }
};

/// Arguments over scratch memory.
class Scratch {
 public:
  /// `tiny`: tensors of a few elements, instead of the call's sizes. `instead`: floats where
  /// tensors have this dtype.
  Scratch(const Call& call, bool tiny, std::optional<at::ScalarType> instead = std::nullopt)
      : call_(call), tiny_(tiny), instead_(instead) {}

  /// Ones instead of the call's numbers.
  Scratch with_small_numbers() && {
    small_numbers_ = true;
    return std::move(*this);
  }

  /// Without texts that may be left out (a driver of LAPACK).
  Scratch without_texts() && {
    texts_ = false;
    return std::move(*this);
  }

  Stack arguments() {
    Stack stack;
    const auto& schema = call_.op.handle.schema().arguments();
    for (size_t i = 0; i < call_.arguments.size(); ++i) {
      const c10::IValue& value = call_.arguments[i];
      const Use use = schema[i].is_out()              ? Use::result
                      : call_.op.arguments[i].written ? Use::written
                                                      : Use::read;
      if (small_numbers_ && value.isDouble()) {
        stack.emplace_back(1.0);
      } else if (small_numbers_ && value.isInt() &&
                 call_.op.arguments[i].kind == ArgumentKind::number) {
        stack.emplace_back(1);
      } else if (value.isTensor()) {
        stack.emplace_back(tensor(value.toTensor(), use));
      } else if (value.isTensorList()) {
        c10::List<at::Tensor> list;
        for (const c10::IValue& element : value.toListRef()) {
          list.push_back(tensor(element.toTensor(), use));
        }
        stack.emplace_back(std::move(list));
      } else if (value.isOptionalTensorList()) {
        c10::List<std::optional<at::Tensor>> list;
        for (const c10::IValue& element : value.toListRef()) {
          list.push_back(element.isNone()
                             ? std::nullopt
                             : std::optional<at::Tensor>(tensor(element.toTensor(), use)));
        }
        stack.emplace_back(std::move(list));
      } else if (!texts_ && value.isString() &&
                 schema[i].type()->kind() == c10::TypeKind::OptionalType) {
        stack.emplace_back();
      } else if (value.isDevice() && value.toDevice().type() == at::kLazy) {
        stack.emplace_back(real_device());
      } else {
        stack.push_back(value);
      }
    }
    return stack;
  }

 private:
  enum class Use { read, written, result };

  static at::TensorOptions options_of(at::ScalarType dtype) {
    return at::TensorOptions().dtype(dtype).device(real_device());
  }

  at::Tensor tensor(const at::Tensor& original, Use use) {
    if (!original.defined() || (!is_lazy(original) && original.dim() == 0)) {
      return original;
    }
    if (tiny_) {
      const at::ScalarType dtype =
          original.scalar_type() == instead_ ? at::kFloat : original.scalar_type();
      return use == Use::result ? at::empty({0}, options_of(dtype))  // resized without a warning
                                : tiny_tensor(dtype, original.dim(), use);
    }
    if (!is_lazy(original)) {
      return original;
    }
    return real_tensor(storage_like(original.storage()), Layout::of(original));
  }

  /// One tensor stands for all of its dtype that are read: lists are long.
  at::Tensor tiny_tensor(at::ScalarType dtype, int64_t rank, Use use) {
    for (const at::Tensor& made : read_) {
      if (use == Use::read && made.scalar_type() == dtype && made.dim() == rank) {
        return made;
      }
    }
    const c10::SmallVector<int64_t, 6> sizes(static_cast<size_t>(rank), extent(call_));
    const at::TensorOptions options = options_of(dtype);
    // Integers cannot be divided by zero; an index cannot be one.
    at::Tensor made = is_elementwise(call_.op) || is_tried_on_identity(call_.op)
                          ? at::ones(sizes, options)
                          : at::zeros(sizes, options);
    if (use == Use::read) {
      read_.push_back(made);
    }
    return made;
  }

  c10::Storage storage_like(const c10::Storage& original) {
    for (const auto& [from, to] : storages_) {
      if (from == original.unsafeGetStorageImpl()) {
        return to;
      }
    }
    c10::Storage storage = at::zeros({static_cast<int64_t>(original.nbytes())},
                                     at::TensorOptions().dtype(at::kByte).device(real_device()))
                               .storage();
    storages_.emplace_back(original.unsafeGetStorageImpl(), storage);
    return storage;
  }

  const Call& call_;
  bool tiny_;
  bool small_numbers_ = false;
  bool texts_ = true;
  std::optional<at::ScalarType> instead_;
  std::vector<at::Tensor> read_;
  std::vector<std::pair<const c10::StorageImpl*, c10::Storage>> storages_;
};

/// Whether the real operator takes the arguments.
bool works(const Call& call, Scratch scratch, Warnings& warnings) {
  CollectedWarnings collected;
  c10::ParallelGuard alone(true);
  try {
    BelowEverything below;
    Stack stack = scratch.arguments();
    call.op.handle.redispatchBoxed(c10::DispatchKeySet(real_key()), &stack);
  } catch (const std::exception&) {
    return false;
  }
  warnings = std::move(collected.warnings);
  return true;
}

/// A trial that also tells warnings of every call from those that PyTorch gives once in a process:
/// the latter are given now.
bool try_call(const Call& call, bool tiny, Warnings& warnings) {
  static metrics::Counter& tried = metrics::counter("CallsRehearsed");
  tried.add();
  Warnings first;
  if (!works(call, Scratch(call, tiny), first)) {
    return false;
  }
  if (!first.empty()) {
    works(call, Scratch(call, tiny), warnings);
    for (const c10::Warning& warning : first) {
      if (!contains(warnings, warning)) {
        c10::warn(warning);
      }
    }
  }
  return true;
}

/// Whether operators of this kind take these dtypes, as far as a few elements can tell.
bool takes_dtypes(const Call& call, Warnings& warnings) {
  if (try_call(call, /*tiny=*/true, warnings)) {
    if (!is_elementwise(call.op) && !is_tried_on_identity(call.op)) {
      warnings.clear();  // of shapes, perhaps
    }
    return true;
  }
  if (is_elementwise(call.op)) {
    return false;
  }
  // These may be too few for the attributes. If it passes with floats in place of some dtype, or
  // with ones in place of numbers that are too large, or without texts, these were at fault.
  std::bitset<64> tried;
  tried.set(static_cast<size_t>(at::kFloat));
  for (const at::Tensor* tensor : call.tensors) {
    const at::ScalarType dtype = tensor->scalar_type();
    Warnings ignored;
    if (!tried[static_cast<size_t>(dtype)] &&
        works(call, Scratch(call, /*tiny=*/true, dtype), ignored)) {
      return false;
    }
    tried.set(static_cast<size_t>(dtype));
  }
  Warnings ignored;
  const bool has_texts = std::any_of(call.arguments.begin(), call.arguments.end(),
                                     [](const c10::IValue& value) { return value.isString(); });
  if (has_texts && works(call, Scratch(call, /*tiny=*/true).without_texts(), ignored)) {
    return false;
  }
  Key misfits;
  identify_misfits(call, misfits);
  return misfits.empty() ||
         !works(call, Scratch(call, /*tiny=*/true).with_small_numbers(), ignored);
}

}  // namespace

Rehearsal::Rehearsal(const Call& call, Description& description) {
  if (!is_tried(call, description)) {
    return;
  }
  kind_ = kind_of(call);
  Kinds& kinds = Kinds::instance();
  const Known known = kinds.find(kind_);
  if (known.refuted) {
    return;
  }
  Warnings warnings;
  const bool as_it_is = !is_elementwise(call.op) && !is_tried_on_identity(call.op);
  if (as_it_is && is_small(call, description) && known.trials < kTrials) {
    passed_ = try_call(call, /*tiny=*/false, warnings);
    kinds.change(kind_, [](Known& now) { ++now.trials; });
  } else if (known.dtypes) {
    warnings = known.warnings;
  } else if (!call.tensors.empty() && !may_be_large(call)) {
    passed_ = takes_dtypes(call, warnings);
    if (passed_) {
      kinds.change(kind_, [&](Known& now) {
        now.dtypes = true;
        now.warnings = warnings;
      });
    }
  }
  add_new(description.warnings, std::move(warnings));
}

void Rehearsal::refute() const {
  static metrics::Counter& refuted = metrics::counter("RehearsalsRefuted");
  refuted.add();
  Kinds::instance().change(kind_, [](Known& now) { now.refuted = true; });
}

void warn_again(const Warnings& warnings, const Warnings& but) {
  for (const c10::Warning& warning : warnings) {
    if (!contains(but, warning)) {
      c10::warn(warning);
    }
  }
}

}  // namespace torch_lazy
