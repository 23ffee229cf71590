// The one registry of counters, and the list of operators that were executed at once.
#pragma once

#include <torch_lazy/export.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace torch_lazy::metrics {

class Counter {
 public:
  void add(int64_t n = 1) { value_.fetch_add(n, std::memory_order_relaxed); }
  /// The same where only holders of one lock, which the caller holds, ever add: no locked
  /// instruction.
  void add_guarded(int64_t n = 1) { value_.store(value() + n, std::memory_order_relaxed); }
  int64_t value() const { return value_.load(std::memory_order_relaxed); }
  void reset() { value_.store(0, std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> value_{0};
};

/// The counter of this name, made on demand; it lives as long as the process.
TORCH_LAZY_API Counter& counter(const std::string& name);

/// Names of counters that are not zero, sorted.
std::vector<std::string> counter_names();

/// Nothing for a counter that is unknown or zero.
std::optional<int64_t> counter_value(const std::string& name);

/// An operator that was executed at once instead of being recorded.
struct Fallback {
  std::string name;
  int64_t count;
  std::string source;  // the user's line that called it last
};

void count_fallback(const std::string& name);
TORCH_LAZY_API std::vector<Fallback> fallbacks();

std::string report();
void reset();

}  // namespace torch_lazy::metrics
