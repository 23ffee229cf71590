// The hooks of the host language.
#include "base/hooks.h"

#include "base/scopes.h"

namespace torch_lazy::hooks {
namespace {
Table table;  // written once, when the Python module is loaded
}

void install(const Table& hooks) {
  table = hooks;
}

std::string source_line() {
  std::string line = innermost_source_scope();
  return line.empty() && table.source_line ? table.source_line() : line;
}

std::vector<SourceLocation> frames() {
  return table.frames ? table.frames() : std::vector<SourceLocation>();
}

std::string backend_path(const std::string& name) {
  return table.backend_path ? table.backend_path(name) : std::string();
}

void raise_again(const std::exception_ptr& error, const std::string& note) {
  if (table.raise_again) {
    table.raise_again(error, note);
  }
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
