// Rows of the table of operators: the fused optimizers. Every parameter is a piece; what depends on
// the step alone is computed once for each, by a piece of one element.
#include "compile/places.h"

namespace torch_lazy::compile {
namespace {

/// A fused step: its lists, and the update of one parameter at a time.
class FusedStep {
 public:
  explicit FusedStep(Lowering& l) : l_(l) {
    for (const char* name : {"grad_scale", "found_inf"}) {
      const std::optional<size_t> index = argument_named(l, name);
      if (index && !l.is_absent(*index)) {
        l.fail();
      }
    }
    if (!l.description().fresh.empty()) {
      l.fail();
    }
    parameters_ = list("self").size();
    if (parameters_ == 0) {
      l.fail();
    }
  }

  size_t parameters() const { return parameters_; }
  bool has(const char* name) { return !list(name).empty(); }

  /// Whether the parameter is of a float type that is computed in a longer one.
  bool is_short() {
    const Layout* layout = layout_of("self");
    return layout && type_of(layout->dtype) != type_;
  }

  /// The update of parameter k begins: the type in which it is computed.
  Type choose(size_t k) {
    k_ = k;
    const Layout* layout = layout_of("self");
    const std::optional<Type> memory = layout ? type_of(layout->dtype) : std::nullopt;
    if (!memory || !codegen::is_float(*memory)) {
      l_.fail();
      return Type::f32;
    }
    return type_ = compute_type(*memory);
  }

  void begin_elements() {
    if (const Layout* layout = layout_of("self")) {
      l_.begin(layout->sizes);
    }
  }

  /// The tensor that belongs to the parameter. PyTorch's kernel goes through memory, so that all of
  /// them must lie alike.
  int32_t load(const char* name) {
    const Layout* parameter = layout_of("self");
    const Layout* layout = layout_of(name);
    if (!parameter || !layout || layout->dtype != parameter->dtype ||
        layout->sizes != parameter->sizes || layout->strides != parameter->strides) {
      l_.fail();
      return constant(0);
    }
    return l_.load_operand(list(name)[k_], type_);
  }

  void store(const char* name, int32_t value) {
    if (!l_.failed()) {
      if (const std::optional<size_t> result = wanted_write(l_, list(name)[k_])) {
        l_.store(*result, value);
      }
    }
  }

  /// The number of the step, as a double.
  int32_t load_step() {
    const Layout* layout = layout_of("state_steps");
    if (!layout || layout->dtype != at::kFloat || !layout->sizes.empty()) {
      l_.fail();
      return l_.constant_of(Type::f64, 0);
    }
    return l_.load_operand(list("state_steps")[k_], Type::f64);
  }

  /// A number as the double that it is, and in the type of the computation.
  int32_t exact(const char* name) {
    const std::optional<size_t> index = argument_named(l_, name);
    if (!index) {
      l_.fail();
      return l_.constant_of(Type::f64, 0);
    }
    return l_.load(*index, Type::f64);
  }
  int32_t number(const char* name) { return rounded(exact(name)); }
  int32_t rounded(int32_t value) { return l_.convert(value, type_); }
  int32_t one_minus(int32_t value) {
    return l_.make(Opcode::sub, l_.constant_of(Type::f64, 1), value);
  }

  bool flag(const char* name) { return flag_named(l_, name); }

  int32_t constant(double value) { return l_.constant_of(type_, value); }
  int32_t make(Opcode op, int32_t a, int32_t b = -1, int32_t c = -1) {
    return l_.make(op, a, b, c);
  }

 private:
  c10::ArrayRef<int> list(const char* name) {
    const std::optional<size_t> index = argument_named(l_, name);
    if (!index) {
      l_.fail();
      return {};
    }
    const ArgumentSource& source = l_.argument(*index);
    if (source.kind != ArgumentSource::Kind::operand_list) {
      return {};
    }
    return source.elements;
  }

  const Layout* layout_of(const char* name) {
    const c10::ArrayRef<int> elements = list(name);
    if (k_ >= elements.size() || elements[k_] < 0) {
      l_.fail();
      return nullptr;
    }
    return &l_.description().operands[elements[k_]];
  }

  Lowering& l_;
  size_t parameters_ = 0;
  size_t k_ = 0;
  Type type_ = Type::f32;
};

/// The gradient; the call says that it writes it, which it does only to scale it.
int32_t load_gradient(FusedStep& step) {
  const int32_t g = step.load("grads");
  step.store("grads", g);
  return step.flag("maximize") ? step.make(Opcode::neg, g) : g;
}

/// gradient + parameter * weight_decay, or the gradient alone where that is 0.
int32_t decayed(FusedStep& step, int32_t g, int32_t p) {
  const int32_t decay = step.number("weight_decay");
  const int32_t sum = step.make(Opcode::add, g, step.make(Opcode::mul, p, decay));
  return step.make(Opcode::select, step.make(Opcode::ne, decay, step.constant(0)), sum, g);
}

/// a + w (b - a), from the nearer end.
int32_t lerp(FusedStep& step, int32_t a, int32_t b, int32_t w) {
  const int32_t difference = step.make(Opcode::sub, b, a);
  const int32_t near_a = step.make(Opcode::add, a, step.make(Opcode::mul, w, difference));
  const int32_t rest = step.make(Opcode::sub, step.constant(1), w);
  const int32_t near_b = step.make(Opcode::sub, b, step.make(Opcode::mul, difference, rest));
  const int32_t small = step.make(Opcode::lt, step.make(Opcode::abs, w), step.constant(0.5));
  return step.make(Opcode::select, small, near_a, near_b);
}

template <bool decoupled>
bool adam(Lowering& l) {
  FusedStep step(l);
  const bool amsgrad = step.flag("amsgrad");
  if (!amsgrad && step.has("max_exp_avg_sqs")) {
    return false;
  }
  for (size_t k = 0; k < step.parameters() && !l.failed(); ++k) {
    const Type type = step.choose(k);
    const View sizes = hand_over(l, type, {});
    const View roots = hand_over(l, type, {});
    l.begin({});
    const int32_t t = step.load_step();
    const int32_t correction1 = step.one_minus(step.make(Opcode::pow, step.exact("beta1"), t));
    const int32_t correction2 = step.one_minus(step.make(Opcode::pow, step.exact("beta2"), t));
    give(l, sizes, step.rounded(step.make(Opcode::div, step.exact("lr"), correction1)));
    give(l, roots, step.rounded(step.make(Opcode::sqrt, correction2)));
    l.end();

    step.begin_elements();
    int32_t p = step.load("self");
    int32_t g = load_gradient(step);
    if (!decoupled) {
      g = decayed(step, g, p);
    } else {
      const int32_t kept =
          step.one_minus(step.make(Opcode::mul, step.exact("lr"), step.exact("weight_decay")));
      p = step.make(Opcode::mul, p, step.rounded(kept));
    }
    const int32_t average =
        lerp(step, step.load("exp_avgs"), g, step.rounded(step.one_minus(step.exact("beta1"))));
    const int32_t share = step.rounded(step.one_minus(step.exact("beta2")));
    const int32_t square = step.make(
        Opcode::add, step.make(Opcode::mul, step.load("exp_avg_sqs"), step.number("beta2")),
        step.make(Opcode::mul, step.make(Opcode::mul, share, g), g));
    step.store("exp_avgs", average);
    step.store("exp_avg_sqs", square);
    int32_t largest = square;
    if (amsgrad) {
      largest = step.make(Opcode::max, step.load("max_exp_avg_sqs"), square);
      step.store("max_exp_avg_sqs", largest);
    }
    const int32_t deviation = step.make(
        Opcode::add, step.make(Opcode::div, step.make(Opcode::sqrt, largest), take(l, roots)),
        step.number("eps"));
    const int32_t change =
        step.make(Opcode::div, step.make(Opcode::mul, take(l, sizes), average), deviation);
    step.store("self", step.make(Opcode::sub, p, change));
    l.end();
  }
  return true;
}

bool sgd(Lowering& l) {
  FusedStep step(l);
  const bool buffers = step.has("momentum_buffer_list");
  for (size_t k = 0; k < step.parameters() && !l.failed(); ++k) {
    step.choose(k);
    if (step.is_short()) {
      return false;  // PyTorch's kernel for them does something else
    }
    step.begin_elements();
    const int32_t p = step.load("self");
    int32_t g = decayed(step, load_gradient(step), p);
    if (buffers) {
      const int32_t momentum = step.number("momentum");
      const int32_t used = step.make(Opcode::ne, momentum, step.constant(0));
      const int32_t old = step.load("momentum_buffer_list");
      int32_t buffer = g;
      if (!step.flag("is_first_step")) {
        const int32_t share = step.rounded(step.one_minus(step.exact("dampening")));
        buffer = step.make(Opcode::add, step.make(Opcode::mul, old, momentum),
                           step.make(Opcode::mul, g, share));
      }
      step.store("momentum_buffer_list", step.make(Opcode::select, used, buffer, old));
      const int32_t direction =
          step.flag("nesterov")
              ? step.make(Opcode::add, g, step.make(Opcode::mul, buffer, momentum))
              : buffer;
      g = step.make(Opcode::select, used, direction, g);
    }
    step.store("self", step.make(Opcode::sub, p, step.make(Opcode::mul, g, step.number("lr"))));
    l.end();
  }
  return true;
}

bool adagrad(Lowering& l) {
  FusedStep step(l);
  for (size_t k = 0; k < step.parameters() && !l.failed(); ++k) {
    const Type type = step.choose(k);
    const View rates = hand_over(l, type, {});
    l.begin({});
    const int32_t t = step.load_step();
    const int32_t earlier = step.make(Opcode::sub, t, l.constant_of(Type::f64, 1));
    const int32_t divisor = step.make(Opcode::add, l.constant_of(Type::f64, 1),
                                      step.make(Opcode::mul, earlier, step.exact("lr_decay")));
    give(l, rates, step.rounded(step.make(Opcode::div, step.exact("lr"), divisor)));
    step.store("state_steps", t);
    l.end();

    step.begin_elements();
    const int32_t p = step.load("self");
    const int32_t g = decayed(step, load_gradient(step), p);
    const int32_t sum =
        step.make(Opcode::add, step.load("state_sums"), step.make(Opcode::mul, g, g));
    step.store("state_sums", sum);
    const int32_t deviation =
        step.make(Opcode::add, step.make(Opcode::sqrt, sum), step.number("eps"));
    const int32_t change =
        step.make(Opcode::div, step.make(Opcode::mul, take(l, rates), g), deviation);
    step.store("self", step.make(Opcode::sub, p, change));
    l.end();
  }
  return true;
}

constexpr OperatorRow kRows[] = {
    {"_fused_adagrad", adagrad},
    {"_fused_adam", adam<false>},
    {"_fused_adamw", adam<true>},
    {"_fused_sgd", sgd},
};

}  // namespace

c10::ArrayRef<OperatorRow> optimizer_rows() {
  return kRows;
}

}  // namespace torch_lazy::compile
