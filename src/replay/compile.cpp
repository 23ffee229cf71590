// torch_lazy::compile: which calls are recorded and which are replayed.
#include "capture/tensor.h"
#include "replay/recording.h"
#include <torch_lazy/compile.h>

#include <c10/core/DefaultDtype.h>
#include <torch/nn/module.h>
#include <torch/optim.h>

#include <bit>
#include <list>

namespace torch_lazy {
namespace {

constexpr int kAttempts = 5;  // calls within which two in a row have to be alike

using Tensors = std::vector<at::Tensor>;

ReplayTensors pointers(const Tensors& known) {
  ReplayTensors tensors;
  for (const at::Tensor& tensor : known) {
    tensors.known.push_back(&tensor);
  }
  return tensors;
}

std::vector<uint64_t> key_of(const Tensors& arguments, const std::vector<double>& numbers) {
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
    bool trusted = false;
    int attempts = 0;
    uint64_t calls = 0;
    std::string given_up;
  };

  Function function;
  CompileOptions options;
  std::list<Signature> signatures;  // the latest first
  std::string reason;

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
    Tensors known = arguments;
    if (options.state) {
      for (at::Tensor& tensor : options.state()) {
        if (tensor.defined()) {
          known.push_back(std::move(tensor));
        }
      }
    }
    Signature& signature =
        find(key_of(arguments, options.numbers ? options.numbers() : std::vector<double>()));
    if (!signature.given_up.empty()) {
      reason = signature.given_up;
      return function(arguments);
    }
    ReplayTensors tensors = pointers(known);
    if (signature.trusted && matches(*signature.last, tensors)) {
      if (!is_check(++signature.calls)) {
        reason.clear();
        return replay(*signature.last, tensors);
      }
    } else {
      signature.trusted = false;
    }
    return record(signature, arguments, known);
  }

  Tensors record(Signature& signature, const Tensors& arguments, const Tensors& known) {
    std::vector<uint32_t> donated(options.donate.begin(), options.donate.end());
    for (uint32_t place : donated) {
      TORCH_CHECK(place < arguments.size(), "torch_lazy::compile: donate names argument ", place,
                  ", but there are ", arguments.size());
    }
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
    judge(signature, std::move(recording));
    return results;
  }

  void judge(Signature& signature, std::unique_ptr<Recording> recording) {
    ++signature.attempts;
    reason = recording->obstacle;
    if (reason.empty() && signature.last && signature.last->obstacle.empty()) {
      reason = difference(*signature.last, *recording);
      if (reason.empty()) {
        const auto numbers = different_numbers(*signature.last, *recording);
        if (!numbers.empty()) {
          reason = recording->number_place(numbers[0]) +
                   " is another one in each call; name it in CompileOptions::numbers";
        }
      }
      const bool was_trusted = signature.trusted;
      signature.trusted = reason.empty();
      if (signature.trusted) {
        signature.attempts = 0;
        if (!was_trusted) {
          signature.last = std::move(recording);
        }
        return;
      }
      if (was_trusted) {
        return give_up(signature);
      }
    }
    signature.last = std::move(recording);
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
    signature.trusted = false;
    TORCH_WARN("torch_lazy::compile: a function is not replayed: ", reason,
               ". It runs as it would without compile.");
  }
};

CompiledFunction::CompiledFunction(Function function, CompileOptions options)
    : calls_(std::make_unique<Calls>()) {
  TORCH_CHECK(function, "torch_lazy::compile: there is no function");
  calls_->function = std::move(function);
  calls_->options = std::move(options);
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
  namespace optim = torch::optim;
  Tensors state;
  // In the order of the parameters: the map's own is that of addresses.
  const auto& kept = optimizer.state();
  for (const optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      auto found = kept.find(parameter.unsafeGetTensorImpl());
      if (found == kept.end()) {
        continue;
      }
      optim::OptimizerParamState* each = found->second.get();
      if (auto* sgd = dynamic_cast<optim::SGDParamState*>(each)) {
        state.push_back(sgd->momentum_buffer());
      } else if (auto* adam = dynamic_cast<optim::AdamParamState*>(each)) {
        state.insert(state.end(), {adam->exp_avg(), adam->exp_avg_sq(), adam->max_exp_avg_sq()});
      } else if (auto* adamw = dynamic_cast<optim::AdamWParamState*>(each)) {
        state.insert(state.end(), {adamw->exp_avg(), adamw->exp_avg_sq(), adamw->max_exp_avg_sq()});
      } else if (auto* rms = dynamic_cast<optim::RMSpropParamState*>(each)) {
        state.insert(state.end(), {rms->square_avg(), rms->momentum_buffer(), rms->grad_avg()});
      } else if (auto* adagrad = dynamic_cast<optim::AdagradParamState*>(each)) {
        state.push_back(adagrad->sum());
      }
    }
  }
  std::erase_if(state, [](const at::Tensor& tensor) { return !tensor.defined(); });
  return state;
}

std::vector<double> rates_of(const torch::optim::Optimizer& optimizer) {
  std::vector<double> rates;
  for (const torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    rates.push_back(group.options().get_lr());
  }
  return rates;
}

}  // namespace torch_lazy
