// The hooks of the host language.
#include "base/hooks.h"

namespace torch_lazy::hooks {
namespace {
Table table;  // written once, when the Python module is loaded
}

void install(const Table& hooks) {
  table = hooks;
}

std::string source_line() {
  return table.source_line ? table.source_line() : std::string();
}

void check_interrupt() {
  if (table.check_interrupt) {
    table.check_interrupt();
  }
}

AllowOtherThreads::AllowOtherThreads() : state_(table.release ? table.release() : nullptr) {}

AllowOtherThreads::~AllowOtherThreads() {
  if (state_) {
    table.reacquire(state_);
  }
}

}  // namespace torch_lazy::hooks
