#include "codegen/llvm/math.h"

#include "codegen/llvm/math_functions.h"

namespace torch_lazy::codegen {

namespace {

using math::Real;

struct Row {
  Opcode op;
  Real (*unary)(Real);
  Real (*binary)(Real, Real);
  bool f32;
  bool f64;
};

constexpr Row rows[] = {
    {Opcode::exp, math::exp, nullptr, true, true},
    {Opcode::exp2, math::exp2, nullptr, true, true},
    {Opcode::expm1, math::expm1, nullptr, true, true},
    {Opcode::log, math::log, nullptr, true, true},
    {Opcode::log2, math::log2, nullptr, true, true},
    {Opcode::log10, math::log10, nullptr, true, true},
    {Opcode::log1p, math::log1p, nullptr, true, true},
    {Opcode::sqrt, math::sqrt, nullptr, true, true},
    {Opcode::rsqrt, math::rsqrt, nullptr, true, true},
    {Opcode::sin, math::sin, nullptr, true, true},
    {Opcode::cos, math::cos, nullptr, true, true},
    {Opcode::tan, math::tan, nullptr, true, true},
    {Opcode::asin, math::asin, nullptr, true, true},
    {Opcode::acos, math::acos, nullptr, true, true},
    {Opcode::atan, math::atan, nullptr, true, true},
    {Opcode::sinh, math::sinh, nullptr, true, true},
    {Opcode::cosh, math::cosh, nullptr, true, true},
    {Opcode::tanh, math::tanh, nullptr, true, true},
    {Opcode::asinh, math::asinh, nullptr, true, true},
    {Opcode::acosh, math::acosh, nullptr, true, true},
    {Opcode::atanh, math::atanh, nullptr, true, true},
    {Opcode::erf, math::erf, nullptr, true, true},
    {Opcode::erfc, math::erfc, nullptr, true, true},
    {Opcode::erfinv, math::erfinv, nullptr, true, true},
    {Opcode::lgamma, math::lgamma, nullptr, true, true},
    {Opcode::digamma, math::digamma, nullptr, true, true},
    {Opcode::pow, nullptr, math::pow, true, true},
    {Opcode::atan2, nullptr, math::atan2, true, true},
    {Opcode::hypot, nullptr, math::hypot, true, true},
    {Opcode::sigmoid, math::sigmoid, nullptr, true, true},
    {Opcode::floor, math::floor, nullptr, true, true},
    {Opcode::ceil, math::ceil, nullptr, true, true},
    {Opcode::trunc, math::trunc, nullptr, true, true},
    {Opcode::round, math::round, nullptr, true, true},
};

const Row* find(Opcode op) {
  for (const Row& row : rows) {
    if (row.op == op) {
      return &row;
    }
  }
  return nullptr;
}

}  // namespace

Math::Math(llvm::IRBuilder<>& builder, const Features& features)
    : builder_(builder), features_(features) {}

llvm::Value* Math::emit(Opcode op, llvm::Value* a, llvm::Value* b) {
  // Fast-math flags would undo what is done here for the last digits.
  llvm::IRBuilder<>::FastMathFlagGuard guard(builder_);
  builder_.clearFastMathFlags();
  math::Emitter emitter{builder_, features_.fma, features_.rounding, features_.tables};
  const Row* row = find(op);
  if (!row) {
    return nullptr;
  }
  Real x{&emitter, a};
  return row->binary ? row->binary(x, Real{&emitter, b}).value : row->unary(x).value;
}

bool Math::has(Opcode op, bool is_double) {
  const Row* row = find(op);
  return row && (is_double ? row->f64 : row->f32);
}

}  // namespace torch_lazy::codegen
