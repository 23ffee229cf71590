// Rows of the table of operators: activation functions and their gradients.
#include "compile/places.h"
#include "compile/pointwise.h"

namespace torch_lazy::compile {
namespace {

bool hardsigmoid(Lowering& l) {
  Pointwise p(l, {0}, Promotion::arithmetic);
  if (!p.is_float()) {
    return false;
  }
  const int32_t shifted = p.make(Opcode::add, p(0), p.constant(3));
  const int32_t bounded =
      p.make(Opcode::min, p.make(Opcode::max, shifted, p.constant(0)), p.constant(6));
  return p.finish(p.make(Opcode::div, bounded, p.constant(6)));
}

bool hardsigmoid_backward(Lowering& l) {  // grad_output, self
  Pointwise p(l, {0, 1}, Promotion::arithmetic);
  if (!p.is_float()) {
    return false;
  }
  const int32_t x = p(1);
  const int32_t inside = p.make(Opcode::bit_and, p.make(Opcode::gt, x, p.constant(-3)),
                                p.make(Opcode::lt, x, p.constant(3)));
  const int32_t scaled =
      p.make(Opcode::mul, p(0), p.constant(1.0F / 6.0F));  // a float in PyTorch too
  return p.finish(p.make(Opcode::select, inside, scaled, p.constant(0)));
}

bool hardswish(Lowering& l) {
  Pointwise p(l, {0}, Promotion::arithmetic);
  if (!p.is_float()) {
    return false;
  }
  const int32_t x = p(0);
  const int32_t shifted = p.make(Opcode::add, x, p.constant(3));
  const int32_t bounded =
      p.make(Opcode::min, p.make(Opcode::max, shifted, p.constant(0)), p.constant(6));
  return p.finish(p.make(Opcode::div, p.make(Opcode::mul, x, bounded), p.constant(6)));
}

bool hardswish_backward(Lowering& l) {  // grad_output, self
  Pointwise p(l, {0, 1}, Promotion::arithmetic);
  if (!p.is_float()) {
    return false;
  }
  const int32_t g = p(0);
  const int32_t x = p(1);
  const int32_t slope = p.make(Opcode::add, p.make(Opcode::div, x, p.constant(3)), p.constant(0.5));
  const int32_t above = p.make(Opcode::select, p.make(Opcode::lt, x, p.constant(3)),
                               p.make(Opcode::mul, g, slope), g);
  return p.finish(
      p.make(Opcode::select, p.make(Opcode::le, x, p.constant(-3)), p.constant(0), above));
}

/// log(1 + exp(x))
int32_t log1p_exp(Pointwise& p, int32_t x) {
  return p.make(Opcode::log1p, p.make(Opcode::exp, x));
}

bool mish(Lowering& l) {
  Pointwise p(l, {0}, Promotion::arithmetic);
  if (!p.is_float()) {
    return false;
  }
  const int32_t x = p(0);
  return p.finish(p.make(Opcode::mul, x, p.make(Opcode::tanh, log1p_exp(p, x))));
}

bool mish_backward(Lowering& l) {  // grad_output, self
  Pointwise p(l, {0, 1}, Promotion::arithmetic);
  if (!p.is_float()) {
    return false;
  }
  const int32_t x = p(1);
  const int32_t s = p.make(Opcode::sigmoid, x);
  const int32_t t = p.make(Opcode::tanh, log1p_exp(p, x));
  const int32_t rest = p.make(Opcode::sub, p.constant(1), p.make(Opcode::mul, t, t));
  const int32_t sum = p.make(Opcode::add, t, p.make(Opcode::mul, p.make(Opcode::mul, x, s), rest));
  return p.finish(p.make(Opcode::mul, p(0), sum));
}

/// elu with scale 1 and input scale 1 / alpha, which PyTorch divides as a double.
bool celu(Lowering& l) {  // self, alpha
  Pointwise p(l, {0}, Promotion::arithmetic);
  if (!p.is_float()) {
    return false;
  }
  const int32_t x = p(0);
  const int32_t alpha = l.number(1, Type::f64);
  require(l, l.make(Opcode::ne, alpha, l.constant_of(Type::f64, 0)));
  const int32_t input_scale =
      l.convert(l.make(Opcode::div, l.constant_of(Type::f64, 1), alpha), p.type);
  const int32_t negative =
      p.make(Opcode::mul, p.make(Opcode::expm1, p.make(Opcode::mul, x, input_scale)), p.number(1));
  return p.finish(p.make(Opcode::select, p.make(Opcode::lt, x, p.constant(0)), negative, x));
}

/// grad_output, alpha, scale, input_scale, is_result, self_or_result
bool elu_backward(Lowering& l) {
  Pointwise p(l, {0, 5}, Promotion::arithmetic);
  if (!p.is_float() || !l.is_constant(4)) {
    return false;
  }
  const int32_t g = p(0);
  const int32_t x = p(5);
  const int32_t coefficient = p.make(Opcode::mul, p.number(1), p.number(2));
  const int32_t input_scale = p.number(3);
  const int32_t scaled = p.make(Opcode::mul, g, input_scale);
  int32_t negative = -1;
  if (l.constant(4).toBool()) {
    negative = p.make(Opcode::mul, scaled, p.make(Opcode::add, x, coefficient));
  } else {
    negative = p.make(Opcode::mul, p.make(Opcode::mul, scaled, coefficient),
                      p.make(Opcode::exp, p.make(Opcode::mul, x, input_scale)));
  }
  const int32_t positive = p.make(Opcode::mul, g, p.number(2));
  return p.finish(p.make(Opcode::select, p.make(Opcode::le, x, p.constant(0)), negative, positive));
}

bool softplus_backward(Lowering& l) {  // grad_output, self, beta, threshold
  Pointwise p(l, {0, 1}, Promotion::arithmetic);
  if (!p.is_float()) {
    return false;
  }
  const int32_t g = p(0);
  const int32_t scaled = p.make(Opcode::mul, p(1), p.number(2));
  const int32_t z = p.make(Opcode::exp, scaled);
  const int32_t soft =
      p.make(Opcode::div, p.make(Opcode::mul, g, z), p.make(Opcode::add, z, p.constant(1)));
  return p.finish(p.make(Opcode::select, p.make(Opcode::gt, scaled, p.number(3)), g, soft));
}

/// self -> output, buffer: exp(-|self|)
bool log_sigmoid_forward(Lowering& l) {
  const std::optional<Type> type = float_type(l, 0);
  if (!type || l.description().fresh.size() != 2 ||
      l.result_layout(1).sizes != l.result_layout(0).sizes) {
    return false;
  }
  l.begin(l.result_layout(0).sizes);
  const int32_t x = l.load(0, *type);
  const int32_t e = l.make(Opcode::exp, l.make(Opcode::neg, l.make(Opcode::abs, x)));
  const int32_t low = l.make(Opcode::min, x, l.constant_of(*type, 0));
  l.store(0, l.make(Opcode::sub, low, l.make(Opcode::log1p, e)));
  l.store(1, e);
  l.end();
  return true;
}

bool log_sigmoid_backward(Lowering& l) {  // grad_output, self, buffer
  Pointwise p(l, {0, 1}, Promotion::arithmetic);
  if (!p.is_float() || !l.is_tensor(2) || l.layout(2).sizes != l.layout(1).sizes) {
    return false;
  }
  const int32_t negative = p.make(Opcode::lt, p(1), p.constant(0));
  const int32_t buffer = p(2);
  const int32_t part = p.make(Opcode::div, buffer, p.make(Opcode::add, p.constant(1), buffer));
  const int32_t below = p.make(Opcode::sub, p.constant(1), part);
  return p.finish(p.make(Opcode::mul, p.make(Opcode::select, negative, below, part), p(0)));
}

bool hardtanh_backward(Lowering& l) {  // grad_output, self, min_val, max_val
  Pointwise p(l, {0, 1}, Promotion::arithmetic);
  if (!p.is_float()) {
    return false;
  }
  const int32_t x = p(1);
  const int32_t outside = p.make(Opcode::bit_or, p.make(Opcode::le, x, p.number(2)),
                                 p.make(Opcode::ge, x, p.number(3)));
  return p.finish(p.make(Opcode::select, outside, p.constant(0), p(0)));
}

/// -lambda <= x <= lambda
int32_t is_small(Pointwise& p, int32_t x, int32_t lambda) {
  return p.make(Opcode::bit_and, p.make(Opcode::ge, x, p.make(Opcode::neg, lambda)),
                p.make(Opcode::le, x, lambda));
}

bool hardshrink(Lowering& l) {  // self, lambd
  Pointwise p(l, {0}, Promotion::arithmetic);
  if (!p.is_float()) {
    return false;
  }
  const int32_t x = p(0);
  return p.finish(p.make(Opcode::select, is_small(p, x, p.rounded_number(1)), p.constant(0), x));
}

bool softshrink(Lowering& l) {  // self, lambd
  Pointwise p(l, {0}, Promotion::arithmetic);
  if (!p.is_float()) {
    return false;
  }
  const int32_t x = p(0);
  const int32_t lambda = p.number(1);
  const int32_t below =
      p.make(Opcode::select, p.make(Opcode::lt, x, p.make(Opcode::neg, lambda)),
             p.make(Opcode::add, x, lambda), p.make(Opcode::mul, x, p.constant(0)));
  return p.finish(
      p.make(Opcode::select, p.make(Opcode::gt, x, lambda), p.make(Opcode::sub, x, lambda), below));
}

bool shrink_backward(Lowering& l) {  // grad_output, self, lambd
  Pointwise p(l, {0, 1}, Promotion::arithmetic);
  return p.is_float() && p.finish(p.make(Opcode::select, is_small(p, p(1), p.rounded_number(2)),
                                         p.constant(0), p(0)));
}

bool threshold(Lowering& l) {  // self, threshold, value
  Pointwise p(l, {0}, Promotion::arithmetic);
  if (!p.is_float()) {
    return false;
  }
  const int32_t x = p(0);
  return p.finish(p.make(Opcode::select, p.make(Opcode::le, x, p.number(1)), p.number(2), x));
}

bool prelu(Lowering& l) {  // self, weight
  Pointwise p(l, {0, 1}, Promotion::arithmetic);
  if (!p.is_float()) {
    return false;
  }
  const int32_t x = p(0);
  return p.finish(p.make(Opcode::select, p.make(Opcode::gt, x, p.constant(0)), x,
                         p.make(Opcode::mul, p(1), x)));
}

/// grad_output, self, weight -> grad of self, grad of weight, which a sum follows
bool prelu_backward(Lowering& l) {
  const std::optional<Type> type = float_type(l, 1);
  if (!type || l.description().fresh.size() != 2 ||
      l.result_layout(1).sizes != l.result_layout(0).sizes) {
    return false;
  }
  l.begin(l.result_layout(0).sizes);
  const int32_t g = l.load(0, *type);
  const int32_t x = l.load(1, *type);
  const int32_t zero = l.constant_of(*type, 0);
  const int32_t positive = l.make(Opcode::gt, x, zero);
  l.store(0, l.make(Opcode::select, positive, g, l.make(Opcode::mul, l.load(2, *type), g)));
  l.store(1, l.make(Opcode::select, positive, zero, l.make(Opcode::mul, x, g)));
  l.end();
  return true;
}

/// One half of a layout along a dimension.
Layout half_of(const Layout& whole, size_t dim, int64_t which) {
  Layout half = whole;
  half.sizes[dim] /= 2;
  half.offset += which * half.sizes[dim] * whole.strides[dim];
  return half;
}

bool glu(Lowering& l) {  // self, dim
  const std::optional<Type> type = float_type(l, 0);
  if (!type || l.layout(0).sizes.empty()) {
    return false;
  }
  const Layout& self = l.layout(0);
  const size_t dim = wrap(l.constant(1).toInt(), self.sizes.size());
  l.begin(l.result_layout(0).sizes);
  const int32_t a = l.load_layout(slot_of(l, 0), half_of(self, dim, 0), *type);
  const int32_t b = l.load_layout(slot_of(l, 0), half_of(self, dim, 1), *type);
  l.store(0, l.make(Opcode::mul, a, l.make(Opcode::sigmoid, b)));
  l.end();
  return true;
}

bool glu_backward(Lowering& l) {  // grad_output, self, dim
  const std::optional<Type> type = float_type(l, 1);
  if (!type || l.layout(1).sizes.empty() || !l.wanted(0) || !l.description().writes.empty()) {
    return false;
  }
  const Layout& self = l.layout(1);
  const size_t dim = wrap(l.constant(2).toInt(), self.sizes.size());
  const Layout first = half_of(self, dim, 0);
  l.begin(first.sizes);
  const int32_t g = l.load(0, *type);
  const int32_t a = l.load_layout(slot_of(l, 1), first, *type);
  const int32_t b = l.load_layout(slot_of(l, 1), half_of(self, dim, 1), *type);
  const int32_t s = l.make(Opcode::sigmoid, b);
  const int32_t slope = l.make(Opcode::mul, l.make(Opcode::sub, l.constant_of(*type, 1), s), s);
  const auto slot = static_cast<uint32_t>(l.node().outputs[0]);
  l.store_operand_like(slot, half_of(l.result_layout(0), dim, 0), l.make(Opcode::mul, s, g));
  l.store_operand_like(slot, half_of(l.result_layout(0), dim, 1),
                       l.make(Opcode::mul, l.make(Opcode::mul, slope, a), g));
  l.end();
  return true;
}

constexpr OperatorRow kRows[] = {
    {"_prelu_kernel", prelu},
    {"_prelu_kernel_backward", prelu_backward},
    {"celu", celu},
    {"elu_backward", elu_backward},
    {"glu", glu},
    {"glu_backward", glu_backward},
    {"hardshrink", hardshrink},
    {"hardshrink_backward", shrink_backward},
    {"hardsigmoid", hardsigmoid},
    {"hardsigmoid_backward", hardsigmoid_backward},
    {"hardswish", hardswish},
    {"hardswish_backward", hardswish_backward},
    {"hardtanh_backward", hardtanh_backward},
    {"log_sigmoid_backward", log_sigmoid_backward},
    {"log_sigmoid_forward", log_sigmoid_forward},
    {"mish", mish},
    {"mish_backward", mish_backward},
    {"softplus_backward", softplus_backward},
    {"softshrink", softshrink},
    {"softshrink_backward", shrink_backward},
    {"threshold", threshold},
};

}  // namespace

c10::ArrayRef<OperatorRow> activation_rows() {
  return kRows;
}

}  // namespace torch_lazy::compile
