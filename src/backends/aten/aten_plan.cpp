// Plans that run a graph operator by operator, in the order in which it was recorded.
#include "backends/aten/aten_plan.h"

#include "backends/aten/interpreter.h"
#include "base/fault.h"
#include "runtime/real_tensor.h"

#include <c10/core/DeviceGuard.h>

namespace torch_lazy {
namespace {

class AtenPlan : public Executable {
 public:
  explicit AtenPlan(const std::shared_ptr<const Graph>& graph)
      : graph_(graph), interpreter_(graph, Schedule::in_order(*graph)) {}

  void run(Run& run) override {
    BelowEverything below;
    c10::OptionalDeviceGuard device_guard;
    if (real_device().is_cuda()) {
      device_guard.reset_device(real_device());
    }
    Interpreter::State state = interpreter_.begin();
    run.failed = 1;
    for (run.completed = 0; run.completed < graph_->nodes.size(); ++run.completed) {
      fault_point(Stage::execute);
      interpreter_.execute(run.completed, run, state);
      for (uint32_t slot : interpreter_.done(run.completed)) {
        interpreter_.drop(slot, run, state);
      }
    }
  }

  std::string text() const override { return graph_->text(); }

 private:
  std::shared_ptr<const Graph> graph_;
  Interpreter interpreter_;
};

}  // namespace

std::shared_ptr<Executable> make_aten_plan(const std::shared_ptr<const Graph>& graph) {
  return std::make_shared<AtenPlan>(graph);
}

}  // namespace torch_lazy
