// The method of Payne and Hanek: x is an integer times a power of two, so of the digits of 2 / pi
// those in front make multiples of four and those far behind make nothing. What is left is a
// window of three words, and one multiplication in integers gives quadrant and angle.
#include "codegen/llvm/math_reduction.h"

#include "codegen/llvm/math_coefficients.h"

#include <vector>

namespace torch_lazy::codegen::math {

namespace {

struct Words {
  Integer high;
  Integer low;
};

/// All bits of the product of two numbers without sign.
Words wide_product(Integer a, Integer b) {
  llvm::IRBuilder<>& builder = a.emitter->builder;
  llvm::Type* type = a.value->getType();
  if (type->getScalarSizeInBits() == 32) {
    llvm::Type* wide = type->getWithNewType(builder.getInt64Ty());
    llvm::Value* product =
        builder.CreateMul(builder.CreateZExt(a.value, wide), builder.CreateZExt(b.value, wide));
    llvm::Value* high = builder.CreateTrunc(builder.CreateLShr(product, 32), type);
    return {{a.emitter, high}, {a.emitter, builder.CreateTrunc(product, type)}};
  }
  const int64_t half = 0xffffffff;
  Integer a_high = shift_right_logical(a, 32), a_low = a & half;
  Integer b_high = shift_right_logical(b, 32), b_low = b & half;
  Integer lowest = a_low * b_low;
  Integer middle = a_low * b_high + shift_right_logical(lowest, 32);
  Integer other = a_high * b_low + (middle & half);
  Integer high = a_high * b_high + shift_right_logical(middle, 32) + shift_right_logical(other, 32);
  return {high, (other << 32) | (lowest & half)};
}

/// The digits of 2 / pi in words as wide as `like`, a word of zeros in front.
std::vector<Integer> digits(Integer like, bool wide) {
  std::vector<Integer> words{like.like(0)};
  for (uint64_t word : kTwoOverPi) {
    if (wide) {
      words.push_back(like.like(static_cast<int64_t>(word)));
    } else {
      words.push_back(like.like(static_cast<int64_t>(word >> 32)));
      words.push_back(like.like(static_cast<int64_t>(word & 0xffffffff)));
    }
  }
  return words;
}

/// Three words of the digits from bit `offset` on.
std::vector<Integer> window(Integer offset, bool wide) {
  std::vector<Integer> words = digits(offset, wide);
  // Choose four words, a bit of their index at a time. The index never exceeds the first step.
  const int first_step = wide ? 16 : 4;
  Integer index = shift_right_logical(offset, wide ? 6 : 5);
  for (int step = first_step; step > 0; step /= 2) {
    Mask skip = (index & step) != 0;
    const int needed = step == first_step ? 4 : 4 + step - 1;
    for (int i = 0; i < needed; ++i) {
      words[i] = select(skip, words[i + step], words[i]);
    }
  }
  for (int i = 0; i < 3; ++i) {
    words[i] = funnel_shift_left(words[i], words[i + 1], offset);
  }
  words.resize(3, words[0]);
  return words;
}

}  // namespace

Angle reduce_angle(Real x) {
  const bool wide = x.is_double();
  const Format& f = format(x);
  const int bits_in_word = wide ? 64 : 32;
  const int64_t implicit = int64_t{1} << f.mantissa;
  Integer b = bits(x);
  Integer mantissa = (b & (implicit - 1)) | implicit;
  // Bits up to the one worth 2^-k make multiples of four when mantissa * 2^(exponent - k) does.
  Integer exponent = shift_right_logical(b, f.mantissa);
  Integer offset = exponent - (f.bias + f.mantissa + 2 - bits_in_word);
  std::vector<Integer> v = window(offset, wide);

  // The upper two words of the last three of the product: two bits of quadrant, then the fraction.
  Words middle = wide_product(mantissa, v[1]);
  Integer low = middle.low + wide_product(mantissa, v[2]).high;
  Integer high = mantissa * v[0] + middle.high;
  high = select(less_unsigned(low, middle.low), high + 1, high);
  Integer quadrant =
      shift_right_logical(high + (int64_t{1} << (bits_in_word - 3)), bits_in_word - 2);

  // The fraction with its sign, in four exact pieces.
  Integer upper = funnel_shift_left(high, low, high.like(2));
  Integer lower = low << 2;
  const int piece = bits_in_word / 2;
  const int64_t piece_bits = (int64_t{1} << piece) - 1;
  const double unit = 1.0 / static_cast<double>(int64_t{1} << piece);
  Pair fraction = exact_sum_ordered(to_real(upper >> piece) * unit,
                                    to_real(upper & piece_bits) * (unit * unit));
  Real rest = fma(to_real(shift_right_logical(lower, piece)), unit * unit * unit,
                  to_real(lower & piece_bits) * (unit * unit * unit * unit));
  fraction = exact_sum_ordered(fraction.high, fraction.low + rest);
  return {quadrant, fraction * half_pi(x)};
}

}  // namespace torch_lazy::codegen::math
