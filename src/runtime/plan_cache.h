// Compiled graphs by their signature and by the hash of their graph, the least recently used going
// first. Safe from any thread.
#pragma once

#include "base/ranked_mutex.h"
#include <torch_lazy/backend.h>

#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace torch_lazy {

struct Plan {
  std::shared_ptr<const Graph> graph;
  std::shared_ptr<Executable> executable;
  std::vector<uint64_t> signature;
  // The cache's own.
  bool cached = false;
  std::list<std::shared_ptr<Plan>>::iterator place;
};

class TORCH_LAZY_API PlanCache {
 public:
  static PlanCache& instance();

  /// Finding one makes it the latest.
  std::shared_ptr<Plan> find(const std::vector<uint64_t>& signature);
  /// Makes a plan that is in use the latest; false: it is not in the cache any more.
  bool touch(Plan& plan);
  void add(std::shared_ptr<Plan> plan);
  std::shared_ptr<Plan> latest() const;
  void remove(Plan& plan);
  void clear();
  size_t size() const;

 private:
  using Entries = std::list<std::shared_ptr<Plan>>;

  Entries::iterator locate(const std::vector<uint64_t>& signature);
  void erase(Entries::iterator entry);

  mutable RankedMutex mutex_{Rank::plans};
  Entries entries_;  // most recent first
  std::unordered_multimap<uint64_t, Entries::iterator> index_;
};

}  // namespace torch_lazy
