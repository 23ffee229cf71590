// From a kernel to machine code.
#pragma once

#include "codegen/kernel.h"
#include "codegen/llvm/target.h"

#include <string>

namespace torch_lazy::codegen {

struct Compiled {
  std::string object;
  double seconds[3] = {};  // making the loops, optimizing them, making machine code
};

/// Throws std::invalid_argument for a kernel that is wrong, std::runtime_error when LLVM fails.
Compiled compile(const Target& target, const Kernel& kernel);

/// "ir", "optimized" or "assembly", for people to read.
std::string show(const Target& target, const Kernel& kernel, const std::string& what);

}  // namespace torch_lazy::codegen
