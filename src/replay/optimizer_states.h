// Optimizers of libtorch in compiled functions: the tensors that they keep, their options, and the
// steps that they count in C++.
#pragma once

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

/// What optimizers compute their numbers from.
struct OptimizerNumbers {
  std::vector<OptimizerGroup> groups;  // of all optimizers
  std::vector<int64_t> steps;          // by step count
  std::vector<uint32_t> group_of;      // by step count
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

  const OptimizerNumbers& numbers() const { return numbers_; }

  /// Everything else: what they are, and their options besides learning rates.
  const std::vector<uint64_t>& key() const { return key_; }

  /// A parameter's step count, and which of the tensors every step writes.
  struct Count {
    int64_t* steps = nullptr;
    uint32_t tensor = 0;
  };
  const std::vector<Count>& counts() const { return counts_; }

 private:
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
  OptimizerNumbers numbers_;
  std::vector<Count> counts_;
  std::vector<uint64_t> key_;
};

}  // namespace torch_lazy
