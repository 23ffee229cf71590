// Reductions: what an accumulator is, how an element enters it, how accumulators become one.
#pragma once

#include "codegen/llvm/code.h"

namespace torch_lazy::codegen {

class Reduction {
 public:
  /// `type` is that of the operand.
  Reduction(Code& code, Opcode op, Type type);

  /// The best number and its position for argmin and argmax, else one value.
  size_t parts() const { return is_position_ ? 2 : 1; }

  /// Accumulators that nothing has entered yet, `count` lanes of them.
  Values start(int count) const;

  /// `position` (of the same shape as `value`) matters to argmin and argmax only. Lanes that `mask`
  /// (null: none) leaves out do not enter.
  Values enter(const Values& state, llvm::Value* value, llvm::Value* position,
               llvm::Value* mask) const;

  /// Enters the lanes one after the other: gives for each the total up to it. The state has
  /// `scan_lanes` lanes, all with the total of what has entered; those that the mask leaves out are
  /// behind the others.
  llvm::Value* scan(Values& state, llvm::Value* value, llvm::Value* mask) const;
  int scan_lanes() const;

  /// All of the one side and all of the other, lane by lane.
  Values join(const Values& a, const Values& b) const;

  /// The lanes of one accumulator as one, by halves: always in the same order.
  Values join_lanes(Values state) const;

  llvm::Value* result(const Values& state) const;

 private:
  llvm::Value* combine(llvm::Value* a, llvm::Value* b) const;
  llvm::Value* is_better(llvm::Value* a, llvm::Value* b) const;
  llvm::Value* is_nan(llvm::Value* a) const;
  llvm::Constant* identity() const;

  Code& code_;
  llvm::IRBuilder<>& builder_;
  Opcode op_;
  Type type_;
  bool is_position_;
};

}  // namespace torch_lazy::codegen
