// Rows of the table of operators: losses and their gradients.
#include "compile/places.h"

#include <limits>

namespace torch_lazy::compile {
namespace {

enum Reduction : int64_t { kNone, kMean, kSum };  // at::Reduction

/// A loss of two tensors of one size: element by element, then reduced.
class Loss {
 public:
  /// `operands` have one dtype; the first two also one size.
  Loss(Lowering& l, c10::ArrayRef<size_t> operands, size_t reduction) : l_(l) {
    const std::optional<Type> computed = float_type(l, operands[0]);
    if (!computed || !l.is_constant(reduction) || l.results() != 1) {
      l.fail();
      return;
    }
    type = *computed;
    sizes_ = l.layout(operands[0]).sizes;
    for (size_t operand : operands) {
      if (!l.is_tensor(operand) || l.layout(operand).dtype != l.layout(operands[0]).dtype) {
        l.fail();
        return;
      }
    }
    reduction_ = l.constant(reduction).toInt();
    if (l.layout(operands[1]).sizes != sizes_ ||
        l.result_layout(0).sizes.size() != (reduction_ == kNone ? sizes_.size() : 0)) {
      l.fail();
      return;
    }
    l.begin(sizes_, reduction_ == kNone ? 0 : static_cast<int>(sizes_.size()));
  }

  int32_t operator()(size_t argument) { return l_.load(argument, type); }
  int32_t number(size_t argument) { return l_.number(argument, type); }
  int32_t constant(double value) { return l_.constant_of(type, value); }
  int32_t make(Opcode op, int32_t a, int32_t b = -1, int32_t c = -1) {
    return l_.make(op, a, b, c);
  }

  bool finish(int32_t value) {
    if (reduction_ != kNone && !sizes_.empty()) {
      value = l_.make(Opcode::reduce_sum, value);
      if (reduction_ == kMean) {
        value = l_.make(Opcode::div, value, l_.fixed(type, static_cast<double>(count(sizes_))));
      }
    }
    l_.store(0, value);
    l_.end();
    return true;
  }

  Type type = Type::f32;

 private:
  Lowering& l_;
  at::DimVector sizes_;
  int64_t reduction_ = kNone;
};

/// The gradient of a loss: as large as the loss's first argument, which is argument 1 here.
class LossGradient {
 public:
  LossGradient(Lowering& l, size_t reduction) : l_(l) {
    const std::optional<Type> computed = float_type(l, 1);
    if (!computed || !l.is_constant(reduction) || !l.is_tensor(0) || !l.is_tensor(2) ||
        l.layout(0).dtype != l.layout(1).dtype || l.layout(2).dtype != l.layout(1).dtype ||
        l.layout(2).sizes != l.layout(1).sizes || l.result_layout(0).sizes != l.layout(1).sizes) {
      l.fail();
      return;
    }
    type = *computed;
    is_mean = l.constant(reduction).toInt() == kMean;
    elements = static_cast<double>(count(l.layout(1).sizes));
    l.begin(l.layout(1).sizes);
  }

  int32_t operator()(size_t argument) { return l_.load(argument, type); }
  int32_t number(size_t argument) { return l_.number(argument, type); }
  int32_t constant(double value) { return l_.constant_of(type, value); }
  int32_t make(Opcode op, int32_t a, int32_t b = -1, int32_t c = -1) {
    return l_.make(op, a, b, c);
  }
  /// 1, or of a mean 1 / elements.
  int32_t norm() { return is_mean ? l_.fixed(type, 1.0 / elements) : constant(1); }
  int32_t count_term() { return l_.fixed(type, elements); }

  bool finish(int32_t value) {
    l_.store(0, value);
    l_.end();
    return true;
  }

  Type type = Type::f32;
  bool is_mean = false;
  double elements = 1;

 private:
  Lowering& l_;
};

bool smooth_l1_loss(Lowering& l) {  // self, target, reduction, beta
  Loss loss(l, {0, 1}, 2);
  if (l.failed()) {
    return false;
  }
  const int32_t z = loss.make(Opcode::abs, loss.make(Opcode::sub, loss(0), loss(1)));
  if (number_is(l, 3, kClassZero, 0)) {
    return loss.finish(z);
  }
  const int32_t beta = loss.number(3);
  const int32_t half = loss.constant(0.5);
  const int32_t square = loss.make(Opcode::mul, loss.make(Opcode::mul, half, z), z);
  const int32_t straight = loss.make(Opcode::sub, z, loss.make(Opcode::mul, half, beta));
  return loss.finish(loss.make(Opcode::select, loss.make(Opcode::lt, z, beta),
                               loss.make(Opcode::div, square, beta), straight));
}

bool smooth_l1_loss_backward(Lowering& l) {  // grad_output, self, target, reduction, beta
  LossGradient grad(l, 3);
  if (l.failed()) {
    return false;
  }
  const int32_t beta = grad.number(4);
  const int32_t g = grad(0);
  const int32_t x = grad.make(Opcode::sub, grad(1), grad(2));
  const int32_t norm = grad.norm();
  const int32_t whole = grad.make(Opcode::mul, norm, g);
  const int32_t inner =
      grad.make(Opcode::div, grad.make(Opcode::mul, grad.make(Opcode::mul, norm, x), g), beta);
  const int32_t upper = grad.make(Opcode::select, grad.make(Opcode::ge, x, beta), whole, inner);
  const int32_t below = grad.make(Opcode::le, x, grad.make(Opcode::neg, beta));
  return grad.finish(grad.make(Opcode::select, below, grad.make(Opcode::neg, whole), upper));
}

/// The number is known to be positive.
bool is_positive(const Lowering& l, size_t argument) {
  if (l.is_constant(argument)) {
    return l.constant(argument).isScalar() && l.constant(argument).toScalar().toDouble() > 0;
  }
  const int cls = l.number_kind(argument).value_class;
  return (cls >= kClassOne && cls < kClassOther) || cls % 16 == (kClassOther + 1) % 16 ||
         cls % 16 == (kClassOther + 2) % 16;
}

bool huber_loss(Lowering& l) {  // self, target, reduction, delta
  Loss loss(l, {0, 1}, 2);
  if (l.failed() || !is_positive(l, 3)) {
    return false;
  }
  const int32_t z = loss.make(Opcode::abs, loss.make(Opcode::sub, loss(0), loss(1)));
  const int32_t delta = loss.number(3);
  const int32_t half = loss.constant(0.5);
  const int32_t square = loss.make(Opcode::mul, loss.make(Opcode::mul, half, z), z);
  const int32_t straight =
      loss.make(Opcode::mul, delta, loss.make(Opcode::sub, z, loss.make(Opcode::mul, half, delta)));
  return loss.finish(loss.make(Opcode::select, loss.make(Opcode::le, z, delta), square, straight));
}

bool huber_loss_backward(Lowering& l) {  // grad_output, self, target, reduction, delta
  LossGradient grad(l, 3);
  if (l.failed()) {
    return false;
  }
  const int32_t delta = grad.number(4);
  const int32_t g = grad(0);
  const int32_t x = grad.make(Opcode::sub, grad(1), grad(2));
  const int32_t norm = grad.norm();
  const int32_t whole = grad.make(Opcode::mul, grad.make(Opcode::mul, norm, g), delta);
  const int32_t inner = grad.make(Opcode::mul, grad.make(Opcode::mul, norm, x), g);
  const int32_t upper = grad.make(Opcode::select, grad.make(Opcode::ge, x, delta), whole, inner);
  const int32_t below = grad.make(Opcode::le, x, grad.make(Opcode::neg, delta));
  return grad.finish(grad.make(Opcode::select, below, grad.make(Opcode::neg, whole), upper));
}

bool soft_margin_loss(Lowering& l) {  // self, target, reduction
  Loss loss(l, {0, 1}, 2);
  if (l.failed()) {
    return false;
  }
  const int32_t product = loss.make(Opcode::mul, loss.make(Opcode::neg, loss(1)), loss(0));
  return loss.finish(loss.make(Opcode::log1p, loss.make(Opcode::exp, product)));
}

bool soft_margin_loss_backward(Lowering& l) {  // grad_output, self, target, reduction
  LossGradient grad(l, 3);
  if (l.failed()) {
    return false;
  }
  const int32_t target = grad(2);
  const int32_t z =
      grad.make(Opcode::exp, grad.make(Opcode::mul, grad.make(Opcode::neg, target), grad(1)));
  const int32_t scaled = grad.make(Opcode::mul, grad.make(Opcode::mul, target, z),
                                   grad.make(Opcode::neg, grad.norm()));
  const int32_t slope = grad.make(Opcode::div, scaled, grad.make(Opcode::add, z, grad.constant(1)));
  return grad.finish(grad.make(Opcode::mul, slope, grad(0)));
}

bool binary_cross_entropy(Lowering& l) {  // self, target, weight, reduction
  const bool weighted = !l.is_absent(2);
  Loss loss = weighted ? Loss(l, {0, 1, 2}, 3) : Loss(l, {0, 1}, 3);
  if (l.failed()) {
    return false;
  }
  const int32_t x = loss(0);
  const int32_t t = loss(1);
  const int32_t one = loss.constant(1);
  const int32_t low = loss.constant(-100);
  require(l, loss.make(Opcode::bit_and, loss.make(Opcode::ge, x, loss.constant(0)),
                       loss.make(Opcode::le, x, one)));
  const int32_t off =
      loss.make(Opcode::max, loss.make(Opcode::log1p, loss.make(Opcode::neg, x)), low);
  const int32_t on = loss.make(Opcode::max, loss.make(Opcode::log, x), low);
  int32_t value =
      loss.make(Opcode::sub, loss.make(Opcode::mul, loss.make(Opcode::sub, t, one), off),
                loss.make(Opcode::mul, t, on));
  if (weighted) {
    value = loss.make(Opcode::mul, value, loss(2));
  }
  return loss.finish(value);
}

bool binary_cross_entropy_backward(Lowering& l) {  // grad_output, self, target, weight, reduction
  LossGradient grad(l, 4);
  if (l.failed() || (!l.is_absent(3) && !l.is_tensor(3))) {
    return false;
  }
  const int32_t x = grad(1);
  const int32_t spread = grad.make(Opcode::mul, grad.make(Opcode::sub, grad.constant(1), x), x);
  int32_t value =
      grad.make(Opcode::div, grad.make(Opcode::mul, grad(0), grad.make(Opcode::sub, x, grad(2))),
                grad.make(Opcode::max, spread, grad.constant(1e-12F)));
  if (!l.is_absent(3)) {
    value = grad.make(Opcode::mul, value, grad(3));
  }
  if (grad.is_mean) {
    value = grad.make(Opcode::div, value, grad.count_term());
  }
  return grad.finish(value);
}

/// self, target, weight, pos_weight, reduction
bool binary_cross_entropy_with_logits(Lowering& l) {
  std::vector<size_t> operands{0, 1};
  for (size_t optional : {size_t{2}, size_t{3}}) {
    if (!l.is_absent(optional)) {
      operands.push_back(optional);
    }
  }
  Loss loss(l, operands, 4);
  if (l.failed()) {
    return false;
  }
  const int32_t x = loss(0);
  const int32_t t = loss(1);
  const int32_t one = loss.constant(1);
  const int32_t e = loss.make(Opcode::exp, loss.make(Opcode::neg, loss.make(Opcode::abs, x)));
  int32_t log_sigmoid = loss.make(Opcode::sub, loss.make(Opcode::min, x, loss.constant(0)),
                                  loss.make(Opcode::log1p, e));
  if (!l.is_absent(3)) {
    const int32_t log_weight = loss.make(
        Opcode::add, loss.make(Opcode::mul, loss.make(Opcode::sub, loss(3), one), t), one);
    log_sigmoid = loss.make(Opcode::mul, log_sigmoid, log_weight);
  }
  int32_t value = loss.make(Opcode::sub, loss.make(Opcode::mul, loss.make(Opcode::sub, one, t), x),
                            log_sigmoid);
  if (!l.is_absent(2)) {
    value = loss.make(Opcode::mul, value, loss(2));
  }
  return loss.finish(value);
}

// ---- Negative log likelihood: scores [n, classes, ...], targets [n, ...] ----

Layout without(Layout layout, size_t dim) {
  layout.sizes.erase(layout.sizes.begin() + static_cast<std::ptrdiff_t>(dim));
  layout.strides.erase(layout.strides.begin() + static_cast<std::ptrdiff_t>(dim));
  return layout;
}

/// Whether scores, targets and weights are of the kinds that these rows know.
bool is_likelihood(const Lowering& l, size_t scores, size_t target, size_t weight) {
  if (!float_type(l, scores) || !l.is_tensor(target) || l.layout(target).dtype != at::kLong) {
    return false;
  }
  const Layout& self = l.layout(scores);
  return self.sizes.size() >= 2 && without(self, 1).sizes == l.layout(target).sizes &&
         (l.is_absent(weight) ||
          (l.is_tensor(weight) && l.layout(weight).dtype == self.dtype &&
           l.layout(weight).sizes.size() == 1 && l.layout(weight).sizes[0] == self.sizes[1]));
}

/// self, target, weight, reduction, ignore_index -> output, total_weight
bool nll_loss_forward(Lowering& l) {
  if (!is_likelihood(l, 0, 1, 2) || l.description().fresh.size() != 2) {
    return false;
  }
  const Layout& self = l.layout(0);
  const Layout& target = l.layout(1);
  const Type computed = *float_type(l, 0);
  const int64_t reduction = l.constant(3).toInt();
  l.begin(target.sizes, reduction == kNone ? 0 : static_cast<int>(target.sizes.size()));
  const int32_t t = l.load(1, Type::i64);
  const int32_t ignored =
      l.make(Opcode::eq, t, l.constant_of(Type::i64, static_cast<double>(l.constant(4).toInt())));
  const int32_t inside = between(l, t, 0, self.sizes[1]);
  require(l, l.make(Opcode::bit_or, inside, ignored));
  const int32_t counted = l.make(Opcode::bit_and, inside, l.make(Opcode::bit_not, ignored));
  const int32_t picked = l.convert(
      load_at(l, slot_of(l, 0), without(self, 1), Lookup{t, self.strides[1]}, counted), computed);
  int32_t weight = -1;
  int32_t loss = l.make(Opcode::neg, picked);
  if (l.is_absent(2)) {
    weight = l.convert(counted, computed);
  } else {
    Layout weights = l.layout(2);
    const Lookup lookup{t, weights.strides[0]};
    weights.sizes.clear();
    weights.strides.clear();
    weight = l.convert(load_at(l, slot_of(l, 2), weights, lookup, counted), computed);
    loss = l.make(Opcode::mul, loss, weight);
  }
  if (reduction == kNone) {
    l.store(0, l.make(Opcode::select, counted, loss, l.constant_of(computed, 0)));
    l.end();
    if (l.wanted(1)) {
      l.begin({});
      l.store(1, l.constant_of(computed, 0));
      l.end();
    }
    return true;
  }
  loss = l.make(Opcode::reduce_sum, loss);
  weight = l.make(Opcode::reduce_sum, weight);
  l.store(0, reduction == kMean ? l.make(Opcode::div, loss, weight) : loss);
  l.store(1, weight);
  l.end();
  return true;
}

/// grad_output, self, target, weight, reduction, ignore_index, total_weight
bool nll_loss_backward(Lowering& l) {
  if (!is_likelihood(l, 1, 2, 3) || !l.is_tensor(0) || !l.is_tensor(6)) {
    return false;
  }
  const Layout& self = l.layout(1);
  const Type computed = *float_type(l, 1);
  const int64_t reduction = l.constant(4).toInt();
  // A layout of the targets' sizes, seen in the space of the scores.
  auto spread = [](Layout layout) {
    layout.sizes.insert(layout.sizes.begin() + 1, 1);
    layout.strides.insert(layout.strides.begin() + 1, 0);
    return layout;
  };
  l.begin(self.sizes);
  const int32_t t = l.load_layout(slot_of(l, 2), spread(l.layout(2)), Type::i64);
  const int32_t counted =
      l.make(Opcode::ne, t, l.constant_of(Type::i64, static_cast<double>(l.constant(5).toInt())));
  const int32_t hit =
      l.make(Opcode::bit_and, l.make(Opcode::eq, position(l, self.sizes, 1), t), counted);
  int32_t value = -1;
  if (reduction == kNone) {
    if (l.layout(0).sizes != l.layout(2).sizes) {
      return false;
    }
    value = l.make(Opcode::neg, l.load_layout(slot_of(l, 0), spread(l.layout(0)), computed));
  } else {
    value = l.make(Opcode::neg, l.load(0, computed));
    if (reduction == kMean) {
      value = l.make(Opcode::div, value, l.load(6, computed));
    }
  }
  if (!l.is_absent(3)) {
    Layout weights = l.layout(3);
    weights.sizes.resize(self.sizes.size() - 1, 1);
    weights.strides.resize(self.sizes.size() - 1, 0);
    value = l.make(Opcode::mul, value, l.load_layout(slot_of(l, 3), weights, computed));
  }
  l.store(0, l.make(Opcode::select, hit, value, l.constant_of(computed, 0)));
  l.end();
  return true;
}

constexpr OperatorRow kRows[] = {
    {"binary_cross_entropy", binary_cross_entropy},
    {"binary_cross_entropy_backward", binary_cross_entropy_backward},
    {"binary_cross_entropy_with_logits", binary_cross_entropy_with_logits},
    {"huber_loss", huber_loss},
    {"huber_loss_backward", huber_loss_backward},
    {"nll_loss2d_backward", nll_loss_backward},
    {"nll_loss2d_forward", nll_loss_forward},
    {"nll_loss_backward", nll_loss_backward},
    {"nll_loss_forward", nll_loss_forward},
    {"smooth_l1_loss", smooth_l1_loss},
    {"smooth_l1_loss_backward", smooth_l1_loss_backward},
    {"soft_margin_loss", soft_margin_loss},
    {"soft_margin_loss_backward", soft_margin_loss_backward},
};

}  // namespace

c10::ArrayRef<OperatorRow> loss_rows() {
  return kRows;
}

}  // namespace torch_lazy::compile
