// Registers the boxed kernel: as the fallback for every operator, and by name for operators that
// PyTorch would otherwise take apart before we see them.
#include "capture/register.h"

#include "capture/capture.h"
#include "capture/layouts/registry.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <string>

namespace torch_lazy {
namespace {

/// Kept whole: what has a kernel of the CPU's own besides the composite one (eager uses that), and
/// composite operators for which we have a layout function.
bool keep_whole(const c10::OperatorHandle& op) {
  using c10::DispatchKey;
  if (op.hasKernelForDispatchKey(DispatchKey::Lazy)) {
    return false;
  }
  const bool explicit_composite =
      op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd);
  const bool implicit_composite =
      op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd);
  if (!explicit_composite && !implicit_composite) {
    return false;  // the fallback sees it anyway
  }
  if (op.hasKernelForDispatchKey(DispatchKey::CPU)) {
    return true;
  }
  if (op.operator_name().name.rfind("aten::empty", 0) == 0) {
    return false;  // makes memory, computes nothing: no node
  }
  const OperatorInfo& info = operator_info(op);
  return explicit_composite && !info.only_views && info.immediate == Immediate::no &&
         LayoutRegistry::instance().find(op.operator_name()) != nullptr;
}

void register_kept_whole(torch::Library& library) {
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    auto op = dispatcher.findSchema(name);
    if (name.name.rfind("aten::", 0) == 0 && op && keep_whole(*op)) {
      std::string text = c10::toString(name).substr(6);
      library.impl(text.c_str(), torch::CppFunction::makeFromBoxedFunction<&capture>());
    }
  }
}

torch::Library& library_for(const char* space, c10::DispatchKey key) {
  return *new torch::Library(torch::Library::IMPL, space, key, __FILE__, __LINE__);
}

const bool registered = [] {
  torch::Library& lazy = library_for("aten", c10::DispatchKey::Lazy);
  register_kernels(lazy);
  register_views(lazy);
  register_composites(lazy);
  register_composites(library_for("aten", c10::DispatchKey::AutogradLazy));
  register_kept_whole(lazy);  // after the others: it takes only what they left
  library_for("_", c10::DispatchKey::Lazy)
      .fallback(torch::CppFunction::makeFromBoxedFunction<&capture>());
  return true;
}();

}  // namespace
}  // namespace torch_lazy
