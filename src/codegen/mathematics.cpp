// The interpreter's mathematics: the C library's functions in f64, and the few it does not have.
#include "codegen/operations.h"
#include "codegen/scalar.h"

#include <cmath>
#include <limits>
#include <numbers>
#include <stdexcept>

namespace torch_lazy::codegen {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

double erfinv(double y) {
  if (!(std::fabs(y) < 1)) {
    return std::fabs(y) == 1 ? std::copysign(kInfinity, y) : kNaN;
  }
  if (y == 0) {
    return y;
  }
  // A rough start, then Halley's method on erf(x) - y, or on erfc where erf has lost its digits.
  const double size = std::fabs(y), rest = 1 - size;
  const double w = std::log(rest * (1 + size));
  const double u = 2 / (std::numbers::pi * 0.147) + w / 2;
  double x = std::sqrt(std::sqrt(u * u - w / 0.147) - u);
  for (int i = 0; i < 4; ++i) {
    const double error = size < 0.5 ? std::erf(x) - size : rest - std::erfc(x);
    const double step = error / (2 * std::numbers::inv_sqrtpi * std::exp(-x * x));
    x -= step / (1 + x * step);
  }
  return std::copysign(x, y);
}

double digamma(double x) {
  if (x == 0) {
    return std::copysign(kInfinity, -x);
  }
  if (x == -kInfinity || (x < 0 && x == std::floor(x))) {
    return kNaN;
  }
  double result = 0;
  if (x < 0) {  // reflection; only the distance to the nearest pole matters to the tangent
    result -= std::numbers::pi / std::tan(std::numbers::pi * (x - std::nearbyint(x)));
    x = 1 - x;
  }
  for (; x < 12; ++x) {
    result -= 1 / x;
  }
  const double z = 1 / (x * x);
  const double series =
      z * (1.0 / 12 - z * (1.0 / 120 -
                           z * (1.0 / 252 -
                                z * (1.0 / 240 - z * (1.0 / 132 - z * (691.0 / 32760 - z / 12))))));
  return result + (std::isinf(x) ? x : std::log(x) - 0.5 / x - series);
}

double lgamma(double x) {
  int sign;  // std::lgamma writes a global variable
  return ::lgamma_r(x, &sign);
}

}  // namespace

double mathematics(Opcode op, double a, double b) {
  switch (op) {
    case Opcode::exp:
      return std::exp(a);
    case Opcode::exp2:
      return std::exp2(a);
    case Opcode::expm1:
      return std::expm1(a);
    case Opcode::log:
      return std::log(a);
    case Opcode::log2:
      return std::log2(a);
    case Opcode::log10:
      return std::log10(a);
    case Opcode::log1p:
      return std::log1p(a);
    case Opcode::sqrt:
      return std::sqrt(a);
    case Opcode::rsqrt:
      return 1 / std::sqrt(a);
    case Opcode::sin:
      return std::sin(a);
    case Opcode::cos:
      return std::cos(a);
    case Opcode::tan:
      return std::tan(a);
    case Opcode::asin:
      return std::asin(a);
    case Opcode::acos:
      return std::acos(a);
    case Opcode::atan:
      return std::atan(a);
    case Opcode::sinh:
      return std::sinh(a);
    case Opcode::cosh:
      return std::cosh(a);
    case Opcode::tanh:
      return std::tanh(a);
    case Opcode::asinh:
      return std::asinh(a);
    case Opcode::acosh:
      return std::acosh(a);
    case Opcode::atanh:
      return std::atanh(a);
    case Opcode::erf:
      return std::erf(a);
    case Opcode::erfc:
      return std::erfc(a);
    case Opcode::erfinv:
      return erfinv(a);
    case Opcode::lgamma:
      return lgamma(a);
    case Opcode::digamma:
      return digamma(a);
    case Opcode::pow:
      return std::pow(a, b);
    case Opcode::atan2:
      return std::atan2(a, b);
    case Opcode::hypot:
      return std::hypot(a, b);
    case Opcode::sigmoid:
      return 1 / (1 + std::exp(-a));
    case Opcode::floor:
      return std::floor(a);
    case Opcode::ceil:
      return std::ceil(a);
    case Opcode::trunc:
      return std::trunc(a);
    case Opcode::round:
      return std::nearbyint(a);
    default:
      throw std::logic_error(std::string("interpreter: no mathematics ") + operation(op).name);
  }
}

}  // namespace torch_lazy::codegen
