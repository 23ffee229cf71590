// Rows of the table of operators: element by element.
#include "compile/pointwise.h"

#include <cmath>
#include <limits>

namespace torch_lazy::compile {
namespace {

template <Opcode op>
bool unary_float(Lowering& l) {
  Pointwise p(l, {0}, Promotion::to_float);
  return p.finish(p.make(op, p(0)));
}

/// For floats and integers; integers stay as they are where that is what the operation does.
template <Opcode op>
bool rounding(Lowering& l) {
  if (l.description().arguments.size() > 1 && l.is_number(1)) {
    return false;  // round to decimals
  }
  Pointwise p(l, {0}, Promotion::arithmetic);
  return p.finish(p.is_float() ? p.make(op, p(0)) : p(0));
}

template <Opcode op, Opcode for_booleans = op>
bool binary(Lowering& l) {
  Pointwise p(l, {0, 1}, Promotion::arithmetic,
              op == Opcode::mul ? Numbers::second_as_given : Numbers::rounded);
  return p.finish(p.make(p.is_boolean() ? for_booleans : op, p(0), p(1)));
}

template <Opcode op>
bool binary_float(Lowering& l) {
  Pointwise p(l, {0, 1}, Promotion::to_float,
              op == Opcode::div ? Numbers::second_as_given : Numbers::rounded);
  return p.finish(p.make(op, p(0), p(1)));
}

template <Opcode op>
bool compare(Lowering& l) {
  Pointwise p(l, {0, 1}, Promotion::compare);
  return p.finish(p.make(op, p(0), p(1)));
}

/// a + alpha * b, or with minus.
template <Opcode op>
bool add_scaled(Lowering& l, size_t a, size_t b, size_t alpha) {
  Pointwise p(l, {a, b}, Promotion::arithmetic);
  if (p.is_boolean()) {
    return op == Opcode::add && p.number_is(alpha, kClassOne, 1) &&
           p.finish(p.make(Opcode::bit_or, p(a), p(b)));
  }
  const int32_t first = p(a);
  int32_t second = p(b);
  if (!p.number_is(alpha, kClassOne, 1)) {
    second = p.make(Opcode::mul, second, p.rounded_number(alpha));
  }
  return p.finish(p.make(op, first, second));
}

bool add(Lowering& l) {
  return add_scaled<Opcode::add>(l, 0, 1, 2);
}
bool sub(Lowering& l) {
  return add_scaled<Opcode::sub>(l, 0, 1, 2);
}
bool rsub(Lowering& l) {
  Pointwise p(l, {0, 1}, Promotion::arithmetic);
  int32_t self = p(0);
  if (!p.number_is(2, kClassOne, 1)) {
    self = p.make(Opcode::mul, self, p.rounded_number(2));
  }
  return p.finish(p.make(Opcode::sub, p(1), self));
}

bool div(Lowering& l) {
  const bool mode =
      l.description().arguments.size() > 2 && l.is_constant(2) && l.constant(2).isString();
  if (mode) {
    Pointwise p(l, {0, 1}, Promotion::arithmetic, Numbers::second_as_given);
    // Integers divided by zero raise; PyTorch's floor of floats has corner cases of its own.
    if (!p.is_float() || l.constant(2).toStringRef() != "trunc") {
      return false;
    }
    return p.finish(p.make(Opcode::trunc, p.make(Opcode::div, p(0), p(1))));
  }
  return binary_float<Opcode::div>(l);
}

bool copy(Lowering& l, size_t from) {
  if (!l.is_tensor(from)) {
    return false;
  }
  l.begin(l.result_layout(0).sizes);
  const std::optional<Type> memory = type_of(l.layout(from).dtype);
  if (!memory) {
    return false;
  }
  l.store(0, l.load(from, *memory));
  l.end();
  return true;
}

bool copy_first(Lowering& l) {
  return copy(l, 0);
}
bool copy_second(Lowering& l) {
  return copy(l, 1);
}

bool fill_with(Lowering& l, size_t value) {
  const std::optional<Type> type = type_of(l.result_layout(0).dtype);
  if (!type) {
    return false;
  }
  l.begin(l.result_layout(0).sizes);
  const Type computed = compute_type(*type);
  l.store(0, l.is_tensor(value) ? l.load(value, computed) : l.number(value, computed));
  l.end();
  return true;
}

template <int value>
bool fill_constant(Lowering& l) {
  const std::optional<Type> type = type_of(l.result_layout(0).dtype);
  if (!type) {
    return false;
  }
  l.begin(l.result_layout(0).sizes);
  l.store(0, l.constant_of(compute_type(*type), value));
  l.end();
  return true;
}

bool fill_second(Lowering& l) {
  return fill_with(l, 1);
}
bool fill_third(Lowering& l) {
  return fill_with(l, 2);
}
bool scalar_tensor(Lowering& l) {
  return fill_with(l, 0);
}

bool neg(Lowering& l) {
  Pointwise p(l, {0}, Promotion::arithmetic);
  return !p.is_boolean() && p.finish(p.make(Opcode::neg, p(0)));
}

bool absolute(Lowering& l) {
  Pointwise p(l, {0}, Promotion::arithmetic);
  return !p.is_boolean() && p.finish(p.make(Opcode::abs, p(0)));
}

bool sign(Lowering& l) {
  Pointwise p(l, {0}, Promotion::arithmetic);
  if (p.is_boolean()) {
    return false;
  }
  const int32_t x = p(0);
  const int32_t zero = p.constant(0);
  const int32_t positive = l.convert(p.make(Opcode::gt, x, zero), p.type);
  const int32_t negative = l.convert(p.make(Opcode::lt, x, zero), p.type);
  return p.finish(p.make(Opcode::sub, positive, negative));
}

bool reciprocal(Lowering& l) {
  Pointwise p(l, {0}, Promotion::to_float);
  return p.finish(p.make(Opcode::div, p.constant(1), p(0)));
}

bool square(Lowering& l) {
  Pointwise p(l, {0}, Promotion::arithmetic);
  const int32_t x = p(0);
  return !p.is_boolean() && p.finish(p.make(Opcode::mul, x, x));
}

bool power(Lowering& l) {
  Pointwise p(l, {0, 1}, Promotion::arithmetic);
  if (!p.is_float()) {
    return false;
  }
  const int32_t x = p(0);
  if (!l.is_tensor(1)) {
    if (p.number_is(1, kClassTwo, 2)) {
      return p.finish(p.make(Opcode::mul, x, x));
    }
    if (p.number_is(1, kClassThree, 3)) {
      return p.finish(p.make(Opcode::mul, p.make(Opcode::mul, x, x), x));
    }
    if (p.number_is(1, kClassHalf, 0.5)) {
      return p.finish(p.make(Opcode::sqrt, x));
    }
    if (p.number_is(1, kClassOne, 1)) {
      return p.finish(x);
    }
    if (p.number_is(1, kClassZero, 0)) {
      return p.finish(p.constant(1));
    }
  }
  return p.finish(p.make(Opcode::pow, x, p(1)));
}

bool where(Lowering& l) {
  if (!l.is_tensor(0) || l.layout(0).dtype != at::kBool) {
    return false;
  }
  Pointwise p(l, {1, 2}, Promotion::arithmetic);
  return p.finish(p.make(Opcode::select, l.load(0, Type::boolean), p(1), p(2)));
}

bool masked_fill(Lowering& l) {
  if (!l.is_tensor(1) || l.layout(1).dtype != at::kBool) {
    return false;
  }
  const std::optional<Type> type = type_of(l.result_layout(0).dtype);
  if (!type) {
    return false;
  }
  l.begin(l.result_layout(0).sizes);
  const Type computed = compute_type(*type);
  const int32_t value = l.is_tensor(2) ? l.load(2, computed) : l.number(2, computed);
  l.store(0, l.make(Opcode::select, l.load(1, Type::boolean), value, l.load(0, computed)));
  l.end();
  return true;
}

bool clamp_between(Lowering& l, size_t low, size_t high) {
  std::vector<size_t> operands{0};
  const bool has_low = low && !l.is_absent(low);
  const bool has_high = high && !l.is_absent(high);
  if (has_low) {
    operands.push_back(low);
  }
  if (has_high) {
    operands.push_back(high);
  }
  Pointwise p(l, operands, Promotion::arithmetic);
  int32_t x = p(0);
  if (has_low) {
    x = p.make(Opcode::max, x, p(low));
  }
  if (has_high) {
    x = p.make(Opcode::min, x, p(high));
  }
  return p.finish(x);
}

bool clamp(Lowering& l) {
  return clamp_between(l, 1, 2);
}
bool clamp_min(Lowering& l) {
  return clamp_between(l, 1, 0);
}
bool clamp_max(Lowering& l) {
  return clamp_between(l, 0, 1);
}

bool relu(Lowering& l) {
  Pointwise p(l, {0}, Promotion::arithmetic);
  return !p.is_boolean() && p.finish(p.make(Opcode::max, p(0), p.constant(0)));
}

/// Where x <= threshold: value, else other.
bool threshold_backward(Lowering& l) {
  Pointwise p(l, {0, 1}, Promotion::arithmetic);
  const int32_t below = p.make(Opcode::le, p(1), p.number(2));
  return p.finish(p.make(Opcode::select, below, p.constant(0), p(0)));
}

bool leaky_relu(Lowering& l) {
  Pointwise p(l, {0}, Promotion::arithmetic);
  const int32_t x = p(0);
  return p.is_float() && p.finish(p.make(Opcode::select, p.make(Opcode::gt, x, p.constant(0)), x,
                                         p.make(Opcode::mul, x, p.number(1))));
}

bool leaky_relu_backward(Lowering& l) {
  Pointwise p(l, {0, 1}, Promotion::arithmetic);
  const int32_t g = p(0);
  return p.is_float() && p.finish(p.make(Opcode::select, p.make(Opcode::gt, p(1), p.constant(0)), g,
                                         p.make(Opcode::mul, g, p.number(2))));
}

bool silu(Lowering& l) {
  Pointwise p(l, {0}, Promotion::to_float);
  const int32_t x = p(0);
  const int32_t e = p.make(Opcode::exp, p.make(Opcode::neg, x));
  return p.finish(p.make(Opcode::div, x, p.make(Opcode::add, p.constant(1), e)));
}

bool silu_backward(Lowering& l) {
  Pointwise p(l, {0, 1}, Promotion::to_float);
  const int32_t g = p(0);
  const int32_t x = p(1);
  const int32_t s = p.make(Opcode::sigmoid, x);
  const int32_t rest = p.make(Opcode::sub, p.constant(1), s);
  const int32_t inner = p.make(Opcode::add, p.constant(1), p.make(Opcode::mul, x, rest));
  return p.finish(p.make(Opcode::mul, p.make(Opcode::mul, g, s), inner));
}

bool sigmoid_backward(Lowering& l) {
  Pointwise p(l, {0, 1}, Promotion::arithmetic);
  const int32_t y = p(1);
  const int32_t rest = p.make(Opcode::sub, p.constant(1), y);
  return p.is_float() && p.finish(p.make(Opcode::mul, p(0), p.make(Opcode::mul, rest, y)));
}

bool tanh_backward(Lowering& l) {
  Pointwise p(l, {0, 1}, Promotion::arithmetic);
  const int32_t y = p(1);
  const int32_t rest = p.make(Opcode::sub, p.constant(1), p.make(Opcode::mul, y, y));
  return p.is_float() && p.finish(p.make(Opcode::mul, p(0), rest));
}

/// How gelu is approximated; nothing: eager refuses it.
std::optional<bool> by_tanh(const c10::IValue& value) {
  if (value.isString() && (value.toStringRef() == "tanh" || value.toStringRef() == "none")) {
    return value.toStringRef() == "tanh";
  }
  return std::nullopt;
}

constexpr double kSqrt2 = 1.41421356237309504880;
constexpr double kSqrtHalf = 0.70710678118654752440;
constexpr double kTwoOverSqrtPi = 1.12837916709551257390;

bool gelu(Lowering& l) {
  const std::optional<bool> tanh = by_tanh(l.constant(1));
  if (!tanh) {
    return false;
  }
  Pointwise p(l, {0}, Promotion::to_float);
  const int32_t x = p(0);
  const int32_t half = p.make(Opcode::mul, p.constant(0.5), x);
  if (*tanh) {
    const int32_t cube = p.make(Opcode::mul, p.make(Opcode::mul, x, x), x);
    const int32_t sum = p.make(Opcode::add, x, p.make(Opcode::mul, p.constant(0.044715), cube));
    const int32_t inner = p.make(Opcode::mul, p.constant(kSqrt2 * kTwoOverSqrtPi * 0.5), sum);
    return p.finish(p.make(Opcode::fma, half, p.make(Opcode::tanh, inner), half));
  }
  const int32_t e = p.make(Opcode::erf, p.make(Opcode::mul, x, p.constant(kSqrtHalf)));
  return p.finish(p.make(Opcode::fma, half, e, half));
}

bool gelu_backward(Lowering& l) {
  const std::optional<bool> tanh = by_tanh(l.constant(2));
  if (!tanh) {
    return false;
  }
  Pointwise p(l, {0, 1}, Promotion::to_float);
  const int32_t g = p(0);
  const int32_t x = p(1);
  const int32_t one = p.constant(1);
  const int32_t half = p.constant(0.5);
  if (*tanh) {
    const int32_t beta = p.constant(kSqrt2 * kTwoOverSqrtPi * 0.5);
    const int32_t kappa = p.constant(0.044715);
    const int32_t squared = p.make(Opcode::mul, x, x);
    const int32_t cube = p.make(Opcode::mul, squared, x);
    const int32_t inner =
        p.make(Opcode::mul, beta, p.make(Opcode::add, x, p.make(Opcode::mul, kappa, cube)));
    const int32_t t = p.make(Opcode::tanh, inner);
    const int32_t left = p.make(Opcode::mul, half, x);
    const int32_t right = p.make(Opcode::add, one, t);
    const int32_t left_derivative = p.make(Opcode::mul, half, right);
    const int32_t tanh_derivative = p.make(Opcode::sub, one, p.make(Opcode::mul, t, t));
    const int32_t three_kappa = p.make(Opcode::mul, p.constant(3), kappa);
    const int32_t inner_derivative = p.make(
        Opcode::mul, beta, p.make(Opcode::add, one, p.make(Opcode::mul, three_kappa, squared)));
    const int32_t right_derivative =
        p.make(Opcode::mul, p.make(Opcode::mul, left, tanh_derivative), inner_derivative);
    return p.finish(p.make(Opcode::mul, g, p.make(Opcode::add, left_derivative, right_derivative)));
  }
  const int32_t e = p.make(Opcode::erf, p.make(Opcode::mul, x, p.constant(kSqrtHalf)));
  const int32_t cdf = p.make(Opcode::mul, half, p.make(Opcode::add, one, e));
  const int32_t exponent = p.make(Opcode::mul, p.make(Opcode::mul, x, x), p.constant(-0.5));
  const int32_t pdf = p.make(Opcode::mul, p.make(Opcode::exp, exponent),
                             p.constant(kTwoOverSqrtPi * kSqrtHalf * 0.5));
  const int32_t sum = p.make(Opcode::add, cdf, p.make(Opcode::mul, x, pdf));
  return p.finish(p.make(Opcode::mul, g, sum));
}

/// self + value * a * b, or a / b.
template <Opcode op>
bool addc(Lowering& l) {
  Pointwise p(l, {0, 1, 2}, Promotion::arithmetic);
  if (!p.is_float()) {
    return false;
  }
  int32_t a = p(1);
  if (!p.number_is(3, kClassOne, 1)) {
    a = p.make(Opcode::mul, p.number(3), a);
  }
  return p.finish(p.make(Opcode::add, p(0), p.make(op, a, p(2))));
}

/// PyTorch goes from the nearer end.
bool lerp(Lowering& l) {
  Pointwise p(l, {0, 1}, Promotion::arithmetic);
  if (!p.is_float()) {
    return false;
  }
  const int32_t a = p(0);
  const int32_t b = p(1);
  const int32_t w = l.is_tensor(2) ? p(2) : p.number(2);
  const int32_t difference = p.make(Opcode::sub, b, a);
  const int32_t near_a = p.make(Opcode::add, a, p.make(Opcode::mul, w, difference));
  const int32_t rest = p.make(Opcode::sub, p.constant(1), w);
  const int32_t near_b = p.make(Opcode::sub, b, p.make(Opcode::mul, difference, rest));
  const int32_t small = p.make(Opcode::lt, p.make(Opcode::abs, w), p.constant(0.5));
  return p.finish(p.make(Opcode::select, small, near_a, near_b));
}

bool logical_not(Lowering& l) {
  Pointwise p(l, {0}, Promotion::compare);
  const int32_t truth = l.convert(p(0), Type::boolean);
  return p.finish(l.make(Opcode::bit_not, truth));
}

template <Opcode op>
bool logical(Lowering& l) {
  Pointwise p(l, {0, 1}, Promotion::compare);
  return p.finish(l.make(op, l.convert(p(0), Type::boolean), l.convert(p(1), Type::boolean)));
}

template <Opcode op>
bool bitwise(Lowering& l) {
  Pointwise p(l, {0, 1}, Promotion::arithmetic);
  return !p.is_float() && p.finish(p.make(op, p(0), p(1)));
}

bool bitwise_not(Lowering& l) {
  Pointwise p(l, {0}, Promotion::arithmetic);
  return !p.is_float() && p.finish(p.make(Opcode::bit_not, p(0)));
}

bool isnan(Lowering& l) {
  Pointwise p(l, {0}, Promotion::compare);
  const int32_t x = p(0);
  return p.finish(p.make(Opcode::ne, x, x));
}

bool isinf(Lowering& l) {
  Pointwise p(l, {0}, Promotion::compare);
  return p.is_float() && p.finish(p.make(Opcode::eq, p.make(Opcode::abs, p(0)),
                                         p.constant(std::numeric_limits<double>::infinity())));
}

bool elu(Lowering& l) {
  Pointwise p(l, {0}, Promotion::arithmetic);
  if (!p.is_float()) {
    return false;
  }
  const int32_t x = p(0);
  const int32_t negative =
      p.make(Opcode::mul, p.make(Opcode::expm1, p.make(Opcode::mul, x, p.number(3))),
             p.make(Opcode::mul, p.number(1), p.number(2)));
  const int32_t positive = p.make(Opcode::mul, x, p.number(2));
  return p.finish(p.make(Opcode::select, p.make(Opcode::lt, x, p.constant(0)), negative, positive));
}

bool softplus(Lowering& l) {
  Pointwise p(l, {0}, Promotion::arithmetic);
  if (!p.is_float()) {
    return false;
  }
  const int32_t x = p(0);
  const int32_t beta = p.number(1);
  const int32_t scaled = p.make(Opcode::mul, x, beta);
  const int32_t soft =
      p.make(Opcode::div, p.make(Opcode::log1p, p.make(Opcode::exp, scaled)), beta);
  return p.finish(p.make(Opcode::select, p.make(Opcode::gt, scaled, p.number(2)), x, soft));
}

bool hardtanh(Lowering& l) {
  return clamp_between(l, 1, 2);
}

bool remainder(Lowering& l) {
  Pointwise p(l, {0, 1}, Promotion::arithmetic);
  return p.is_float() && p.finish(p.make(Opcode::rem_floor, p(0), p(1)));
}

bool fmod(Lowering& l) {
  Pointwise p(l, {0, 1}, Promotion::arithmetic);
  return p.is_float() && p.finish(p.make(Opcode::rem_trunc, p(0), p(1)));
}

/// start + step * position; the length is the result's.
bool arange(Lowering& l) {
  const std::optional<Type> type = type_of(l.result_layout(0).dtype);
  const std::string& name = l.description().op->name;
  const bool has_start = name != "aten::arange";
  const bool has_step = name == "aten::arange.start_step";
  if (!type || name.find("out") != std::string::npos) {
    return false;
  }
  const Type computed = codegen::is_float(*type) ? Type::f64 : Type::i64;
  l.begin(l.result_layout(0).sizes);
  if (l.piece().rank() != 1) {
    return false;
  }
  int32_t position = l.piece().add(Opcode::index, Type::i64);
  l.piece().terms[position].place = 0;
  position = l.convert(position, computed);
  if (has_step) {
    position = l.make(Opcode::mul, position, l.number(2, computed));
  }
  if (has_start) {
    position = l.make(Opcode::add, l.number(0, computed), position);
  }
  l.store(0, position);
  l.end();
  return true;
}

/// Keeps the triangle on one side of a diagonal.
template <Opcode op>
bool triangle(Lowering& l) {
  const Layout& layout = l.layout(0);
  if (layout.sizes.size() < 2 || !l.is_constant(1) || layout.sizes.back() == 1 ||
      layout.sizes[layout.sizes.size() - 2] == 1) {
    return false;
  }
  const std::optional<Type> type = type_of(layout.dtype);
  if (!type) {
    return false;
  }
  l.begin(l.result_layout(0).sizes);
  const int rank = l.piece().rank();
  const int32_t row = l.piece().add(Opcode::index, Type::i64);
  l.piece().terms[row].place = rank - 2;
  const int32_t column = l.piece().add(Opcode::index, Type::i64);
  l.piece().terms[column].place = rank - 1;
  const int32_t diagonal = l.fixed(Type::i64, static_cast<double>(l.constant(1).toInt()));
  const int32_t keep = l.make(op, l.make(Opcode::sub, column, row), diagonal);
  const Type computed = compute_type(*type);
  l.store(0, l.make(Opcode::select, keep, l.load(0, computed), l.constant_of(computed, 0)));
  l.end();
  return true;
}

bool mse_loss_backward(Lowering& l) {  // grad_output, self, target, reduction
  Pointwise p(l, {0, 1, 2}, Promotion::arithmetic);
  if (!p.is_float()) {
    return false;
  }
  const int64_t elements = count(l.layout(1).sizes);
  const bool mean = l.constant(3).toInt() == 1;
  const int32_t factor =
      mean ? l.fixed(p.type, 2.0 / static_cast<double>(elements)) : p.constant(2);
  const int32_t scaled = p.make(Opcode::mul, factor, p.make(Opcode::sub, p(1), p(2)));
  return p.finish(p.make(Opcode::mul, scaled, p(0)));
}

bool native_dropout_backward(Lowering& l) {  // grad_output, mask, scale
  Pointwise p(l, {0}, Promotion::arithmetic);
  if (!p.is_float()) {
    return false;
  }
  const int32_t mask = l.convert(l.load(1, Type::boolean), p.type);
  return p.finish(p.make(Opcode::mul, p.make(Opcode::mul, p(0), mask), p.number(2)));
}

constexpr OperatorRow kRows[] = {
    {"abs", absolute},
    {"acos", unary_float<Opcode::acos>},
    {"acosh", unary_float<Opcode::acosh>},
    {"add", add},
    {"addcdiv", addc<Opcode::div>},
    {"addcmul", addc<Opcode::mul>},
    {"arange", arange},
    {"asin", unary_float<Opcode::asin>},
    {"asinh", unary_float<Opcode::asinh>},
    {"atan", unary_float<Opcode::atan>},
    {"atan2", binary_float<Opcode::atan2>},
    {"atanh", unary_float<Opcode::atanh>},
    {"bitwise_and", bitwise<Opcode::bit_and>},
    {"bitwise_not", bitwise_not},
    {"bitwise_or", bitwise<Opcode::bit_or>},
    {"bitwise_xor", bitwise<Opcode::bit_xor>},
    {"ceil", rounding<Opcode::ceil>},
    {"clamp", clamp},
    {"clamp_max", clamp_max},
    {"clamp_min", clamp_min},
    {"clone", copy_first},
    {"copy", copy_second},
    {"cos", unary_float<Opcode::cos>},
    {"cosh", unary_float<Opcode::cosh>},
    {"digamma", unary_float<Opcode::digamma>},
    {"div", div},
    {"elu", elu},
    {"eq", compare<Opcode::eq>},
    {"erf", unary_float<Opcode::erf>},
    {"erfc", unary_float<Opcode::erfc>},
    {"erfinv", unary_float<Opcode::erfinv>},
    {"exp", unary_float<Opcode::exp>},
    {"exp2", unary_float<Opcode::exp2>},
    {"expm1", unary_float<Opcode::expm1>},
    {"fill", fill_second},
    {"floor", rounding<Opcode::floor>},
    {"fmod", fmod},
    {"full", fill_second},
    {"full_like", fill_second},
    {"ge", compare<Opcode::ge>},
    {"gelu", gelu},
    {"gelu_backward", gelu_backward},
    {"gt", compare<Opcode::gt>},
    {"hardtanh", hardtanh},
    {"hypot", binary_float<Opcode::hypot>},
    {"isinf", isinf},
    {"isnan", isnan},
    {"le", compare<Opcode::le>},
    {"leaky_relu", leaky_relu},
    {"leaky_relu_backward", leaky_relu_backward},
    {"lerp", lerp},
    {"lgamma", unary_float<Opcode::lgamma>},
    {"log", unary_float<Opcode::log>},
    {"log10", unary_float<Opcode::log10>},
    {"log1p", unary_float<Opcode::log1p>},
    {"log2", unary_float<Opcode::log2>},
    {"logical_and", logical<Opcode::bit_and>},
    {"logical_not", logical_not},
    {"logical_or", logical<Opcode::bit_or>},
    {"logical_xor", logical<Opcode::bit_xor>},
    {"lt", compare<Opcode::lt>},
    {"masked_fill", masked_fill},
    {"maximum", binary<Opcode::max, Opcode::bit_or>},
    {"minimum", binary<Opcode::min, Opcode::bit_and>},
    {"mse_loss_backward", mse_loss_backward},
    {"mul", binary<Opcode::mul, Opcode::bit_and>},
    {"native_dropout_backward", native_dropout_backward},
    {"ne", compare<Opcode::ne>},
    {"neg", neg},
    {"new_full", fill_third},
    {"new_ones", fill_constant<1>},
    {"new_zeros", fill_constant<0>},
    {"ones", fill_constant<1>},
    {"ones_like", fill_constant<1>},
    {"pow", power},
    {"reciprocal", reciprocal},
    {"relu", relu},
    {"remainder", remainder},
    {"round", rounding<Opcode::round>},
    {"rsqrt", unary_float<Opcode::rsqrt>},
    {"rsub", rsub},
    {"scalar_tensor", scalar_tensor},
    {"sigmoid", unary_float<Opcode::sigmoid>},
    {"sigmoid_backward", sigmoid_backward},
    {"sign", sign},
    {"silu", silu},
    {"silu_backward", silu_backward},
    {"sin", unary_float<Opcode::sin>},
    {"sinh", unary_float<Opcode::sinh>},
    {"softplus", softplus},
    {"sqrt", unary_float<Opcode::sqrt>},
    {"square", square},
    {"sub", sub},
    {"tan", unary_float<Opcode::tan>},
    {"tanh", unary_float<Opcode::tanh>},
    {"tanh_backward", tanh_backward},
    {"threshold_backward", threshold_backward},
    {"tril", triangle<Opcode::le>},
    {"triu", triangle<Opcode::ge>},
    {"trunc", rounding<Opcode::trunc>},
    {"where", where},
    {"zero", fill_constant<0>},
    {"zeros", fill_constant<0>},
    {"zeros_like", fill_constant<0>},
    {"_to_copy", copy_first},
};

}  // namespace

c10::ArrayRef<OperatorRow> pointwise_rows() {
  return kRows;
}

}  // namespace torch_lazy::compile
