// Operators that work element by element, lazy against eager.
#include "upstream_ops.h"

namespace upstream_ops {
namespace {

#define UNARY(op) {#op, [](In& in) -> Tensors { return {torch::op(in())}; }}
#define UNARY_OF_POSITIVE(op) \
  {#op, [](In& in) -> Tensors { return {torch::op(in.between(0.1, 3))}; }}
#define UNARY_OF_SMALL(op) \
  {#op, [](In& in) -> Tensors { return {torch::op(in.between(-0.9, 0.9))}; }}
#define UNARY_IN_PLACE(op)      \
  {#op, [](In& in) -> Tensors { \
     torch::Tensor x = in();    \
     torch::Tensor y = x * 0.4; \
     torch::op(y);              \
     return {y};                \
   }}

const Case kUnary[] = {
    UNARY(abs),
    UNARY(absolute),
    UNARY(angle),
    UNARY(arctan),
    UNARY(asinh),
    UNARY(atan),
    UNARY(ceil),
    UNARY(cos),
    UNARY(cosh),
    UNARY(deg2rad),
    UNARY(erf),
    UNARY(erfc),
    UNARY(exp),
    UNARY(exp2),
    UNARY(expm1),
    UNARY(fix),
    UNARY(floor),
    UNARY(frac),
    UNARY(isfinite),
    UNARY(isinf),
    UNARY(isnan),
    UNARY(logical_not),
    UNARY(negative),
    UNARY(neg),
    UNARY(positive),
    UNARY(rad2deg),
    UNARY(reciprocal),
    UNARY(relu),
    UNARY(round),
    UNARY(selu),
    UNARY(sgn),
    UNARY(sigmoid),
    UNARY(sign),
    UNARY(signbit),
    UNARY(silu),
    UNARY(sin),
    UNARY(sinc),
    UNARY(sinh),
    UNARY(square),
    UNARY(tan),
    UNARY(tanh),
    UNARY(trunc),
    UNARY_OF_POSITIVE(digamma),
    UNARY_OF_POSITIVE(i0),
    UNARY_OF_POSITIVE(lgamma),
    UNARY_OF_POSITIVE(log),
    UNARY_OF_POSITIVE(log10),
    UNARY_OF_POSITIVE(log1p),
    UNARY_OF_POSITIVE(log2),
    UNARY_OF_POSITIVE(rsqrt),
    UNARY_OF_POSITIVE(sqrt),
    UNARY_OF_SMALL(acos),
    UNARY_OF_SMALL(asin),
    UNARY_OF_SMALL(atanh),
    UNARY_OF_SMALL(erfinv),
    {"acosh", [](In& in) -> Tensors { return {torch::acosh(in.between(1.5, 3))}; }},
    {"logit", [](In& in) -> Tensors { return {torch::logit(in.between(0.1, 0.9))}; }},
    {"logit_eps", [](In& in) -> Tensors { return {torch::logit(in.between(-0.2, 1.2), 0.05)}; }},
    {"polygamma", [](In& in) -> Tensors { return {torch::polygamma(2, in.between(0.5, 3))}; }},
    {"mvlgamma", [](In& in) -> Tensors { return {torch::mvlgamma(in.between(2, 4), 2)}; }},
    {"nan_to_num",
     [](In& in) -> Tensors {
       torch::Tensor x = in.plain();
       return {torch::nan_to_num(x / x.ceil(), 1.0, 2.0, 3.0)};
     }},
    {"bitwise_not", [](In& in) -> Tensors { return {torch::bitwise_not(in.ints(0, 100))}; }},
    {"frexp",
     [](In& in) -> Tensors {
       auto [mantissa, exponent] = torch::frexp(in.plain());
       return {mantissa, exponent};
     }},
};

const Case kUnaryInPlace[] = {
    UNARY_IN_PLACE(abs_),     UNARY_IN_PLACE(acos_),       UNARY_IN_PLACE(asin_),
    UNARY_IN_PLACE(atan_),    UNARY_IN_PLACE(ceil_),       UNARY_IN_PLACE(cos_),
    UNARY_IN_PLACE(cosh_),    UNARY_IN_PLACE(erf_),        UNARY_IN_PLACE(erfc_),
    UNARY_IN_PLACE(exp_),     UNARY_IN_PLACE(expm1_),      UNARY_IN_PLACE(floor_),
    UNARY_IN_PLACE(frac_),    UNARY_IN_PLACE(neg_),        UNARY_IN_PLACE(reciprocal_),
    UNARY_IN_PLACE(relu_),    UNARY_IN_PLACE(round_),      UNARY_IN_PLACE(sigmoid_),
    UNARY_IN_PLACE(sin_),     UNARY_IN_PLACE(sinh_),       UNARY_IN_PLACE(square_),
    UNARY_IN_PLACE(tan_),     UNARY_IN_PLACE(tanh_),       UNARY_IN_PLACE(trunc_),
    UNARY_IN_PLACE(zero_),    UNARY_IN_PLACE(nan_to_num_), UNARY_IN_PLACE(deg2rad_),
    UNARY_IN_PLACE(rad2deg_), UNARY_IN_PLACE(exp2_),       UNARY_IN_PLACE(selu_),
};

#define BINARY(op)                                                                                \
  {#op, [](In& in) -> Tensors { return {torch::op(in({3, 4}), in.between(0.5, 2, {3, 4}))}; }}, { \
    #op "_broadcast",                                                                             \
        [](In& in) -> Tensors { return {torch::op(in({2, 1, 4}), in.between(0.5, 2, {3, 1}))}; }  \
  }
#define BINARY_ON_INTEGERS(op) \
  {#op, [](In& in) -> Tensors { return {torch::op(in.ints(0, 50), in.ints(1, 6))}; }}
#define COMPARISON(op)                                                                     \
  {#op, [](In& in) -> Tensors { return {torch::op(in.ints(0, 3), in.ints(0, 3, {4}))}; }}, \
      {#op "_scalar", [](In& in) -> Tensors { return {torch::op(in.ints(0, 3), 1)}; }}, {  \
    #op "_in_place", [](In& in) -> Tensors {                                               \
      torch::Tensor x = in.ints(0, 3);                                                     \
      x.op##_(in.ints(0, 3));                                                              \
      return {x};                                                                          \
    }                                                                                      \
  }

const Case kBinary[] = {
    BINARY(add),
    BINARY(atan2),
    BINARY(copysign),
    BINARY(div),
    BINARY(fmax),
    BINARY(fmin),
    BINARY(fmod),
    BINARY(hypot),
    BINARY(logaddexp),
    BINARY(logaddexp2),
    BINARY(max),
    BINARY(maximum),
    BINARY(min),
    BINARY(minimum),
    BINARY(mul),
    BINARY(multiply),
    BINARY(nextafter),
    BINARY(remainder),
    BINARY(sub),
    BINARY(true_divide),
    BINARY(xlogy),
    BINARY_ON_INTEGERS(bitwise_and),
    BINARY_ON_INTEGERS(bitwise_or),
    BINARY_ON_INTEGERS(bitwise_xor),
    BINARY_ON_INTEGERS(bitwise_left_shift),
    BINARY_ON_INTEGERS(bitwise_right_shift),
    BINARY_ON_INTEGERS(floor_divide),
    BINARY_ON_INTEGERS(gcd),
    BINARY_ON_INTEGERS(lcm),
    BINARY_ON_INTEGERS(logical_and),
    BINARY_ON_INTEGERS(logical_or),
    BINARY_ON_INTEGERS(logical_xor),
    COMPARISON(eq),
    COMPARISON(ge),
    COMPARISON(gt),
    COMPARISON(le),
    COMPARISON(lt),
    COMPARISON(ne),
    {"heaviside", [](In& in) -> Tensors { return {torch::heaviside(in.plain(), in.plain())}; }},
    {"pow", [](In& in) -> Tensors { return {torch::pow(in.between(0.1, 2), in())}; }},
    {"pow_of_number", [](In& in) -> Tensors { return {torch::pow(2.5, in())}; }},
    {"pow_by_number", [](In& in) -> Tensors { return {torch::pow(in(), 3)}; }},
    {"pow_of_integers", [](In& in) -> Tensors { return {torch::pow(in.ints(0, 5), 2)}; }},
    {"float_power", [](In& in) -> Tensors { return {torch::float_power(in(), 2)}; }},
    {"ldexp", [](In& in) -> Tensors { return {torch::ldexp(in(), in.ints(0, 4))}; }},
    {"lerp", [](In& in) -> Tensors { return {torch::lerp(in(), in(), 0.3)}; }},
    {"lerp_by_tensor", [](In& in) -> Tensors { return {torch::lerp(in(), in(), in())}; }},
    {"addcmul", [](In& in) -> Tensors { return {torch::addcmul(in(), in(), in(), 3.1)}; }},
    {"addcdiv",
     [](In& in) -> Tensors { return {torch::addcdiv(in(), in(), in.between(1, 2), 3.1)}; }},
    {"rsub", [](In& in) -> Tensors { return {torch::rsub(in(), in(), 2)}; }},
    {"rsub_number", [](In& in) -> Tensors { return {torch::rsub(in(), 4.0, 2)}; }},
    {"sub_alpha", [](In& in) -> Tensors { return {torch::sub(in(), in(), 1.5)}; }},
    {"add_alpha", [](In& in) -> Tensors { return {torch::add(in(), in(), 1.5)}; }},
    {"div_floor", [](In& in) -> Tensors { return {torch::div(in(), in(), "floor")}; }},
    {"div_trunc", [](In& in) -> Tensors { return {torch::div(in(), in(), "trunc")}; }},
    {"div_integers", [](In& in) -> Tensors { return {in.ints(0, 9) / in.ints(1, 5)}; }},
    {"number_minus_tensor", [](In& in) -> Tensors { return {1.5 - in()}; }},
    {"number_over_tensor", [](In& in) -> Tensors { return {1.5 / in.between(1, 2)}; }},
    {"remainder_by_number", [](In& in) -> Tensors { return {torch::remainder(in(), 0.7)}; }},
    {"fmod_by_number", [](In& in) -> Tensors { return {torch::fmod(in(), 0.7)}; }},
    {"zero_size", [](In& in) -> Tensors { return {in({0, 4}) + in({1, 4})}; }},
    {"where", [](In& in) -> Tensors { return {torch::where(in.bools(), in(), in())}; }},
    {"where_number", [](In& in) -> Tensors { return {torch::where(in.bools(), in(), 2.5)}; }},
    {"isclose", [](In& in) -> Tensors { return {torch::isclose(in(), in(), 0.5, 0.5)}; }},
    {"cross", [](In& in) -> Tensors { return {torch::cross(in({4, 3}), in({4, 3}), 1)}; }},
    {"dist", [](In& in) -> Tensors { return {torch::dist(in(), in(), 3)}; }},
    {"complex", [](In& in) -> Tensors { return {torch::complex(in(), in())}; }},
    {"polar", [](In& in) -> Tensors { return {torch::polar(in.between(0.1, 2), in())}; }},
    {"complex_product",
     [](In& in) -> Tensors {
       torch::Tensor z = torch::complex(in(), in());
       return {z * z.conj(), torch::real(z), torch::imag(z)};
     }},
};

const Case kLimits[] = {
    {"clamp", [](In& in) -> Tensors { return {torch::clamp(in(), -0.5, 0.7)}; }},
    {"clamp_min", [](In& in) -> Tensors { return {torch::clamp_min(in(), -0.5)}; }},
    {"clamp_max", [](In& in) -> Tensors { return {torch::clamp_max(in(), 0.5)}; }},
    {"clamp_tensors",
     [](In& in) -> Tensors { return {torch::clamp(in(), in.between(-1, 0), in.between(0, 1))}; }},
    {"clamp_in_place",
     [](In& in) -> Tensors {
       torch::Tensor x = in() * 2;
       x.clamp_(-1, 1);
       return {x};
     }},
    {"threshold", [](In& in) -> Tensors { return {torch::threshold(in(), 0.1, 20)}; }},
    {"threshold_in_place",
     [](In& in) -> Tensors {
       torch::Tensor x = in() * 2;
       torch::threshold_(x, 0.1, 20);
       return {x};
     }},
};

#define IN_PLACE(name, ...)      \
  {name, [](In& in) -> Tensors { \
     torch::Tensor x = in();     \
     torch::Tensor y = x * 1;    \
     y.__VA_ARGS__;              \
     return {y};                 \
   }}

const Case kInPlace[] = {
    IN_PLACE("add_", add_(in(), 2)),
    IN_PLACE("add_broadcast", add_(in({4}))),
    IN_PLACE("add_number", add_(3.5)),
    IN_PLACE("sub_", sub_(in(), 2)),
    IN_PLACE("sub_number", sub_(3.5)),
    IN_PLACE("mul_", mul_(in())),
    IN_PLACE("mul_number", mul_(3.5)),
    IN_PLACE("div_", div_(in.between(1, 2))),
    IN_PLACE("div_number", div_(3.5)),
    IN_PLACE("div_floor", div_(in.between(1, 2), "floor")),
    IN_PLACE("addcmul_", addcmul_(in(), in(), 2)),
    IN_PLACE("addcdiv_", addcdiv_(in(), in.between(1, 2), 2)),
    IN_PLACE("fmod_", fmod_(in.between(1, 2))),
    IN_PLACE("remainder_", remainder_(in.between(1, 2))),
    IN_PLACE("pow_", pow_(2)),
    IN_PLACE("lerp_", lerp_(in(), 0.25)),
    IN_PLACE("fill_", fill_(2)),
    IN_PLACE("copy_", copy_(in({1, 4}))),
    IN_PLACE("atan2_", atan2_(in())),
    IN_PLACE("add_of_double", add_(in().to(at::kDouble))),
    IN_PLACE("masked_fill_", masked_fill_(in.bools(), 4)),
    {"integers",
     [](In& in) -> Tensors {
       torch::Tensor x = in.ints(0, 9);
       x.add_(in.ints(0, 3)).mul_(2).sub_(1);
       x.bitwise_and_(7);
       x.__ilshift__(1);
       return {x};
     }},
    {"out_of_add",
     [](In& in) -> Tensors {
       torch::Tensor out = torch::empty({0}, in.options);
       torch::add_out(out, in.plain(), in.plain());
       return {out};
     }},
};

#define CAST(name, type) {name, [](In& in) -> Tensors { return {in.plain().mul(10).to(type)}; }}

const Case kTypes[] = {
    CAST("to_byte", at::kByte),
    CAST("to_char", at::kChar),
    CAST("to_short", at::kShort),
    CAST("to_int", at::kInt),
    CAST("to_long", at::kLong),
    CAST("to_half", at::kHalf),
    CAST("to_bfloat16", at::kBFloat16),
    CAST("to_double", at::kDouble),
    CAST("to_bool", at::kBool),
    CAST("to_complex", at::kComplexFloat),
    {"half", [](In& in) -> Tensors { return {in().to(at::kHalf) + in().to(at::kHalf)}; }},
    {"bfloat16", [](In& in) -> Tensors { return {in().to(at::kBFloat16) * in()}; }},
    {"float_and_double", [](In& in) -> Tensors { return {in() + in().to(at::kDouble)}; }},
    {"float_and_long", [](In& in) -> Tensors { return {in() * in.ints(0, 9)}; }},
    {"bool_and_number", [](In& in) -> Tensors { return {in.bools() + 2}; }},
    {"long_and_number", [](In& in) -> Tensors { return {in.ints(0, 9) * 2.5}; }},
    {"type_as", [](In& in) -> Tensors { return {in().type_as(in.plain({1}, at::kDouble))}; }},
    {"retained_by_views",
     [](In& in) -> Tensors {
       torch::Tensor x = torch::zeros({2, 2}, in.options.dtype(at::kByte));
       return {x, x.t(), x + x};
     }},
    {"comparison_of_bytes",
     [](In& in) -> Tensors {
       torch::Tensor even = in.ints(0, 9).to(at::kByte).remainder(2).eq(0);
       return {even, even.logical_and(in.bools()), even.to(at::kByte)};
     }},
};

const Case kMaking[] = {
    {"zeros", [](In& in) -> Tensors { return {torch::zeros({2, 3}, in.options)}; }},
    {"ones", [](In& in) -> Tensors { return {torch::ones({2, 3}, in.options)}; }},
    {"full", [](In& in) -> Tensors { return {torch::full({2, 3}, 3.1165, in.options)}; }},
    {"full_like", [](In& in) -> Tensors { return {torch::full_like(in.plain(), 4)}; }},
    {"zeros_like", [](In& in) -> Tensors { return {torch::zeros_like(in.plain())}; }},
    {"ones_like", [](In& in) -> Tensors { return {torch::ones_like(in.plain().t())}; }},
    {"arange", [](In& in) -> Tensors { return {torch::arange(2, 11, 3, in.options)}; }},
    {"linspace", [](In& in) -> Tensors { return {torch::linspace(-1, 2, 7, in.options)}; }},
    {"logspace", [](In& in) -> Tensors { return {torch::logspace(-1, 2, 7, 10, in.options)}; }},
    {"eye", [](In& in) -> Tensors { return {torch::eye(3, 4, in.options)}; }},
    {"scalar_tensor", [](In& in) -> Tensors { return {torch::scalar_tensor(1.5, in.options)}; }},
    {"new_full", [](In& in) -> Tensors { return {in.plain().new_full({2}, 7)}; }},
    {"clone",
     [](In& in) -> Tensors {
       torch::Tensor x = in.plain();
       torch::Tensor copy = x.clone();
       x.add_(1);
       return {x, copy};
     }},
    {"tril_indices", [](In& in) -> Tensors { return {torch::tril_indices(4, 3, 0, in.options)}; }},
    {"hann_window", [](In& in) -> Tensors { return {torch::hann_window(8, in.options)}; }},
    {"one_hot", [](In& in) -> Tensors { return {torch::one_hot(in.ints(0, 5, {3, 2}), 5)}; }},
    {"randperm", [](In& in) -> Tensors { return {torch::randperm(9, in.options)}; }, true},
    {"rand", [](In& in) -> Tensors { return {torch::rand({3, 4}, in.options)}; }},
    {"randn", [](In& in) -> Tensors { return {torch::randn({3, 4}, in.options)}; }},
    {"randint", [](In& in) -> Tensors { return {torch::randint(9, {3, 4}, in.options)}; }},
    {"uniform_", [](In& in) -> Tensors { return {torch::empty({5}, in.options).uniform_(-1, 2)}; }},
    {"normal_", [](In& in) -> Tensors { return {torch::empty({5}, in.options).normal_(1, 2)}; }},
    {"bernoulli_",
     [](In& in) -> Tensors { return {torch::empty({5}, in.options).bernoulli_(0.3)}; }},
    {"bernoulli", [](In& in) -> Tensors { return {in.between(0, 1).bernoulli()}; }, true},
    {"multinomial",
     [](In& in) -> Tensors { return {torch::multinomial(in.between(0, 1).detach(), 2)}; }, true},
};

COMPARE_WITH_EAGER(Unary, kUnary);
COMPARE_WITH_EAGER(UnaryInPlace, kUnaryInPlace);
COMPARE_WITH_EAGER(Binary, kBinary);
COMPARE_WITH_EAGER(Limits, kLimits);
COMPARE_WITH_EAGER(InPlace, kInPlace);
COMPARE_WITH_EAGER(Types, kTypes);
COMPARE_WITH_EAGER(Making, kMaking);

}  // namespace
}  // namespace upstream_ops
