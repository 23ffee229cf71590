// torch_lazy::compile: which calls are recorded and which are replayed.
#include "capture/tensor.h"
#include "replay/history.h"
#include "replay/optimizer_states.h"
#include "replay/recording.h"
#include <torch_lazy/compile.h>

#include <c10/core/DefaultDtype.h>
#include <torch/nn/module.h>
#include <torch/optim.h>

#include <algorithm>
#include <bit>
#include <list>
#include <optional>

namespace torch_lazy {
namespace {

constexpr int64_t kMostSteps = 64;  // of an optimizer in one call

using Tensors = std::vector<at::Tensor>;

std::vector<uint64_t> key_of(const Tensors& arguments, const std::vector<double>& numbers,
                             const OptimizerStates& optimizers) {
  std::vector<uint64_t> key{at::GradMode::is_enabled(),
                            static_cast<uint64_t>(c10::get_default_dtype_as_scalartype()),
                            arguments.size()};
  for (const at::Tensor& tensor : arguments) {
    key.push_back(static_cast<uint64_t>(tensor.scalar_type()) << 1 |
                  static_cast<uint64_t>(tensor.requires_grad()));
    key.push_back(static_cast<uint64_t>(tensor.dim()));
    for (int64_t i = 0; i < tensor.dim(); ++i) {
      key.push_back(static_cast<uint64_t>(tensor.size(i)));
      key.push_back(static_cast<uint64_t>(tensor.stride(i)));
    }
  }
  for (double number : numbers) {
    key.push_back(std::bit_cast<uint64_t>(number));
  }
  const std::vector<uint64_t> of_optimizers = optimizers.key();
  key.insert(key.end(), of_optimizers.begin(), of_optimizers.end());
  return key;
}

/// What backward leaves: gradients and how often each was written.
std::vector<std::pair<const void*, uint64_t>> gradients_of(const Tensors& tensors) {
  std::vector<std::pair<const void*, uint64_t>> gradients;
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor& grad = tensor.is_leaf() ? tensor.grad() : at::Tensor();
    const bool lazy = grad.defined() && is_lazy(grad);
    gradients.emplace_back(lazy ? grad.unsafeGetTensorImpl() : nullptr,
                           lazy ? buffer_of(grad).generation : 0);
  }
  return gradients;
}

/// A recorded call of a function of C++.
class CallOfCpp : public RecordedCall {
 public:
  explicit CallOfCpp(const OptimizerStates& optimizers) : optimizers_(optimizers) {
    sources.inputs = optimizers.inputs();
  }

  std::string difference(const RecordedCall& before) const override {
    return advance == static_cast<const CallOfCpp&>(before).advance
               ? ""
               : "optimizers step for other parameters";
  }

  std::string advice_about_numbers() const override {
    return "; name its optimizer in CompileOptions::optimizers, or the number in "
           "CompileOptions::numbers";
  }

  const std::vector<double>& inputs() const override { return optimizers_.inputs(); }

  std::vector<int64_t> advance;  // by step count: how far it went on

 private:
  const OptimizerStates& optimizers_;
};

}  // namespace

struct CompiledFunction::Calls {
  struct Signature {
    std::vector<uint64_t> key;
    CallHistory history;
  };

  Function function;
  CompileOptions options;
  OptimizerStates optimizers;
  std::list<Signature> signatures;  // the latest first
  std::string reason;

  Calls(Function f, CompileOptions o)
      : function(std::move(f)),
        options(std::move(o)),
        optimizers({options.optimizers.begin(), options.optimizers.end()}) {}

  Signature& find(std::vector<uint64_t> key) {
    for (auto it = signatures.begin(); it != signatures.end(); ++it) {
      if (it->key == key) {
        signatures.splice(signatures.begin(), signatures, it);
        return signatures.front();
      }
    }
    signatures.emplace_front();
    signatures.front().key = std::move(key);
    if (signatures.size() > options.cache_size) {
      signatures.pop_back();
    }
    return signatures.front();
  }

  Tensors call(const Tensors& arguments) {
    for (const at::Tensor& argument : arguments) {
      TORCH_CHECK(argument.defined() && is_lazy(argument),
                  "torch_lazy::compile: a compiled function takes tensors on the device lazy");
    }
    if (is_recording() || !ready_to_replay()) {
      return function(arguments);
    }
    const Tensors state = options.state ? options.state() : Tensors();
    const std::vector<double> named = options.numbers ? options.numbers() : std::vector<double>();
    optimizers.look();  // no code of the user's runs from here to the end of a replay
    Signature& signature = find(key_of(arguments, named, optimizers));
    CallHistory& history = signature.history;
    if (!history.given_up()) {
      const std::string obstacle = obstacle_in(state);
      if (!obstacle.empty()) {
        history.give_up(obstacle);
        say_given_up(obstacle);
      }
    }
    Decision decision;
    const auto add_arguments = [&](const RecordedCall&, ReplayTensors& tensors) {
      add_known(tensors, arguments, state);
      return true;
    };
    history.decide(add_arguments, decision);
    switch (decision.kind) {
      case Decision::Kind::replay:
        reason.clear();
        return replay_steps(decision);
      case Decision::Kind::record:
        return record(history, decision, arguments, state);
      case Decision::Kind::call:
        break;
    }
    reason = history.reason();
    return function(arguments);
  }

  /// Why a function with this state cannot be replayed, whatever it does.
  std::string obstacle_in(const Tensors& state) const {
    auto plain = [](const at::Tensor& tensor) { return tensor.defined() && !is_lazy(tensor); };
    return std::any_of(state.begin(), state.end(), plain)
               ? "a tensor of CompileOptions::state is not on the device lazy"
               : optimizers.obstacle();
  }

  /// Arguments, named tensors, then those of the optimizers.
  void add_known(ReplayTensors& tensors, const Tensors& arguments, const Tensors& state) const {
    for (const at::Tensor& tensor : arguments) {
      tensors.known.push_back(&tensor);
    }
    for (const at::Tensor& tensor : state) {
      if (tensor.defined()) {
        tensors.known.push_back(&tensor);
      }
    }
    tensors.known.insert(tensors.known.end(), optimizers.tensors().begin(),
                         optimizers.tensors().end());
  }

  Tensors replay_steps(Decision& decision) {
    const Recording& recording = *decision.trusted->call->recording;
    const std::vector<int64_t>& advance =
        static_cast<const CallOfCpp&>(*decision.trusted->call).advance;
    size_t completed = 0;
    Tensors results;
    try {
      results = replay(recording, decision.tensors, std::move(decision.numbers), &completed);
    } catch (...) {
      for (size_t i = 0; i < advance.size(); ++i) {
        *optimizers.counts()[i].steps += steps_begun(recording, i, advance[i], completed);
      }
      throw;
    }
    decision.trusted->tensors = std::move(decision.tensors);
    for (size_t i = 0; i < advance.size(); ++i) {
      *optimizers.counts()[i].steps += advance[i];
    }
    return results;
  }

  /// How many of a count's steps had written to the optimizer's tensors before an error.
  int64_t steps_begun(const Recording& recording, size_t count, int64_t advance,
                      size_t completed) const {
    const size_t first = recording.given - optimizers.tensors().size();
    const KnownTensor& written = recording.known[first + optimizers.counts()[count].tensor];
    const std::vector<Version>& versions = recording.versions[written.buffer];
    int64_t steps = 0;
    for (int64_t k = 0; k < advance && !versions.empty(); ++k) {
      steps += versions[versions.size() * k / advance].node < completed;
    }
    return steps;
  }

  Tensors record(CallHistory& history, const Decision& decision, const Tensors& arguments,
                 const Tensors& state) {
    std::vector<uint32_t> donated(options.donate.begin(), options.donate.end());
    for (uint32_t place : donated) {
      TORCH_CHECK(place < arguments.size(), "torch_lazy::compile: donate names argument ", place,
                  ", but there are ", arguments.size());
    }
    ReplayTensors tensors;
    add_known(tensors, arguments, state);
    Tensors known;
    for (const at::Tensor* tensor : tensors.known) {
      known.push_back(*tensor);
    }
    auto call = std::make_shared<CallOfCpp>(optimizers);
    const auto before = gradients_of(known);
    Recorder recorder(known, {}, std::move(donated));
    const OptimizerStates optimizers_before = optimizers;
    Tensors results = function(arguments);
    const bool went_backward = gradients_of(known) != before;
    std::vector<ResultGraph> graphs;
    for (const at::Tensor& result : results) {
      TORCH_CHECK(result.defined() && is_lazy(result),
                  "torch_lazy::compile: a compiled function returns tensors on the device lazy");
      graphs.push_back(result.is_leaf() ? ResultGraph::none
                       : went_backward  ? ResultGraph::used_up
                                        : ResultGraph::needed);
    }
    call->recording = std::make_shared<Recording>(recorder.finish(results, graphs));
    const std::string stepped = look_at_steps(optimizers_before, call->advance);
    call->obstacle = call->recording->obstacle.empty() ? stepped : call->recording->obstacle;
    if (stepped.empty()) {
      call->sources.formulas = optimizers_before.formulas(call->advance);
    }
    const std::string given_up = history.judge(call, decision.purpose, decision.trusted);
    reason = history.reason();
    if (!given_up.empty()) {
      say_given_up(given_up);
    }
    return results;
  }

  /// Finds out how far a call moved step counts. Why it cannot be replayed; empty: it can.
  std::string look_at_steps(const OptimizerStates& before, std::vector<int64_t>& advance) {
    optimizers.look();
    if (optimizers.groups() != before.groups() || optimizers.options() != before.options()) {
      return "it changes an optimizer's learning rate or other options; do that, or step the "
             "scheduler, outside of the function";
    }
    if (optimizers.counts().size() != before.counts().size()) {
      return "an optimizer makes its state";
    }
    for (size_t i = 0; i < before.counts().size(); ++i) {
      if (optimizers.group_of(i) != before.group_of(i)) {
        return "an optimizer makes its state";
      }
      advance.push_back(optimizers.steps_of(i) - before.steps_of(i));
      if (advance[i] < 0 || advance[i] > kMostSteps) {
        return "it sets an optimizer's step count from " + std::to_string(before.steps_of(i)) +
               " to " + std::to_string(optimizers.steps_of(i));
      }
    }
    return "";
  }

  static void say_given_up(const std::string& reason) {
    TORCH_WARN("torch_lazy::compile: a function is not replayed: ", reason,
               ". It runs as it would without compile.");
  }
};

CompiledFunction::CompiledFunction(Function function, CompileOptions options)
    : calls_(std::make_unique<Calls>(std::move(function), std::move(options))) {
  TORCH_CHECK(calls_->function, "torch_lazy::compile: there is no function");
}

CompiledFunction::~CompiledFunction() = default;
CompiledFunction::CompiledFunction(CompiledFunction&&) noexcept = default;
CompiledFunction& CompiledFunction::operator=(CompiledFunction&&) noexcept = default;

Tensors CompiledFunction::operator()(const Tensors& arguments) {
  return calls_->call(arguments);
}

const std::string& CompiledFunction::reason() const {
  return calls_->reason;
}

void CompiledFunction::clear() {
  calls_->signatures.clear();
}

CompiledFunction compile(CompiledFunction::Function function, CompileOptions options) {
  return {std::move(function), std::move(options)};
}

// ---- What functions use
// --------------------------------------------------------------------------

Tensors state_of(const torch::nn::Module& module) {
  Tensors state = module.parameters();
  for (at::Tensor& buffer : module.buffers()) {
    state.push_back(std::move(buffer));
  }
  return state;
}

Tensors state_of(const torch::optim::Optimizer& optimizer) {
  OptimizerStates states({&optimizer});
  states.look();
  Tensors tensors;
  for (const at::Tensor* tensor : states.tensors()) {
    tensors.push_back(*tensor);
  }
  return tensors;
}

std::vector<double> rates_of(const torch::optim::Optimizer& optimizer) {
  std::vector<double> rates;
  for (const torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    rates.push_back(group.options().get_lr());
  }
  return rates;
}

}  // namespace torch_lazy
