// The registry of counters and metrics, and its report.
#include "base/metrics.h"

#include "base/fork.h"
#include "base/hooks.h"
#include "base/ranked_mutex.h"
#include "base/settings.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iomanip>
#include <map>
#include <memory>
#include <set>
#include <sstream>

namespace torch_lazy::metrics {

/// At a fork, when the registry's lock is held.
class AllMetrics {
 public:
  static void lock();
  static void unlock();
};

namespace {

struct Registry {
  RankedMutex mutex{Rank::metrics};
  std::map<std::string, std::unique_ptr<Counter>> counters;
  std::map<std::string, std::unique_ptr<Metric>> metrics;
  std::map<std::string, Fallback> fallbacks;
  std::atomic<std::string (*)()> backend_line{nullptr};
};

Registry& registry() {
  static auto* instance = new Registry();  // never destroyed: used by threads at exit
  return *instance;
}

[[maybe_unused]] const bool fork_handled = [] {
  add_fork_part(ForkOrder::leaves, {&AllMetrics::lock, &AllMetrics::unlock, &AllMetrics::unlock});
  return true;
}();

/// Nothing for a name that is not there.
const Metric* find_metric(const std::string& name) {
  Registry& r = registry();
  std::lock_guard<RankedMutex> lock(r.mutex);
  auto it = r.metrics.find(name);
  return it == r.metrics.end() ? nullptr : it->second.get();
}

std::string format_time(double nanoseconds) {
  struct Unit {
    const char* name;
    double nanoseconds;
    int width;
  };
  static constexpr std::array<Unit, 5> whole_units = {{
      {"d", 86400e9, 2},
      {"h", 3600e9, 2},
      {"m", 60e9, 2},
      {"s", 1e9, 2},
      {"ms", 1e6, 3},
  }};
  std::ostringstream out;
  out << std::fixed << std::setfill('0');
  bool started = false;
  double rest = nanoseconds;
  for (const Unit& unit : whole_units) {
    const double count = std::floor(rest / unit.nanoseconds);
    started = started || count >= 1;
    if (started) {
      out << std::setprecision(0) << std::setw(unit.width) << count << unit.name;
      rest -= count * unit.nanoseconds;
    }
  }
  out << std::setprecision(3) << std::setw(7) << rest / 1e3 << "us";
  return out.str();
}

std::string format_bytes(double bytes) {
  static constexpr std::array<const char*, 6> units = {"B", "KB", "MB", "GB", "TB", "PB"};
  size_t unit = 0;
  while (unit + 1 < units.size() && std::abs(bytes) >= 1024) {
    bytes /= 1024;
    ++unit;
  }
  std::ostringstream out;
  out << std::fixed << std::setprecision(2) << bytes << units[unit];
  return out.str();
}

void write_metric(std::ostream& out, const std::string& name, Kind kind, MetricData data,
                  const std::vector<double>& percentiles) {
  std::vector<Sample>& samples = data.samples;
  out << "Metric: " << name << "\n  TotalSamples: " << data.total_samples
      << "\n  Accumulator: " << format_sample(kind, data.accumulator) << "\n";
  const int64_t span_ns = samples.back().timestamp_ns - samples.front().timestamp_ns;
  if (span_ns > 0) {
    double sum = 0;
    for (const Sample& sample : samples) {
      sum += sample.value;
    }
    const double seconds = static_cast<double>(span_ns) / 1e9;
    out << "  ValueRate: " << format_sample(kind, sum / seconds)
        << " / second\n  Rate: " << static_cast<double>(samples.size()) / seconds << " / second\n";
  }
  std::sort(samples.begin(), samples.end(),
            [](const Sample& a, const Sample& b) { return a.value < b.value; });
  out << "  Percentiles: ";
  for (size_t i = 0; i < percentiles.size(); ++i) {
    const auto rank = static_cast<size_t>(percentiles[i] * static_cast<double>(samples.size()));
    out << (i ? "; " : "") << percentiles[i] * 100
        << "%=" << format_sample(kind, samples[std::min(rank, samples.size() - 1)].value);
  }
  out << "\n";
}

/// Metrics, then counters, as far as they are asked for.
template <typename WantsMetric, typename WantsCounter>
std::string write_report(WantsMetric wants_metric, WantsCounter wants_counter) {
  const std::vector<double> percentiles = parse_percentiles(settings().metrics_percentiles.get());
  std::ostringstream out;
  for (const std::string& name : metric_names()) {
    const Metric* metric = find_metric(name);
    MetricData data = wants_metric(name) ? metric->data() : MetricData();
    if (!data.samples.empty()) {
      write_metric(out, name, metric->kind(), std::move(data), percentiles);
    }
  }
  for (const std::string& name : counter_names()) {
    if (std::optional<int64_t> value = counter_value(name); value && wants_counter(name)) {
      out << "Counter: " << name << "\n  Value: " << *value << "\n";
    }
  }
  return out.str();
}

}  // namespace

void AllMetrics::lock() {
  for (auto& [name, metric] : registry().metrics) {
    metric->mutex_.lock();
  }
}

void AllMetrics::unlock() {
  for (auto& [name, metric] : registry().metrics) {
    metric->mutex_.unlock();
  }
}

Counter& counter(const std::string& name) {
  Registry& r = registry();
  std::lock_guard<RankedMutex> lock(r.mutex);
  auto& slot = r.counters[name];
  if (!slot) {
    slot = std::make_unique<Counter>();
  }
  return *slot;
}

std::vector<std::string> counter_names() {
  Registry& r = registry();
  std::lock_guard<RankedMutex> lock(r.mutex);
  std::vector<std::string> names;
  for (const auto& [name, counter] : r.counters) {
    if (counter->value() != 0) {
      names.push_back(name);
    }
  }
  return names;
}

std::optional<int64_t> counter_value(const std::string& name) {
  Registry& r = registry();
  std::lock_guard<RankedMutex> lock(r.mutex);
  auto it = r.counters.find(name);
  if (it == r.counters.end() || it->second->value() == 0) {
    return std::nullopt;
  }
  return it->second->value();
}

std::string format_sample(Kind kind, double value) {
  switch (kind) {
    case Kind::bytes:
      return format_bytes(value);
    case Kind::time:
      return format_time(value);
    case Kind::value:
      break;
  }
  std::ostringstream out;
  out << std::fixed << std::setprecision(2) << value;
  return out.str();
}

Metric::Metric(Kind kind) : kind_(kind) {
  reset();
}

void Metric::add(double value, int64_t timestamp_ns) {
  std::lock_guard<std::mutex> lock(mutex_);
  const Sample sample{timestamp_ns, value};
  if (ring_.size() < capacity_) {
    ring_.push_back(sample);
  } else {
    ring_[static_cast<size_t>(total_) % capacity_] = sample;
  }
  ++total_;
  accumulator_ += value;
}

int64_t Metric::total_samples() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return total_;
}

MetricData Metric::data() const {
  std::lock_guard<std::mutex> lock(mutex_);
  MetricData data{total_, accumulator_, ring_};
  if (ring_.size() == capacity_) {
    const auto oldest = static_cast<ptrdiff_t>(static_cast<size_t>(total_) % capacity_);
    std::rotate(data.samples.begin(), data.samples.begin() + oldest, data.samples.end());
  }
  return data;
}

void Metric::reset() {
  const auto wanted = static_cast<size_t>(settings().metrics_samples.load());
  std::lock_guard<std::mutex> lock(mutex_);
  capacity_ = std::max<size_t>(wanted, 1);
  ring_.clear();
  total_ = 0;
  accumulator_ = 0;
}

Metric& metric(const std::string& name, Kind kind) {
  Registry& r = registry();
  std::lock_guard<RankedMutex> lock(r.mutex);
  auto& slot = r.metrics[name];
  if (!slot) {
    slot = std::make_unique<Metric>(kind);
  }
  return *slot;
}

std::vector<std::string> metric_names() {
  Registry& r = registry();
  std::lock_guard<RankedMutex> lock(r.mutex);
  std::vector<std::string> names;
  for (const auto& [name, metric] : r.metrics) {
    if (metric->total_samples() != 0) {
      names.push_back(name);
    }
  }
  return names;
}

std::optional<MetricData> metric_data(const std::string& name) {
  const Metric* metric = find_metric(name);
  MetricData data = metric ? metric->data() : MetricData();
  return data.total_samples == 0 ? std::nullopt : std::make_optional(std::move(data));
}

void count_fallback(const std::string& name) {
  counter(name).add();
  std::string source = hooks::source_line();  // may take the GIL: before the lock
  Registry& r = registry();
  std::lock_guard<RankedMutex> lock(r.mutex);
  Fallback& fallback = r.fallbacks[name];
  fallback.name = name;
  fallback.count += 1;
  fallback.source = std::move(source);
}

std::vector<Fallback> fallbacks() {
  Registry& r = registry();
  std::lock_guard<RankedMutex> lock(r.mutex);
  std::vector<Fallback> list;
  for (const auto& [name, fallback] : r.fallbacks) {
    list.push_back(fallback);
  }
  return list;
}

void set_backend_line(std::string (*line)()) {
  registry().backend_line = line;
}

std::string report() {
  auto all = [](const std::string&) { return true; };
  std::string text = write_report(all, all);
  if (std::string(*line)() = registry().backend_line) {
    text += line() + "\n";
  }
  std::ostringstream out;
  for (const Fallback& fallback : fallbacks()) {
    out << "Executed at once: " << fallback.name << ", " << fallback.count << " times";
    if (!fallback.source.empty()) {
      out << ", last at " << fallback.source;
    }
    out << "\n";
  }
  return text + out.str();
}

std::string report(const std::vector<std::string>& counter_names,
                   const std::vector<std::string>& metric_names) {
  const std::set<std::string> counters(counter_names.begin(), counter_names.end());
  const std::set<std::string> metrics(metric_names.begin(), metric_names.end());
  return write_report([&](const std::string& name) { return metrics.count(name) != 0; },
                      [&](const std::string& name) {
                        return counters.count(name) != 0 || name.rfind("aten::", 0) == 0;
                      });
}

void reset() {
  Registry& r = registry();
  std::lock_guard<RankedMutex> lock(r.mutex);
  for (auto& [name, counter] : r.counters) {
    counter->reset();
  }
  for (auto& [name, metric] : r.metrics) {
    metric->reset();
  }
  r.fallbacks.clear();
}

}  // namespace torch_lazy::metrics
