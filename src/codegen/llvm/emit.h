// From a kernel to LLVM's intermediate representation: loops, vectors, masks.
#pragma once

#include "codegen/kernel.h"
#include "codegen/llvm/target.h"

#include <llvm/IR/Module.h>

namespace torch_lazy::codegen {

/// The symbol of every kernel: machine code does not depend on a name.
constexpr const char* kSymbol = "kernel";

/// The kernel must have passed verify(). Throws std::invalid_argument when it has an operation that
/// the emitter lacks.
void emit(const Kernel& kernel, const Features& features, llvm::Module& module);

}  // namespace torch_lazy::codegen
