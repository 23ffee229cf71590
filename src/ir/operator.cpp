// Facts about operators from their schemas, and the table of exceptions.
#include "base/hash.h"
#include "base/metrics.h"
#include "base/ranked_mutex.h"
#include <torch_lazy/operator.h>

#include <ATen/core/function_schema.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_map>

namespace torch_lazy {
namespace {

// The tables are constant expressions: they are read while other static objects are being made.

// Operators that write their running statistics without saying so in their schema.
constexpr std::string_view kWritesStatistics[] = {
    "aten::native_batch_norm",       "aten::cudnn_batch_norm",
    "aten::miopen_batch_norm",       "aten::batch_norm_update_stats",
    "aten::batch_norm_gather_stats", "aten::batch_norm_gather_stats_with_counts",
};

// Operators whose counters have the suffix of symbolic sizes, as programs that look at them know
// it.
constexpr std::string_view kCountedAsSymbolic[] = {
    "_reshape_alias_copy", "as_strided_copy", "as_strided_scatter", "diagonal_backward",
    "expand_copy",         "narrow_copy",     "new_empty_strided",  "select_backward",
    "slice_backward",      "slice_copy",      "slice_scatter",      "view_copy",
};

// Operators that return an alias of an argument without saying so.
constexpr std::string_view kReturnsAlias[] = {"aten::_unsafe_view"};

// Operators whose result sizes depend on data although no tag says so.
constexpr std::string_view kDataDependent[] = {
    "aten::_ctc_loss.Tensor",
    "aten::_ctc_loss_backward.Tensor",
    "aten::_embedding_bag",
    "aten::_embedding_bag_forward_only",
    "aten::_pack_padded_sequence",
    "aten::linalg_lstsq",
    "aten::linalg_lstsq.out",
    "aten::segment_reduce",
    "aten::_assert_scalar",
    "aten::_validate_compressed_sparse_indices",
    "aten::bincount",
    "aten::_unique",
    "aten::_linalg_check_errors",
    "aten::record_stream",
};

// Operators in which a number's value decides the layout of the result, or whether eager warns.
constexpr std::string_view kNumbersAreAttributes[] = {
    "aten::arange", "aten::range", "aten::var", "aten::std", "aten::var_mean", "aten::std_mean",
};

// Operators in which the class of a number selects behaviour or is checked.
constexpr std::string_view kNumbersByClass[] = {
    "aten::addmm",
    "aten::pow",
    "aten::pow_",
    "aten::_foreach_pow",
    "aten::_foreach_pow_",
    "aten::float_power",
    "aten::renorm",
    "aten::renorm_",
    "aten::softshrink",
    "aten::linalg_vector_norm",
    "aten::norm",
    "aten::_foreach_norm",
    "aten::multi_margin_loss",
    "aten::multi_margin_loss_backward",
    "aten::huber_loss",
    "aten::smooth_l1_loss",
    "aten::_cdist_forward",
    "aten::_cdist_backward",
    "aten::_pdist_forward",
    "aten::dist",
    "aten::native_dropout",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
    "aten::histc",
    "aten::logit",
    "aten::bitwise_left_shift",
    "aten::bitwise_right_shift",
    "aten::elu_backward",
    "aten::leaky_relu_backward",
    "aten::cumulative_trapezoid",
    "aten::native_batch_norm",
    "aten::_native_batch_norm_legit",
    "aten::linalg_cond",
    "aten::polygamma",
};

// In-place operators that overwrite all of self without reading it.
constexpr std::string_view kOverwrites[] = {"aten::fill_", "aten::zero_", "aten::copy_"};

template <size_t N>
bool contains(const std::string_view (&names)[N], std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

bool is_written(const c10::AliasInfo* alias) {
  if (!alias) {
    return false;
  }
  if (alias->isWrite()) {
    return true;
  }
  const auto& contained = alias->containedTypes();
  return std::any_of(contained.begin(), contained.end(),
                     [](const c10::AliasInfo& inner) { return is_written(&inner); });
}

void collect_sets(const c10::AliasInfo* alias, std::vector<c10::Symbol>& sets) {
  if (!alias) {
    return;
  }
  for (const c10::Symbol& symbol : alias->beforeSets()) {
    sets.push_back(symbol);
  }
  for (const c10::AliasInfo& inner : alias->containedTypes()) {
    collect_sets(&inner, sets);
  }
}

bool share_set(const c10::AliasInfo* a, const c10::AliasInfo* b) {
  std::vector<c10::Symbol> left;
  std::vector<c10::Symbol> right;
  collect_sets(a, left);
  collect_sets(b, right);
  return std::any_of(left.begin(), left.end(), [&](const c10::Symbol& symbol) {
    return std::find(right.begin(), right.end(), symbol) != right.end();
  });
}

c10::TypePtr without_optional(c10::TypePtr type) {
  if (auto optional = type->cast<c10::OptionalType>()) {
    return optional->getElementType();
  }
  return type;
}

ArgumentKind kind_of(const c10::Argument& argument) {
  c10::TypePtr type = without_optional(argument.type());
  switch (type->kind()) {
    case c10::TypeKind::TensorType:
      return ArgumentKind::tensor;
    case c10::TypeKind::NumberType:
    case c10::TypeKind::FloatType:
    case c10::TypeKind::ComplexType:
      return ArgumentKind::number;
    case c10::TypeKind::ListType: {
      c10::TypePtr element = without_optional(type->castRaw<c10::ListType>()->getElementType());
      if (element->kind() == c10::TypeKind::TensorType) {
        return ArgumentKind::tensor_list;
      }
      if (element->kind() == c10::TypeKind::NumberType ||
          element->kind() == c10::TypeKind::FloatType) {
        return ArgumentKind::number_list;
      }
      return ArgumentKind::other;
    }
    default:
      return ArgumentKind::other;
  }
}

bool is_list_of_optional_tensors(const c10::TypePtr& type) {
  const auto list = type->cast<c10::ListType>();
  const auto element = list ? list->getElementType()->cast<c10::OptionalType>() : nullptr;
  return element && element->getElementType()->kind() == c10::TypeKind::TensorType;
}

bool is_unsupported(const c10::Argument& argument) {
  c10::TypePtr type = without_optional(argument.type());
  switch (type->kind()) {
    case c10::TypeKind::StreamObjType:
    case c10::TypeKind::ClassType:
    case c10::TypeKind::AnyType:
    case c10::TypeKind::DictType:
    case c10::TypeKind::CapsuleType:
    case c10::TypeKind::StorageType:
      return true;
    default:
      return false;
  }
}

bool is_tensor_like(const c10::Argument& argument) {
  ArgumentKind kind = kind_of(argument);
  return kind == ArgumentKind::tensor || kind == ArgumentKind::tensor_list;
}

// "lazy::add" for add.Tensor and add_; operators outside aten keep their namespace.
std::string captured_counter(const c10::OperatorName& name) {
  std::string base = name.name;
  const std::string prefix = "aten::";
  if (base.rfind(prefix, 0) == 0) {
    base = base.substr(prefix.size());
  }
  if (base.size() > 1 && base.back() == '_' && base[base.size() - 2] != '_') {
    base.pop_back();
  }
  return "lazy::" + base + (contains(kCountedAsSymbolic, base) ? "_symint" : "");
}

// "IrNodeReused_torch::lazy::AddTensor" for add.Tensor and add_.Tensor, after the original's
// classes.
std::string reused_counter(const c10::OperatorName& name) {
  std::string result = "IrNodeReused_torch::lazy::";
  const std::string base = name.name.substr(name.name.find("::") + 2);
  for (const std::string& part : {base, name.overload_name}) {
    bool capital = true;
    for (char letter : part) {
      if (letter == '_') {
        capital = true;
      } else {
        result += capital ? static_cast<char>(std::toupper(letter)) : letter;
        capital = false;
      }
    }
  }
  return result;
}

}  // namespace

void OperatorInfo::check_still_there() const {
  auto found = c10::Dispatcher::singleton().findSchema(operator_name);
  TORCH_CHECK(found && *found == handle, "torch-lazy: the operator ", name,
              " was recorded, but its library has been removed before it could run");
}

OperatorInfo::OperatorInfo(const c10::OperatorHandle& op)
    : handle(op), operator_name(op.operator_name()) {
  const c10::FunctionSchema& schema = op.schema();
  const std::string& base = operator_name.name;
  name = c10::toString(operator_name);
  for (char c : c10::toString(schema)) {
    identity = mix(identity, static_cast<unsigned char>(c));
  }
  aten = base.rfind("aten::", 0) == 0;
  captured = &metrics::counter(captured_counter(operator_name));
  reused = &metrics::counter(reused_counter(operator_name));

  NumberPolicy policy = contains(kNumbersAreAttributes, base) ? NumberPolicy::attribute
                        : contains(kNumbersByClass, base)     ? NumberPolicy::by_class
                                                              : NumberPolicy::input;
  int tensors = 0;
  bool generator = false;
  for (const c10::Argument& argument : schema.arguments()) {
    ArgumentInfo info;
    info.kind = kind_of(argument);
    // What it multiplies is mostly taken as it is: then there is nothing to compute, and two such
    // calls compute the same.
    info.policy =
        policy == NumberPolicy::input && argument.name() == "alpha" ? NumberPolicy::factor : policy;
    info.written = is_tensor_like(argument) && is_written(argument.alias_info());
    writes |= info.written;
    lists_of_optional_tensors |= is_list_of_optional_tensors(argument.type());
    tensors += is_tensor_like(argument);
    generator |= without_optional(argument.type())->kind() == c10::TypeKind::GeneratorType;
    if (is_unsupported(argument)) {
      immediate = Immediate::unsupported_arguments;
    }
    arguments.push_back(info);
  }

  bool all_views = !schema.returns().empty();
  bool tensor_result = false;
  for (const c10::Argument& result : schema.returns()) {
    ReturnInfo info;
    if (const c10::AliasInfo* alias = result.alias_info()) {
      info.kind = is_written(alias) ? ReturnInfo::Kind::written : ReturnInfo::Kind::view;
      for (size_t i = 0; i < arguments.size() && info.argument < 0; ++i) {
        if (share_set(alias, schema.arguments()[i].alias_info())) {
          info.argument = static_cast<int>(i);
        }
      }
      TORCH_INTERNAL_ASSERT(info.argument >= 0, name, ": a result aliases no argument");
    }
    all_views &= info.kind == ReturnInfo::Kind::view;
    tensor_result |= is_tensor_like(result);
    returns.push_back(info);
  }
  only_views = all_views && !writes;
  effect = !tensor_result && !writes && schema.returns().empty();
  overwrites = contains(kOverwrites, base);
  writes_unannotated_statistics = contains(kWritesStatistics, base);
  returns_alias_unannotated = contains(kReturnsAlias, base);

  bumps_versions = writes && base.rfind("aten::_foreach_", 0) == 0;

  pointwise = op.hasTag(at::Tag::pointwise);
  dynamic_only_with_masks = base == "aten::index" || base == "aten::_unsafe_index";

  if (immediate == Immediate::no) {
    if (op.hasTag(at::Tag::dynamic_output_shape) || op.hasTag(at::Tag::data_dependent_output) ||
        contains(kDataDependent, name) || (!tensor_result && !writes && !effect)) {
      immediate = Immediate::data_dependent;
    } else if (generator || op.hasTag(at::Tag::nondeterministic_seeded)) {
      // Attention kernels carry the tag for their dropout; capture only sends them without it.
      bool attention = base.find("scaled_dot_product") != std::string::npos;
      random_fill = writes && tensors == 1 && arguments[0].written && generator;
      immediate = attention ? Immediate::no : Immediate::random;
    }
  }
}

const OperatorInfo& operator_info(const c10::OperatorHandle& op) {
  // A direct-mapped cache without a lock: entries are facts that never change. An operator can be
  // deregistered and its memory used for another; aten's never are.
  constexpr size_t kEntries = 8192;
  static std::atomic<const OperatorInfo*> cache[kEntries];
  const void* key = &op.schema();
  std::atomic<const OperatorInfo*>& entry =
      cache[mix(0, reinterpret_cast<uintptr_t>(key) >> 4) % kEntries];
  const OperatorInfo* known = entry.load(std::memory_order_acquire);
  if (known && known->aten && known->handle == op) {
    return *known;
  }
  static auto* mutex = new RankedMutex(Rank::operators);
  static auto* infos = new std::unordered_map<std::string, std::unique_ptr<OperatorInfo>>();
  std::string identity = c10::toString(op.schema());
  std::lock_guard<RankedMutex> lock(*mutex);
  auto& slot = (*infos)[identity];
  if (!slot || !(slot->handle == op)) {
    // A custom operator registered anew: descriptions may still point to the old facts, so keep it.
    slot.release();
    slot = std::make_unique<OperatorInfo>(op);
  }
  entry.store(slot.get(), std::memory_order_release);
  return *slot;
}

}  // namespace torch_lazy
