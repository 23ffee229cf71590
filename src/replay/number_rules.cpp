// Which formulas the numbers of a recorded function follow.
#include "replay/number_rules.h"

#include "base/overflow.h"
#include <torch_lazy/backend.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <unordered_map>

namespace torch_lazy {
namespace {

using Operation = FormulaStep::Operation;

bool same_bits(double a, double b) {
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
}

bool is(std::optional<double> a, double b) {
  return a && same_bits(*a, b);
}

/// Where Python raises an error or makes a complex number of it, there is none. The others are the
/// same in C++ and in Python.
std::optional<double> compute(Operation operation, double a, double b) {
  switch (operation) {
    case Operation::add:
      return a + b;
    case Operation::subtract:
      return a - b;
    case Operation::multiply:
      return a * b;
    case Operation::divide:
      return b == 0 ? std::nullopt : std::optional(a / b);
    case Operation::power: {
      const double result = std::pow(a, b);
      const bool plain = std::isfinite(a) && std::isfinite(b);
      return plain && !std::isfinite(result) ? std::nullopt : std::optional(result);
    }
    default:
      TORCH_INTERNAL_ASSERT(false, "not an operation on two numbers");
  }
}

/// By number: whether its value is not part of the graph and may be another one in a replay.
std::vector<char> free_numbers(const Recording& recording) {
  std::vector<char> free(recording.numbers.size(), 1);
  if (!recording.plan) {
    return free;
  }
  for (const GraphNode& node : recording.plan->graph->nodes) {
    for (const ArgumentSource& source : node.description->arguments) {
      if (source.kind == ArgumentSource::Kind::number && !source.numbers.empty()) {
        free[node.first_number + source.index] = source.numbers[0].value_class == kClassUnknown;
      }
    }
  }
  for (size_t i = 0; i < free.size(); ++i) {
    free[i] = free[i] && is_double(recording.numbers[i]);
  }
  return free;
}

/// By number: the dtypes that kernels may convert it to, and refuse where it is too large for them.
std::vector<c10::SmallVector<at::ScalarType, 2>> dtypes_of(const Recording& recording) {
  std::vector<c10::SmallVector<at::ScalarType, 2>> dtypes(recording.numbers.size());
  if (!recording.plan) {
    return dtypes;
  }
  for (const GraphNode& node : recording.plan->graph->nodes) {
    const Description& d = *node.description;
    for (const ArgumentSource& source : d.arguments) {
      if (source.kind != ArgumentSource::Kind::number) {
        continue;
      }
      auto& taken = dtypes[node.first_number + source.index];
      taken.push_back(d.default_dtype);
      auto add = [&](at::ScalarType dtype) {
        if (std::find(taken.begin(), taken.end(), dtype) == taken.end()) {
          taken.push_back(dtype);
        }
      };
      for (const Layout& operand : d.operands) {
        add(operand.dtype);
      }
      for (const FreshOutput& output : d.fresh) {
        add(output.layout.dtype);
      }
    }
  }
  return dtypes;
}

double value_of(const c10::IValue& number) {
  return number_value(number).toDouble();
}

}  // namespace

bool FormulaStep::operator==(const FormulaStep& other) const {
  return operation == other.operation && same_bits(operand, other.operand);
}

std::optional<double> evaluate(const Formula& formula, const std::vector<double>& inputs) {
  std::vector<double> stack;
  auto pop = [&] {
    const double top = stack.back();
    stack.pop_back();
    return top;
  };
  for (const FormulaStep& step : formula) {
    switch (step.operation) {
      case Operation::input:
        stack.push_back(inputs.at(static_cast<size_t>(step.operand)));
        break;
      case Operation::constant:
        stack.push_back(step.operand);
        break;
      case Operation::negate:
        stack.push_back(-pop());
        break;
      case Operation::square_root:
        stack.push_back(std::sqrt(pop()));
        break;
      default: {
        const double right = pop();
        const std::optional<double> result = compute(step.operation, pop(), right);
        if (!result) {
          return std::nullopt;
        }
        stack.push_back(*result);
      }
    }
  }
  return pop();
}

/// Takes out the places that have the same number as the first one in a recording.
NumberRules::Followed NumberRules::take_equal(Followed& number, const Recording& recording) {
  const double value = value_of(recording.numbers[number.places[0]]);
  auto other = std::stable_partition(
      number.places.begin(), number.places.end(),
      [&](uint32_t place) { return !same_bits(value_of(recording.numbers[place]), value); });
  Followed equal{{other, number.places.end()}, number.constant, number.formulas};
  number.places.erase(other, number.places.end());
  return equal;
}

NumberRules::NumberRules(const Recording& recording, NumberSources sources)
    : sources_(std::move(sources)), varied_(sources_.inputs.size()), dtypes_(dtypes_of(recording)) {
  constexpr uint32_t kNothing = UINT32_MAX;
  const std::vector<std::optional<double>> values = evaluate_all(sources_.inputs);
  const std::vector<char> free = free_numbers(recording);
  std::unordered_map<uint64_t, uint32_t> known;  // by value: place in `followed_`, or kNothing
  for (uint32_t place = 0; place < free.size(); ++place) {
    if (!free[place]) {
      continue;
    }
    const double value = value_of(recording.numbers[place]);
    auto [found, is_new] = known.try_emplace(std::bit_cast<uint64_t>(value), kNothing);
    if (is_new) {
      Followed number{{}, value, {}};
      for (uint32_t i = 0; i < values.size(); ++i) {
        if (is(values[i], value)) {
          number.formulas.push_back(i);
        }
      }
      if (!number.formulas.empty()) {
        found->second = static_cast<uint32_t>(followed_.size());
        followed_.push_back(std::move(number));
      }
    }
    if (found->second != kNothing) {
      followed_[found->second].places.push_back(place);
    }
  }
}

std::vector<std::optional<double>> NumberRules::evaluate_all(
    const std::vector<double>& inputs) const {
  std::vector<std::optional<double>> values;
  values.reserve(sources_.formulas.size());
  for (const Formula& formula : sources_.formulas) {
    values.push_back(evaluate(formula, inputs));
  }
  return values;
}

std::string NumberRules::compare(const Recording& last, const Recording& recording,
                                 const NumberSources& sources) {
  if (sources.formulas != sources_.formulas || sources.inputs.size() != sources_.inputs.size()) {
    return "it makes other numbers of its learning rates or step counts in each call";
  }
  for (size_t i = 0; i < varied_.size(); ++i) {
    varied_[i] |= !same_bits(sources.inputs[i], sources_.inputs[i]);
  }
  const std::vector<std::optional<double>> values = evaluate_all(sources.inputs);
  std::vector<char> follows(recording.numbers.size());
  std::vector<Followed> now;
  std::vector<uint32_t> unexplained;
  for (Followed& number : followed_) {
    while (!number.places.empty()) {
      Followed equal = take_equal(number, recording);
      const double value = value_of(recording.numbers[equal.places[0]]);
      if (equal.constant && !same_bits(*equal.constant, value)) {
        equal.constant.reset();
      }
      std::erase_if(equal.formulas, [&](uint32_t i) { return !is(values[i], value); });
      if (equal.formulas.empty()) {
        if (!equal.constant) {
          unexplained.push_back(equal.places[0]);
        }
        continue;
      }
      for (uint32_t place : equal.places) {
        follows[place] = 1;
      }
      now.push_back(std::move(equal));
    }
  }
  followed_ = std::move(now);
  for (uint32_t place : different_numbers(last, recording)) {
    if (!follows[place]) {
      unexplained.push_back(place);
    }
  }
  if (unexplained.empty()) {
    return "";
  }
  return recording.number_place(*std::min_element(unexplained.begin(), unexplained.end())) +
         " is another one in each call";
}

bool NumberRules::numbers(const Recording& recording, const std::vector<double>& recorded_inputs,
                          const std::vector<double>& inputs,
                          std::vector<c10::IValue>& numbers) const {
  if (std::equal(inputs.begin(), inputs.end(), recorded_inputs.begin(), recorded_inputs.end(),
                 same_bits)) {
    return true;
  }
  for (size_t i = 0; i < varied_.size(); ++i) {
    if (!varied_[i] && !same_bits(inputs[i], sources_.inputs[i])) {
      return false;
    }
  }
  const std::vector<std::optional<double>> values = evaluate_all(inputs);
  for (const Followed& number : followed_) {
    const std::optional<double> value = values[number.formulas[0]];
    auto agrees = [&](uint32_t i) { return is(values[i], *value); };
    if (!value || (number.constant && !same_bits(*number.constant, *value)) ||
        !std::all_of(number.formulas.begin(), number.formulas.end(), agrees)) {
      return false;
    }
  }
  numbers = recording.numbers;
  for (const Followed& number : followed_) {
    if (number.constant) {
      continue;  // as recorded
    }
    const double value = *values[number.formulas[0]];
    for (uint32_t place : number.places) {
      if (!fits(value, place)) {  // recorded again, the call raises eager's error
        numbers.clear();
        return false;
      }
      numbers[place] = number_like(numbers[place], value);
    }
  }
  return true;
}

bool NumberRules::fits(double value, uint32_t place) const {
  return always_fits(value) ||
         std::none_of(dtypes_[place].begin(), dtypes_[place].end(),
                      [&](at::ScalarType dtype) { return overflows(value, dtype); });
}

}  // namespace torch_lazy
