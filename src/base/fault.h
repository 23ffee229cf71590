// Faults on request, for tests of what happens after an error (setting TORCH_LAZY_FAULT).
#pragma once

#include "base/settings.h"

namespace torch_lazy {

enum class Stage { capture, compile, allocate, execute, read };

/// The slow half of `fault_point`.
void count_down(Stage stage);

/// Raises an error when the setting says "stage:n" and this is the n-th time (from 0) that the
/// program comes by here since it was set. Raised once.
inline void fault_point(Stage stage) {
  if (!settings().fault.empty()) {
    count_down(stage);
  }
}

}  // namespace torch_lazy
