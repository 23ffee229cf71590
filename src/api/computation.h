// A computation that is kept by its graph's hash: runs on plain tensors and numbers, as often as
// wanted, without lazy tensors.
#pragma once

#include "api/recipe.h"
#include "runtime/plan_cache.h"
#include <torch_lazy/backend.h>

#include <ATen/core/ivalue.h>

#include <memory>
#include <mutex>
#include <vector>

namespace torch_lazy {

class Computation {
 public:
  /// Takes the structure of the recipe, not its data.
  explicit Computation(const Recipe& recipe);

  /// One result per distinct tensor of the list that was recipe. `inputs`: what the leaves stand
  /// for, then the numbers. They are never written; a result that is an input unchanged is that
  /// very tensor.
  std::vector<at::Tensor> run(c10::ArrayRef<c10::IValue> inputs);

  /// The plan of the sync that left it, which is forgotten together with it.
  void set_sync_plan(const std::shared_ptr<Plan>& plan);
  std::shared_ptr<Plan> sync_plan();

 private:
  std::shared_ptr<Executable> executable();

  std::shared_ptr<const Graph> graph_;
  std::vector<Leaf> leaves_;
  std::vector<c10::IValue> numbers_;  // as recorded: their kinds are part of the graph
  std::vector<RecipeOutput> outputs_;
  std::mutex mutex_;
  std::shared_ptr<Executable> executable_;
  std::weak_ptr<Plan> sync_plan_;
};

/// What the leaves and the numbers behind lazy tensors are now, in the order in which `run` takes
/// them: plain tensors over the leaves' memory (a copy where a recorded write will change it), and
/// numbers. `ids`: of the buffers that the leaves were made for, -1 for numbers.
void read_leaves(at::TensorList tensors, std::vector<int64_t>& ids,
                 std::vector<c10::IValue>& values);

}  // namespace torch_lazy
