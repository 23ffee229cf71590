// Machine code of kernels by their text: in memory, on disk, or made now by the code generator.
#pragma once

#include "codegen/kernel.h"

#include <memory>
#include <string>
#include <vector>

namespace torch_lazy {

/// A kernel that can be called. The code lives as long as someone holds it.
class LoadedKernel {
 public:
  virtual ~LoadedKernel() = default;
  codegen::Function function = nullptr;
};

using KernelPtr = std::shared_ptr<const LoadedKernel>;

/// Whether the code generator is there and can make code for this machine. If not, says so once.
bool code_generator_available();

/// The kernels for these texts, in their order; several are made in parallel. Throws if one cannot
/// be made.
std::vector<KernelPtr> find_kernels(const std::vector<std::string>& texts);

}  // namespace torch_lazy
