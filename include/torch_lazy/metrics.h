// What torch-lazy did, in numbers: counters, and metrics with samples over time. Names, report and
// behaviour are those of PyTorch's Lazy Tensor Core. Everything here may be called from any thread.
//
//   torch_lazy::metrics::counter("CacheMisses").add();
//   torch_lazy::metrics::TimedSection timed(
//       torch_lazy::metrics::metric("Upload", torch_lazy::metrics::Kind::time));
#pragma once

#include <torch_lazy/export.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
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

/// The counter of this name, made on demand; it lives as long as the process. Looking it up takes a
/// lock: code that counts often keeps the reference.
TORCH_LAZY_API Counter& counter(const std::string& name);

/// Names of counters that are not zero, sorted.
TORCH_LAZY_API std::vector<std::string> counter_names();

/// Nothing for a counter that is unknown or zero.
TORCH_LAZY_API std::optional<int64_t> counter_value(const std::string& name);

/// What the samples of a metric are, which decides how a report writes them.
enum class Kind : uint8_t {
  value,  // 12.00
  bytes,  // 1.50KB
  time,   // nanoseconds: 01s310ms822.588us
};

TORCH_LAZY_API std::string format_sample(Kind kind, double value);

struct Sample {
  int64_t timestamp_ns = 0;
  double value = 0;
};

/// All samples of a metric since the last reset: their number and sum, and the last of them
/// (setting TORCH_LAZY_METRICS_SAMPLES), oldest first.
struct MetricData {
  int64_t total_samples = 0;
  double accumulator = 0;
  std::vector<Sample> samples;
};

class TORCH_LAZY_API Metric {
  friend class AllMetrics;

 public:
  explicit Metric(Kind kind);

  void add(double value) { add(value, now_ns()); }
  void add(double value, int64_t timestamp_ns);

  Kind kind() const { return kind_; }
  int64_t total_samples() const;
  MetricData data() const;
  void reset();

  /// The clock of timestamps: monotonic, from an arbitrary start.
  static int64_t now_ns() {
    return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
  }

 private:
  const Kind kind_;
  mutable std::mutex mutex_;
  size_t capacity_ = 1;
  int64_t total_ = 0;
  double accumulator_ = 0;
  std::vector<Sample> ring_;  // the sample number n lies at n modulo the capacity
};

/// The metric of this name, made on demand with this kind (the first caller's counts); it lives as
/// long as the process.
TORCH_LAZY_API Metric& metric(const std::string& name, Kind kind = Kind::value);

/// Names of metrics that have samples, sorted.
TORCH_LAZY_API std::vector<std::string> metric_names();

/// Nothing for a metric that is unknown or has no samples.
TORCH_LAZY_API std::optional<MetricData> metric_data(const std::string& name);

/// Adds the time from here to the end of the scope to a metric of kind `time`.
class TimedSection {
 public:
  explicit TimedSection(Metric& metric) : metric_(metric), start_(Metric::now_ns()) {}
  ~TimedSection() {
    const int64_t end = Metric::now_ns();
    metric_.add(static_cast<double>(end - start_), end);
  }
  TimedSection(const TimedSection&) = delete;
  TimedSection& operator=(const TimedSection&) = delete;

  /// Nanoseconds since the start.
  int64_t elapsed() const { return Metric::now_ns() - start_; }

 private:
  Metric& metric_;
  int64_t start_;
};

/// All metrics with samples and all counters that are not zero, as text; then one line of the
/// backend, and one for each operator that was executed at once.
TORCH_LAZY_API std::string report();

/// Only the named ones, and the counters of operators executed at once (`aten::...`).
TORCH_LAZY_API std::string report(const std::vector<std::string>& counter_names,
                                  const std::vector<std::string>& metric_names);

/// Counters become zero and metrics lose their samples.
TORCH_LAZY_API void reset();

}  // namespace torch_lazy::metrics
