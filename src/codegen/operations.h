// The table of operations: the one place that says what an operation is called, what it takes and
// for which types it exists. Text, parser, verifier and code generator all read it.
#pragma once

#include "codegen/kernel.h"

#include <optional>
#include <string_view>

namespace torch_lazy::codegen {

/// A set of types, one bit each.
using Types = uint16_t;
constexpr Types only(Type type) {
  return static_cast<Types>(1u << static_cast<int>(type));
}

struct Operation {
  /// Where the type of the result comes from.
  enum class Result : uint8_t {
    declared,  // the instruction says it (leaves, convert)
    operand,   // that of the operands
    boolean,   // comparisons
    i64,       // positions
    nothing,   // effects
  };

  Opcode op;
  const char* name;
  int operands;
  Types types;  // of the operands; of a leaf: of its result
  Result result;
  int cost = 1;  // about, in units of an addition
};

const Operation& operation(Opcode op);
/// The type in which values of this type are computed: f32 for the short floats, i32 for the short
/// integers.
Type compute_type(Type type);
std::optional<Opcode> opcode_named(std::string_view name);
std::optional<Type> type_named(std::string_view name);

constexpr int kOpcodes = static_cast<int>(Opcode::check) + 1;
constexpr int kTypes = static_cast<int>(Type::boolean) + 1;

constexpr bool is_reduction(Opcode op) {
  return op >= Opcode::reduce_sum && op <= Opcode::reduce_argmax;
}
constexpr bool is_scan(Opcode op) {
  return op == Opcode::scan_sum || op == Opcode::scan_prod;
}
constexpr bool is_effect(Opcode op) {
  return op >= Opcode::store && op <= Opcode::check;
}
constexpr bool is_write(Opcode op) {
  return op == Opcode::store || op == Opcode::accumulate;
}
constexpr bool has_access(Opcode op) {
  return op == Opcode::load || is_write(op);
}
constexpr bool is_mathematics(Opcode op) {
  return op >= Opcode::exp && op <= Opcode::round;
}
constexpr bool is_comparison(Opcode op) {
  return op >= Opcode::eq && op <= Opcode::ge;
}

}  // namespace torch_lazy::codegen
