// Formulas of optimizers, and which of them a recorded function's numbers follow.
#include "replay/number_rules.h"

#include <torch_lazy/backend.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <unordered_map>

namespace torch_lazy {
namespace {

constexpr uint32_t kNothing = UINT32_MAX;

bool same_bits(double a, double b) {
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
}

/// What optimizers make of a learning rate before an operator gets it.
void add_rate_formulas(const OptimizerGroup& group, std::vector<double>& values) {
  const double decayed = group.rate * group.weight_decay;
  values.insert(values.end(), {group.rate, -group.rate, 1 - decayed, decayed, -decayed});
}

/// What they make of a step count. The arithmetic is theirs, operation by operation.
void add_step_formulas(const OptimizerGroup& group, int64_t step, std::vector<double>& values) {
  using Kind = OptimizerGroup::Kind;
  switch (group.kind) {
    case Kind::adam:
    case Kind::adamw: {
      const double correction1 = 1 - std::pow(group.beta1, static_cast<double>(step));
      const double correction2 = 1 - std::pow(group.beta2, static_cast<double>(step));
      const double rate = group.rate / correction1;
      values.insert(values.end(), {correction1, correction2, std::sqrt(correction2), rate, -rate});
      return;
    }
    case Kind::adagrad: {
      const double rate = group.rate / (1 + static_cast<double>(step - 1) * group.rate_decay);
      values.insert(values.end(), {rate, -rate});
      return;
    }
    case Kind::sgd:
    case Kind::rmsprop:
      return;  // no number of theirs depends on it
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

double value_of(const c10::IValue& number) {
  return number_value(number).toDouble();
}

}  // namespace

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

NumberRules::NumberRules(const Recording& recording, OptimizerCall call) : call_(std::move(call)) {
  const OptimizerNumbers& before = call_.before;
  rate_varied_.resize(before.groups.size());
  for (uint32_t i = 0; i < before.steps.size(); ++i) {
    if (call_.advance[i] == 0) {
      together_of_.push_back(kNothing);
      continue;
    }
    auto found = std::find_if(together_.begin(), together_.end(), [&](const Together& t) {
      return t.group == before.group_of[i] && t.advance == call_.advance[i] &&
             before.steps[t.first] == before.steps[i];
    });
    together_of_.push_back(static_cast<uint32_t>(found - together_.begin()));
    if (found == together_.end()) {
      together_.push_back({before.group_of[i], i, call_.advance[i]});
    }
  }
  evaluate(before);
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
      for (uint32_t i = 0; i < values_.size(); ++i) {
        if (same_bits(values_[i], value)) {
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

bool NumberRules::still_together(const OptimizerNumbers& now) const {
  for (size_t i = 0; i < together_of_.size(); ++i) {
    if (together_of_[i] != kNothing &&
        now.steps[i] != now.steps[together_[together_of_[i]].first]) {
      return false;
    }
  }
  return true;
}

void NumberRules::evaluate(const OptimizerNumbers& now) {
  values_.clear();
  for (const OptimizerGroup& group : now.groups) {
    add_rate_formulas(group, values_);
  }
  for (const Together& together : together_) {
    for (int64_t k = 1; k <= together.advance; ++k) {
      add_step_formulas(now.groups[together.group], now.steps[together.first] + k, values_);
    }
  }
}

std::string NumberRules::compare(const Recording& last, const Recording& recording,
                                 const OptimizerCall& call) {
  if (call.advance != call_.advance || call.before.group_of != call_.before.group_of) {
    return "optimizers step for other parameters";
  }
  if (!still_together(call.before)) {
    return "step counts of an optimizer have moved apart";
  }
  for (size_t i = 0; i < rate_varied_.size(); ++i) {
    rate_varied_[i] |= !same_bits(call.before.groups[i].rate, call_.before.groups[i].rate);
  }
  evaluate(call.before);
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
      std::erase_if(equal.formulas, [&](uint32_t i) { return !same_bits(values_[i], value); });
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
         " is another one in each call; name its optimizer in CompileOptions::optimizers, or the "
         "number in CompileOptions::numbers";
}

NumberRules::Answer NumberRules::numbers(const Recording& recording, const OptimizerNumbers& now,
                                         std::vector<c10::IValue>& numbers) {
  if (now.group_of != call_.before.group_of || !still_together(now)) {
    return Answer::other;
  }
  for (size_t i = 0; i < rate_varied_.size(); ++i) {
    if (!rate_varied_[i] && !same_bits(now.groups[i].rate, call_.before.groups[i].rate)) {
      return Answer::unsure;
    }
  }
  evaluate(now);
  for (const Followed& number : followed_) {
    const double value = values_[number.formulas[0]];
    auto agrees = [&](uint32_t i) { return same_bits(values_[i], value); };
    if ((number.constant && !same_bits(*number.constant, value)) ||
        !std::all_of(number.formulas.begin(), number.formulas.end(), agrees)) {
      return Answer::unsure;
    }
  }
  if (followed_.empty()) {
    return Answer::known;
  }
  numbers = recording.numbers;
  for (const Followed& number : followed_) {
    if (number.constant) {
      continue;  // as recorded
    }
    for (uint32_t place : number.places) {
      numbers[place] = number_like(numbers[place], values_[number.formulas[0]]);
    }
  }
  return Answer::known;
}

}  // namespace torch_lazy
