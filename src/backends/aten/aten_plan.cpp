#include "backends/aten/aten_plan.h"

#include "base/fault.h"
#include "runtime/real_tensor.h"

#include <c10/core/DeviceGuard.h>

namespace torch_lazy {

int64_t interpreter_bytes(const Graph& graph, size_t slots) {
  constexpr int64_t kInstruction = 160;  // and with many operands, on the heap, no more than twice
  constexpr int64_t kSlot = 64;          // a slot and, mostly, one view of it
  return static_cast<int64_t>(graph.nodes.size()) * kInstruction +
         static_cast<int64_t>(slots) * kSlot;
}

AtenPlan::AtenPlan(const std::shared_ptr<const Graph>& graph)
    : graph_(graph), interpreter_(graph, Schedule::in_order(*graph)) {}

void AtenPlan::run_until(Run& run, size_t node, const std::exception_ptr& error) {
  BelowEverything below;
  c10::OptionalDeviceGuard device_guard;
  if (real_device().is_cuda()) {
    device_guard.reset_device(real_device());
  }
  Interpreter::State state = interpreter_.begin();
  run.failed = 1;
  for (run.completed = 0; run.completed < graph_->nodes.size(); ++run.completed) {
    if (run.completed == node) {
      std::rethrow_exception(error);
    }
    fault_point(Stage::execute);
    interpreter_.execute(run.completed, run, state);
    for (uint32_t slot : interpreter_.done(run.completed)) {
      interpreter_.drop(slot, run, state);
    }
  }
}

}  // namespace torch_lazy
