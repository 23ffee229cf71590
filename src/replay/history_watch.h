// What a recorded call has to do with graphs of autograd from before it. These are not part of a
// recording: a replay neither goes through them nor makes them longer.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/edge.h>

#include <string>
#include <vector>

namespace torch_lazy {

/// Watches the calling thread from its construction on.
class HistoryWatch {
 public:
  explicit HistoryWatch(const std::vector<at::Tensor>& tensors);
  ~HistoryWatch();
  HistoryWatch(const HistoryWatch&) = delete;
  HistoryWatch& operator=(const HistoryWatch&) = delete;

  /// Whether autograd went backward.
  bool went_backward() const { return went_backward_; }

  /// Why the call cannot be replayed; empty: for no reason seen here.
  std::string obstacle() const;

 private:
  struct History {
    at::Tensor tensor;
    decltype(torch::autograd::Edge::function) node;  // held, so that none takes its address
    uint32_t output = 0;
    bool keeps_gradient = false;

    static History of(const at::Tensor& tensor);
    bool operator==(const History& other) const;
  };

  std::vector<History> before_;
  bool has_graph_ = false;
  bool went_backward_ = false;
  bool* outer_ = nullptr;
  at::CallbackHandle handle_ = 0;
};

}  // namespace torch_lazy
