// Arithmetic, bits, comparisons and choice. Floats carry no fast-math flags: what the kernel says
// is what is computed, in that order.
#include "codegen/llvm/code.h"
#include "codegen/operations.h"

#include <stdexcept>

namespace torch_lazy::codegen {
namespace {

using llvm::Intrinsic::ID;

llvm::CmpInst::Predicate predicate(Opcode op, bool floats) {
  using P = llvm::CmpInst;
  switch (op) {
    case Opcode::eq:
      return floats ? P::FCMP_OEQ : P::ICMP_EQ;
    case Opcode::ne:
      return floats ? P::FCMP_UNE : P::ICMP_NE;
    case Opcode::lt:
      return floats ? P::FCMP_OLT : P::ICMP_SLT;
    case Opcode::le:
      return floats ? P::FCMP_OLE : P::ICMP_SLE;
    case Opcode::gt:
      return floats ? P::FCMP_OGT : P::ICMP_SGT;
    default:
      return floats ? P::FCMP_OGE : P::ICMP_SGE;
  }
}

/// NaN if one is. The sign of a zero is nobody's business: without that, one instruction and a
/// choice are enough.
llvm::Value* extreme(llvm::IRBuilder<>& builder, ID id, llvm::Value* a, llvm::Value* b) {
  auto* result = builder.CreateIntrinsic(id, {a->getType()}, {a, b});
  result->setHasNoSignedZeros(true);
  return result;
}

llvm::Value* float_operation(Code& code, Opcode op, llvm::Value* a, llvm::Value* b,
                             llvm::Value* c) {
  llvm::IRBuilder<>& builder = code.builder;
  switch (op) {
    case Opcode::add:
      return builder.CreateFAdd(a, b);
    case Opcode::sub:
      return builder.CreateFSub(a, b);
    case Opcode::mul:
      return builder.CreateFMul(a, b);
    case Opcode::div:
      return builder.CreateFDiv(a, b);
    case Opcode::neg:
      return builder.CreateFNeg(a);
    case Opcode::abs:
      return builder.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, a);
    case Opcode::min:
      return extreme(builder, llvm::Intrinsic::minimum, a, b);
    case Opcode::max:
      return extreme(builder, llvm::Intrinsic::maximum, a, b);
    case Opcode::fma:
      if (!code.features.fma) {
        return builder.CreateFAdd(builder.CreateFMul(a, b), c);
      }
      return builder.CreateIntrinsic(llvm::Intrinsic::fma, {a->getType()}, {a, b, c});
    default:
      if (is_comparison(op)) {
        return builder.CreateFCmp(predicate(op, true), a, b);
      }
      if (is_mathematics(op) && Math::has(op, a->getType()->getScalarType()->isDoubleTy())) {
        return code.math.emit(op, a, b);
      }
      return nullptr;
  }
}

llvm::Value* shift(Code& code, Opcode op, llvm::Value* a, llvm::Value* b) {
  llvm::IRBuilder<>& builder = code.builder;
  const int last_bit = static_cast<int>(a->getType()->getScalarSizeInBits()) - 1;
  llvm::Constant* last = code.integer(a, last_bit);
  llvm::Value* outside = builder.CreateICmpUGT(b, last);  // a negative number also
  if (op == Opcode::shift_left) {
    return builder.CreateSelect(outside, code.integer(a, 0), builder.CreateShl(a, b));
  }
  return builder.CreateAShr(a, builder.CreateSelect(outside, last, b));
}

llvm::Value* integer_operation(Code& code, Opcode op, llvm::Value* a, llvm::Value* b) {
  llvm::IRBuilder<>& builder = code.builder;
  switch (op) {
    case Opcode::add:
      return builder.CreateAdd(a, b);
    case Opcode::sub:
      return builder.CreateSub(a, b);
    case Opcode::mul:
      return builder.CreateMul(a, b);
    case Opcode::neg:
      return builder.CreateNeg(a);
    case Opcode::abs:
      return builder.CreateBinaryIntrinsic(llvm::Intrinsic::abs, a, builder.getFalse());
    case Opcode::min:
      return builder.CreateBinaryIntrinsic(llvm::Intrinsic::smin, a, b);
    case Opcode::max:
      return builder.CreateBinaryIntrinsic(llvm::Intrinsic::smax, a, b);
    case Opcode::bit_and:
      return builder.CreateAnd(a, b);
    case Opcode::bit_or:
      return builder.CreateOr(a, b);
    case Opcode::bit_xor:
      return builder.CreateXor(a, b);
    case Opcode::bit_not:
      return builder.CreateNot(a);
    case Opcode::shift_left:
    case Opcode::shift_right:
      return shift(code, op, a, b);
    default:
      return is_comparison(op) ? builder.CreateICmp(predicate(op, false), a, b) : nullptr;
  }
}

}  // namespace

llvm::Value* emit_operation(Code& code, Opcode op, Type type, llvm::Value* a, llvm::Value* b,
                            llvm::Value* c) {
  if (c) {
    code.match({&a, &b, &c});
  } else if (b) {
    code.match({&a, &b});
  }
  llvm::Value* result = nullptr;
  if (op == Opcode::select) {
    result = code.builder.CreateSelect(a, b, c);
  } else if (op >= Opcode::div_trunc && op <= Opcode::rem_floor) {
    result = emit_division(code, op, a, b);
  } else {
    result =
        is_float(type) ? float_operation(code, op, a, b, c) : integer_operation(code, op, a, b);
  }
  if (!result) {
    throw std::invalid_argument(std::string("code generator: no ") + operation(op).name + " for " +
                                type_name(type));
  }
  return result;
}

}  // namespace torch_lazy::codegen
