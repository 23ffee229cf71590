// Optimizers of libtorch in compiled functions: the tensors that they keep, their options, and the
// steps that they count in C++.
#pragma once

#include "replay/number_rules.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace torch::optim {
class Optimizer;
class OptimizerOptions;
class OptimizerParamState;
}  // namespace torch::optim

namespace torch_lazy {

/// The options of a group from which numbers follow that differ from call to call.
struct OptimizerGroup {
  enum class Kind : uint8_t { sgd, adagrad, rmsprop, adam, adamw };
  Kind kind = Kind::sgd;
  double rate = 0;
  double weight_decay = 0;
  double beta1 = 0;
  double beta2 = 0;
  double rate_decay = 0;

  bool operator==(const OptimizerGroup&) const = default;
};

/// The optimizers of a function as `look` finds them.
class OptimizerStates {
 public:
  explicit OptimizerStates(std::vector<const torch::optim::Optimizer*> optimizers);

  void look();

  /// Why a function that uses them cannot be replayed; empty: it can.
  const std::string& obstacle() const { return obstacle_; }

  /// What they keep for their parameters, in the order of these.
  const std::vector<const at::Tensor*>& tensors() const { return tensors_; }

  /// What they compute their numbers from: learning rates, then step counts. Parameters of one
  /// group that have made as many steps share a count.
  const std::vector<double>& inputs() const { return inputs_; }

  const std::vector<OptimizerGroup>& groups() const { return groups_; }

  /// What they are, and their options besides learning rates.
  const std::vector<uint64_t>& options() const { return options_; }

  /// The options, which parameters have a step count, and which share one.
  std::vector<uint64_t> key() const;

  /// A parameter's step count, and which of the tensors every step writes.
  struct Count {
    int64_t* steps = nullptr;
    uint32_t tensor = 0;
  };
  const std::vector<Count>& counts() const { return counts_; }

  /// What a count was, and of which group, when `look` saw it.
  int64_t steps_of(size_t count) const { return together_[shared_[count]].steps; }
  uint32_t group_of(size_t count) const { return together_[shared_[count]].group; }

  /// What libtorch's optimizers make of the inputs in a call in which the counts went on by
  /// `advance`.
  std::vector<Formula> formulas(const std::vector<int64_t>& advance) const;

 private:
  /// Parameters of one group whose counts are equal.
  struct Together {
    uint32_t group = 0;
    int64_t steps = 0;
  };

  bool add_group(const torch::optim::OptimizerOptions& options);
  bool add_state(torch::optim::OptimizerParamState& state);
  void add_tensor(const at::Tensor& tensor);
  void add_count(int64_t& steps, const at::Tensor& written);
  template <typename Options>
  void add_adam_group(OptimizerGroup::Kind kind, const Options& options);
  template <typename State>
  bool add_adam_state(torch::optim::OptimizerParamState& state);

  std::vector<const torch::optim::Optimizer*> optimizers_;
  std::string obstacle_;
  std::vector<const at::Tensor*> tensors_;
  std::vector<OptimizerGroup> groups_;  // of all optimizers
  std::vector<Together> together_;
  std::vector<Count> counts_;
  std::vector<uint32_t> shared_;  // by count: which of `together_`
  std::vector<double> inputs_;
  std::vector<uint64_t> options_;
};

}  // namespace torch_lazy
