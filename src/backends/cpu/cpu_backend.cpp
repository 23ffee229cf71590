// The built-in backend: PyTorch's kernels at once, compiled kernels where that pays.
#include "backends/aten/aten_plan.h"
#include "backends/cpu/cpu_plan.h"
#include "backends/cpu/kernel_library.h"
#include "base/settings.h"
#include "runtime/backend_choice.h"
#include <torch_lazy/metrics.h>

#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace torch_lazy {
namespace {

std::shared_ptr<Executable> compiled(const std::shared_ptr<const Graph>& graph) {
  metrics::TimedSection timed(metrics::metric("CompileTime", metrics::Kind::time));
  return make_cpu_plan(graph);
}

/// Runs with PyTorch's kernels the first time, and is compiled when it is run again.
class TieredPlan : public Executable {
 public:
  explicit TieredPlan(const std::shared_ptr<const Graph>& graph)
      : graph_(graph), plan_(make_aten_plan(graph)) {}

  void run(Run& run) override {
    if (runs_ >= 0 && ++runs_ > 1) {
      runs_ = -1;
      try {
        plan_ = compiled(graph_);
      } catch (const std::exception& error) {
        TORCH_WARN("torch-lazy: a graph is not compiled: ", error.what());
      }
    }
    plan_->run(run);
  }

  std::string text() const override { return plan_->text(); }

 private:
  std::shared_ptr<const Graph> graph_;
  std::shared_ptr<Executable> plan_;
  int runs_ = 0;
};

class BuiltInBackend : public Backend {
 public:
  std::string name() const override { return "aten"; }

  std::shared_ptr<Executable> compile(std::shared_ptr<const Graph> graph) override {
    const CompilerMode mode = settings().compiler;
    if (mode == CompilerMode::off || !real_device().is_cpu() || !code_generator_available()) {
      return make_aten_plan(graph);
    }
    if (mode == CompilerMode::force) {
      return compiled(graph);
    }
    return std::make_shared<TieredPlan>(graph);
  }

  void wait() override {
    if (real_device().is_cuda()) {
      c10::impl::getDeviceGuardImpl(at::kCUDA)->synchronizeDevice(real_device().index());
    }
  }
};

Backend& built_in_backend() {
  static auto* instance = new BuiltInBackend();
  return *instance;
}

const bool registered = [] {
  register_base_backend(&built_in_backend);
  return true;
}();

}  // namespace
}  // namespace torch_lazy
