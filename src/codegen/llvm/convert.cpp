// Conversions. bf16 and f16 go through f32, as in PyTorch; where the processor has no instruction
// for f16 they are made of integer operations, because LLVM would call a function.
#include "codegen/llvm/code.h"

namespace torch_lazy::codegen {
namespace {

class Converter {
 public:
  explicit Converter(Code& code) : code_(code), builder_(code.builder) {}

  llvm::Value* from_bf16(llvm::Value* value) {
    llvm::Value* bits = widen(value);
    return as_float(builder_.CreateShl(bits, code_.integer(bits, 16)));
  }

  llvm::Value* to_bf16(llvm::Value* value) {
    llvm::Value* bits = as_bits(value);
    llvm::Value* upper = builder_.CreateLShr(bits, code_.integer(bits, 16));
    llvm::Value* even = builder_.CreateAnd(upper, code_.integer(bits, 1));
    llvm::Value* rounded =
        builder_.CreateAdd(bits, builder_.CreateAdd(even, code_.integer(bits, 0x7fff)));
    rounded = builder_.CreateLShr(rounded, code_.integer(bits, 16));
    // Rounding up could make an infinity of a NaN.
    llvm::Value* quiet = builder_.CreateOr(upper, code_.integer(bits, 0x40));
    return narrow(builder_.CreateSelect(builder_.CreateFCmpUNO(value, value), quiet, rounded));
  }

  llvm::Value* from_f16(llvm::Value* value) {
    if (code_.features.half) {
      llvm::Type* half = Code::shaped(value, builder_.getHalfTy());
      return builder_.CreateFPExt(builder_.CreateBitCast(value, half), float_like(value));
    }
    llvm::Value* bits = widen(value);
    llvm::Value* sign = builder_.CreateShl(builder_.CreateAnd(bits, code_.integer(bits, 0x8000)),
                                           code_.integer(bits, 16));
    llvm::Value* size = builder_.CreateAnd(bits, code_.integer(bits, 0x7fff));
    llvm::Value* shift = code_.integer(bits, kBiasDifference);
    llvm::Value* normal =
        builder_.CreateAdd(builder_.CreateShl(size, code_.integer(bits, 13)), shift);
    llvm::Value* not_finite = builder_.CreateAdd(normal, shift);
    llvm::Value* number = builder_.CreateSIToFP(size, float_like(size));
    llvm::Value* denormal = as_bits(builder_.CreateFMul(number, code_.number(number, 0x1p-24)));
    llvm::Value* result = builder_.CreateSelect(
        builder_.CreateICmpSGE(size, code_.integer(bits, 0x7c00)), not_finite, normal);
    result = builder_.CreateSelect(builder_.CreateICmpSLT(size, code_.integer(bits, 0x400)),
                                   denormal, result);
    return as_float(builder_.CreateOr(result, sign));
  }

  llvm::Value* to_f16(llvm::Value* value) {
    if (code_.features.half) {
      llvm::Value* half = builder_.CreateFPTrunc(value, Code::shaped(value, builder_.getHalfTy()));
      return builder_.CreateBitCast(half, Code::shaped(value, builder_.getInt16Ty()));
    }
    llvm::Value* bits = as_bits(value);
    llvm::Value* size = builder_.CreateAnd(bits, code_.integer(bits, 0x7fffffff));
    llvm::Value* sign = builder_.CreateAnd(builder_.CreateLShr(bits, code_.integer(bits, 16)),
                                           code_.integer(bits, 0x8000));
    llvm::Value* even = builder_.CreateAnd(builder_.CreateLShr(size, code_.integer(bits, 13)),
                                           code_.integer(bits, 1));
    llvm::Value* normal = builder_.CreateAdd(
        size, builder_.CreateAdd(even, code_.integer(bits, 0xfff - kBiasDifference)));
    normal = builder_.CreateLShr(normal, code_.integer(bits, 13));
    // A half is where the last bit of a float counts 2^-24, the unit of f16's denormals.
    llvm::Value* magnitude = as_float(size);
    llvm::Value* shifted = builder_.CreateFAdd(magnitude, code_.number(magnitude, 0.5));
    llvm::Value* denormal = builder_.CreateSub(as_bits(shifted), code_.integer(bits, 0x3f000000));
    auto choose = [&](int64_t least, llvm::Value* above, llvm::Value* below) {
      return builder_.CreateSelect(builder_.CreateICmpSGE(size, code_.integer(bits, least)), above,
                                   below);
    };
    llvm::Value* result = choose(0x38800000, normal, denormal);        // 2^-14
    result = choose(0x477ff000, code_.integer(bits, 0x7c00), result);  // 65520
    result = choose(0x7f800001, code_.integer(bits, 0x7e00), result);  // NaN
    return narrow(builder_.CreateOr(result, sign));
  }

  llvm::Type* float_like(llvm::Value* value) { return Code::shaped(value, builder_.getFloatTy()); }

 private:
  static constexpr int64_t kBiasDifference = int64_t{127 - 15} << 23;

  llvm::Value* widen(llvm::Value* value) {
    return builder_.CreateZExt(value, Code::shaped(value, builder_.getInt32Ty()));
  }
  llvm::Value* narrow(llvm::Value* value) {
    return builder_.CreateTrunc(value, Code::shaped(value, builder_.getInt16Ty()));
  }
  llvm::Value* as_bits(llvm::Value* value) {
    return builder_.CreateBitCast(value, Code::shaped(value, builder_.getInt32Ty()));
  }
  llvm::Value* as_float(llvm::Value* value) {
    return builder_.CreateBitCast(value, float_like(value));
  }

  Code& code_;
  llvm::IRBuilder<>& builder_;
};

bool is_narrow_float(Type type) {
  return type == Type::bf16 || type == Type::f16;
}

llvm::Value* float_to_float(Code& code, llvm::Value* value, Type to) {
  llvm::Type* type = Code::shaped(value, code.element(to));
  return code.builder.CreateFPCast(value, type);
}

}  // namespace

llvm::Value* emit_to_integer(Code& code, llvm::Value* value, llvm::Type* integer) {
  // Out of its range fptosi is poison, which a choice that does not take it stops. The least number
  // needs no test of its own: it is what the others become.
  llvm::IRBuilder<>& builder = code.builder;
  const unsigned bits = integer->getScalarSizeInBits();
  llvm::Value* size = builder.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, value);
  llvm::Value* fits = builder.CreateFCmpOLT(size, code.number(value, bits == 64 ? 0x1p63 : 0x1p31));
  llvm::Value* result = builder.CreateFPToSI(value, Code::shaped(value, integer));
  return builder.CreateSelect(
      fits, result,
      llvm::ConstantInt::get(result->getType(), llvm::APInt::getSignedMinValue(bits)));
}

llvm::Value* emit_convert(Code& code, llvm::Value* value, Type from, Type to) {
  if (from == to) {
    return value;
  }
  llvm::IRBuilder<>& builder = code.builder;
  Converter converter(code);
  if (is_narrow_float(from)) {
    value = from == Type::bf16 ? converter.from_bf16(value) : converter.from_f16(value);
    return emit_convert(code, value, Type::f32, to);
  }
  if (is_narrow_float(to)) {
    value = emit_convert(code, value, from, Type::f32);
    return to == Type::bf16 ? converter.to_bf16(value) : converter.to_f16(value);
  }
  llvm::Type* type = Code::shaped(value, code.element(to));
  if (to == Type::boolean) {
    return is_float(from) ? builder.CreateFCmpUNE(value, code.number(value, 0))
                          : builder.CreateICmpNE(value, code.integer(value, 0));
  }
  if (is_float(from)) {
    if (is_float(to)) {
      return float_to_float(code, value, to);
    }
    const bool wide = to == Type::i64;
    llvm::Value* integer =
        emit_to_integer(code, value, wide ? builder.getInt64Ty() : builder.getInt32Ty());
    return builder.CreateTrunc(integer, type);
  }
  const bool is_unsigned = from == Type::u8 || from == Type::boolean;
  if (is_float(to)) {
    return is_unsigned ? builder.CreateUIToFP(value, type) : builder.CreateSIToFP(value, type);
  }
  return builder.CreateIntCast(value, type, !is_unsigned);
}

}  // namespace torch_lazy::codegen
