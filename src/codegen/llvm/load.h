// Machine code in memory, ready to run.
#pragma once

#include "codegen/llvm/target.h"

#include <llvm/ExecutionEngine/Orc/LLJIT.h>

#include <atomic>
#include <string>
#include <string_view>

namespace torch_lazy::codegen {

/// What tlc_compile hands out: the object with a head that says what it is for, so that bytes of
/// another version, processor or program are refused instead of run.
std::string pack(const Target& target, std::string_view object);
std::string_view unpack(const Target& target, std::string_view packed);  // throws

class Loader {
 public:
  explicit Loader(const Target& target);
  ~Loader();

  /// One loaded kernel.
  struct Code {
    llvm::orc::JITDylib* library;
    void* function;
  };

  Code load(std::string_view object);
  void unload(const Code& code);

 private:
  std::unique_ptr<llvm::orc::LLJIT> jit_;
  std::atomic<uint64_t> count_{0};
};

}  // namespace torch_lazy::codegen
