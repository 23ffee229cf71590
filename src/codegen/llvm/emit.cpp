// The function of a kernel and its loop over units of work.
#include "codegen/llvm/emit.h"

#include "codegen/llvm/stages.h"

#include <llvm/IR/Function.h>

namespace torch_lazy::codegen {
namespace {

using llvm::Value;

class Units {
 public:
  Units(Code& code, const Kernel& kernel, const Memory& memory, Stages& stages)
      : code_(code), builder_(code.builder), kernel_(kernel), memory_(memory), stages_(stages) {
    for (size_t i = 0; i < kernel.accesses.size(); ++i) {
      accesses_.push_back(static_cast<int32_t>(i));
    }
  }

  void run() {
    // Where there are no units a size may be 0, which must not be divided by.
    code_.when(builder_.CreateICmpSLT(memory_.begin(), memory_.end()), {}, [&](const Values&) {
      const Values sizes = digit_sizes();
      code_.entered_loop(memory_.begin(), memory_.end(), code_.index(1),
                         digits_of(memory_.begin(), sizes), [&](Value*, const Values& digits) {
                           run_unit(digits);
                           return next(digits, sizes);
                         });
      return Values();
    });
  }

 private:
  /// A unit's number in digits, one for each of these sizes; the last runs fastest.
  Values digit_sizes() {
    Values sizes;
    for (int32_t d = 0; d < kernel_.outer; ++d) {
      sizes.push_back(memory_.size(d));
    }
    if (kernel_.lanes == Lanes::outer && kernel_.outer > 1) {
      Value* rounded =
          builder_.CreateSub(builder_.CreateAdd(sizes.back(), memory_.tile()), code_.index(1));
      sizes.back() = builder_.CreateUDiv(rounded, memory_.tile());  // tiles
    }
    return sizes;
  }

  Values digits_of(Value* number, const Values& sizes) {
    Values digits(sizes.size());
    for (size_t d = sizes.size(); d-- > 0;) {
      digits[d] = d == 0 ? number : builder_.CreateURem(number, sizes[d]);
      number = d == 0 ? nullptr : builder_.CreateUDiv(number, sizes[d]);
    }
    return digits;
  }

  /// Counting on is cheaper than dividing again.
  Values next(Values digits, const Values& sizes) {
    Value* carry = code_.index(1);
    for (size_t d = digits.size(); d-- > 0;) {
      digits[d] = builder_.CreateAdd(digits[d], carry);
      if (d > 0) {
        Value* full = builder_.CreateICmpEQ(digits[d], sizes[d]);
        digits[d] = builder_.CreateSelect(full, code_.index(0), digits[d]);
        carry = builder_.CreateZExt(full, builder_.getInt64Ty());
      }
    }
    return digits;
  }

  void run_unit(const Values& digits) {
    const bool in_lanes = kernel_.lanes == Lanes::outer;
    Values index(kernel_.rank());
    Memory::Bases bases = memory_.start();
    for (int32_t d = 0; d < kernel_.outer - (in_lanes ? 1 : 0); ++d) {
      index[d] = digits[d];
      memory_.advance(bases, accesses_, d, digits[d]);
    }
    if (!in_lanes) {
      stages_.run_row(index, bases);
      return;
    }
    Value* from = builder_.CreateMul(digits.back(), memory_.tile(), "", false, /*HasNSW=*/true);
    Value* to = builder_.CreateAdd(from, memory_.tile(), "", false, /*HasNSW=*/true);
    to = builder_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, to, memory_.size(kernel_.outer - 1));
    stages_.run_lanes(index, bases, from, to);
  }

  Code& code_;
  llvm::IRBuilder<>& builder_;
  const Kernel& kernel_;
  const Memory& memory_;
  Stages& stages_;
  std::vector<int32_t> accesses_;
};

llvm::Function* make_function(llvm::Module& module, llvm::IRBuilder<>& builder,
                              const Features& features) {
  auto* type = llvm::FunctionType::get(builder.getVoidTy(), {builder.getPtrTy()}, false);
  auto* function = llvm::Function::Create(type, llvm::Function::ExternalLinkage, kSymbol, module);
  const std::string width = std::to_string(features.vector_bytes * 8);
  function->addFnAttr("prefer-vector-width", width);
  function->addFnAttr("min-legal-vector-width", width);
  function->addFnAttr("no-builtins");
  function->setDoesNotThrow();
  function->addParamAttr(0, llvm::Attribute::NoAlias);
  function->addParamAttr(0, llvm::Attribute::ReadOnly);
  return function;
}

}  // namespace

void emit(const Kernel& kernel, const Features& features, llvm::Module& module) {
  const Plan plan(kernel, features);
  Code code(module.getContext(), features, plan.lanes);
  llvm::Function* function = make_function(module, code.builder, features);
  code.builder.SetInsertPoint(llvm::BasicBlock::Create(module.getContext(), "entry", function));
  const Memory memory(code, kernel, function->getArg(0));
  Stages stages(code, kernel, plan, memory);
  Units(code, kernel, memory, stages).run();
  code.builder.CreateRetVoid();
}

}  // namespace torch_lazy::codegen
