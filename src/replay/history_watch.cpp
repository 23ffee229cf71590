#include "replay/history_watch.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

namespace torch_lazy {
namespace {

thread_local bool* noted_backward = nullptr;

std::unique_ptr<at::ObserverContext> note_backward(const at::RecordFunction& /*function*/) {
  if (noted_backward) {
    *noted_backward = true;
  }
  return nullptr;
}

}  // namespace

HistoryWatch::History HistoryWatch::History::of(const at::Tensor& tensor) {
  History history;
  history.tensor = tensor;
  if (torch::autograd::impl::get_autograd_meta(tensor)) {
    history.node = tensor.grad_fn();  // of a view: as it is after writes to its base
    history.output = static_cast<uint32_t>(tensor.output_nr());
    history.keeps_gradient = tensor.retains_grad();
  }
  return history;
}

bool HistoryWatch::History::operator==(const History& other) const {
  return node == other.node && output == other.output && keeps_gradient == other.keeps_gradient;
}

HistoryWatch::HistoryWatch(const std::vector<at::Tensor>& tensors) : outer_(noted_backward) {
  for (const at::Tensor& tensor : tensors) {
    before_.push_back(History::of(tensor));
    has_graph_ |= static_cast<bool>(before_.back().node);
  }
  noted_backward = &went_backward_;
  handle_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback(&note_backward).scopes({at::RecordScope::BACKWARD_FUNCTION}));
}

HistoryWatch::~HistoryWatch() {
  at::removeCallback(handle_);
  noted_backward = outer_;
  if (outer_) {
    *outer_ |= went_backward_;
  }
}

std::string HistoryWatch::obstacle() const {
  if (has_graph_ && went_backward_) {
    return "autograd goes backward, and a tensor from before the call has a graph of its own that "
           "may be part of it; call backward outside of the function, or pass tensors that are "
           "detached";
  }
  const bool changed = std::any_of(before_.begin(), before_.end(), [](const History& history) {
    return !(history == History::of(history.tensor));
  });
  return changed ? "it writes into a tensor from before the call and so adds to its graph of "
                   "autograd; return a new tensor, or write under torch.no_grad()"
                 : "";
}

}  // namespace torch_lazy
