// Compiled graphs by their signature, the least recently used going first when there are too many
// or they hold too much memory. Safe from any thread.
#pragma once

#include "base/ranked_mutex.h"
#include <torch_lazy/backend.h>

#include <atomic>
#include <cstdint>
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
  int64_t fixed_bytes = 0;  // without the executable
  int64_t bytes = 0;        // as last counted
  std::list<std::shared_ptr<Plan>>::iterator place;
};

/// About how many bytes a graph takes, with its descriptions as if they were its alone.
TORCH_LAZY_API int64_t bytes_of(const Graph& graph);

class TORCH_LAZY_API PlanCache {
 public:
  static PlanCache& instance();

  /// Finding one makes it the latest.
  std::shared_ptr<Plan> find(const std::vector<uint64_t>& signature);
  /// Makes a plan that is in use the latest; false: it is not in the cache any more.
  bool touch(Plan& plan);
  void add(std::shared_ptr<Plan> plan);
  /// Asks anew how much a plan holds that was found or touched. Not under the graph lock: others
  /// may be freed.
  void weigh(Plan& plan);
  /// An executable holds more than before, without having been run: all are asked when the next
  /// plan comes.
  void note_growth() { grown_.store(true, std::memory_order_relaxed); }
  std::shared_ptr<Plan> latest() const;
  void remove(Plan& plan);
  void clear();
  size_t size() const;
  /// About how much its plans hold.
  int64_t bytes() const;

 private:
  using Entries = std::list<std::shared_ptr<Plan>>;

  Entries::iterator locate(const std::vector<uint64_t>& signature);
  void erase(Entries::iterator entry);
  void set_bytes(Plan& plan, int64_t bytes);
  void weigh_all();
  /// All but the latest may go. The plans are to be freed after the lock.
  std::vector<std::shared_ptr<Plan>> evict();

  mutable RankedMutex mutex_{Rank::plans};
  Entries entries_;  // most recent first
  std::unordered_multimap<uint64_t, Entries::iterator> index_;
  int64_t bytes_ = 0;  // of all
  std::atomic<bool> grown_{false};
};

}  // namespace torch_lazy
