#include "replay/loadable.h"

#include <ATen/core/function_schema.h>

#include <algorithm>

namespace torch_lazy {
namespace {

// Operators that use the sizes and strides that they are given without looking at the memory.
constexpr std::string_view kTrustStrides[] = {"aten::_reshape_alias_copy"};

/// The type without the lists and optionals around it.
c10::TypePtr innermost(c10::TypePtr type) {
  while (type->kind() == c10::TypeKind::OptionalType || type->kind() == c10::TypeKind::ListType) {
    type = type->containedTypes().at(0);
  }
  return type;
}

/// Whether an argument of this type says nothing but what to compute.
bool is_value(c10::TypeKind kind) {
  switch (kind) {
    case c10::TypeKind::TensorType:
    case c10::TypeKind::NumberType:
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
    case c10::TypeKind::FloatType:
    case c10::TypeKind::SymFloatType:
    case c10::TypeKind::ComplexType:
    case c10::TypeKind::BoolType:
    case c10::TypeKind::SymBoolType:
    case c10::TypeKind::StringType:
    case c10::TypeKind::DeviceObjType:
    case c10::TypeKind::ScalarTypeType:
    case c10::TypeKind::LayoutType:
    case c10::TypeKind::MemoryFormatType:
    case c10::TypeKind::GeneratorType:  // a file can only say that there is none
      return true;
    default:
      return false;
  }
}

/// Taken apart by PyTorch before it could be recorded.
bool is_taken_apart(const c10::OperatorHandle& op) {
  using c10::DispatchKey;
  return op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd) &&
         !op.hasKernelForDispatchKey(DispatchKey::CPU) &&
         !op.hasKernelForDispatchKey(DispatchKey::Lazy);
}

}  // namespace

std::string why_not_loadable(const OperatorInfo& op, const std::vector<std::string>& namespaces) {
  const std::string& name = op.operator_name.name;
  const std::string space = name.substr(0, name.find("::"));
  if (!op.aten && std::find(namespaces.begin(), namespaces.end(), space) == namespaces.end()) {
    return "is an operator of the library '" + space +
           "', and only those of aten are called unless load_graph is given its name";
  }
  bool reads_tensor = false;
  bool takes_text = false;
  const auto& arguments = op.handle.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::TypeKind kind = innermost(arguments[i].type())->kind();
    if (!is_value(kind)) {
      return "takes " + arguments[i].type()->str() + " '" + arguments[i].name() + "'";
    }
    takes_text |= kind == c10::TypeKind::StringType;
    reads_tensor |= kind == c10::TypeKind::TensorType && !op.arguments[i].written;
  }
  if (takes_text && !reads_tensor) {
    return "makes something of a text, which may be a file's name";
  }
  if (op.effect && !reads_tensor) {
    return "has an effect and computes nothing";
  }
  if (op.only_views || op.handle.hasTag(at::Tag::inplace_view)) {
    return "changes how a tensor lies in its memory";
  }
  if (is_taken_apart(op.handle) || std::find(std::begin(kTrustStrides), std::end(kTrustStrides),
                                             name) != std::end(kTrustStrides)) {
    return "is never recorded";
  }
  return "";
}

}  // namespace torch_lazy
