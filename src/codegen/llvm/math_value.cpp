#include "codegen/llvm/math_value.h"

#include <llvm/IR/Constants.h>
#include <llvm/IR/IntrinsicsX86.h>

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

/// The instructions below are for 16 lanes: a scalar goes into the first.
static llvm::Value* in_lanes(llvm::IRBuilder<>& builder, llvm::Value* a) {
  if (a->getType()->isVectorTy()) {
    return a;
  }
  auto* none = llvm::PoisonValue::get(llvm::FixedVectorType::get(a->getType(), 16));
  return builder.CreateInsertElement(none, a, uint64_t{0});
}

static llvm::Value* like(llvm::IRBuilder<>& builder, llvm::Value* a, llvm::Value* lanes) {
  return a->getType()->isVectorTy() ? lanes : builder.CreateExtractElement(lanes, uint64_t{0});
}

Real lookup(Integer index, std::span<const double> table) {
  llvm::IRBuilder<>& builder = index.emitter->builder;
  std::vector<llvm::Value*> registers;
  for (size_t i = 0; i < table.size(); i += 16) {
    std::vector<float> numbers(table.begin() + i, table.begin() + i + 16);
    registers.push_back(llvm::ConstantDataVector::get(builder.getContext(), numbers));
  }
  llvm::Value* places = in_lanes(builder, index.value);
  llvm::Value* found = registers.size() == 1
                           ? builder.CreateIntrinsic(llvm::Intrinsic::x86_avx512_permvar_sf_512, {},
                                                     {registers[0], places})
                           : builder.CreateIntrinsic(llvm::Intrinsic::x86_avx512_vpermi2var_ps_512,
                                                     {}, {registers[0], places, registers[1]});
  return {index.emitter, like(builder, index.value, found)};
}

Real scale(Real a, Real n) {
  llvm::IRBuilder<>& builder = a.emitter->builder;
  llvm::Value* lanes = in_lanes(builder, a.value);
  const int as_usual = 4;  // how to round
  llvm::Value* scaled =
      builder.CreateIntrinsic(llvm::Intrinsic::x86_avx512_mask_scalef_ps_512, {},
                              {lanes, in_lanes(builder, n.value), lanes, builder.getInt16(0xffff),
                               builder.getInt32(as_usual)});
  return {a.emitter, like(builder, a.value, scaled)};
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
