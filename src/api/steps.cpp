// The public functions of torch_lazy.h that run what is recorded: the executor in use does it.
#include "replay/recording.h"
#include <torch_lazy/graph_executor.h>
#include <torch_lazy/torch_lazy.h>

namespace torch_lazy {

void mark_step(bool wait) {
  if (is_recording()) {
    return;  // a recorded function is one step, which ends with it
  }
  GraphExecutor& executor = GraphExecutor::get();
  executor.sync_live_tensors(std::nullopt, wait);
  executor.mark_step(std::nullopt);
}

void sync(bool wait) {
  if (is_recording()) {
    return;
  }
  GraphExecutor::get().sync_live_tensors(std::nullopt, wait);
}

void wait_device_ops() {
  GraphExecutor::get().wait_device_ops();
}

}  // namespace torch_lazy
