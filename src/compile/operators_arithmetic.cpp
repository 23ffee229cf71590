// Rows of the table of operators: rarer functions of elements, and norms and counts over
// dimensions.
#include "compile/places.h"
#include "compile/pointwise.h"

#include <limits>
#include <numeric>

namespace torch_lazy::compile {
namespace {

constexpr double kPi = 3.14159265358979323846;

// ---- Element by element ----

int32_t is_nan(Lowering& l, int32_t x) {
  return l.make(Opcode::ne, x, x);
}

/// The largest finite number of a dtype.
double largest(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return std::numeric_limits<double>::max();
    case at::kBFloat16:
      return static_cast<double>(std::numeric_limits<c10::BFloat16>::max());
    case at::kHalf:
      return static_cast<double>(std::numeric_limits<c10::Half>::max());
    default:
      return std::numeric_limits<float>::max();
  }
}

bool nan_to_num(Lowering& l) {  // self, nan, posinf, neginf
  const std::optional<Type> type = float_type(l, 0);
  if (!type) {
    return false;
  }
  const double top = largest(l.layout(0).dtype);
  auto given = [&](size_t argument, double otherwise) {
    return l.is_absent(argument) ? l.constant_of(*type, otherwise) : l.number(argument, *type);
  };
  l.begin(l.result_layout(0).sizes);
  const int32_t x = l.load(0, *type);
  const int32_t high = l.make(Opcode::eq, x, l.constant_of(*type, kInfinity));
  const int32_t low = l.make(Opcode::eq, x, l.constant_of(*type, -kInfinity));
  const int32_t bounded =
      l.make(Opcode::select, high, given(2, top), l.make(Opcode::select, low, given(3, -top), x));
  l.store(0, l.make(Opcode::select, is_nan(l, x), given(1, 0), bounded));
  l.end();
  return true;
}

/// Rounded towards minus infinity in PyTorch's way: from the remainder, so that it is exact.
bool floor_divide(Lowering& l) {
  Pointwise p(l, {0, 1}, Promotion::arithmetic, Numbers::second_as_given);
  if (!p.is_float()) {
    return false;
  }
  const int32_t a = p(0);
  const int32_t b = p(1);
  const int32_t zero = p.constant(0);
  const int32_t one = p.constant(1);
  const int32_t plain = p.make(Opcode::div, a, b);
  const int32_t mod = p.make(Opcode::rem_trunc, a, b);
  int32_t div = p.make(Opcode::div, p.make(Opcode::sub, a, mod), b);
  const int32_t signs_differ =
      p.make(Opcode::bit_xor, p.make(Opcode::lt, b, zero), p.make(Opcode::lt, mod, zero));
  const int32_t down = p.make(Opcode::bit_and, p.make(Opcode::ne, mod, zero), signs_differ);
  div = p.make(Opcode::select, down, p.make(Opcode::sub, div, one), div);
  const int32_t floored = p.make(Opcode::floor, div);
  const int32_t over = p.make(Opcode::gt, p.make(Opcode::sub, div, floored), p.constant(0.5));
  const int32_t rounded = p.make(Opcode::select, over, p.make(Opcode::add, floored, one), floored);
  // A zero has the sign of the quotient.
  const int32_t signed_zero = p.make(Opcode::mul, plain, zero);
  const int32_t value = p.make(Opcode::select, p.make(Opcode::ne, div, zero), rounded, signed_zero);
  return p.finish(p.make(Opcode::select, p.make(Opcode::eq, b, zero), plain, value));
}

/// max + log(1 + exp(-|a - b|)), to base e or 2
template <Opcode exponential, Opcode logarithm>
bool log_add_exp(Lowering& l) {
  Pointwise p(l, {0, 1}, Promotion::to_float);
  const int32_t a = p(0);
  const int32_t b = p(1);
  const int32_t top = p.make(Opcode::max, a, b);
  const int32_t distance = p.make(Opcode::abs, p.make(Opcode::sub, a, b));
  const int32_t e = p.make(exponential, p.make(Opcode::neg, distance));
  const int32_t sum =
      p.make(Opcode::add, top, p.make(logarithm, p.make(Opcode::add, p.constant(1), e)));
  const int32_t endless = p.make(Opcode::bit_and, p.make(Opcode::eq, a, b),
                                 p.make(Opcode::eq, p.make(Opcode::abs, a), p.constant(kInfinity)));
  return p.finish(p.make(Opcode::select, endless, a, sum));
}

/// a * log(b), or log(1 + b); 0 where a is 0
template <Opcode logarithm>
bool times_log(Lowering& l) {
  Pointwise p(l, {0, 1}, Promotion::to_float);
  const int32_t a = p(0);
  const int32_t b = p(1);
  const int32_t product = p.make(Opcode::mul, a, p.make(logarithm, b));
  const int32_t value =
      p.make(Opcode::select, p.make(Opcode::eq, a, p.constant(0)), p.constant(0), product);
  return p.finish(p.make(Opcode::select, is_nan(l, b), b, value));
}

bool entropy(Lowering& l) {
  Pointwise p(l, {0}, Promotion::to_float);
  const int32_t x = p(0);
  const int32_t zero = p.constant(0);
  const int32_t positive = p.make(Opcode::mul, p.make(Opcode::neg, x), p.make(Opcode::log, x));
  const int32_t rest =
      p.make(Opcode::select, p.make(Opcode::eq, x, zero), zero, p.constant(-kInfinity));
  const int32_t value = p.make(Opcode::select, p.make(Opcode::gt, x, zero), positive, rest);
  return p.finish(p.make(Opcode::select, is_nan(l, x), x, value));
}

bool sgn(Lowering& l) {
  Pointwise p(l, {0}, Promotion::arithmetic);
  if (p.is_boolean()) {
    return false;
  }
  const int32_t x = p(0);
  const int32_t positive = l.convert(p.make(Opcode::gt, x, p.constant(0)), p.type);
  const int32_t negative = l.convert(p.make(Opcode::lt, x, p.constant(0)), p.type);
  return p.finish(p.make(Opcode::sub, positive, negative));
}

bool heaviside(Lowering& l) {  // self, values
  Pointwise p(l, {0, 1}, Promotion::arithmetic);
  if (!p.is_float()) {
    return false;
  }
  const int32_t x = p(0);
  const int32_t above = l.convert(p.make(Opcode::gt, x, p.constant(0)), p.type);
  return p.finish(p.make(Opcode::select, p.make(Opcode::eq, x, p.constant(0)), p(1), above));
}

template <int sign>
bool is_infinity(Lowering& l) {
  Pointwise p(l, {0}, Promotion::compare);
  return p.is_float() && p.finish(p.make(Opcode::eq, p(0), p.constant(sign * kInfinity)));
}

bool frac(Lowering& l) {
  Pointwise p(l, {0}, Promotion::arithmetic);
  const int32_t x = p(0);
  return p.is_float() && p.finish(p.make(Opcode::sub, x, p.make(Opcode::trunc, x)));
}

bool sinc(Lowering& l) {
  Pointwise p(l, {0}, Promotion::to_float);
  const int32_t x = p(0);
  const int32_t product = p.make(Opcode::mul, p.constant(kPi), x);
  const int32_t value = p.make(Opcode::div, p.make(Opcode::sin, product), product);
  return p.finish(
      p.make(Opcode::select, p.make(Opcode::eq, x, p.constant(0)), p.constant(1), value));
}

bool deg2rad(Lowering& l) {
  Pointwise p(l, {0}, Promotion::to_float);
  return p.finish(p.make(Opcode::mul, p(0), p.constant(kPi / 180)));
}

bool rad2deg(Lowering& l) {
  Pointwise p(l, {0}, Promotion::to_float);
  return p.finish(p.make(Opcode::mul, p(0), p.constant(180 / kPi)));
}

/// Without eps, or with a negative one, nothing is cut off. PyTorch's kernel works in the common
/// dtype, so that each step is rounded.
bool logit(Lowering& l) {  // self, eps
  Pointwise p(l, {0}, Promotion::to_float);
  int32_t x = p(0);
  const int32_t one = p.constant(1);
  if (!l.is_absent(1)) {
    const int32_t low = p.rounded_number(1);
    const int32_t high = p.rounded(p.make(Opcode::sub, one, low));
    const int32_t cut = p.make(Opcode::select, p.make(Opcode::lt, x, low), low,
                               p.make(Opcode::select, p.make(Opcode::gt, x, high), high, x));
    x = p.make(Opcode::select, p.make(Opcode::lt, low, p.constant(0)), x, cut);
  }
  const int32_t rest = p.rounded(p.make(Opcode::sub, one, x));
  return p.finish(p.make(Opcode::log, p.rounded(p.make(Opcode::div, x, rest))));
}

bool logit_backward(Lowering& l) {  // grad_output, self, eps
  Pointwise p(l, {0, 1}, Promotion::arithmetic);
  if (!p.is_float()) {
    return false;
  }
  const int32_t g = p(0);
  const int32_t x = p(1);
  const int32_t zero = p.constant(0);
  const int32_t one = p.constant(1);
  auto outside = [&](int32_t low, int32_t high) {
    return p.make(Opcode::bit_or, p.make(Opcode::lt, x, low), p.make(Opcode::gt, x, high));
  };
  const int32_t slope = p.make(Opcode::div, g, p.make(Opcode::mul, x, p.make(Opcode::sub, one, x)));
  const int32_t edge =
      p.make(Opcode::bit_or, p.make(Opcode::eq, x, zero), p.make(Opcode::eq, x, one));
  const int32_t inner =
      p.make(Opcode::select, edge, p.make(Opcode::mul, g, p.constant(kInfinity)), slope);
  int32_t value = p.make(Opcode::select, outside(zero, one),
                         p.constant(std::numeric_limits<double>::quiet_NaN()), inner);
  if (!l.is_absent(2)) {
    const int32_t low = p.number(2);
    const int32_t cut =
        p.make(Opcode::select, outside(low, p.make(Opcode::sub, one, low)), zero, inner);
    value = p.make(Opcode::select, p.make(Opcode::lt, low, zero), value, cut);
  }
  return p.finish(value);
}

/// The other operand where one is NaN.
template <Opcode op>
bool ignoring_nan(Lowering& l) {
  Pointwise p(l, {0, 1}, Promotion::arithmetic);
  if (p.is_boolean()) {
    return false;
  }
  const int32_t a = p(0);
  const int32_t b = p(1);
  const int32_t both = p.make(op, a, b);
  if (!p.is_float()) {
    return p.finish(both);
  }
  return p.finish(
      p.make(Opcode::select, is_nan(l, a), b, p.make(Opcode::select, is_nan(l, b), a, both)));
}

/// Shifts by a negative number, or by all bits and more, leave zero, or the sign.
template <bool left>
bool shift(Lowering& l) {
  const at::ScalarType dtype = l.common_dtype({0, 1});
  const std::optional<Type> memory = type_of(dtype);
  if (!memory || !codegen::is_integer(*memory)) {
    return false;
  }
  Pointwise p(l, {0, 1}, Promotion::arithmetic);
  const bool has_sign = *memory != Type::u8;
  const int bits = 8 * codegen::size_of(*memory);
  const int most = left || !has_sign ? bits : bits - 1;
  const int32_t a = p(0);
  const int32_t b = p(1);
  const int32_t outside = p.make(Opcode::bit_or, p.make(Opcode::lt, b, p.constant(0)),
                                 p.make(Opcode::ge, b, p.constant(most)));
  // In the type of the computation a shift by all of its bits does not exist.
  const int32_t by = p.make(Opcode::select, outside, p.constant(0), b);
  const int32_t shifted = p.make(left ? Opcode::shift_left : Opcode::shift_right, a, by);
  int32_t rest = p.constant(0);
  if (!left && has_sign) {
    rest = p.make(Opcode::shift_right, a, p.constant(bits - 1));
  }
  return p.finish(p.make(Opcode::select, outside, rest, shifted));
}

// ---- Over dimensions ----

/// Begins a piece that reduces argument 0 over what `dim` names; false: it cannot.
bool begin_over_dims(Lowering& l) {
  if (!l.is_tensor(0) || !type_of(l.layout(0).dtype) || l.layout(0).sizes.empty()) {
    return false;
  }
  const Layout& self = l.layout(0);
  const std::optional<std::vector<int64_t>> dims = dims_named(l, "dim", self.sizes.size());
  if (!dims) {
    return false;
  }
  l.begin_reduction(self.sizes, *dims);
  return true;
}

bool logsumexp(Lowering& l) {  // self, dim, keepdim
  const std::optional<Type> type = float_type(l, 0);
  if (!type || !begin_over_dims(l)) {
    return false;
  }
  const int32_t x = l.load(0, *type);
  const int32_t top = l.make(Opcode::reduce_max, x);
  const int32_t endless =
      l.make(Opcode::eq, l.make(Opcode::abs, top), l.constant_of(*type, kInfinity));
  const int32_t base = l.make(Opcode::select, endless, l.constant_of(*type, 0), top);
  const int32_t sum = l.make(Opcode::reduce_sum, l.make(Opcode::exp, l.make(Opcode::sub, x, base)));
  l.store(0, l.make(Opcode::add, l.make(Opcode::log, sum), base));
  l.end();
  return true;
}

/// A row's norm of x. The order is a number whose class is known, or absent, which means 2.
std::optional<int32_t> norm_of(Lowering& l, int32_t x, size_t order) {
  const Type type = l.type(x);
  std::optional<double> value;
  if (l.is_absent(order)) {
    value = 2;
  } else if (l.is_constant(order)) {
    if (!l.constant(order).isScalar() || l.constant(order).toScalar().isComplex()) {
      return std::nullopt;
    }
    value = l.constant(order).toScalar().toDouble();
  } else {
    switch (l.number_kind(order).value_class) {
      case kClassInfinity:
        value = kInfinity;
        break;
      case kClassMinusInfinity:
        value = -kInfinity;
        break;
      case kClassZero:
        value = 0;
        break;
      case kClassOne:
        value = 1;
        break;
      case kClassTwo:
        value = 2;
        break;
      default:
        return std::nullopt;
    }
  }
  const int32_t size = l.make(Opcode::abs, x);
  if (*value == 2) {
    return l.make(Opcode::sqrt, l.make(Opcode::reduce_sum, l.make(Opcode::mul, x, x)));
  }
  if (*value == 1) {
    return l.make(Opcode::reduce_sum, size);
  }
  if (*value == kInfinity) {
    return l.make(Opcode::reduce_max, size);
  }
  if (*value == -kInfinity) {
    return l.make(Opcode::reduce_min, size);
  }
  if (*value == 0) {
    const int32_t present = l.make(Opcode::ne, x, l.constant_of(type, 0));
    return l.make(Opcode::reduce_sum, l.convert(present, type));
  }
  return std::nullopt;
}

/// The type in which a norm with this result is computed; nothing where PyTorch converts first.
std::optional<Type> norm_type(const Lowering& l, const Layout& self, const Layout& result) {
  const std::optional<Type> from = type_of(self.dtype);
  const std::optional<Type> to = type_of(result.dtype);
  if (!from || !to || !codegen::is_float(*from) || !codegen::is_float(*to) || l.failed()) {
    return std::nullopt;
  }
  // To a shorter type PyTorch converts the elements.
  if (codegen::size_of(*to) < codegen::size_of(*from)) {
    return std::nullopt;
  }
  return compute_type(*to);
}

bool vector_norm(Lowering& l) {  // self, ord or p, dim, keepdim, dtype
  if (!l.is_tensor(0) || l.description().arguments.size() < 2 ||
      !l.description().writes.empty()) {  // out= may not have another dtype
    return false;
  }
  const std::optional<Type> type = norm_type(l, l.layout(0), l.result_layout(0));
  if (!type || !begin_over_dims(l)) {
    return false;
  }
  const std::optional<int32_t> norm = norm_of(l, l.load(0, *type), 1);
  if (!norm) {
    return false;
  }
  l.store(0, *norm);
  l.end();
  return true;
}

bool foreach_norm(Lowering& l) {  // self, ord, dtype
  const ArgumentSource& self = l.argument(0);
  if (self.kind != ArgumentSource::Kind::operand_list || self.elements.size() != l.results()) {
    return false;
  }
  for (size_t k = 0; k < l.results(); ++k) {
    if (self.elements[k] < 0) {
      return false;
    }
    const Layout& layout = l.description().operands[self.elements[k]];
    const std::optional<Type> type = norm_type(l, layout, l.result_layout(k));
    if (!type || layout.sizes.empty()) {
      return false;
    }
    l.begin(layout.sizes, static_cast<int>(layout.sizes.size()));
    const std::optional<int32_t> norm = norm_of(l, l.load_operand(self.elements[k], *type), 1);
    if (!norm) {
      return false;
    }
    l.store(k, *norm);
    l.end();
  }
  return true;
}

bool aminmax(Lowering& l) {  // self, dim, keepdim -> min, max
  if (l.description().fresh.size() != 2 || !begin_over_dims(l)) {
    return false;
  }
  const Type memory = *type_of(l.layout(0).dtype);
  if (memory == Type::boolean) {
    return false;
  }
  const int32_t x = l.load(0, compute_type(memory));
  l.store(0, l.make(Opcode::reduce_min, x));
  l.store(1, l.make(Opcode::reduce_max, x));
  l.end();
  return true;
}

bool count_nonzero(Lowering& l) {  // self, dim
  if (!begin_over_dims(l)) {
    return false;
  }
  const int32_t present = l.load(0, Type::boolean);
  l.store(0, l.make(Opcode::reduce_sum, l.convert(present, Type::i64)));
  l.end();
  return true;
}

bool nansum(Lowering& l) {  // self, dim, keepdim, dtype
  const std::optional<Type> type = float_type(l, 0);
  if (!type || l.result_layout(0).dtype != l.layout(0).dtype || !begin_over_dims(l)) {
    return false;
  }
  const int32_t x = l.load(0, *type);
  const int32_t known = l.make(Opcode::select, is_nan(l, x), l.constant_of(*type, 0), x);
  l.store(0, l.make(Opcode::reduce_sum, known));
  l.end();
  return true;
}

constexpr OperatorRow kRows[] = {
    {"__lshift__", shift<true>},
    {"__rshift__", shift<false>},
    {"_foreach_norm", foreach_norm},
    {"aminmax", aminmax},
    {"bitwise_left_shift", shift<true>},
    {"bitwise_right_shift", shift<false>},
    {"count_nonzero", count_nonzero},
    {"deg2rad", deg2rad},
    {"floor_divide", floor_divide},
    {"fmax", ignoring_nan<Opcode::max>},
    {"fmin", ignoring_nan<Opcode::min>},
    {"frac", frac},
    {"heaviside", heaviside},
    {"isneginf", is_infinity<-1>},
    {"isposinf", is_infinity<1>},
    {"linalg_vector_norm", vector_norm},
    {"logaddexp", log_add_exp<Opcode::exp, Opcode::log>},
    {"logaddexp2", log_add_exp<Opcode::exp2, Opcode::log2>},
    {"logit", logit},
    {"logit_backward", logit_backward},
    {"logsumexp", logsumexp},
    {"nan_to_num", nan_to_num},
    {"nansum", nansum},
    {"norm", vector_norm},
    {"rad2deg", rad2deg},
    {"sgn", sgn},
    {"sinc", sinc},
    {"special_entr", entropy},
    {"special_xlog1py", times_log<Opcode::log1p>},
    {"xlogy", times_log<Opcode::log>},
};

}  // namespace

c10::ArrayRef<OperatorRow> arithmetic_rows() {
  return kRows;
}

}  // namespace torch_lazy::compile
