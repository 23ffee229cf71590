// Functions that were recorded and saved (torch_lazy.save_graph), to be run without Python: the
// graph and its state (weights, the optimizer's), never machine code.
#pragma once

#include <torch_lazy/export.h>

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace torch_lazy {

struct Recording;

class TORCH_LAZY_API SavedGraph {
 public:
  /// Runs the function. Arguments are lazy tensors, or plain ones, which are moved; their dtypes
  /// and sizes are those that it was saved with. Results are lazy tensors. What the function
  /// changes is changed: its state, and arguments that it writes.
  std::vector<at::Tensor> operator()(const std::vector<at::Tensor>& arguments);

  /// What each argument has to be, like "Float[4,16]".
  const std::vector<std::string>& arguments() const { return arguments_; }

  /// The tensors that it keeps from call to call, by name.
  const std::vector<std::pair<std::string, at::Tensor>>& state() const { return state_; }

 private:
  friend TORCH_LAZY_API SavedGraph load_graph(const std::string& path,
                                              const std::vector<std::string>& namespaces);

  std::shared_ptr<const Recording> recording_;
  std::vector<std::string> arguments_;
  std::vector<std::pair<std::string, at::Tensor>> state_;
  std::string path_;
};

/// Reads a file and checks all of it; one that is damaged, foreign or of another version raises a
/// clear error. Nothing in a file is code. A file calls operators of aten that compute tensors and
/// do nothing else; `namespaces`: other libraries whose operators it may call, too.
TORCH_LAZY_API SavedGraph load_graph(const std::string& path,
                                     const std::vector<std::string>& namespaces = {});

/// Writes a recording whose first `arguments` known tensors are arguments; `known`: all of them, as
/// they are to be found in the file, and `names` those of the others. `hosts`: the plain tensors
/// that the function holds, which become constants.
TORCH_LAZY_API void save_graph(const Recording& recording, size_t arguments,
                               const std::vector<at::Tensor>& known,
                               const std::vector<at::Tensor>& hosts,
                               const std::vector<std::string>& names, const std::string& path);

}  // namespace torch_lazy
