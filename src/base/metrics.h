// The registry of counters and metrics as the core sees it: besides the public part, the list of
// operators that were executed at once.
#pragma once

#include <torch_lazy/export.h>
#include <torch_lazy/metrics.h>

#include <cstdint>
#include <string>
#include <vector>

namespace torch_lazy::metrics {

/// An operator that was executed at once instead of being recorded.
struct Fallback {
  std::string name;
  int64_t count;
  std::string source;  // the user's line that called it last
};

void count_fallback(const std::string& name);
TORCH_LAZY_API std::vector<Fallback> fallbacks();

/// Who writes the backend's line of a report; the layer that knows the backend says so.
void set_backend_line(std::string (*line)());

}  // namespace torch_lazy::metrics
