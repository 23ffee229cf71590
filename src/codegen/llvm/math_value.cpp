#include "codegen/llvm/math_value.h"

#include <llvm/IR/Constants.h>

namespace torch_lazy::codegen::math {

Integer Integer::like(int64_t number) const {
  return {emitter, llvm::ConstantInt::get(value->getType(), static_cast<uint64_t>(number), true)};
}

Real Real::like(double number) const {
  return {emitter, llvm::ConstantFP::get(value->getType(), number)};
}

Real Real::widen() const {
  llvm::Type* type = value->getType()->getWithNewType(emitter->builder.getDoubleTy());
  return {emitter, emitter->builder.CreateFPExt(value, type)};
}

Real Real::narrow() const {
  llvm::Type* type = value->getType()->getWithNewType(emitter->builder.getFloatTy());
  return {emitter, emitter->builder.CreateFPTrunc(value, type)};
}

// ---- Arithmetic
// ----------------------------------------------------------------------------------

Real operator+(Real a, Real b) {
  return {a.emitter, a.emitter->builder.CreateFAdd(a.value, b.value)};
}

Real operator-(Real a, Real b) {
  return {a.emitter, a.emitter->builder.CreateFSub(a.value, b.value)};
}

Real operator*(Real a, Real b) {
  return {a.emitter, a.emitter->builder.CreateFMul(a.value, b.value)};
}

Real operator/(Real a, Real b) {
  return {a.emitter, a.emitter->builder.CreateFDiv(a.value, b.value)};
}

Real operator-(Real a) {
  return {a.emitter, a.emitter->builder.CreateFNeg(a.value)};
}

Real fma(Real a, Real b, Real c) {
  if (!a.emitter->has_fma) {
    return a * b + c;
  }
  llvm::Value* value = a.emitter->builder.CreateIntrinsic(
      llvm::Intrinsic::fma, {a.value->getType()}, {a.value, b.value, c.value});
  return {a.emitter, value};
}

Real abs(Real a) {
  return {a.emitter, a.emitter->builder.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, a.value)};
}

Real sqrt(Real a) {
  return {a.emitter, a.emitter->builder.CreateUnaryIntrinsic(llvm::Intrinsic::sqrt, a.value)};
}

Real copysign(Real magnitude, Real sign) {
  return {magnitude.emitter, magnitude.emitter->builder.CreateBinaryIntrinsic(
                                 llvm::Intrinsic::copysign, magnitude.value, sign.value)};
}

Real polynomial(Real x, std::span<const double> coefficients) {
  Real sum = x.like(coefficients.back());
  for (size_t i = coefficients.size() - 1; i-- > 0;) {
    sum = fma(sum, x, coefficients[i]);
  }
  return sum;
}

// ---- Comparisons and choice
// ----------------------------------------------------------------------

static Mask compare(llvm::CmpInst::Predicate predicate, Real a, Real b) {
  return {a.emitter, a.emitter->builder.CreateFCmp(predicate, a.value, b.value)};
}

static Mask compare(llvm::CmpInst::Predicate predicate, Integer a, Integer b) {
  return {a.emitter, a.emitter->builder.CreateICmp(predicate, a.value, b.value)};
}

Mask operator<(Real a, Real b) {
  return compare(llvm::CmpInst::FCMP_OLT, a, b);
}

Mask operator<=(Real a, Real b) {
  return compare(llvm::CmpInst::FCMP_OLE, a, b);
}

Mask operator>(Real a, Real b) {
  return compare(llvm::CmpInst::FCMP_OGT, a, b);
}

Mask operator>=(Real a, Real b) {
  return compare(llvm::CmpInst::FCMP_OGE, a, b);
}

Mask operator==(Real a, Real b) {
  return compare(llvm::CmpInst::FCMP_OEQ, a, b);
}

Mask operator!=(Real a, Real b) {
  return compare(llvm::CmpInst::FCMP_UNE, a, b);
}

Mask is_nan(Real a, Real b) {
  return compare(llvm::CmpInst::FCMP_UNO, a, b);
}

Mask operator<(Integer a, Integer b) {
  return compare(llvm::CmpInst::ICMP_SLT, a, b);
}

Mask less_unsigned(Integer a, Integer b) {
  return compare(llvm::CmpInst::ICMP_ULT, a, b);
}

Mask operator==(Integer a, Integer b) {
  return compare(llvm::CmpInst::ICMP_EQ, a, b);
}

Mask operator!=(Integer a, Integer b) {
  return compare(llvm::CmpInst::ICMP_NE, a, b);
}

Mask operator&(Mask a, Mask b) {
  return {a.emitter, a.emitter->builder.CreateAnd(a.value, b.value)};
}

Mask operator|(Mask a, Mask b) {
  return {a.emitter, a.emitter->builder.CreateOr(a.value, b.value)};
}

Mask operator^(Mask a, Mask b) {
  return {a.emitter, a.emitter->builder.CreateXor(a.value, b.value)};
}

Mask operator!(Mask a) {
  return {a.emitter, a.emitter->builder.CreateNot(a.value)};
}

Real select(Mask mask, Real a, Real b) {
  return {a.emitter, a.emitter->builder.CreateSelect(mask.value, a.value, b.value)};
}

Integer select(Mask mask, Integer a, Integer b) {
  return {a.emitter, a.emitter->builder.CreateSelect(mask.value, a.value, b.value)};
}

// ---- Integers and bits
// ---------------------------------------------------------------------------

Integer operator+(Integer a, Integer b) {
  return {a.emitter, a.emitter->builder.CreateAdd(a.value, b.value)};
}

Integer operator-(Integer a, Integer b) {
  return {a.emitter, a.emitter->builder.CreateSub(a.value, b.value)};
}

Integer operator*(Integer a, Integer b) {
  return {a.emitter, a.emitter->builder.CreateMul(a.value, b.value)};
}

Integer operator&(Integer a, Integer b) {
  return {a.emitter, a.emitter->builder.CreateAnd(a.value, b.value)};
}

Integer operator|(Integer a, Integer b) {
  return {a.emitter, a.emitter->builder.CreateOr(a.value, b.value)};
}

Integer operator^(Integer a, Integer b) {
  return {a.emitter, a.emitter->builder.CreateXor(a.value, b.value)};
}

Integer operator<<(Integer a, Integer b) {
  return {a.emitter, a.emitter->builder.CreateShl(a.value, b.value)};
}

Integer operator>>(Integer a, Integer b) {
  return {a.emitter, a.emitter->builder.CreateAShr(a.value, b.value)};
}

Integer shift_right_logical(Integer a, Integer b) {
  return {a.emitter, a.emitter->builder.CreateLShr(a.value, b.value)};
}

Integer funnel_shift_left(Integer high, Integer low, Integer b) {
  llvm::Value* value = high.emitter->builder.CreateIntrinsic(
      llvm::Intrinsic::fshl, {high.value->getType()}, {high.value, low.value, b.value});
  return {high.emitter, value};
}

Integer bits(Real a) {
  llvm::IRBuilder<>& builder = a.emitter->builder;
  llvm::Type* scalar = a.is_double() ? builder.getInt64Ty() : builder.getInt32Ty();
  llvm::Type* type = a.value->getType()->getWithNewType(scalar);
  return {a.emitter, builder.CreateBitCast(a.value, type)};
}

static llvm::Type* real_type(Integer a) {
  llvm::IRBuilder<>& builder = a.emitter->builder;
  bool wide = a.value->getType()->getScalarSizeInBits() == 64;
  return a.value->getType()->getWithNewType(wide ? builder.getDoubleTy() : builder.getFloatTy());
}

Real from_bits(Integer a) {
  return {a.emitter, a.emitter->builder.CreateBitCast(a.value, real_type(a))};
}

Real to_real(Integer a) {
  // Not every processor converts 64 bits; all of them add.
  Real zero{a.emitter, llvm::Constant::getNullValue(real_type(a))};
  Real magic = zero.like(format(zero).round_magic);
  return from_bits(a + bits(magic)) - magic;
}

}  // namespace torch_lazy::codegen::math
