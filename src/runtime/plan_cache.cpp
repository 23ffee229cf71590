// The cache of compiled graphs.
#include "runtime/plan_cache.h"

#include "base/settings.h"

namespace torch_lazy {

std::shared_ptr<Executable> PlanCache::find(const std::vector<uint64_t>& signature, uint64_t hash) {
  auto [begin, end] = index_.equal_range(hash);
  for (auto it = begin; it != end; ++it) {
    if (it->second->signature == signature) {
      entries_.splice(entries_.begin(), entries_, it->second);
      return it->second->plan;
    }
  }
  return nullptr;
}

void PlanCache::add(std::vector<uint64_t> signature, uint64_t hash,
                    std::shared_ptr<Executable> plan) {
  const size_t limit = static_cast<size_t>(settings().plan_cache.load());
  if (limit == 0) {
    return;
  }
  entries_.push_front({std::move(signature), hash, std::move(plan)});
  index_.emplace(hash, entries_.begin());
  while (entries_.size() > limit) {
    auto last = std::prev(entries_.end());
    auto [begin, end] = index_.equal_range(last->hash);
    for (auto it = begin; it != end; ++it) {
      if (it->second == last) {
        index_.erase(it);
        break;
      }
    }
    entries_.erase(last);
  }
}

}  // namespace torch_lazy
