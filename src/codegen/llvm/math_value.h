// Values of LLVM's IR with operators, so that mathematics reads like mathematics: each operator
// appends an instruction. A value is a scalar or a vector; masks and integers have its shape.
#pragma once

#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/Intrinsics.h>

#include <cstdint>
#include <limits>
#include <span>

namespace torch_lazy::codegen::math {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN();

/// Where instructions go, and which ones the target has.
struct Emitter {
  llvm::IRBuilder<>& builder;
  bool has_fma;
  bool has_rounding;
  bool has_tables;  // `lookup` and `scale`, for f32
};

struct Mask {
  Emitter* emitter;
  llvm::Value* value;
};

/// An integer as wide as the number beside it. Shifts to the right keep the sign.
struct Integer {
  Emitter* emitter;
  llvm::Value* value;

  Integer like(int64_t number) const;
};

/// f32 or f64.
struct Real {
  Emitter* emitter;
  llvm::Value* value;

  Real widen() const;   // f32 to f64
  Real narrow() const;  // f64 to f32
  bool is_double() const { return value->getType()->getScalarType()->isDoubleTy(); }
  Real like(double number) const;  // a constant of this type
};

// ---- Arithmetic
// ----------------------------------------------------------------------------------

Real operator+(Real a, Real b);
Real operator-(Real a, Real b);
Real operator*(Real a, Real b);
Real operator/(Real a, Real b);
Real operator-(Real a);
inline Real operator+(Real a, double b) {
  return a + a.like(b);
}
inline Real operator-(Real a, double b) {
  return a - a.like(b);
}
inline Real operator*(Real a, double b) {
  return a * a.like(b);
}
inline Real operator/(Real a, double b) {
  return a / a.like(b);
}
inline Real operator+(double a, Real b) {
  return b.like(a) + b;
}
inline Real operator-(double a, Real b) {
  return b.like(a) - b;
}
inline Real operator*(double a, Real b) {
  return b.like(a) * b;
}
inline Real operator/(double a, Real b) {
  return b.like(a) / b;
}

/// a * b + c: one rounding where the target has that, else two.
Real fma(Real a, Real b, Real c);
inline Real fma(Real a, double b, Real c) {
  return fma(a, a.like(b), c);
}
inline Real fma(Real a, Real b, double c) {
  return fma(a, b, a.like(c));
}
inline Real fma(Real a, double b, double c) {
  return fma(a, a.like(b), a.like(c));
}

/// The number at the low bits of the index: four for a table of 16 numbers, five for one of 32.
Real lookup(Integer index, std::span<const double> table);
/// a * 2^n, n rounded down; what is too large or small for the type becomes infinite or denormal.
Real scale(Real a, Real n);
inline bool has_tables(Real x) {
  return x.emitter->has_tables && !x.is_double();
}

Real abs(Real a);
Real sqrt(Real a);
Real copysign(Real magnitude, Real sign);

/// Coefficients from the lowest power up.
Real polynomial(Real x, std::span<const double> coefficients);

/// With the coefficients made for the type of x.
inline Real polynomial(Real x, std::span<const double> f32, std::span<const double> f64) {
  return polynomial(x, x.is_double() ? f64 : f32);
}

// ---- Comparisons (false when one side is NaN, != true) and choice
// --------------------------------

Mask operator<(Real a, Real b);
Mask operator<=(Real a, Real b);
Mask operator>(Real a, Real b);
Mask operator>=(Real a, Real b);
Mask operator==(Real a, Real b);
Mask operator!=(Real a, Real b);
inline Mask operator<(Real a, double b) {
  return a < a.like(b);
}
inline Mask operator<=(Real a, double b) {
  return a <= a.like(b);
}
inline Mask operator>(Real a, double b) {
  return a > a.like(b);
}
inline Mask operator>=(Real a, double b) {
  return a >= a.like(b);
}
inline Mask operator==(Real a, double b) {
  return a == a.like(b);
}
inline Mask operator!=(Real a, double b) {
  return a != a.like(b);
}
Mask operator<(Integer a, Integer b);
Mask less_unsigned(Integer a, Integer b);
Mask operator==(Integer a, Integer b);
Mask operator!=(Integer a, Integer b);
Mask operator&(Mask a, Mask b);
Mask operator|(Mask a, Mask b);
Mask operator^(Mask a, Mask b);
Mask operator!(Mask a);
inline Mask operator<(Integer a, int64_t b) {
  return a < a.like(b);
}
inline Mask operator==(Integer a, int64_t b) {
  return a == a.like(b);
}
inline Mask operator!=(Integer a, int64_t b) {
  return a != a.like(b);
}

Real select(Mask mask, Real a, Real b);
Integer select(Mask mask, Integer a, Integer b);
inline Real select(Mask mask, double a, Real b) {
  return select(mask, b.like(a), b);
}
inline Real select(Mask mask, Real a, double b) {
  return select(mask, a, a.like(b));
}
inline Integer select(Mask mask, int64_t a, Integer b) {
  return select(mask, b.like(a), b);
}
inline Integer select(Mask mask, Integer a, int64_t b) {
  return select(mask, a, a.like(b));
}

/// The nearest number in the range; NaN stays NaN.
inline Real at_most(Real a, double bound) {
  return select(a > bound, bound, a);
}
inline Real at_least(Real a, double bound) {
  return select(a < bound, bound, a);
}

Mask is_nan(Real a, Real b);  // one of them

// ---- Integers and bits
// ---------------------------------------------------------------------------

Integer operator+(Integer a, Integer b);
Integer operator-(Integer a, Integer b);
Integer operator*(Integer a, Integer b);
Integer operator&(Integer a, Integer b);
Integer operator|(Integer a, Integer b);
Integer operator^(Integer a, Integer b);
Integer operator<<(Integer a, Integer b);
Integer operator>>(Integer a, Integer b);
Integer shift_right_logical(Integer a, Integer b);
/// The upper half of both words together, shifted left by b modulo their width.
Integer funnel_shift_left(Integer high, Integer low, Integer b);
inline Integer operator+(Integer a, int64_t b) {
  return a + a.like(b);
}
inline Integer operator-(Integer a, int64_t b) {
  return a - a.like(b);
}
inline Integer operator*(Integer a, int64_t b) {
  return a * a.like(b);
}
inline Integer operator&(Integer a, int64_t b) {
  return a & a.like(b);
}
inline Integer operator|(Integer a, int64_t b) {
  return a | a.like(b);
}
inline Integer operator^(Integer a, int64_t b) {
  return a ^ a.like(b);
}
inline Integer operator<<(Integer a, int64_t b) {
  return a << a.like(b);
}
inline Integer operator>>(Integer a, int64_t b) {
  return a >> a.like(b);
}
inline Integer shift_right_logical(Integer a, int64_t b) {
  return shift_right_logical(a, a.like(b));
}

Integer bits(Real a);
Real from_bits(Integer a);

/// The number an integer stands for, exactly: less than a quarter of 2 to the bits of a mantissa.
Real to_real(Integer a);

// ---- Formats
// -------------------------------------------------------------------------------------

/// What the bits of a number mean.
struct Format {
  int mantissa;        // bits stored
  int bias;            // of the exponent
  double smallest;     // normal number
  double round_magic;  // added and taken away again rounds a small number to an integer, which is
                       // then also in the low bits of the sum
};

inline constexpr Format kFormatF32{23, 127, 0x1p-126, 0x1.8p23};
inline constexpr Format kFormatF64{52, 1023, 0x1p-1022, 0x1.8p52};
inline const Format& format(Real a) {
  return a.is_double() ? kFormatF64 : kFormatF32;
}

}  // namespace torch_lazy::codegen::math
