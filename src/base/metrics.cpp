// The registry of counters.
#include "base/metrics.h"

#include "base/hooks.h"

#include <map>
#include <memory>
#include <mutex>
#include <sstream>

namespace torch_lazy::metrics {
namespace {

struct Registry {
  std::mutex mutex;
  std::map<std::string, std::unique_ptr<Counter>> counters;
  std::map<std::string, Fallback> fallbacks;
};

Registry& registry() {
  static auto* instance = new Registry();  // never destroyed: used by threads at exit
  return *instance;
}

}  // namespace

Counter& counter(const std::string& name) {
  Registry& r = registry();
  std::lock_guard<std::mutex> lock(r.mutex);
  auto& slot = r.counters[name];
  if (!slot) {
    slot = std::make_unique<Counter>();
  }
  return *slot;
}

std::vector<std::string> counter_names() {
  Registry& r = registry();
  std::lock_guard<std::mutex> lock(r.mutex);
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
  std::lock_guard<std::mutex> lock(r.mutex);
  auto it = r.counters.find(name);
  if (it == r.counters.end() || it->second->value() == 0) {
    return std::nullopt;
  }
  return it->second->value();
}

void count_fallback(const std::string& name) {
  counter(name).add();
  std::string source = hooks::source_line();  // may take the GIL: before the lock
  Registry& r = registry();
  std::lock_guard<std::mutex> lock(r.mutex);
  Fallback& fallback = r.fallbacks[name];
  fallback.name = name;
  fallback.count += 1;
  fallback.source = std::move(source);
}

std::vector<Fallback> fallbacks() {
  Registry& r = registry();
  std::lock_guard<std::mutex> lock(r.mutex);
  std::vector<Fallback> list;
  for (const auto& [name, fallback] : r.fallbacks) {
    list.push_back(fallback);
  }
  return list;
}

std::string report() {
  std::ostringstream out;
  for (const std::string& name : counter_names()) {
    out << "Counter: " << name << "\n  Value: " << counter(name).value() << "\n";
  }
  for (const Fallback& fallback : fallbacks()) {
    out << "Executed at once: " << fallback.name << ", " << fallback.count << " times";
    if (!fallback.source.empty()) {
      out << ", last at " << fallback.source;
    }
    out << "\n";
  }
  return out.str();
}

void reset() {
  Registry& r = registry();
  std::lock_guard<std::mutex> lock(r.mutex);
  for (auto& [name, counter] : r.counters) {
    counter->reset();
  }
  r.fallbacks.clear();
}

}  // namespace torch_lazy::metrics
