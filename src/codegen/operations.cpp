// The types and the table of operations.
#include "codegen/operations.h"

#include <array>
#include <cstddef>

namespace torch_lazy::codegen {
namespace {

struct TypeRow {
  const char* name;
  int size;
  bool is_float;
  bool is_integer;
};

constexpr TypeRow kTypeTable[] = {
    {"f32", 4, true, false},      {"f64", 8, true, false}, {"bf16", 2, true, false},
    {"f16", 2, true, false},      {"i8", 1, false, true},  {"u8", 1, false, true},
    {"i16", 2, false, true},      {"i32", 4, false, true}, {"i64", 8, false, true},
    {"boolean", 1, false, false},
};
static_assert(std::size(kTypeTable) == kTypes);

constexpr Types kFloats = only(Type::f32) | only(Type::f64);
constexpr Types kIntegers = only(Type::i32) | only(Type::i64);
constexpr Types kNumbers = kFloats | kIntegers;
constexpr Types kBoolean = only(Type::boolean);
constexpr Types kPosition = only(Type::i64);
constexpr Types kAll = (1u << kTypes) - 1;

using enum Operation::Result;

// Narrow types (bf16, f16, i8, u8, i16) are only moved, chosen and converted: arithmetic on them is
// done in f32 or i32, and the conversion back rounds or wraps.
constexpr Operation kTable[] = {
    {Opcode::constant, "constant", 0, kAll, declared, 0},
    {Opcode::argument, "argument", 0, kAll, declared, 0},
    {Opcode::index, "index", 0, kPosition, declared},
    {Opcode::extent, "extent", 0, kPosition, declared, 0},
    {Opcode::load, "load", 0, kAll, declared},

    {Opcode::add, "add", 2, kNumbers, operand},
    {Opcode::sub, "sub", 2, kNumbers, operand},
    {Opcode::mul, "mul", 2, kNumbers, operand},
    {Opcode::div, "div", 2, kFloats, operand, 4},
    {Opcode::div_trunc, "div_trunc", 2, kIntegers, operand, 30},
    {Opcode::div_floor, "div_floor", 2, kIntegers, operand, 30},
    {Opcode::rem_trunc, "rem_trunc", 2, kNumbers, operand, 30},
    {Opcode::rem_floor, "rem_floor", 2, kNumbers, operand, 30},
    {Opcode::neg, "neg", 1, kNumbers, operand},
    {Opcode::abs, "abs", 1, kNumbers, operand},
    {Opcode::min, "min", 2, kNumbers, operand},
    {Opcode::max, "max", 2, kNumbers, operand},
    {Opcode::fma, "fma", 3, kFloats, operand},

    {Opcode::bit_and, "bit_and", 2, kIntegers | kBoolean, operand},
    {Opcode::bit_or, "bit_or", 2, kIntegers | kBoolean, operand},
    {Opcode::bit_xor, "bit_xor", 2, kIntegers | kBoolean, operand},
    {Opcode::bit_not, "bit_not", 1, kIntegers | kBoolean, operand},
    {Opcode::shift_left, "shift_left", 2, kIntegers, operand},
    {Opcode::shift_right, "shift_right", 2, kIntegers, operand},

    {Opcode::eq, "eq", 2, kNumbers | kBoolean, boolean},
    {Opcode::ne, "ne", 2, kNumbers | kBoolean, boolean},
    {Opcode::lt, "lt", 2, kNumbers, boolean},
    {Opcode::le, "le", 2, kNumbers, boolean},
    {Opcode::gt, "gt", 2, kNumbers, boolean},
    {Opcode::ge, "ge", 2, kNumbers, boolean},
    {Opcode::select, "select", 3, kAll, operand},
    {Opcode::convert, "convert", 1, kAll, declared},

    {Opcode::exp, "exp", 1, kFloats, operand, 20},
    {Opcode::exp2, "exp2", 1, kFloats, operand, 20},
    {Opcode::expm1, "expm1", 1, kFloats, operand, 20},
    {Opcode::log, "log", 1, kFloats, operand, 20},
    {Opcode::log2, "log2", 1, kFloats, operand, 20},
    {Opcode::log10, "log10", 1, kFloats, operand, 20},
    {Opcode::log1p, "log1p", 1, kFloats, operand, 20},
    {Opcode::sqrt, "sqrt", 1, kFloats, operand, 4},
    {Opcode::rsqrt, "rsqrt", 1, kFloats, operand, 4},
    {Opcode::sin, "sin", 1, kFloats, operand, 60},
    {Opcode::cos, "cos", 1, kFloats, operand, 60},
    {Opcode::tan, "tan", 1, kFloats, operand, 60},
    {Opcode::asin, "asin", 1, kFloats, operand, 20},
    {Opcode::acos, "acos", 1, kFloats, operand, 20},
    {Opcode::atan, "atan", 1, kFloats, operand, 20},
    {Opcode::sinh, "sinh", 1, kFloats, operand, 20},
    {Opcode::cosh, "cosh", 1, kFloats, operand, 20},
    {Opcode::tanh, "tanh", 1, kFloats, operand, 20},
    {Opcode::asinh, "asinh", 1, kFloats, operand, 20},
    {Opcode::acosh, "acosh", 1, kFloats, operand, 20},
    {Opcode::atanh, "atanh", 1, kFloats, operand, 20},
    {Opcode::erf, "erf", 1, kFloats, operand, 20},
    {Opcode::erfc, "erfc", 1, kFloats, operand, 20},
    {Opcode::erfinv, "erfinv", 1, kFloats, operand, 60},
    {Opcode::lgamma, "lgamma", 1, kFloats, operand, 150},
    {Opcode::digamma, "digamma", 1, kFloats, operand, 150},
    {Opcode::pow, "pow", 2, kFloats, operand, 60},
    {Opcode::atan2, "atan2", 2, kFloats, operand, 20},
    {Opcode::hypot, "hypot", 2, kFloats, operand, 20},
    {Opcode::sigmoid, "sigmoid", 1, kFloats, operand, 20},
    {Opcode::floor, "floor", 1, kFloats, operand},
    {Opcode::ceil, "ceil", 1, kFloats, operand},
    {Opcode::trunc, "trunc", 1, kFloats, operand},
    {Opcode::round, "round", 1, kFloats, operand},

    {Opcode::reduce_sum, "reduce_sum", 1, kNumbers, operand},
    {Opcode::reduce_prod, "reduce_prod", 1, kNumbers, operand},
    {Opcode::reduce_min, "reduce_min", 1, kNumbers, operand},
    {Opcode::reduce_max, "reduce_max", 1, kNumbers, operand},
    {Opcode::reduce_fmax, "reduce_fmax", 1, kFloats, operand},
    {Opcode::reduce_any, "reduce_any", 1, kBoolean, operand},
    {Opcode::reduce_all, "reduce_all", 1, kBoolean, operand},
    {Opcode::reduce_argmin, "reduce_argmin", 1, kNumbers, i64, 8},
    {Opcode::reduce_argmax, "reduce_argmax", 1, kNumbers, i64, 8},

    {Opcode::scan_sum, "scan_sum", 1, kNumbers, operand, 10},
    {Opcode::scan_prod, "scan_prod", 1, kNumbers, operand, 10},

    {Opcode::store, "store", 1, kAll, nothing},
    {Opcode::accumulate, "accumulate", 1, kAll & ~kBoolean, nothing, 3},
    {Opcode::check, "check", 1, kBoolean, nothing},
};

constexpr bool in_order() {
  for (size_t i = 0; i < std::size(kTable); ++i) {
    if (kTable[i].op != static_cast<Opcode>(i)) {
      return false;
    }
  }
  return std::size(kTable) == static_cast<size_t>(kOpcodes);
}
static_assert(in_order(), "a row of the table is missing or out of order");

}  // namespace

int size_of(Type type) {
  return kTypeTable[static_cast<int>(type)].size;
}
bool is_float(Type type) {
  return kTypeTable[static_cast<int>(type)].is_float;
}
bool is_integer(Type type) {
  return kTypeTable[static_cast<int>(type)].is_integer;
}
const char* type_name(Type type) {
  return kTypeTable[static_cast<int>(type)].name;
}

Type compute_type(Type type) {
  switch (type) {
    case Type::bf16:
    case Type::f16:
      return Type::f32;
    case Type::i8:
    case Type::u8:
    case Type::i16:
      return Type::i32;
    default:
      return type;
  }
}

const Operation& operation(Opcode op) {
  return kTable[static_cast<int>(op)];
}

bool supports(Opcode op, Type type) {
  return (operation(op).types & only(type)) != 0;
}

std::optional<Opcode> opcode_named(std::string_view name) {
  for (const Operation& row : kTable) {
    if (name == row.name) {
      return row.op;
    }
  }
  return std::nullopt;
}

std::optional<Type> type_named(std::string_view name) {
  for (int i = 0; i < kTypes; ++i) {
    if (name == kTypeTable[i].name) {
      return static_cast<Type>(i);
    }
  }
  return std::nullopt;
}

int64_t units(const Kernel& kernel, const int64_t* sizes, int64_t tile) {
  const bool tiled = kernel.lanes == Lanes::outer;
  int64_t count = 1;
  for (int d = 0; d < kernel.outer; ++d) {
    const bool last = d == kernel.outer - 1;
    count *= tiled && last ? (sizes[d] + tile - 1) / tile : sizes[d];
  }
  return count;
}

}  // namespace torch_lazy::codegen
