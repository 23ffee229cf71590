// The hooks of the host language.
#include "base/hooks.h"

#include "base/ranked_mutex.h"
#include "base/scopes.h"

namespace torch_lazy::hooks {
namespace {

Table table;  // written once, when the Python module is loaded

/// Everything below may wait for the host language's lock.
void check_may_run() {
  if constexpr (lock_order::kChecked) {
    lock_order::check_host_may_run();
  }
}

}  // namespace

void install(const Table& hooks) {
  table = hooks;
}

std::string source_line() {
  check_may_run();
  std::string line = innermost_source_scope();
  return line.empty() && table.source_line ? table.source_line() : line;
}

std::vector<SourceLocation> frames() {
  check_may_run();
  return table.frames ? table.frames() : std::vector<SourceLocation>();
}

std::string backend_path(const std::string& name) {
  check_may_run();
  return table.backend_path ? table.backend_path(name) : std::string();
}

void raise_again(const std::exception_ptr& error, const std::string& note) {
  check_may_run();
  if (table.raise_again) {
    table.raise_again(error, note);
  }
}

void check_interrupt() {
  check_may_run();
  if (table.check_interrupt) {
    table.check_interrupt();
  }
}

AllowOtherThreads::AllowOtherThreads() : state_(table.release ? table.release() : nullptr) {}

AllowOtherThreads::~AllowOtherThreads() {
  check_may_run();
  if (state_) {
    table.reacquire(state_);
  }
}

}  // namespace torch_lazy::hooks
