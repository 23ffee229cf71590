// Rows of the table of operators: lists of tensors, as optimizers use them. Each element becomes a
// piece of its own; equal pieces run in one launch.
#include "compile/lowering.h"
#include "compile/places.h"

namespace torch_lazy::compile {
namespace {

/// One element of a foreach call.
class Element {
 public:
  Element(Lowering& l, size_t k) : l_(l), k_(k) {
    const std::optional<Type> memory = type_of(l.result_layout(k).dtype);
    if (!memory || !codegen::is_float(*memory)) {
      l.fail();
    }
    memory_ = memory.value_or(Type::f32);
    type_ = compute_type(memory_);
    l.begin(l.result_layout(k).sizes);
  }

  /// Element k of a list; or a tensor, a list of numbers, a number for all.
  int32_t operator()(size_t argument) {
    const ArgumentSource& source = l_.argument(argument);
    if (source.kind == ArgumentSource::Kind::operand_list) {
      const int operand = k_ < source.elements.size() ? source.elements[k_] : -1;
      if (operand < 0) {
        l_.fail();
        return l_.constant_of(type_, 0);
      }
      // Of other dtypes PyTorch promotes; of other sizes it may broadcast.
      const Layout& layout = l_.description().operands[operand];
      if (type_of(layout.dtype) != memory_) {
        l_.fail();
      }
      return l_.load_operand(operand, type_);
    }
    if (source.kind == ArgumentSource::Kind::operand) {
      return l_.load(argument, type_);
    }
    if (source.kind == ArgumentSource::Kind::constant && source.value.isList()) {
      l_.fail();
      return l_.constant_of(type_, 0);
    }
    const bool list = source.kind == ArgumentSource::Kind::number && source.numbers.size() > 1;
    // With a truth value PyTorch has rules of its own.
    const bool truth = source.kind == ArgumentSource::Kind::constant
                           ? source.value.isBool()
                           : l_.number_kind(argument, list ? k_ : 0).type == at::kBool;
    if (truth) {
      l_.fail();
    }
    return l_.number(argument, type_, list ? k_ : 0);
  }

  /// The same, rounded to the dtype of the elements where it is none of them: what PyTorch does
  /// with numbers except in mul, div and the fused addc and lerp.
  int32_t rounded(size_t argument) {
    return l_.convert(l_.convert((*this)(argument), memory_), type_);
  }

  int32_t make(Opcode op, int32_t a, int32_t b = -1, int32_t c = -1) {
    return l_.make(op, a, b, c);
  }
  int32_t constant(double value) { return l_.constant_of(type_, value); }

  bool is_one(size_t argument) const { return number_is(l_, argument, kClassOne, 1); }

  void finish(int32_t value) {
    l_.store(k_, value);
    l_.end();
  }

  const std::string& name() const { return l_.description().op->name; }
  bool has(size_t argument) const { return argument < l_.description().arguments.size(); }

 private:
  Lowering& l_;
  size_t k_;
  Type memory_ = Type::f32;
  Type type_ = Type::f32;
};

/// `list`: an argument that has an element for each result.
template <typename Body>
bool for_each(Lowering& l, Body body, size_t list = 0) {
  const ArgumentSource& elements = l.argument(list);
  if (elements.kind != ArgumentSource::Kind::operand_list ||
      elements.elements.size() != l.results()) {
    return false;
  }
  for (size_t k = 0; k < l.results() && !l.failed(); ++k) {
    Element e(l, k);
    e.finish(body(e));
  }
  return true;
}

template <Opcode op>
bool unary(Lowering& l) {
  return for_each(l, [](Element& e) { return e.make(op, e(0)); });
}

template <Opcode op>
bool binary(Lowering& l) {
  return for_each(l, [](Element& e) { return e.make(op, e(0), e(1)); });
}

/// With a factor `alpha` for the second.
template <Opcode op>
bool add_scaled(Lowering& l) {
  return for_each(l, [](Element& e) {
    const int32_t a = e(0);
    int32_t b = e.rounded(1);
    if (e.has(2) && !e.is_one(2)) {
      b = e.make(Opcode::mul, b, e.rounded(2));
    }
    return e.make(op, a, b);
  });
}

template <Opcode op>
bool addc(Lowering& l) {
  if (l.is_tensor(3)) {
    return false;
  }
  return for_each(l, [](Element& e) {
    int32_t a = e(1);
    if (!e.is_one(3)) {
      a = e.make(Opcode::mul, e(3), a);
    }
    return e.make(Opcode::add, e(0), e.make(op, a, e(2)));
  });
}

bool lerp(Lowering& l) {
  return for_each(l, [](Element& e) {
    const int32_t a = e(0);
    const int32_t b = e(1);
    const int32_t w = e(2);
    const int32_t difference = e.make(Opcode::sub, b, a);
    const int32_t near_a = e.make(Opcode::add, a, e.make(Opcode::mul, w, difference));
    const int32_t rest = e.make(Opcode::sub, e.constant(1), w);
    const int32_t near_b = e.make(Opcode::sub, b, e.make(Opcode::mul, difference, rest));
    const int32_t small = e.make(Opcode::lt, e.make(Opcode::abs, w), e.constant(0.5));
    return e.make(Opcode::select, small, near_a, near_b);
  });
}

bool reciprocal(Lowering& l) {
  return for_each(l, [](Element& e) { return e.make(Opcode::div, e.constant(1), e(0)); });
}

/// Of a number. Powers of tensors have exponents that PyTorch treats apart.
bool power_of_number(Lowering& l) {
  return l.argument(0).kind != ArgumentSource::Kind::operand_list &&
         for_each(
             l, [](Element& e) { return e.make(Opcode::pow, e.rounded(0), e(1)); }, /*list=*/1);
}

bool zero(Lowering& l) {
  return for_each(l, [](Element& e) { return e.constant(0); });
}

bool copy(Lowering& l) {
  return for_each(l, [](Element& e) { return e(1); });
}

constexpr OperatorRow kRows[] = {
    {"_foreach_abs", unary<Opcode::abs>},
    {"_foreach_add", add_scaled<Opcode::add>},
    {"_foreach_addcdiv", addc<Opcode::div>},
    {"_foreach_addcmul", addc<Opcode::mul>},
    {"_foreach_clamp_max", binary<Opcode::min>},
    {"_foreach_clamp_min", binary<Opcode::max>},
    {"_foreach_copy", copy},
    {"_foreach_div", binary<Opcode::div>},
    {"_foreach_exp", unary<Opcode::exp>},
    {"_foreach_lerp", lerp},
    {"_foreach_maximum", binary<Opcode::max>},
    {"_foreach_minimum", binary<Opcode::min>},
    {"_foreach_mul", binary<Opcode::mul>},
    {"_foreach_neg", unary<Opcode::neg>},
    {"_foreach_pow", power_of_number},
    {"_foreach_reciprocal", reciprocal},
    {"_foreach_rsqrt", unary<Opcode::rsqrt>},
    {"_foreach_sqrt", unary<Opcode::sqrt>},
    {"_foreach_sub", add_scaled<Opcode::sub>},
    {"_foreach_zero", zero},
};

}  // namespace

c10::ArrayRef<OperatorRow> foreach_rows() {
  return kRows;
}

}  // namespace torch_lazy::compile
