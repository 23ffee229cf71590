// How far the mathematics of machine code is from the exact values: every function, on every
// target, for numbers of all sizes. The C library in the next wider type is what is exact.
#include "problem.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <numbers>
#include <random>
#include <type_traits>

namespace torch_lazy::codegen {
namespace {

using Exact = long double;

// ---- Functions that the C library does not have
// --------------------------------------------------

Exact exact_digamma(Exact x) {
  if (x == 0) {
    return std::copysign(std::numeric_limits<Exact>::infinity(), -x);
  }
  if (x < 0) {
    const Exact away = x - std::round(x);  // from the nearest pole
    if (away == 0 || std::isinf(x)) {
      return std::numeric_limits<Exact>::quiet_NaN();
    }
    const Exact pi = std::numbers::pi_v<Exact>;
    return exact_digamma(1 - x) - pi * std::cos(pi * away) / std::sin(pi * away);
  }
  Exact result = 0;
  for (; x < 30; ++x) {
    result -= 1 / x;
  }
  if (std::isinf(x) || std::isnan(x)) {
    return x;
  }
  const Exact z = 1 / (x * x);
  Exact tail = 0;
  for (Exact term :
       {-1.0L / 12, 691.0L / 32760, -1.0L / 132, 1.0L / 240, -1.0L / 252, 1.0L / 120, -1.0L / 12}) {
    tail = (tail + term) * z;
  }
  return result + std::log(x) - 0.5L / x + tail;
}

Exact exact_erfinv(Exact x) {
  const Exact a = std::abs(x);
  if (!(a < 1) || a == 0) {
    return a == 0 ? x : a == 1 ? x * std::numeric_limits<Exact>::infinity() : std::nan("");
  }
  const Exact w = -std::log((1 - a) * (1 + a));
  Exact y = a < 0.5L ? a : std::sqrt(w) * 0.8L;
  for (int i = 0; i < 60; ++i) {
    const Exact error = a < 0.5L ? std::erf(y) - a : (1 - a) - std::erfc(y);
    const Exact step = error / (2 * std::numbers::inv_sqrtpi_v<Exact> * std::exp(-y * y));
    y -= step / (1 + y * step);
    if (std::abs(step) < y * 1e-19L) {
      break;
    }
  }
  return std::copysign(y, x);
}

Exact exact_sigmoid(Exact x) {
  return x < 0 ? std::exp(x) / (1 + std::exp(x)) : 1 / (1 + std::exp(-x));
}

Exact exact_lgamma(Exact x) {
  int sign;  // std::lgamma writes a global variable
  return ::lgammal_r(x, &sign);
}

// ---- The table
// -----------------------------------------------------------------------------------

struct Function {
  const char* name;
  std::function<Exact(Exact, Exact)> exact;
  double low, high;    // a range to look at more closely
  double f32, f64;     // units in the last place that a result may be off
  bool roots = false;  // the result has roots where digits are lost: there units are those of 1
  bool binary = false;
};

void PrintTo(const Function& function, std::ostream* out) {
  *out << function.name;
}

template <Exact (*function)(Exact)>
Exact unary(Exact x, Exact) {
  return function(x);
}

const Function kFunctions[] = {
    {"exp", unary<std::exp>, -80, 80, 1.0, 1.0},
    {"exp2", unary<std::exp2>, -120, 120, 1.1, 1.1},
    {"expm1", unary<std::expm1>, -3, 3, 1.6, 1.9},
    {"log", unary<std::log>, 0, 3, 0.9, 0.9},
    {"log2", unary<std::log2>, 0, 3, 0.95, 0.9},
    {"log10", unary<std::log10>, 0, 3, 0.9, 0.8},
    {"log1p", unary<std::log1p>, -1, 2, 1.7, 1.4},
    {"sqrt", unary<std::sqrt>, 0, 2, 0.5, 0.5},
    {"rsqrt", [](Exact x, Exact) { return 1 / std::sqrt(x); }, 0, 2, 1.5, 1.5},
    {"sin", unary<std::sin>, -1e5, 1e5, 0.8, 0.8},
    {"cos", unary<std::cos>, -1e5, 1e5, 0.8, 0.8},
    {"tan", unary<std::tan>, -1e3, 1e3, 1.0, 1.0},
    {"asin", unary<std::asin>, -1, 1, 1.7, 1.7},
    {"acos", unary<std::acos>, -1, 1, 1.2, 1.2},
    {"atan", unary<std::atan>, -3, 3, 1.9, 1.7},
    {"sinh", unary<std::sinh>, -5, 5, 1.6, 1.6},
    {"cosh", unary<std::cosh>, -5, 5, 1.5, 1.5},
    {"tanh", unary<std::tanh>, -3, 3, 1.3, 1.2},
    {"asinh", unary<std::asinh>, -5, 5, 1.5, 1.6},
    {"acosh", unary<std::acosh>, 1, 5, 2.0, 1.8},
    {"atanh", unary<std::atanh>, -1, 1, 1.2, 1.2},
    {"erf", unary<std::erf>, -4, 4, 2.3, 1.3},
    {"erfc", unary<std::erfc>, -3, 11, 2.2, 3.0},
    {"erfinv", unary<exact_erfinv>, -1, 1, 3.0, 2.0},
    {"lgamma", unary<exact_lgamma>, -20, 20, 0.6, 6.0, true},
    {"digamma", unary<exact_digamma>, -20, 20, 0.6, 25, true},
    {"sigmoid", unary<exact_sigmoid>, -30, 30, 1.4, 1.4},
    {"floor", unary<std::floor>, -10, 10, 0, 0},
    {"ceil", unary<std::ceil>, -10, 10, 0, 0},
    {"trunc", unary<std::trunc>, -10, 10, 0, 0},
    {"round", unary<std::nearbyint>, -10, 10, 0, 0},
    {"pow", [](Exact x, Exact y) { return std::pow(x, y); }, 0, 20, 0.51, 1.2, false, true},
    {"atan2", [](Exact y, Exact x) { return std::atan2(y, x); }, -3, 3, 2.0, 1.9, false, true},
    {"hypot", [](Exact x, Exact y) { return std::hypot(x, y); }, -3, 3, 0.51, 1.3, false, true},
};

// ---- Numbers to try
// ------------------------------------------------------------------------------

template <class T>
using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;

template <class T>
struct Numbers {
  std::vector<T> a;
  std::vector<T> b;
};

template <class T>
Numbers<T> numbers_for(const Function& function, size_t count) {
  using Limits = std::numeric_limits<T>;
  std::vector<T> special = {0,
                            1,
                            2,
                            3,
                            T(0.5),
                            T(1.5),
                            T(2.5),
                            T(0.1),
                            T(1e10),
                            Limits::min(),
                            Limits::denorm_min(),
                            Limits::max(),
                            Limits::infinity(),
                            Limits::quiet_NaN(),
                            T(1) + Limits::epsilon(),
                            T(1) - Limits::epsilon() / 2,
                            1 / Limits::epsilon(),
                            2 / Limits::epsilon() - 1};
  for (size_t i = 0, n = special.size(); i < n; ++i) {
    special.push_back(-special[i]);
  }
  Numbers<T> numbers;
  for (T x : special) {
    for (T y : special) {
      numbers.a.push_back(x);
      numbers.b.push_back(y);
    }
  }
  std::mt19937_64 random(17);
  std::uniform_real_distribution<double> uniform(function.low, function.high);
  auto any = [&] { return std::bit_cast<T>(static_cast<Bits<T>>(random())); };
  for (size_t i = 0; i < count; ++i) {
    numbers.a.push_back(i % 2 ? any() : T(uniform(random)));
    numbers.b.push_back(i % 4 < 2 ? any() : T(10 * uniform(random)));
  }
  return numbers;
}

// ---- Comparison
// ----------------------------------------------------------------------------------

/// How many units in the last place; where numbers cannot say it (NaN, infinity, the sign of 0) the
/// result is right (0) or wrong (infinity).
template <class T>
double distance(T found, Exact exact, bool roots) {
  constexpr double kWrong = std::numeric_limits<double>::infinity();
  if (std::isnan(exact) || std::isnan(found)) {
    return std::isnan(exact) && std::isnan(found) ? 0 : kWrong;
  }
  if (std::isinf(exact)) {
    return found == static_cast<T>(exact) ? 0 : kWrong;
  }
  if (exact == 0) {
    return found == 0 && std::signbit(found) == std::signbit(exact) ? 0 : kWrong;
  }
  using Limits = std::numeric_limits<T>;
  const Exact beyond = std::ldexp(Exact(1), Limits::max_exponent);  // infinity is as far as this
  exact = std::clamp(exact, -beyond, beyond);
  int exponent = std::max(std::ilogb(exact), roots ? 0 : Limits::min_exponent - 1);
  exponent = std::min(exponent, Limits::max_exponent - 1) - (Limits::digits - 1);
  const Exact value = std::clamp(Exact(found), -beyond, beyond);
  return static_cast<double>(std::ldexp(std::abs(value - exact), -exponent));
}

template <class T>
std::vector<T> compute(const Function& function, const std::string& target,
                       const Numbers<T>& numbers) {
  const std::string type = sizeof(T) == 4 ? "f32" : "f64";
  std::string text = "kernel outer 1 inner 0 lanes outer\n";
  text += "pointer 0 " + type + " read\npointer 1 " + type + " read\npointer 2 " + type;
  text += " write\naccess 0 pointer 0 [1]\naccess 1 pointer 1 [1]\naccess 2 pointer 2 [1]\n";
  text += "stage row\n  %0 = load " + type + " access 0\n  %1 = load " + type + " access 1\n";
  text += "  %2 = " + std::string(function.name) + " " + type + " %0";
  text += std::string(function.binary ? " %1" : "") + "\n  store " + type + " access 2 %2\n";

  const Machine machine(target, text);
  std::vector<T> out(numbers.a.size());
  void* pointers[] = {const_cast<T*>(numbers.a.data()), const_cast<T*>(numbers.b.data()),
                      out.data()};
  const auto size = static_cast<int64_t>(out.size());
  int64_t status = 0;
  Call call;
  call.pointers = pointers;
  call.numbers = &size;
  call.status = &status;
  call.end = 1;
  call.tile = size;
  machine.function()(&call);
  return out;
}

template <class T>
void expect_within(const Function& function, double limit, size_t count) {
  const Numbers<T> numbers = numbers_for<T>(function, count);
  std::vector<Exact> exact(numbers.a.size());
  for (size_t i = 0; i < exact.size(); ++i) {
    exact[i] = function.exact(numbers.a[i], numbers.b[i]);
  }
  for (const std::string& target : runnable_targets()) {
    const std::vector<T> found = compute(function, target, numbers);
    double worst = 0;
    size_t place = 0;
    for (size_t i = 0; i < exact.size(); ++i) {
      const double off = distance(found[i], exact[i], function.roots && sizeof(T) == 8);
      if (off > worst) {
        worst = off;
        place = i;
      }
    }
    EXPECT_LE(worst, limit) << target << ": " << function.name << "(" << numbers.a[place]
                            << (function.binary ? ", " + std::to_string(numbers.b[place]) : "")
                            << ") is " << exact[place] << ", found " << found[place];
  }
}

class Mathematics : public ::testing::TestWithParam<Function> {};

TEST_P(Mathematics, SinglePrecision) {
  expect_within<float>(GetParam(), GetParam().f32, 1'000'000);
}

TEST_P(Mathematics, DoublePrecision) {
  expect_within<double>(GetParam(), GetParam().f64, 200'000);
}

INSTANTIATE_TEST_SUITE_P(All, Mathematics, ::testing::ValuesIn(kFunctions),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace torch_lazy::codegen
