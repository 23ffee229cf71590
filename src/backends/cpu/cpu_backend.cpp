// The built-in backend: PyTorch's kernels at once, compiled kernels where that pays.
#include "backends/aten/aten_plan.h"
#include "backends/cpu/checked_plan.h"
#include "backends/cpu/cpu_plan.h"
#include "backends/cpu/kernel_library.h"
#include "backends/cpu/tiered_plan.h"
#include "base/settings.h"
#include "runtime/backend_choice.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace torch_lazy {
namespace {

class BuiltInBackend : public Backend {
 public:
  std::string name() const override { return "aten"; }

  std::shared_ptr<Executable> compile(std::shared_ptr<const Graph> graph) override {
    const CompilerMode mode = settings().compiler;
    if (mode == CompilerMode::off || !real_device().is_cpu() || !code_generator_available()) {
      return std::make_shared<AtenPlan>(graph);
    }
    if (mode == CompilerMode::check) {
      return make_checked_plan(graph);
    }
    if (mode == CompilerMode::force) {
      return make_cpu_plan(graph);
    }
    return make_tiered_plan(graph);
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
