// Calls of a recording with plain tensors: a graph of torch.compile(backend="torch_lazy") is
// recorded once for the kinds of its arguments, and then runs on their memory as it is. Lazy
// tensors among the arguments enter with the memory behind them.
#pragma once

#include "replay/recording.h"

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

namespace torch_lazy {

/// Whether a tensor has memory that a graph can run on.
TORCH_LAZY_API bool has_plain_memory(const at::Tensor& tensor);

/// Whether a tensor that one object alone refers to has memory that nothing else can see.
TORCH_LAZY_API bool owns_memory(const at::Tensor& tensor);

/// Records one call. What the graph is given for its arguments are lazy tensors over their memory,
/// each a buffer of its own that begins with the first element.
class TORCH_LAZY_API PlainRecorder {
 public:
  /// `given_up`: arguments that nobody else has; when the graph runs again, it may use up those of
  /// the later call.
  PlainRecorder(std::vector<at::Tensor> arguments, std::vector<uint32_t> given_up);

  const std::vector<at::Tensor>& lazy_arguments() const { return lazy_; }

  /// Runs what was recorded. `results` become what the caller gets: on the device lazy where
  /// `to_lazy` says so, else plain.
  Recording finish(std::vector<at::Tensor>& results, const std::vector<bool>& to_lazy);

 private:
  void write_back(const Recording& recording);
  at::Tensor for_caller(const at::Tensor& result, bool to_lazy) const;

  std::vector<at::Tensor> arguments_;
  std::vector<c10::Storage> memory_;
  std::vector<at::Tensor> lazy_;
  std::unique_ptr<Recorder> recorder_;
};

/// Whether the tensors are of the kind that was recorded.
TORCH_LAZY_API bool matches_plain(const Recording& recording, c10::ArrayRef<at::Tensor> arguments);

/// Does what was recorded to other arguments, which match, and returns the results. What was given
/// up is freed as soon as it is not needed any more.
TORCH_LAZY_API std::vector<at::Tensor> replay_plain(const Recording& recording,
                                                    std::vector<at::Tensor> arguments,
                                                    const std::vector<bool>& to_lazy);

}  // namespace torch_lazy
