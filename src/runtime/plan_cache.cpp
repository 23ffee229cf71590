// The cache of compiled graphs.
#include "runtime/plan_cache.h"

#include "base/hash.h"
#include "base/metrics.h"
#include "base/settings.h"

#include <unordered_set>
#include <utility>

namespace torch_lazy {
namespace {

template <typename T, unsigned N>
int64_t heap_bytes(const c10::SmallVector<T, N>& list) {
  return list.capacity() > N ? static_cast<int64_t>(list.capacity() * sizeof(T)) : 0;
}

template <typename T>
int64_t heap_bytes(const std::vector<T>& list) {
  return static_cast<int64_t>(list.capacity() * sizeof(T));
}

int64_t bytes_of(const Description& d) {
  int64_t bytes = sizeof(Description) + heap_bytes(d.key) + heap_bytes(d.arguments) +
                  heap_bytes(d.operands) + heap_bytes(d.fresh) + heap_bytes(d.writes) +
                  heap_bytes(d.resizes) + heap_bytes(d.returns);
  for (const ArgumentSource& argument : d.arguments) {
    bytes += heap_bytes(argument.elements) + heap_bytes(argument.numbers);
  }
  for (const ReturnSource& result : d.returns) {
    bytes += heap_bytes(result.views);
  }
  return bytes;
}

}  // namespace

int64_t bytes_of(const Graph& graph) {
  int64_t bytes = sizeof(Graph) + heap_bytes(graph.nodes) + heap_bytes(graph.parameters) +
                  heap_bytes(graph.roots);
  std::unordered_set<const Description*> seen;
  for (const GraphNode& node : graph.nodes) {
    bytes += heap_bytes(node.operands) + heap_bytes(node.outputs);
    if (seen.insert(node.description.get()).second) {
      bytes += bytes_of(*node.description);
    }
  }
  return bytes;
}

PlanCache& PlanCache::instance() {
  static auto* cache = new PlanCache();
  return *cache;
}

PlanCache::Entries::iterator PlanCache::locate(const std::vector<uint64_t>& signature) {
  auto [begin, end] = index_.equal_range(hash_words(signature));
  for (auto it = begin; it != end; ++it) {
    if ((*it->second)->signature == signature) {
      return it->second;
    }
  }
  return entries_.end();
}

void PlanCache::erase(Entries::iterator entry) {
  auto [begin, end] = index_.equal_range(hash_words((*entry)->signature));
  for (auto it = begin; it != end; ++it) {
    if (it->second == entry) {
      index_.erase(it);
      break;
    }
  }
  bytes_ -= (*entry)->bytes;
  (*entry)->cached = false;
  entries_.erase(entry);
}

std::shared_ptr<Plan> PlanCache::find(const std::vector<uint64_t>& signature) {
  std::lock_guard<RankedMutex> lock(mutex_);
  auto entry = locate(signature);
  if (entry == entries_.end()) {
    return nullptr;
  }
  entries_.splice(entries_.begin(), entries_, entry);
  return *entry;
}

bool PlanCache::touch(Plan& plan) {
  std::lock_guard<RankedMutex> lock(mutex_);
  if (plan.cached) {
    entries_.splice(entries_.begin(), entries_, plan.place);
  }
  return plan.cached;
}

void PlanCache::add(std::shared_ptr<Plan> plan) {
  if (settings().plan_cache.load() == 0) {
    return;
  }
  if (grown_.exchange(false, std::memory_order_relaxed)) {
    weigh_all();
  }
  plan->fixed_bytes = sizeof(Plan) + bytes_of(*plan->graph) + heap_bytes(plan->signature);
  plan->bytes = plan->fixed_bytes + plan->executable->bytes();
  std::vector<std::shared_ptr<Plan>> evicted;  // freed after the lock
  std::lock_guard<RankedMutex> lock(mutex_);
  if (locate(plan->signature) != entries_.end()) {
    return;
  }
  const uint64_t hash = hash_words(plan->signature);
  entries_.push_front(plan);
  plan->cached = true;
  plan->place = entries_.begin();
  bytes_ += plan->bytes;
  index_.emplace(hash, entries_.begin());
  evicted = evict();
}

std::vector<std::shared_ptr<Plan>> PlanCache::evict() {
  static metrics::Counter& count = metrics::counter("PlanCacheEvicted");
  const auto most = static_cast<size_t>(settings().plan_cache.load());
  const int64_t most_bytes = settings().plan_cache_bytes;
  std::vector<std::shared_ptr<Plan>> evicted;
  while (entries_.size() > 1 &&
         (entries_.size() > most || (most_bytes != 0 && bytes_ > most_bytes))) {
    evicted.push_back(entries_.back());
    erase(std::prev(entries_.end()));
    count.add();
  }
  return evicted;
}

void PlanCache::set_bytes(Plan& plan, int64_t bytes) {
  if (plan.cached) {
    bytes_ += bytes - std::exchange(plan.bytes, bytes);
  }
}

void PlanCache::weigh(Plan& plan) {
  const int64_t bytes = plan.fixed_bytes + plan.executable->bytes();
  std::vector<std::shared_ptr<Plan>> evicted;  // freed after the lock
  std::lock_guard<RankedMutex> lock(mutex_);
  if (plan.cached && plan.bytes != bytes) {
    set_bytes(plan, bytes);
    evicted = evict();
  }
}

void PlanCache::weigh_all() {
  std::vector<std::shared_ptr<Plan>> plans;  // asked without the lock: a backend's code answers
  {
    std::lock_guard<RankedMutex> lock(mutex_);
    plans.assign(entries_.begin(), entries_.end());
  }
  for (const std::shared_ptr<Plan>& plan : plans) {
    const int64_t bytes = plan->fixed_bytes + plan->executable->bytes();
    std::lock_guard<RankedMutex> lock(mutex_);
    set_bytes(*plan, bytes);
  }
}

std::shared_ptr<Plan> PlanCache::latest() const {
  std::lock_guard<RankedMutex> lock(mutex_);
  return entries_.empty() ? nullptr : entries_.front();
}

void PlanCache::remove(Plan& plan) {
  std::shared_ptr<Plan> freed;  // after the lock
  std::lock_guard<RankedMutex> lock(mutex_);
  if (plan.cached) {
    freed = *plan.place;
    erase(plan.place);
  }
}

void PlanCache::clear() {
  Entries freed;  // after the lock
  std::lock_guard<RankedMutex> lock(mutex_);
  index_.clear();
  bytes_ = 0;
  freed.swap(entries_);
  for (const std::shared_ptr<Plan>& plan : freed) {
    plan->cached = false;
  }
}

size_t PlanCache::size() const {
  std::lock_guard<RankedMutex> lock(mutex_);
  return entries_.size();
}

int64_t PlanCache::bytes() const {
  std::lock_guard<RankedMutex> lock(mutex_);
  return bytes_;
}

}  // namespace torch_lazy
