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
  numbers_.groups.clear();
  numbers_.steps.clear();
  numbers_.group_of.clear();
  counts_.clear();
  key_.clear();
  for (const optim::Optimizer* optimizer : optimizers_) {
    const auto& kept = optimizer->state();
    key_.push_back(optimizer->param_groups().size());
    for (const optim::OptimizerParamGroup& group : optimizer->param_groups()) {
      if (!add_group(group.options())) {
        return;
      }
      key_.push_back(group.params().size());
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
}

bool OptimizerStates::add_group(const optim::OptimizerOptions& options) {
  using Kind = OptimizerGroup::Kind;
  if (const auto* adam = dynamic_cast<const optim::AdamOptions*>(&options)) {
    add_adam_group(Kind::adam, *adam);
  } else if (const auto* adamw = dynamic_cast<const optim::AdamWOptions*>(&options)) {
    add_adam_group(Kind::adamw, *adamw);
  } else if (const auto* sgd = dynamic_cast<const optim::SGDOptions*>(&options)) {
    numbers_.groups.push_back({Kind::sgd, sgd->lr(), sgd->weight_decay(), 0, 0, 0});
    key_.insert(key_.end(), {word(sgd->momentum()), word(sgd->dampening()), sgd->nesterov()});
  } else if (const auto* rms = dynamic_cast<const optim::RMSpropOptions*>(&options)) {
    numbers_.groups.push_back({Kind::rmsprop, rms->lr(), rms->weight_decay(), 0, 0, 0});
    key_.insert(key_.end(),
                {word(rms->alpha()), word(rms->eps()), word(rms->momentum()), rms->centered()});
  } else if (const auto* adagrad = dynamic_cast<const optim::AdagradOptions*>(&options)) {
    numbers_.groups.push_back(
        {Kind::adagrad, adagrad->lr(), adagrad->weight_decay(), 0, 0, adagrad->lr_decay()});
    key_.push_back(word(adagrad->eps()));
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
  const OptimizerGroup& added = numbers_.groups.back();
  key_.insert(key_.end(), {static_cast<uint64_t>(added.kind), word(added.weight_decay),
                           word(added.beta1), word(added.beta2), word(added.rate_decay)});
  return true;
}

template <typename Options>
void OptimizerStates::add_adam_group(OptimizerGroup::Kind kind, const Options& options) {
  const auto [beta1, beta2] = options.betas();
  numbers_.groups.push_back({kind, options.lr(), options.weight_decay(), beta1, beta2, 0});
  key_.insert(key_.end(), {word(options.eps()), options.amsgrad()});
}

bool OptimizerStates::add_state(optim::OptimizerParamState& state) {
  using Kind = OptimizerGroup::Kind;
  switch (numbers_.groups.back().kind) {
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
  numbers_.steps.push_back(steps);
  numbers_.group_of.push_back(static_cast<uint32_t>(numbers_.groups.size() - 1));
  add_tensor(written);
}

}  // namespace torch_lazy
