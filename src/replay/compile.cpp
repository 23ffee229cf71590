// torch_lazy::compile: which calls are recorded and which are replayed.
#include "base/metrics.h"
#include "capture/tensor.h"
#include "replay/number_rules.h"
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

constexpr int kAttempts = 5;        // calls within which two in a row have to be alike
constexpr int64_t kMostSteps = 64;  // of an optimizer in one call

using Tensors = std::vector<at::Tensor>;

std::vector<uint64_t> key_of(const Tensors& arguments, const std::vector<double>& numbers,
                             const std::vector<uint64_t>& optimizers) {
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
  key.insert(key.end(), optimizers.begin(), optimizers.end());
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

}  // namespace

struct CompiledFunction::Calls {
  struct Signature {
    std::vector<uint64_t> key;
    std::unique_ptr<Recording> last;
    std::optional<NumberRules> rules;  // there while `last` can be replayed
    ReplayTensors tensors;             // of the last replay of `last`
    bool trusted = false;
    int attempts = 0;
    uint64_t calls = 0;
    std::string given_up;
  };

  /// Why a call is recorded.
  enum class Purpose { learn, settle, check };

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
    Signature& signature = find(key_of(arguments, named, optimizers.key()));
    if (signature.given_up.empty()) {
      reason = obstacle_in(state);
      if (!reason.empty()) {
        give_up(signature);
      }
    }
    if (!signature.given_up.empty()) {
      reason = signature.given_up;
      return function(arguments);
    }
    ReplayTensors& tensors = signature.tensors;
    set_known(tensors, arguments, state);
    Purpose purpose = Purpose::learn;
    if (signature.trusted && matches(*signature.last, tensors)) {
      std::vector<c10::IValue> numbers;
      switch (signature.rules->numbers(*signature.last, optimizers.numbers(), numbers)) {
        case NumberRules::Answer::known:
          if (!is_check(++signature.calls)) {
            reason.clear();
            return replay_steps(signature, tensors, std::move(numbers));
          }
          purpose = Purpose::check;
          break;
        case NumberRules::Answer::unsure:
          purpose = Purpose::settle;
          break;
        case NumberRules::Answer::other:
          break;
      }
    }
    signature.trusted = purpose != Purpose::learn;
    return record(signature, arguments, state, purpose);
  }

  /// Why a function with this state cannot be replayed, whatever it does.
  std::string obstacle_in(const Tensors& state) const {
    auto plain = [](const at::Tensor& tensor) { return tensor.defined() && !is_lazy(tensor); };
    return std::any_of(state.begin(), state.end(), plain)
               ? "a tensor of CompileOptions::state is not on the device lazy"
               : optimizers.obstacle();
  }

  /// Arguments, named tensors, then those of the optimizers.
  void set_known(ReplayTensors& tensors, const Tensors& arguments, const Tensors& state) const {
    tensors.clear();
    tensors.known.reserve(arguments.size() + 2 * state.size() + optimizers.tensors().size());
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

  Tensors replay_steps(const Signature& signature, ReplayTensors& tensors,
                       std::vector<c10::IValue> numbers) {
    const std::vector<int64_t>& advance = signature.rules->advance();
    size_t completed = 0;
    Tensors results;
    try {
      results = replay(*signature.last, tensors, std::move(numbers), &completed);
    } catch (...) {
      for (size_t i = 0; i < advance.size(); ++i) {
        *optimizers.counts()[i].steps += steps_begun(*signature.last, i, advance[i], completed);
      }
      throw;
    }
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

  Tensors record(Signature& signature, const Tensors& arguments, const Tensors& state,
                 Purpose purpose) {
    static metrics::Counter& recorded = metrics::counter("ReplayRecorded");
    recorded.add();
    std::vector<uint32_t> donated(options.donate.begin(), options.donate.end());
    for (uint32_t place : donated) {
      TORCH_CHECK(place < arguments.size(), "torch_lazy::compile: donate names argument ", place,
                  ", but there are ", arguments.size());
    }
    ReplayTensors tensors;
    set_known(tensors, arguments, state);
    Tensors known;
    for (const at::Tensor* tensor : tensors.known) {
      known.push_back(*tensor);
    }
    OptimizerCall call{optimizers.numbers(), {}};
    const auto before = gradients_of(known);
    Recorder recorder(known, {}, std::move(donated));
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
    auto recording = std::make_unique<Recording>(recorder.finish(results, graphs));
    const std::string stepped = look_at_steps(call);
    if (recording->obstacle.empty()) {
      recording->obstacle = stepped;
    }
    judge(signature, std::move(recording), std::move(call), purpose);
    return results;
  }

  /// Finds out what a call did to the optimizers. Why it cannot be replayed; empty: it can.
  std::string look_at_steps(OptimizerCall& call) {
    const std::vector<uint64_t> key = optimizers.key();
    optimizers.look();
    const OptimizerNumbers& after = optimizers.numbers();
    if (after.groups != call.before.groups || optimizers.key() != key) {
      return "it changes an optimizer's learning rate or other options; do that, or step the "
             "scheduler, outside of the function";
    }
    if (after.group_of != call.before.group_of) {
      return "an optimizer makes its state";
    }
    for (size_t i = 0; i < after.steps.size(); ++i) {
      call.advance.push_back(after.steps[i] - call.before.steps[i]);
      if (call.advance[i] < 0 || call.advance[i] > kMostSteps) {
        return "it sets an optimizer's step count from " + std::to_string(call.before.steps[i]) +
               " to " + std::to_string(after.steps[i]);
      }
    }
    return "";
  }

  void judge(Signature& signature, std::unique_ptr<Recording> recording, OptimizerCall call,
             Purpose purpose) {
    if (recording->untimely) {
      reason = recording->obstacle;
      return;
    }
    ++signature.attempts;
    reason = recording->obstacle;
    if (reason.empty() && signature.rules) {
      reason = difference(*signature.last, *recording);
      if (reason.empty()) {
        reason = signature.rules->compare(*signature.last, *recording, call);
      }
      if (reason.empty()) {
        signature.attempts = 0;
        if (!signature.trusted) {
          signature.trusted = true;
          signature.last = std::move(recording);
          signature.tensors = ReplayTensors();
        }
        return;
      }
      if (purpose == Purpose::check) {
        return give_up(signature);
      }
    }
    signature.trusted = false;
    signature.rules.reset();
    if (recording->obstacle.empty()) {
      signature.rules.emplace(*recording, std::move(call));
    }
    signature.last = std::move(recording);
    signature.tensors = ReplayTensors();
    if (reason.empty()) {
      reason = "it has not been recorded twice";
    }
    if (signature.attempts >= kAttempts) {
      give_up(signature);
    }
  }

  void give_up(Signature& signature) const {
    signature.given_up = reason;
    signature.last.reset();
    signature.tensors = ReplayTensors();
    signature.rules.reset();
    signature.trusted = false;
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
