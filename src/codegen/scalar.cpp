// What operations do with single values.
#include "codegen/scalar.h"

#include "codegen/operations.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

namespace torch_lazy::codegen {
namespace {

template <class T>
T read(const void* memory) {
  T value;
  std::memcpy(&value, memory, sizeof value);
  return value;
}

template <class T>
void write(T value, void* memory) {
  std::memcpy(memory, &value, sizeof value);
}

uint16_t bf16_bits(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) {
    return static_cast<uint16_t>((bits >> 16) | 0x40);  // quiet, and not an infinity
  }
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

float from_bf16(uint16_t bits) {
  return std::bit_cast<float>(uint32_t{bits} << 16);
}

uint16_t f16_bits(float value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) {
    return sign | 0x7e00;
  }
  const float size = std::fabs(value);
  if (size >= 65520.0f) {  // half way from the greatest number to the next
    return sign | 0x7c00;
  }
  if (size < 0x1p-14f) {  // denormal: a multiple of 2^-24
    return sign | static_cast<uint16_t>(std::nearbyint(size * 0x1p24f));
  }
  const uint32_t bits = std::bit_cast<uint32_t>(size);
  const uint32_t rounded = bits + 0xfff + ((bits >> 13) & 1);
  return sign | static_cast<uint16_t>((rounded >> 13) - ((127 - 15) << 10));
}

float from_f16(uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const float fraction = static_cast<float>(bits & 0x3ff);
  float size;
  if (exponent == 31) {
    size = fraction != 0 ? std::numeric_limits<float>::quiet_NaN()
                         : std::numeric_limits<float>::infinity();
  } else if (exponent == 0) {
    size = std::ldexp(fraction, -24);
  } else {
    size = std::ldexp(fraction + 1024.0f, exponent - 25);
  }
  return bits & 0x8000 ? -size : size;
}

int64_t wrap(Type type, uint64_t value) {
  switch (type) {
    case Type::i8:
      return static_cast<int8_t>(value);
    case Type::u8:
      return static_cast<uint8_t>(value);
    case Type::i16:
      return static_cast<int16_t>(value);
    case Type::i32:
      return static_cast<int32_t>(value);
    default:
      return static_cast<int64_t>(value);
  }
}

double round_to(Type type, double number) {
  const float single = static_cast<float>(number);
  switch (type) {
    case Type::f32:
      return single;
    case Type::bf16:
      return from_bf16(bf16_bits(single));
    case Type::f16:
      return from_f16(f16_bits(single));
    default:
      return number;
  }
}

/// Towards zero; what does not fit becomes the least number, as on x86. Narrow types take the low
/// bits of an i32.
int64_t to_integer(double number, Type type) {
  const double limit = type == Type::i64 ? 0x1p63 : 0x1p31;
  if (!(std::fabs(number) < limit)) {
    return type == Type::i64 ? std::numeric_limits<int64_t>::min() : wrap(type, 0x80000000u);
  }
  return wrap(type, static_cast<uint64_t>(static_cast<int64_t>(number)));
}

Scalar apply_float(Opcode op, Type type, const Scalar (&operands)[3]) {
  const double a = operands[0].number, b = operands[1].number, c = operands[2].number;
  const bool single = type == Type::f32;
  Scalar result;
  switch (op) {
    case Opcode::add:
      result.number = a + b;
      break;
    case Opcode::sub:
      result.number = a - b;
      break;
    case Opcode::mul:
      result.number = a * b;
      break;
    case Opcode::div:
      result.number = a / b;
      break;
    case Opcode::rem_trunc:
      result.number = std::fmod(a, b);
      break;
    case Opcode::rem_floor: {
      const double rest = std::fmod(a, b);
      const bool adjust = rest != 0 && (rest < 0) != (b < 0);
      result.number = !adjust  ? rest
                      : single ? static_cast<float>(rest) + static_cast<float>(b)
                               : rest + b;
      break;
    }
    case Opcode::neg:
      result.number = -a;
      break;
    case Opcode::abs:
      result.number = std::fabs(a);
      break;
    case Opcode::min:
      result.number = std::isnan(a) || a < b ? a : b;
      break;
    case Opcode::max:
      result.number = std::isnan(a) || a > b ? a : b;
      break;
    case Opcode::fma:
      result.number =
          single ? std::fma(static_cast<float>(a), static_cast<float>(b), static_cast<float>(c))
                 : std::fma(a, b, c);
      break;
    case Opcode::eq:
      result.integer = a == b;
      break;
    case Opcode::ne:
      result.integer = a != b;
      break;
    case Opcode::lt:
      result.integer = a < b;
      break;
    case Opcode::le:
      result.integer = a <= b;
      break;
    case Opcode::gt:
      result.integer = a > b;
      break;
    case Opcode::ge:
      result.integer = a >= b;
      break;
    default:
      if (!is_mathematics(op)) {
        throw std::logic_error(std::string("interpreter: no ") + operation(op).name);
      }
      result.number = mathematics(op, a, b);
  }
  result.number = round_to(type, result.number);
  return result;
}

int64_t divide(int64_t a, int64_t b, bool floor) {
  if (b == 0) {
    return 0;  // never asked for, but no reason to trap
  }
  if (b == -1) {
    return static_cast<int64_t>(-static_cast<uint64_t>(a));
  }
  const int64_t quotient = a / b;
  return quotient - (floor && a % b != 0 && (a < 0) != (b < 0));
}

Scalar apply_integer(Opcode op, Type type, const Scalar (&operands)[3]) {
  const int64_t a = operands[0].integer, b = operands[1].integer;
  const uint64_t x = static_cast<uint64_t>(a), y = static_cast<uint64_t>(b);
  const int last_bit = size_of(type) * 8 - 1;
  Scalar result;
  int64_t& r = result.integer;
  switch (op) {
    case Opcode::add:
      r = static_cast<int64_t>(x + y);
      break;
    case Opcode::sub:
      r = static_cast<int64_t>(x - y);
      break;
    case Opcode::mul:
      r = static_cast<int64_t>(x * y);
      break;
    case Opcode::div_trunc:
      r = divide(a, b, false);
      break;
    case Opcode::div_floor:
      r = divide(a, b, true);
      break;
    case Opcode::rem_trunc:
      r = static_cast<int64_t>(x - static_cast<uint64_t>(divide(a, b, false)) * y);
      break;
    case Opcode::rem_floor:
      r = static_cast<int64_t>(x - static_cast<uint64_t>(divide(a, b, true)) * y);
      break;
    case Opcode::neg:
      r = static_cast<int64_t>(-x);
      break;
    case Opcode::abs:
      r = a < 0 ? static_cast<int64_t>(-x) : a;
      break;
    case Opcode::min:
      r = std::min(a, b);
      break;
    case Opcode::max:
      r = std::max(a, b);
      break;
    case Opcode::bit_and:
      r = a & b;
      break;
    case Opcode::bit_or:
      r = a | b;
      break;
    case Opcode::bit_xor:
      r = a ^ b;
      break;
    case Opcode::bit_not:
      r = type == Type::boolean ? a ^ 1 : ~a;
      break;
    case Opcode::shift_left:
      r = b < 0 || b > last_bit ? 0 : static_cast<int64_t>(x << b);
      break;
    case Opcode::shift_right:
      r = a >> (b < 0 || b > last_bit ? last_bit : b);
      break;
    case Opcode::eq:
      r = a == b;
      break;
    case Opcode::ne:
      r = a != b;
      break;
    case Opcode::lt:
      r = a < b;
      break;
    case Opcode::le:
      r = a <= b;
      break;
    case Opcode::gt:
      r = a > b;
      break;
    case Opcode::ge:
      r = a >= b;
      break;
    default:
      throw std::logic_error(std::string("interpreter: no ") + operation(op).name);
  }
  if (type != Type::boolean) {
    r = wrap(type, static_cast<uint64_t>(r));
  }
  return result;
}

}  // namespace

Scalar read_scalar(Type type, const void* memory) {
  Scalar value;
  switch (type) {
    case Type::f32:
      value.number = read<float>(memory);
      break;
    case Type::f64:
      value.number = read<double>(memory);
      break;
    case Type::bf16:
      value.number = from_bf16(read<uint16_t>(memory));
      break;
    case Type::f16:
      value.number = from_f16(read<uint16_t>(memory));
      break;
    case Type::i8:
      value.integer = read<int8_t>(memory);
      break;
    case Type::u8:
      value.integer = read<uint8_t>(memory);
      break;
    case Type::i16:
      value.integer = read<int16_t>(memory);
      break;
    case Type::i32:
      value.integer = read<int32_t>(memory);
      break;
    case Type::i64:
      value.integer = read<int64_t>(memory);
      break;
    case Type::boolean:
      value.integer = read<uint8_t>(memory) != 0;
      break;
  }
  return value;
}

void write_scalar(Type type, Scalar value, void* memory) {
  switch (type) {
    case Type::f32:
      write(static_cast<float>(value.number), memory);
      break;
    case Type::f64:
      write(value.number, memory);
      break;
    case Type::bf16:
      write(bf16_bits(static_cast<float>(value.number)), memory);
      break;
    case Type::f16:
      write(f16_bits(static_cast<float>(value.number)), memory);
      break;
    case Type::i8:
    case Type::u8:
    case Type::boolean:
      write(static_cast<uint8_t>(value.integer), memory);
      break;
    case Type::i16:
      write(static_cast<uint16_t>(value.integer), memory);
      break;
    case Type::i32:
      write(static_cast<uint32_t>(value.integer), memory);
      break;
    case Type::i64:
      write(value.integer, memory);
      break;
  }
}

Scalar make_scalar(Type type, double number, int64_t integer) {
  Scalar value;
  if (is_float(type)) {
    value.number = round_to(type, number);
  } else {
    value.integer = wrap(type, static_cast<uint64_t>(integer));
  }
  return value;
}

Scalar convert_scalar(Scalar value, Type from, Type to) {
  if (to == Type::boolean) {
    return {0, is_float(from) ? value.number != 0 : value.integer != 0};
  }
  if (!is_float(to)) {
    return is_float(from) ? Scalar{0, to_integer(value.number, to)}
                          : make_scalar(to, 0, value.integer);
  }
  if (is_float(from)) {
    return make_scalar(to, value.number, 0);
  }
  // An i64 goes to f32 in one rounding, not through f64.
  return make_scalar(to,
                     to == Type::f64 ? static_cast<double>(value.integer)
                                     : static_cast<double>(static_cast<float>(value.integer)),
                     0);
}

Scalar apply(Opcode op, Type type, const Scalar (&operands)[3]) {
  if (op == Opcode::select) {
    return operands[0].integer ? operands[1] : operands[2];
  }
  return is_float(type) ? apply_float(op, type, operands) : apply_integer(op, type, operands);
}

}  // namespace torch_lazy::codegen
