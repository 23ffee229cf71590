// Tensors inside of boxed arguments and results: alone, in lists, in lists of lists.
#pragma once

#include <ATen/core/ivalue.h>

namespace torch_lazy {

inline bool is_nested_tensor_list(const c10::IValue& value) {
  if (!value.isList()) {
    return false;
  }
  const c10::TypePtr element = value.toList().elementType();
  return element->kind() == c10::TypeKind::ListType &&
         element->expectRef<c10::ListType>().getElementType()->kind() == c10::TypeKind::TensorType;
}

/// Calls `visit` with every tensor in the value.
template <class Visit>
void visit_tensors(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    visit(value.toTensor());
  } else if (value.isTensorList() || value.isOptionalTensorList() || is_nested_tensor_list(value)) {
    for (const c10::IValue& element : value.toListRef()) {
      visit_tensors(element, visit);
    }
  }
}

/// The value with every tensor replaced by what `map` makes of it.
template <class Map>
c10::IValue map_tensors(const c10::IValue& value, const Map& map) {
  if (value.isTensor()) {
    return map(value.toTensor());
  }
  if (value.isTensorList() || value.isOptionalTensorList() || is_nested_tensor_list(value)) {
    c10::impl::GenericList list(value.toList().elementType());
    for (const c10::IValue& element : value.toListRef()) {
      list.push_back(map_tensors(element, map));
    }
    return list;
  }
  return value;
}

}  // namespace torch_lazy
