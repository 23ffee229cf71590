// LLVM's passes and its code generator, with only the parts that our loops need: they are vectors
// already, so what remains is common parts, what does not change in a loop, and simpler forms.
#include "codegen/llvm/compile.h"

#include "codegen/llvm/emit.h"

#include <llvm/Analysis/AliasAnalysis.h>
#include <llvm/Analysis/AssumptionCache.h>
#include <llvm/Analysis/BasicAliasAnalysis.h>
#include <llvm/Analysis/BlockFrequencyInfo.h>
#include <llvm/Analysis/BranchProbabilityInfo.h>
#include <llvm/Analysis/LoopInfo.h>
#include <llvm/Analysis/MemorySSA.h>
#include <llvm/Analysis/OptimizationRemarkEmitter.h>
#include <llvm/Analysis/PostDominators.h>
#include <llvm/Analysis/ProfileSummaryInfo.h>
#include <llvm/Analysis/ScalarEvolution.h>
#include <llvm/Analysis/ScopedNoAliasAA.h>
#include <llvm/Analysis/TargetLibraryInfo.h>
#include <llvm/Analysis/TargetTransformInfo.h>
#include <llvm/IR/LegacyPassManager.h>
#include <llvm/IR/Verifier.h>
#include <llvm/Object/ObjectFile.h>
#include <llvm/Support/SmallVectorMemoryBuffer.h>
#include <llvm/Transforms/InstCombine/InstCombine.h>
#include <llvm/Transforms/Scalar/EarlyCSE.h>
#include <llvm/Transforms/Scalar/LICM.h>
#include <llvm/Transforms/Scalar/LoopPassManager.h>

#include <chrono>
#include <stdexcept>

namespace torch_lazy::codegen {
namespace {

/// No function of the C library: nothing in a kernel may call out.
llvm::TargetLibraryInfoImpl no_library(const llvm::TargetMachine& machine) {
  llvm::TargetLibraryInfoImpl library(machine.getTargetTriple());
  library.disableAllFunctions();
  return library;
}

/// The analyses that the passes below ask for. LLVM's PassBuilder would bring all there are, and a
/// library a quarter larger.
class Analyses {
 public:
  explicit Analyses(llvm::TargetMachine& machine) : library_(no_library(machine)) {
    add<llvm::PassInstrumentationAnalysis>(loops_);
    add<llvm::PassInstrumentationAnalysis>(functions_);
    add<llvm::PassInstrumentationAnalysis>(modules_);
    add<llvm::BasicAA>(functions_);
    add<llvm::ScopedNoAliasAA>(functions_);
    add<llvm::AssumptionAnalysis>(functions_);
    add<llvm::DominatorTreeAnalysis>(functions_);
    add<llvm::PostDominatorTreeAnalysis>(functions_);
    add<llvm::LoopAnalysis>(functions_);
    add<llvm::MemorySSAAnalysis>(functions_);
    add<llvm::OptimizationRemarkEmitterAnalysis>(functions_);
    add<llvm::ScalarEvolutionAnalysis>(functions_);
    add<llvm::BlockFrequencyAnalysis>(functions_);
    add<llvm::BranchProbabilityAnalysis>(functions_);
    add<llvm::ProfileSummaryAnalysis>(modules_);
    functions_.registerPass([this] { return llvm::TargetLibraryAnalysis(library_); });
    functions_.registerPass([&machine] { return machine.getTargetIRAnalysis(); });
    functions_.registerPass([] {
      llvm::AAManager aliases;
      aliases.registerFunctionAnalysis<llvm::BasicAA>();
      aliases.registerFunctionAnalysis<llvm::ScopedNoAliasAA>();
      return aliases;
    });
    modules_.registerPass([this] { return llvm::FunctionAnalysisManagerModuleProxy(functions_); });
    functions_.registerPass([this] { return llvm::ModuleAnalysisManagerFunctionProxy(modules_); });
    functions_.registerPass([this] { return llvm::LoopAnalysisManagerFunctionProxy(loops_); });
    loops_.registerPass([this] { return llvm::FunctionAnalysisManagerLoopProxy(functions_); });
  }

  void run(llvm::ModulePassManager passes, llvm::Module& module) { passes.run(module, modules_); }

 private:
  template <class Analysis, class Manager>
  static void add(Manager& manager) {
    if constexpr (std::is_same_v<Analysis, llvm::PassInstrumentationAnalysis>) {
      manager.registerPass([] { return llvm::PassInstrumentationAnalysis(nullptr); });
    } else {
      manager.registerPass([] { return Analysis(); });
    }
  }

  llvm::TargetLibraryInfoImpl library_;
  // In this order: those that point to others go first.
  llvm::LoopAnalysisManager loops_;
  llvm::FunctionAnalysisManager functions_;
  llvm::ModuleAnalysisManager modules_;
};

void optimize(llvm::Module& module, llvm::TargetMachine& machine) {
  llvm::FunctionPassManager passes;
  passes.addPass(llvm::EarlyCSEPass());
  passes.addPass(llvm::InstCombinePass());
  passes.addPass(llvm::createFunctionToLoopPassAdaptor(llvm::LICMPass(llvm::LICMOptions()),
                                                       /*UseMemorySSA=*/true));
  passes.addPass(llvm::EarlyCSEPass(/*UseMemorySSA=*/true));
  llvm::ModulePassManager all;
  all.addPass(llvm::createModuleToFunctionPassAdaptor(std::move(passes)));
  Analyses(machine).run(std::move(all), module);
}

llvm::SmallVector<char, 0> generate(llvm::Module& module, llvm::TargetMachine& machine,
                                    llvm::CodeGenFileType kind) {
  llvm::SmallVector<char, 0> bytes;
  llvm::raw_svector_ostream stream(bytes);
  llvm::legacy::PassManager passes;
  passes.add(new llvm::TargetLibraryInfoWrapperPass(no_library(machine)));
  if (machine.addPassesToEmitFile(passes, stream, nullptr, kind)) {
    throw std::runtime_error("code generator: LLVM cannot write machine code for this target");
  }
  passes.run(module);
  return bytes;
}

/// Code that calls out could not be loaded where the function is missing, or would call the wrong
/// one where it is not.
void refuse_outside_symbols(llvm::StringRef object) {
  auto file = llvm::object::ObjectFile::createObjectFile(llvm::MemoryBufferRef(object, kSymbol));
  if (!file) {
    throw std::runtime_error("code generator: " + llvm::toString(file.takeError()));
  }
  for (const llvm::object::SymbolRef& symbol : (*file)->symbols()) {
    const uint32_t flags = llvm::cantFail(symbol.getFlags());
    const llvm::StringRef name = llvm::cantFail(symbol.getName());
    if ((flags & llvm::object::SymbolRef::SF_Undefined) && !name.empty()) {
      throw std::runtime_error("code generator: the kernel's machine code calls '" + name.str() +
                               "', which is not in it");
    }
  }
}

/// One compilation: a context and a machine that no other thread has.
class Compilation {
 public:
  explicit Compilation(const Target& target)
      : target_(target), machine_(target.take_machine()), module_("kernel", context_) {
    module_.setDataLayout(machine_->createDataLayout());
    module_.setTargetTriple(machine_->getTargetTriple().str());
  }
  ~Compilation() { target_.give_back(std::move(machine_)); }

  llvm::Module& module() { return module_; }
  llvm::TargetMachine& machine() { return *machine_; }

  void emit(const Kernel& kernel) { codegen::emit(kernel, target_.features(), module_); }
  void optimize() { codegen::optimize(module_, *machine_); }

 private:
  const Target& target_;
  std::unique_ptr<llvm::TargetMachine> machine_;
  llvm::LLVMContext context_;
  llvm::Module module_;
};

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

Compiled compile(const Target& target, const Kernel& kernel) {
  Compiled result;
  const double start = now();
  Compilation compilation(target);
  compilation.emit(kernel);
  const double emitted = now();
  compilation.optimize();
  const double optimized = now();
  const auto bytes =
      generate(compilation.module(), compilation.machine(), llvm::CodeGenFileType::ObjectFile);
  result.object.assign(bytes.begin(), bytes.end());
  refuse_outside_symbols(result.object);
  result.seconds[0] = emitted - start;
  result.seconds[1] = optimized - emitted;
  result.seconds[2] = now() - optimized;
  return result;
}

std::string show(const Target& target, const Kernel& kernel, const std::string& what) {
  if (what != "ir" && what != "optimized" && what != "assembly") {
    throw std::invalid_argument("code generator: cannot show '" + what +
                                "', only ir, optimized and assembly");
  }
  Compilation compilation(target);
  compilation.emit(kernel);
  std::string text;
  llvm::raw_string_ostream stream(text);
  if (llvm::verifyModule(compilation.module(), &stream)) {
    throw std::runtime_error("code generator: the kernel became wrong IR: " + text);
  }
  if (what != "ir") {
    compilation.optimize();
  }
  if (what == "assembly") {
    const auto bytes =
        generate(compilation.module(), compilation.machine(), llvm::CodeGenFileType::AssemblyFile);
    return std::string(bytes.begin(), bytes.end());
  }
  compilation.module().print(stream, nullptr);
  return text;
}

}  // namespace torch_lazy::codegen
