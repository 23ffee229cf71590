// Division with remainder. The processor has no vectors for it, traps where a lane that does not
// count has a divisor of 0, and LLVM would call fmod: so it is made of what there is.
#include "codegen/llvm/code.h"

namespace torch_lazy::codegen {
namespace {

/// The quotient of i32, towards zero: a division in f64 is exact enough to give it.
llvm::Value* quotient_i32(Code& code, llvm::Value* a, llvm::Value* b) {
  llvm::IRBuilder<>& builder = code.builder;
  llvm::Type* wide = Code::shaped(a, builder.getDoubleTy());
  llvm::Value* ratio =
      builder.CreateFDiv(builder.CreateSIToFP(a, wide), builder.CreateSIToFP(b, wide));
  return emit_to_integer(code, ratio, builder.getInt32Ty());
}

llvm::Value* quotient_i64(Code& code, llvm::Value* a, llvm::Value* b) {
  llvm::IRBuilder<>& builder = code.builder;
  llvm::Value* minus_one = builder.CreateICmpEQ(b, code.integer(b, -1));
  llvm::Value* zero = builder.CreateICmpEQ(b, code.integer(b, 0));
  llvm::Value* safe =
      builder.CreateSelect(builder.CreateOr(minus_one, zero), code.integer(b, 1), b);
  return builder.CreateSelect(minus_one, builder.CreateNeg(a), builder.CreateSDiv(a, safe));
}

llvm::Value* integer_division(Code& code, Opcode op, llvm::Value* a, llvm::Value* b) {
  llvm::IRBuilder<>& builder = code.builder;
  const bool wide = a->getType()->getScalarSizeInBits() == 64;
  llvm::Value* quotient = wide ? quotient_i64(code, a, b) : quotient_i32(code, a, b);
  if (op == Opcode::div_trunc) {
    return quotient;
  }
  llvm::Value* rest = builder.CreateSub(a, builder.CreateMul(quotient, b));
  if (op == Opcode::rem_trunc) {
    return rest;
  }
  llvm::Value* zero = code.integer(a, 0);
  llvm::Value* below = builder.CreateAnd(builder.CreateICmpNE(rest, zero),
                                         builder.CreateICmpSLT(builder.CreateXor(rest, b), zero));
  if (op == Opcode::div_floor) {
    return builder.CreateAdd(quotient, builder.CreateSExt(below, a->getType()));
  }
  return builder.CreateAdd(rest, builder.CreateSelect(below, b, zero));
}

/// fmod. A float is mantissa times a power of two; with the exponents apart by d the remainder is
/// that of (mantissa << d), taken in pieces of as many bits as fit.
class Remainder {
 public:
  Remainder(Code& code, llvm::Value* x, llvm::Value* y)
      : code_(code), builder_(code.builder), x_(x), y_(y) {
    is_double_ = x->getType()->getScalarType()->isDoubleTy();
    bits_ = Code::shaped(x, is_double_ ? builder_.getInt64Ty() : builder_.getInt32Ty());
    mantissa_ = is_double_ ? 52 : 23;
  }

  llvm::Value* emit() {
    llvm::Value* size_x = size(x_);
    llvm::Value* size_y = size(y_);
    const auto [part_x, exponent_x] = parts(size_x);
    const auto [part_y, exponent_y] = parts(size_y);
    llvm::Value* rest = is_double_ ? by_integers(part_x, part_y, exponent_x, exponent_y)
                                   : by_doubles(part_x, part_y, exponent_x, exponent_y);
    rest = builder_.CreateBinaryIntrinsic(llvm::Intrinsic::copysign, rest, x_);
    rest = builder_.CreateSelect(builder_.CreateICmpSLT(size_x, size_y), x_, rest);
    // No remainder of infinities and NaNs, nor by NaN or 0.
    llvm::Constant* infinity = integer((is_double_ ? int64_t{0x7ff} : int64_t{0xff}) << mantissa_);
    llvm::Value* none =
        builder_.CreateOr(builder_.CreateICmpSGE(size_x, infinity),
                          builder_.CreateOr(builder_.CreateICmpSGT(size_y, infinity),
                                            builder_.CreateICmpEQ(size_y, integer(0))));
    return builder_.CreateSelect(none, llvm::ConstantFP::getNaN(x_->getType()), rest);
  }

 private:
  llvm::Constant* integer(int64_t value) {
    return llvm::ConstantInt::get(bits_, static_cast<uint64_t>(value), true);
  }

  llvm::Value* size(llvm::Value* value) {
    const int64_t all = is_double_ ? INT64_MAX : INT32_MAX;
    return builder_.CreateAnd(builder_.CreateBitCast(value, bits_), integer(all));
  }

  /// Mantissa as an integer, and exponent; denormals have that of the least normal number.
  std::pair<llvm::Value*, llvm::Value*> parts(llvm::Value* size) {
    const int64_t hidden = int64_t{1} << mantissa_;
    llvm::Value* exponent = builder_.CreateLShr(size, integer(mantissa_));
    llvm::Value* fraction = builder_.CreateAnd(size, integer(hidden - 1));
    llvm::Value* normal = builder_.CreateICmpNE(exponent, integer(0));
    return {builder_.CreateSelect(normal, builder_.CreateOr(fraction, integer(hidden)), fraction),
            builder_.CreateSelect(normal, exponent, integer(1))};
  }

  /// Runs `step(rest, shift)` until every lane's distance between the exponents is used up.
  llvm::Value* reduce(llvm::Value* rest, llvm::Value* distance, int64_t most,
                      const std::function<llvm::Value*(llvm::Value*, llvm::Value*)>& step) {
    distance = builder_.CreateBinaryIntrinsic(llvm::Intrinsic::smax, distance, integer(0));
    return code_.repeat({rest, distance}, [&](const Values& now, llvm::Value*& go_on) {
      llvm::Value* shift =
          builder_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, now[1], integer(most));
      llvm::Value* left = builder_.CreateSub(now[1], shift);
      llvm::Value* next = step(now[0], shift);
      go_on = code_.any(builder_.CreateICmpSGT(left, integer(0)));
      return Values{next, left};
    })[0];
  }

  llvm::Value* power_of_two(llvm::Value* exponent) {  // i64, f64
    llvm::Value* biased = builder_.CreateAdd(exponent, code_.integer(exponent, 1023));
    return builder_.CreateBitCast(builder_.CreateShl(biased, code_.integer(biased, 52)),
                                  Code::shaped(exponent, builder_.getDoubleTy()));
  }

  /// f64: pieces of 11 bits in 64-bit integers.
  llvm::Value* by_integers(llvm::Value* part_x, llvm::Value* part_y, llvm::Value* exponent_x,
                           llvm::Value* exponent_y) {
    llvm::Value* divisor =
        builder_.CreateBinaryIntrinsic(llvm::Intrinsic::umax, part_y, integer(1));
    llvm::Value* rest =
        reduce(part_x, builder_.CreateSub(exponent_x, exponent_y), 11,
               [&](llvm::Value* now, llvm::Value* shift) {
                 return builder_.CreateURem(builder_.CreateShl(now, shift), divisor);
               });
    // Two factors: one alone may lie below the normal numbers.
    llvm::Value* exponent = builder_.CreateSub(exponent_y, integer(1075));
    llvm::Value* half = builder_.CreateAShr(exponent, integer(1));
    llvm::Value* result = builder_.CreateSIToFP(rest, x_->getType());
    result = builder_.CreateFMul(result, power_of_two(half));
    return builder_.CreateFMul(result, power_of_two(builder_.CreateSub(exponent, half)));
  }

  /// f32: pieces of 28 bits in f64, where every step is exact.
  llvm::Value* by_doubles(llvm::Value* part_x, llvm::Value* part_y, llvm::Value* exponent_x,
                          llvm::Value* exponent_y) {
    llvm::Type* wide = Code::shaped(x_, builder_.getDoubleTy());
    llvm::Type* wide_bits = Code::shaped(x_, builder_.getInt64Ty());
    llvm::Value* divisor = builder_.CreateSIToFP(part_y, wide);
    llvm::Value* rest =
        reduce(builder_.CreateSIToFP(part_x, wide), builder_.CreateSub(exponent_x, exponent_y), 28,
               [&](llvm::Value* now, llvm::Value* shift) {
                 llvm::Value* factor = power_of_two(builder_.CreateSExt(shift, wide_bits));
                 llvm::Value* value = builder_.CreateFMul(now, factor);
                 llvm::Value* quotient =
                     code_.math.emit(Opcode::trunc, builder_.CreateFDiv(value, divisor));
                 return builder_.CreateFSub(value, builder_.CreateFMul(quotient, divisor));
               });
    llvm::Value* exponent = builder_.CreateSub(builder_.CreateSExt(exponent_y, wide_bits),
                                               llvm::ConstantInt::get(wide_bits, 150));
    return builder_.CreateFPTrunc(builder_.CreateFMul(rest, power_of_two(exponent)), x_->getType());
  }

  Code& code_;
  llvm::IRBuilder<>& builder_;
  llvm::Value* x_;
  llvm::Value* y_;
  bool is_double_;
  llvm::Type* bits_;
  int mantissa_;
};

}  // namespace

llvm::Value* emit_division(Code& code, Opcode op, llvm::Value* a, llvm::Value* b) {
  llvm::IRBuilder<>& builder = code.builder;
  if (a->getType()->isIntOrIntVectorTy()) {
    return integer_division(code, op, a, b);
  }
  llvm::Value* rest = Remainder(code, a, b).emit();
  if (op == Opcode::rem_trunc) {
    return rest;
  }
  llvm::Constant* zero = code.number(a, 0);
  llvm::Value* other_sign =
      builder.CreateXor(builder.CreateFCmpOLT(rest, zero), builder.CreateFCmpOLT(b, zero));
  llvm::Value* adjust = builder.CreateAnd(builder.CreateFCmpUNE(rest, zero), other_sign);
  return builder.CreateSelect(adjust, builder.CreateFAdd(rest, b), rest);
}

}  // namespace torch_lazy::codegen
