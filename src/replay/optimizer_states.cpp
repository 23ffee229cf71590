// What optimizers of libtorch keep.
#include "replay/optimizer_states.h"

#include "capture/tensor.h"

#include <torch/optim.h>

#include <algorithm>
#include <bit>
#include <typeinfo>

namespace torch_lazy {
namespace {

namespace optim = torch::optim;

/// The state as what it is; null: it is something else. Asking for the very type is fast.
template <typename State>
State* as(optim::OptimizerParamState& state) {
  return typeid(state) == typeid(State) ? static_cast<State*>(&state)
                                        : dynamic_cast<State*>(&state);
}

uint64_t word(double number) {
  return std::bit_cast<uint64_t>(number);
}

// ---- Formulas, written as C++ -------------------------------------------------------------------

using Operation = FormulaStep::Operation;

Formula input(size_t index) {
  return {{Operation::input, static_cast<double>(index)}};
}

Formula constant(double value) {
  return {{Operation::constant, value}};
}

Formula apply(Operation operation, Formula a, const Formula& b = {}) {
  a.insert(a.end(), b.begin(), b.end());
  a.push_back({operation, 0});
  return a;
}

Formula operator-(const Formula& a) {
  return apply(Operation::negate, a);
}
Formula operator+(const Formula& a, const Formula& b) {
  return apply(Operation::add, a, b);
}
Formula operator-(const Formula& a, const Formula& b) {
  return apply(Operation::subtract, a, b);
}
Formula operator*(const Formula& a, const Formula& b) {
  return apply(Operation::multiply, a, b);
}
Formula operator/(const Formula& a, const Formula& b) {
  return apply(Operation::divide, a, b);
}
Formula power(const Formula& a, const Formula& b) {
  return apply(Operation::power, a, b);
}
Formula square_root(const Formula& a) {
  return apply(Operation::square_root, a);
}

/// What optimizers make of a learning rate before an operator gets it.
void add_rate_formulas(const OptimizerGroup& group, const Formula& rate,
                       std::vector<Formula>& formulas) {
  const Formula decayed = rate * constant(group.weight_decay);
  formulas.insert(formulas.end(), {rate, -rate, constant(1) - decayed, decayed, -decayed});
}

/// What they make of a step count. The arithmetic is theirs, operation by operation.
void add_step_formulas(const OptimizerGroup& group, const Formula& rate, const Formula& step,
                       std::vector<Formula>& formulas) {
  using Kind = OptimizerGroup::Kind;
  const Formula one = constant(1);
  switch (group.kind) {
    case Kind::adam:
    case Kind::adamw: {
      const Formula correction1 = one - power(constant(group.beta1), step);
      const Formula correction2 = one - power(constant(group.beta2), step);
      const Formula corrected = rate / correction1;
      formulas.insert(formulas.end(),
                      {correction1, correction2, square_root(correction2), corrected, -corrected});
      return;
    }
    case Kind::adagrad: {
      const Formula decayed = rate / (one + (step - one) * constant(group.rate_decay));
      formulas.insert(formulas.end(), {decayed, -decayed});
      return;
    }
    case Kind::sgd:
    case Kind::rmsprop:
      return;  // no number of theirs depends on it
  }
}

}  // namespace

OptimizerStates::OptimizerStates(std::vector<const optim::Optimizer*> optimizers)
    : optimizers_(std::move(optimizers)) {
  for (auto it = optimizers_.begin(); it != optimizers_.end();) {
    TORCH_CHECK(*it, "torch_lazy::compile: an optimizer is null");
    // A step that is named twice is still one.
    it = std::find(optimizers_.begin(), it, *it) == it ? it + 1 : optimizers_.erase(it);
  }
}

void OptimizerStates::look() {
  obstacle_.clear();
  tensors_.clear();
  groups_.clear();
  together_.clear();
  counts_.clear();
  shared_.clear();
  inputs_.clear();
  options_.clear();
  for (const optim::Optimizer* optimizer : optimizers_) {
    const auto& kept = optimizer->state();
    options_.push_back(optimizer->param_groups().size());
    for (const optim::OptimizerParamGroup& group : optimizer->param_groups()) {
      if (!add_group(group.options())) {
        return;
      }
      options_.push_back(group.params().size());
      // In the order of the parameters: the map's own is that of addresses.
      for (const at::Tensor& parameter : group.params()) {
        auto found = kept.find(parameter.unsafeGetTensorImpl());
        if (found != kept.end() && !add_state(*found->second)) {
          obstacle_ = "an optimizer keeps a state of another kind than its options say";
          return;
        }
      }
    }
  }
  for (const OptimizerGroup& group : groups_) {
    inputs_.push_back(group.rate);
  }
  for (const Together& together : together_) {
    inputs_.push_back(static_cast<double>(together.steps));
  }
}

bool OptimizerStates::add_group(const optim::OptimizerOptions& options) {
  using Kind = OptimizerGroup::Kind;
  if (const auto* adam = dynamic_cast<const optim::AdamOptions*>(&options)) {
    add_adam_group(Kind::adam, *adam);
  } else if (const auto* adamw = dynamic_cast<const optim::AdamWOptions*>(&options)) {
    add_adam_group(Kind::adamw, *adamw);
  } else if (const auto* sgd = dynamic_cast<const optim::SGDOptions*>(&options)) {
    groups_.push_back({Kind::sgd, sgd->lr(), sgd->weight_decay(), 0, 0, 0});
    options_.insert(options_.end(),
                    {word(sgd->momentum()), word(sgd->dampening()), sgd->nesterov()});
  } else if (const auto* rms = dynamic_cast<const optim::RMSpropOptions*>(&options)) {
    groups_.push_back({Kind::rmsprop, rms->lr(), rms->weight_decay(), 0, 0, 0});
    options_.insert(options_.end(),
                    {word(rms->alpha()), word(rms->eps()), word(rms->momentum()), rms->centered()});
  } else if (const auto* adagrad = dynamic_cast<const optim::AdagradOptions*>(&options)) {
    groups_.push_back(
        {Kind::adagrad, adagrad->lr(), adagrad->weight_decay(), 0, 0, adagrad->lr_decay()});
    options_.push_back(word(adagrad->eps()));
  } else if (dynamic_cast<const optim::LBFGSOptions*>(&options)) {
    obstacle_ =
        "torch::optim::LBFGS reads values to decide what it does next and how often it calls its "
        "closure; compile the closure instead";
    return false;
  } else {
    obstacle_ =
        "one of CompileOptions::optimizers is neither SGD, Adagrad, RMSprop, Adam nor AdamW; name "
        "its tensors in CompileOptions::state and its numbers in CompileOptions::numbers";
    return false;
  }
  const OptimizerGroup& added = groups_.back();
  options_.insert(options_.end(), {static_cast<uint64_t>(added.kind), word(added.weight_decay),
                                   word(added.beta1), word(added.beta2), word(added.rate_decay)});
  return true;
}

template <typename Options>
void OptimizerStates::add_adam_group(OptimizerGroup::Kind kind, const Options& options) {
  const auto [beta1, beta2] = options.betas();
  groups_.push_back({kind, options.lr(), options.weight_decay(), beta1, beta2, 0});
  options_.insert(options_.end(), {word(options.eps()), options.amsgrad()});
}

bool OptimizerStates::add_state(optim::OptimizerParamState& state) {
  using Kind = OptimizerGroup::Kind;
  switch (groups_.back().kind) {
    case Kind::adam:
      return add_adam_state<optim::AdamParamState>(state);
    case Kind::adamw:
      return add_adam_state<optim::AdamWParamState>(state);
    case Kind::sgd:
      if (auto* sgd = as<optim::SGDParamState>(state)) {
        add_tensor(sgd->momentum_buffer());
        return true;
      }
      return false;
    case Kind::rmsprop:
      if (auto* rms = as<optim::RMSpropParamState>(state)) {
        add_count(rms->step(), rms->square_avg());
        add_tensor(rms->momentum_buffer());
        add_tensor(rms->grad_avg());
        return true;
      }
      return false;
    case Kind::adagrad:
      if (auto* adagrad = as<optim::AdagradParamState>(state)) {
        add_count(adagrad->step(), adagrad->sum());
        return true;
      }
      return false;
  }
  return false;
}

template <typename State>
bool OptimizerStates::add_adam_state(optim::OptimizerParamState& state) {
  auto* adam = as<State>(state);
  if (!adam) {
    return false;
  }
  add_count(adam->step(), adam->exp_avg());
  add_tensor(adam->exp_avg_sq());
  add_tensor(adam->max_exp_avg_sq());
  return true;
}

void OptimizerStates::add_tensor(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    return;
  }
  if (!is_lazy(tensor)) {
    obstacle_ = "an optimizer keeps a tensor that is not on the device lazy";
  }
  tensors_.push_back(&tensor);
}

void OptimizerStates::add_count(int64_t& steps, const at::Tensor& written) {
  counts_.push_back({&steps, static_cast<uint32_t>(tensors_.size())});
  const auto group = static_cast<uint32_t>(groups_.size() - 1);
  auto found = std::find_if(together_.begin(), together_.end(), [&](const Together& t) {
    return t.group == group && t.steps == steps;
  });
  shared_.push_back(static_cast<uint32_t>(found - together_.begin()));
  if (found == together_.end()) {
    together_.push_back({group, steps});
  }
  add_tensor(written);
}

std::vector<uint64_t> OptimizerStates::key() const {
  std::vector<uint64_t> key = options_;
  for (size_t i = 0; i < counts_.size(); ++i) {
    key.insert(key.end(), {shared_[i], group_of(i)});
  }
  return key;
}

std::vector<Formula> OptimizerStates::formulas(const std::vector<int64_t>& advance) const {
  std::vector<Formula> formulas;
  for (size_t i = 0; i < groups_.size(); ++i) {
    add_rate_formulas(groups_[i], input(i), formulas);
  }
  std::vector<int64_t> steps(together_.size());
  for (size_t i = 0; i < advance.size(); ++i) {
    steps[shared_[i]] = std::max(steps[shared_[i]], advance[i]);
  }
  for (size_t i = 0; i < together_.size(); ++i) {
    const uint32_t group = together_[i].group;
    for (int64_t k = 1; k <= steps[i]; ++k) {
      const Formula step = input(groups_.size() + i) + constant(static_cast<double>(k));
      add_step_formulas(groups_[group], input(group), step, formulas);
    }
  }
  return formulas;
}

}  // namespace torch_lazy
