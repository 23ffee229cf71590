// Inputs, run and results of a computation kept by its hash.
#include "api/computation.h"

#include "base/hooks.h"
#include "base/ranked_mutex.h"
#include "runtime/backend_choice.h"
#include "runtime/executor.h"
#include "runtime/queue.h"
#include "runtime/real_tensor.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <optional>

namespace torch_lazy {
namespace {

constexpr const char* kWho = "torch-lazy: run_cached_graph: ";

at::Scalar scalar_of(const c10::IValue& given, size_t position) {
  if (given.isScalar()) {
    return given.toScalar();
  }
  TORCH_CHECK(given.isTensor() && given.toTensor().defined() && given.toTensor().numel() == 1, kWho,
              "input ", position, " stands for a number, but is ", given.tagKind());
  return given.toTensor().item();
}

/// The given number as the kind that was recorded: the kind decides the types of results.
c10::IValue convert_number(const c10::IValue& recorded, const c10::IValue& given, size_t position) {
  if (recorded.isTensor()) {
    const at::Tensor& like = recorded.toTensor();
    const bool wrapped = like.unsafeGetTensorImpl()->is_wrapped_number();
    at::Tensor number = at::scalar_tensor(scalar_of(given, position),
                                          at::TensorOptions().dtype(like.scalar_type()));
    number.unsafeGetTensorImpl()->set_wrapped_number(wrapped);
    return number;
  }
  if (recorded.isList()) {
    auto wanted = recorded.toList();
    TORCH_CHECK(given.isList() && given.toList().size() == wanted.size(), kWho, "input ", position,
                " stands for a list of ", wanted.size(), " numbers");
    auto list = given.toList();
    auto result = wanted.copy();
    for (size_t i = 0; i < wanted.size(); ++i) {
      result.set(i, convert_number(wanted.get(i), list.get(i), position));
    }
    return result;
  }
  const at::Scalar number = scalar_of(given, position);
  const bool fits = recorded.isComplexDouble() || (recorded.isDouble() && !number.isComplex()) ||
                    (recorded.isInt() && number.isIntegral(/*includeBool=*/true)) ||
                    (recorded.isBool() && number.isBoolean());
  TORCH_CHECK(fits, kWho, "input ", position, " was ", recorded.tagKind(),
              " in the graph and cannot be ", number);
  return recorded.isComplexDouble() ? c10::IValue(number.toComplexDouble())
         : recorded.isDouble()      ? c10::IValue(number.toDouble())
         : recorded.isInt()         ? c10::IValue(number.toLong())
                                    : c10::IValue(number.toBool());
}

/// Memory that holds `given` as the graph expects it. Shared with `given` where that lies right.
c10::Storage memory_of(const at::Tensor& given, const Leaf& leaf, int64_t nbytes, size_t position) {
  TORCH_CHECK(given.defined() && given.device().type() == real_device().type() &&
                  given.layout() == at::kStrided,
              kWho, "input ", position, " has to be a plain tensor on ", real_device());
  TORCH_CHECK(given.scalar_type() == leaf.layout.dtype &&
                  given.numel() * static_cast<int64_t>(given.element_size()) == nbytes,
              kWho, "input ", position, " was ", leaf.layout.shape_text(),
              " in the graph, but is now ", Layout::of(given).shape_text());
  TORCH_CHECK(!leaf.exact || given.sizes() == at::IntArrayRef(leaf.layout.sizes), kWho, "input ",
              position, " was ", leaf.layout.shape_text(), " in the graph, but is now ",
              Layout::of(given).shape_text());
  const bool whole =
      given.storage_offset() == 0 && static_cast<int64_t>(given.storage().nbytes()) == nbytes;
  if (leaf.exact) {
    if (whole && leaf.layout.matches(given)) {
      return given.storage();
    }
    c10::Storage memory = allocate(nbytes);
    real_tensor(memory, leaf.layout).copy_(given);
    return memory;
  }
  // Only the order of memory is known: the input has to have one.
  TORCH_CHECK(given.is_non_overlapping_and_dense(), kWho, "input ", position,
              " has to be dense in memory");
  if (whole && !given.is_conj() && !given.is_neg()) {
    return given.storage();
  }
  c10::Storage memory = allocate(nbytes);
  Layout layout = Layout::of(given);
  layout.offset = 0;
  layout.conj = false;
  layout.neg = false;
  real_tensor(memory, layout).copy_(given);
  return memory;
}

}  // namespace

Computation::Computation(const Recipe& recipe)
    : graph_(recipe.graph),
      leaves_(recipe.leaves),
      numbers_(recipe.numbers),
      outputs_(recipe.outputs) {
  for (Leaf& leaf : leaves_) {
    leaf.data = c10::Storage();
  }
}

std::shared_ptr<Executable> Computation::executable() {
  const auto lock = lock_patiently(mutex_);  // compiling may need the interpreter's lock
  if (!executable_) {
    executable_ = backend().compile(graph_);
  }
  return executable_;
}

void Computation::set_sync_plan(const std::shared_ptr<Plan>& plan) {
  const auto lock = lock_patiently(mutex_);
  sync_plan_ = plan;
}

std::shared_ptr<Plan> Computation::sync_plan() {
  const auto lock = lock_patiently(mutex_);
  return sync_plan_.lock();
}

std::vector<at::Tensor> Computation::run(c10::ArrayRef<c10::IValue> inputs) {
  TORCH_CHECK(inputs.size() == leaves_.size() + numbers_.size(), kWho, "the graph has ",
              leaves_.size(), " tensors and ", numbers_.size(), " numbers as inputs, but ",
              inputs.size(), " were given");
  std::shared_ptr<Executable> plan = executable();
  ExecutionLock execution;  // one graph at a time, as for those that are scheduled
  hooks::AllowOtherThreads allow;
  BelowEverything below;
  Run run;
  run.slots.resize(graph_->slots);
  std::vector<int64_t> nbytes(graph_->slots, 0);
  for (const Parameter& parameter : graph_->parameters) {
    nbytes[parameter.slot] = parameter.nbytes;
  }
  for (size_t i = 0; i < leaves_.size(); ++i) {
    TORCH_CHECK(inputs[i].isTensor(), kWho, "input ", i, " has to be a tensor");
    run.slots[leaves_[i].slot] =
        memory_of(inputs[i].toTensor(), leaves_[i], nbytes[leaves_[i].slot], i);
  }
  for (size_t i = 0; i < numbers_.size(); ++i) {
    const size_t position = leaves_.size() + i;
    run.numbers.push_back(convert_number(numbers_[i], inputs[position], position));
  }
  try {
    plan->run(run);
  } catch (c10::Error& error) {
    if (run.completed < graph_->nodes.size()) {
      error.add_context("(torch-lazy: raised by " +
                        graph_->nodes[run.completed].description->op->name +
                        " in a graph that was run by its hash)");
    }
    throw;
  }

  std::vector<at::Tensor> results;
  for (const RecipeOutput& output : outputs_) {
    auto leaf = std::find_if(leaves_.begin(), leaves_.end(),
                             [&](const Leaf& l) { return l.slot == output.slot; });
    if (leaf != leaves_.end()) {
      const at::Tensor& input = inputs[leaf - leaves_.begin()].toTensor();
      if (input.sizes() == at::IntArrayRef(output.layout.sizes) && leaf->exact &&
          leaf->layout == output.layout) {
        results.push_back(input);
        continue;
      }
    }
    c10::Storage& memory = run.slots[output.slot];
    if (!memory) {
      memory = allocate(nbytes[output.slot]);  // a tensor that nothing was ever written to
    }
    results.push_back(real_tensor(to_real_memory(memory), output.layout));
  }
  return results;
}

void read_leaves(at::TensorList tensors, std::vector<int64_t>& ids,
                 std::vector<c10::IValue>& values) {
  auto in_flight = [](const Leaf& leaf) { return leaf.in_flight; };
  std::optional<LeafHold> hold;
  Recipe recipe;
  while (true) {
    hold.emplace();
    recipe = recipe_of(tensors, /*force=*/true, Past::ignore, &*hold);
    if (std::none_of(recipe.leaves.begin(), recipe.leaves.end(), in_flight)) {
      break;
    }
    wait_for_all();
  }
  {
    GraphLock lock;
    for (Value* value : hold->values) {
      Program::instance().expose(value);  // whoever gets its memory may write into it
    }
  }
  BelowEverything below;
  for (const Leaf& leaf : recipe.leaves) {
    at::Tensor tensor = real_tensor(to_real_memory(leaf.data), leaf.layout);
    ids.push_back(leaf.id);
    values.emplace_back(leaf.current ? tensor : tensor.clone());
  }
  for (const c10::IValue& number : recipe.numbers) {
    ids.push_back(-1);
    values.push_back(number);
  }
}

}  // namespace torch_lazy
