// The cache of compiled graphs.
#include "runtime/plan_cache.h"

#include "base/hash.h"
#include "base/settings.h"

namespace torch_lazy {

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
  const auto limit = static_cast<size_t>(settings().plan_cache.load());
  std::vector<std::shared_ptr<Plan>> evicted;  // freed after the lock
  std::lock_guard<RankedMutex> lock(mutex_);
  if (limit == 0 || locate(plan->signature) != entries_.end()) {
    return;
  }
  const uint64_t hash = hash_words(plan->signature);
  entries_.push_front(plan);
  plan->cached = true;
  plan->place = entries_.begin();
  index_.emplace(hash, entries_.begin());
  while (entries_.size() > limit) {
    evicted.push_back(entries_.back());
    erase(std::prev(entries_.end()));
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
  freed.swap(entries_);
  for (const std::shared_ptr<Plan>& plan : freed) {
    plan->cached = false;
  }
}

size_t PlanCache::size() const {
  std::lock_guard<RankedMutex> lock(mutex_);
  return entries_.size();
}

}  // namespace torch_lazy
