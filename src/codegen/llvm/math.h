// Mathematics for the code generator: exp, sin, erf and their kin as straight code for LLVM.
#pragma once

#include "codegen/kernel.h"
#include "codegen/llvm/target.h"

#include <llvm/IR/IRBuilder.h>

namespace torch_lazy::codegen {

/// Emits mathematics on f32 or f64, scalars or vectors, in straight code without calls. Results
/// are those of C's libm up to a few units in the last place (tests/codegen/test_math.cpp says how
/// many), special values included.
class Math {
 public:
  Math(llvm::IRBuilder<>& builder, const Features& features);

  /// `b` for pow, atan2 and hypot. Only what `has` answers true for.
  llvm::Value* emit(Opcode op, llvm::Value* a, llvm::Value* b = nullptr);

  static bool has(Opcode op, bool is_double);

 private:
  llvm::IRBuilder<>& builder_;
  const Features& features_;
};

}  // namespace torch_lazy::codegen
