// What all parts of the emitter share: where instructions go, how many lanes there are, what the
// target has. A value is a scalar when all lanes have the same, else a vector.
#pragma once

#include "codegen/kernel.h"
#include "codegen/llvm/math.h"
#include "codegen/llvm/target.h"

#include <llvm/IR/IRBuilder.h>

#include <functional>

namespace torch_lazy::codegen {

using Values = std::vector<llvm::Value*>;

class Code {
 public:
  Code(llvm::LLVMContext& context, const Features& features, int lanes)
      : builder(context), features(features), lanes(lanes), math(builder, features) {}

  Code(const Code&) = delete;

  llvm::IRBuilder<> builder;
  const Features& features;
  const int lanes;
  Math math;

  /// In a register a boolean is one bit, and bf16 and f16 are their bits: they are only moved.
  llvm::Type* element(Type type);
  llvm::Type* in_memory(Type type);  // where a boolean is a byte

  llvm::Value* splat(llvm::Value* value) { return splat(value, lanes); }
  llvm::Value* splat(llvm::Value* value, int count);

  /// Makes vectors of scalars where another of the values is a vector.
  void match(std::initializer_list<llvm::Value**> values);

  /// A constant of the type (and shape) of `like`.
  llvm::Constant* integer(llvm::Value* like, int64_t value);
  llvm::Constant* number(llvm::Value* like, double value);

  /// The shape of `like` with other elements.
  static llvm::Type* shaped(llvm::Value* like, llvm::Type* element);

  llvm::Constant* constant(const Instruction& instruction);

  /// 0, 1, 2, ... one for each lane.
  llvm::Constant* iota(llvm::Type* element);

  llvm::Value* index(int64_t value) { return builder.getInt64(value); }

  /// One bit: whether one of the lanes is true.
  llvm::Value* any(llvm::Value* mask);

  /// for (i = from; i < to; i += step) state = body(i, state). Gives the last state.
  Values loop(llvm::Value* from, llvm::Value* to, llvm::Value* step, const Values& state,
              const std::function<Values(llvm::Value*, const Values&)>& body);

  /// The same where `from` < `to` is known.
  Values entered_loop(llvm::Value* from, llvm::Value* to, llvm::Value* step, const Values& state,
                      const std::function<Values(llvm::Value*, const Values&)>& body);

  /// do state = body(state, &go_on) while (go_on).
  Values repeat(const Values& state,
                const std::function<Values(const Values&, llvm::Value*& go_on)>& body);

  /// if (condition) state = body(state).
  Values when(llvm::Value* condition, const Values& state,
              const std::function<Values(const Values&)>& body);

 private:
  llvm::BasicBlock* block(const char* name);
};

// ---- Operations (arithmetic.cpp, convert.cpp, division.cpp) -------------------------------------

/// Operations from `add` to `round`, but for convert. `type` is that of the operands.
llvm::Value* emit_operation(Code& code, Opcode op, Type type, llvm::Value* a, llvm::Value* b,
                            llvm::Value* c);
llvm::Value* emit_convert(Code& code, llvm::Value* value, Type from, Type to);

/// div_trunc, div_floor, rem_trunc and rem_floor. No divisor makes them trap.
llvm::Value* emit_division(Code& code, Opcode op, llvm::Value* a, llvm::Value* b);

/// Float to integer, towards zero; what does not fit becomes the least number.
llvm::Value* emit_to_integer(Code& code, llvm::Value* value, llvm::Type* integer);

}  // namespace torch_lazy::codegen
