// Functions of C++ that are recorded a few times and then replayed: a whole training step without
// its code, autograd or the dispatcher.
#pragma once

#include <torch_lazy/export.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace torch_lazy {

struct CompileOptions {
  /// The tensors that the function uses besides its arguments: parameters and buffers. Asked in
  /// every call, so that tensors that were replaced are seen.
  std::function<std::vector<at::Tensor>()> state;

  /// The optimizers that step in the function: SGD, Adagrad, RMSprop, Adam, AdamW. Their tensors
  /// need not be named in `state`. A replay counts their steps, and follows their counts and
  /// learning rates as they are at the call; other options mean another recording. They have to
  /// live as long as the compiled function.
  std::vector<torch::optim::Optimizer*> optimizers;

  /// Other numbers that the function uses. Another value means another recording.
  std::function<std::vector<double>()> numbers;

  /// Arguments whose content the caller gives up: their memory is used again.
  std::vector<size_t> donate;

  /// How many signatures (kinds of calls) are kept.
  size_t cache_size = 64;
};

class TORCH_LAZY_API CompiledFunction {
 public:
  using Function = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

  CompiledFunction(Function function, CompileOptions options);
  ~CompiledFunction();
  CompiledFunction(CompiledFunction&&) noexcept;
  CompiledFunction& operator=(CompiledFunction&&) noexcept;

  /// Does what the function does. Calls of one kind are recorded until two in a row are alike, then
  /// replayed, and compared again at calls 8, 16, 32, ... What cannot be replayed is called as it
  /// is, with one warning that says why. A replay that fails leaves what ran before the error; a
  /// step of an optimizer counts if it has begun to write. One thread at a time may call it.
  std::vector<at::Tensor> operator()(const std::vector<at::Tensor>& arguments);

  /// Why the last call was not replayed; empty: it was.
  const std::string& reason() const;

  /// Forgets all recordings.
  void clear();

 private:
  struct Calls;
  std::unique_ptr<Calls> calls_;
};

TORCH_LAZY_API CompiledFunction compile(CompiledFunction::Function function,
                                        CompileOptions options = {});

/// Parameters and buffers of a module with those of the modules inside it.
TORCH_LAZY_API std::vector<at::Tensor> state_of(const torch::nn::Module& module);

/// The tensors that an optimizer keeps for its parameters (of SGD, Adagrad, RMSprop, Adam, AdamW);
/// CompileOptions::optimizers includes them.
TORCH_LAZY_API std::vector<at::Tensor> state_of(const torch::optim::Optimizer& optimizer);

/// Its learning rates, one for each group.
TORCH_LAZY_API std::vector<double> rates_of(const torch::optim::Optimizer& optimizer);

}  // namespace torch_lazy
