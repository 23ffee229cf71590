// Targets: found by name, or by asking the processor.
#include "codegen/llvm/target.h"

#include <llvm/ADT/StringMap.h>
#include <llvm/Config/llvm-config.h>
#include <llvm/MC/MCSubtargetInfo.h>
#include <llvm/MC/TargetRegistry.h>
#include <llvm/Support/TargetSelect.h>
#include <llvm/TargetParser/Host.h>
#include <llvm/TargetParser/SubtargetFeature.h>

#include <map>
#include <stdexcept>

namespace torch_lazy::codegen {
namespace {

constexpr const char* kTriple = "x86_64-unknown-linux-gnu";

const llvm::Target& x86() {
  static const llvm::Target* target = [] {
    LLVMInitializeX86TargetInfo();
    LLVMInitializeX86Target();
    LLVMInitializeX86TargetMC();
    LLVMInitializeX86AsmPrinter();
    std::string error;
    const llvm::Target* found = llvm::TargetRegistry::lookupTarget(kTriple, error);
    if (!found) {
      throw std::invalid_argument("code generator: " + error);
    }
    return found;
  }();
  return *target;
}

/// What the processor has and has not (its name may promise what a hypervisor hides), in a fixed
/// order: the list is part of a key.
std::string host_features() {
  std::map<std::string, bool> sorted;
  for (const auto& feature : llvm::sys::getHostCPUFeatures()) {
    sorted[feature.first().str()] = feature.second;
  }
  std::string list;
  for (const auto& [name, present] : sorted) {
    list.append(list.empty() ? "" : ",").append(present ? "+" : "-").append(name);
  }
  return list;
}

}  // namespace

Target::Target(const std::string& name) : triple_(kTriple) {
  if (name == "host") {
#if !defined(__x86_64__)
    throw std::invalid_argument("code generator: this machine is no x86-64");
#endif
    cpu_ = llvm::sys::getHostCPUName().str();
    feature_list_ = host_features();
    is_host_ = true;
  } else if (name == "x86-64" || name == "x86-64-v2" || name == "x86-64-v3" ||
             name == "x86-64-v4") {
    cpu_ = name;
  } else {
    throw std::invalid_argument("code generator: there is no target '" + name +
                                "'; known are host, x86-64, x86-64-v2, x86-64-v3, x86-64-v4");
  }
  auto machine = take_machine();
  const llvm::MCSubtargetInfo& info = *machine->getMCSubtargetInfo();
  const bool avx512 = info.checkFeatures("+avx512f,+avx512vl,+avx512bw,+avx512dq");
  features_.vector_bytes = avx512 ? 64 : info.checkFeatures("+avx2") ? 32 : 16;
  features_.fma = info.checkFeatures("+fma");
  features_.rounding = info.checkFeatures("+sse4.1");
  features_.half = info.checkFeatures("+f16c");
  features_.masks = avx512;
  features_.tables = avx512;
  features_.masked_bytes = avx512 ? 1 : features_.vector_bytes == 32 ? 4 : 99;
  text_ = cpu_ + " " + feature_list_ +
          " build " TORCH_LAZY_CODEGEN_BUILD " of LLVM " LLVM_VERSION_STRING;
  give_back(std::move(machine));
}

std::unique_ptr<llvm::TargetMachine> Target::take_machine() const {
  {
    std::lock_guard lock(mutex_);
    if (!machines_.empty()) {
      auto machine = std::move(machines_.back());
      machines_.pop_back();
      return machine;
    }
  }
  llvm::TargetOptions options;
  options.AllowFPOpFusion = llvm::FPOpFusion::Strict;  // no fma where the kernel has none
  std::unique_ptr<llvm::TargetMachine> machine(
      x86().createTargetMachine(triple_, cpu_, feature_list_, options, llvm::Reloc::PIC_,
                                llvm::CodeModel::Small, llvm::CodeGenOptLevel::Default));
  if (!machine) {
    throw std::invalid_argument("code generator: no machine for " + cpu_);
  }
  return machine;
}

void Target::give_back(std::unique_ptr<llvm::TargetMachine> machine) const {
  std::lock_guard lock(mutex_);
  machines_.push_back(std::move(machine));
}

}  // namespace torch_lazy::codegen
