// What rows share that read at computed positions, hand numbers from piece to piece, or find their
// arguments and results by name.
#pragma once

#include "compile/lowering.h"

#include <c10/util/strides.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <string_view>
#include <utility>

namespace torch_lazy::compile {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

// ---- Arguments and results ----

/// The position of the argument with this name in the operator's schema, if it has one.
inline std::optional<size_t> argument_named(const Lowering& l, std::string_view name) {
  const auto& arguments = l.description().op->handle.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() == name) {
      return i;
    }
  }
  return std::nullopt;
}

/// An attribute that is a truth value; false where the operator does not have it.
inline bool flag_named(const Lowering& l, std::string_view name) {
  const std::optional<size_t> index = argument_named(l, name);
  return index && l.is_constant(*index) && l.constant(*index).isBool() &&
         l.constant(*index).toBool();
}

/// Whether a number is known to have this value: it is a constant, or its class is known.
inline bool number_is(const Lowering& l, size_t argument, NumberClass cls, double value) {
  if (l.is_constant(argument)) {
    const c10::IValue& constant = l.constant(argument);
    return constant.isScalar() && !constant.toScalar().isComplex() &&
           constant.toScalar().toDouble() == value;
  }
  return l.number_kind(argument).value_class == cls;
}

/// The result that the operator returns at this position, if it was asked for and is needed.
inline std::optional<size_t> wanted_return(const Lowering& l, size_t position) {
  const size_t result = l.returned(position);
  return l.wanted(result) ? std::optional<size_t>(result) : std::nullopt;
}

/// The result that is the next version of an operand, if the call writes it and it is needed.
inline std::optional<size_t> wanted_write(const Lowering& l, int operand) {
  const Description& d = l.description();
  for (size_t k = 0; k < d.writes.size(); ++k) {
    const size_t result = d.fresh.size() + k;
    if (d.writes[k].operand == operand && l.wanted(result)) {
      return result;
    }
  }
  return std::nullopt;
}

inline uint32_t slot_of(const Lowering& l, size_t argument) {
  return l.node().operands[l.argument(argument).index];
}

/// A dimension as a position among sizes; a tensor of rank 0 has none, so ask before.
inline size_t wrap(int64_t dim, size_t rank) {
  TORCH_INTERNAL_ASSERT(rank > 0, "a dimension of a tensor that has none");
  return static_cast<size_t>(dim < 0 ? dim + static_cast<int64_t>(rank) : dim);
}

/// The dimensions that the argument names: all of them when it is absent or empty.
inline std::optional<std::vector<int64_t>> dims_named(const Lowering& l, std::string_view name,
                                                      size_t rank) {
  std::vector<int64_t> dims;
  if (const std::optional<size_t> argument = argument_named(l, name)) {
    if (!l.is_constant(*argument)) {
      return std::nullopt;
    }
    const c10::IValue& value = l.constant(*argument);
    if (value.isInt()) {
      dims.push_back(value.toInt());
    } else if (value.isIntList()) {
      dims = value.toIntVector();
    } else if (!value.isNone()) {
      return std::nullopt;
    }
  }
  if (dims.empty()) {
    dims.resize(rank);
    std::iota(dims.begin(), dims.end(), 0);
  }
  if (rank == 0) {
    return std::vector<int64_t>();  // PyTorch lets 0 and -1 name the dimension of a scalar
  }
  for (int64_t& dim : dims) {
    dim = static_cast<int64_t>(wrap(dim, rank));
  }
  return dims;
}

inline int64_t count(at::IntArrayRef sizes) {
  int64_t elements = 1;
  for (int64_t size : sizes) {
    elements *= size;
  }
  return elements;
}

/// The type in which an argument of floats is computed; nothing for other dtypes.
inline std::optional<Type> float_type(const Lowering& l, size_t argument) {
  if (!l.is_tensor(argument)) {
    return std::nullopt;
  }
  const std::optional<Type> type = type_of(l.layout(argument).dtype);
  return type && codegen::is_float(*type) ? std::optional<Type>(compute_type(*type)) : std::nullopt;
}

// ---- Positions ----

/// The position along a dimension of the sizes that a piece without reductions was begun with.
inline int32_t position(Lowering& l, at::IntArrayRef sizes, size_t dim) {
  if (sizes[dim] == 1) {
    return l.constant_of(Type::i64, 0);
  }
  const int32_t term = l.piece().add(Opcode::index, Type::i64);
  l.piece().terms[term].place = static_cast<int32_t>(
      std::count_if(sizes.begin(), sizes.begin() + static_cast<std::ptrdiff_t>(dim),
                    [](int64_t size) { return size != 1; }));
  return term;
}

inline int32_t integer(Lowering& l, int64_t value) {
  return l.fixed(Type::i64, static_cast<double>(value));
}

/// low <= index < high
inline int32_t between(Lowering& l, int32_t index, int64_t low, int64_t high) {
  return l.make(Opcode::bit_and, l.make(Opcode::ge, index, integer(l, low)),
                l.make(Opcode::lt, index, integer(l, high)));
}

/// Both conditions; -1 is one that always holds.
inline int32_t both(Lowering& l, int32_t a, int32_t b) {
  return a < 0 || b < 0 ? std::max(a, b) : l.make(Opcode::bit_and, a, b);
}

/// Where the condition is false the run fails, and PyTorch's kernel says what is wrong.
inline void require(Lowering& l, int32_t condition) {
  const int32_t check = l.make(Opcode::check, condition);
  l.piece().terms[check].place = 0;
}

/// The elements of a layout that has size 1 along the dimensions which `lookups` find; nothing is
/// read, and the value is 0, where the mask (-1: there is none) is false.
inline int32_t load_at(Lowering& l, uint32_t slot, const Layout& layout,
                       c10::ArrayRef<Lookup> lookups, int32_t mask) {
  const std::optional<Type> type = type_of(layout.dtype);
  if (!type || layout.neg || layout.conj) {
    l.fail();
    return l.constant_of(Type::f32, 0);
  }
  const int32_t term = l.load_layout(slot, layout, *type);
  Access& access = l.piece().accesses[l.piece().terms[term].place];
  access.lookups.append(lookups.begin(), lookups.end());
  access.mask = mask;
  return term;
}

/// Its last two dimensions change places.
inline View transposed(View view) {
  const size_t last = view.layout.sizes.size() - 1;
  std::swap(view.layout.sizes[last - 1], view.layout.sizes[last]);
  std::swap(view.layout.strides[last - 1], view.layout.strides[last]);
  return view;
}

inline bool is_plain(const Layout& layout) {
  return type_of(layout.dtype) && !layout.conj && !layout.neg;
}

inline bool is_index(const Layout& layout) {
  return layout.dtype == at::kLong || layout.dtype == at::kInt;
}

/// The space of self[indices]: the dimensions of the indices, which are broadcast together, take
/// the place of those that they index, or come first if those are not neighbours.
struct IndexedSpace {
  at::DimVector sizes;
  std::vector<size_t> dims;  // of self: those that are indexed
  size_t first = 0;          // where the dimensions of the indices begin
  size_t rank = 0;           // and how many they are
};

/// Nothing where the argument is no list of integer tensors.
std::optional<IndexedSpace> indexed_space(const Lowering& l, const Layout& self, size_t argument);

/// Where the elements of self are that the indices name, in a piece over the space.
struct Positions {
  Layout seen;  // self over the space, with size 1 along the dimensions of the indices
  c10::SmallVector<Lookup, 2> lookups;
  int32_t inside = -1;  // they are in range; the run fails where they are not
};

Positions positions(Lowering& l, const Layout& self, size_t argument, const IndexedSpace& space);

// ---- Memory between the pieces of a node ----

/// Room for numbers that one step of a node leaves for another. `sizes`: of the dimensions of the
/// pieces, 1 where the numbers do not change.
inline View hand_over(Lowering& l, Type type, at::IntArrayRef sizes) {
  View made;
  made.layout.dtype = dtype_of(type);
  made.layout.sizes.assign(sizes.begin(), sizes.end());
  made.layout.strides = c10::contiguous_strides(sizes);
  made.slot = l.new_slot(count(sizes) * codegen::size_of(type));
  return made;
}

inline void give(Lowering& l, const View& to, int32_t value) {
  l.store_operand_like(to.slot, to.layout, value);
}

inline int32_t take(Lowering& l, const View& from) {
  return l.load_layout(from.slot, from.layout, *type_of(from.layout.dtype));
}

}  // namespace torch_lazy::compile
