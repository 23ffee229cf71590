// Compiled graphs by their signature, the least recently used going first.
#pragma once

#include <torch_lazy/backend.h>

#include <list>
#include <memory>
#include <unordered_map>
#include <vector>

namespace torch_lazy {

/// Used under the execution lock.
class PlanCache {
 public:
  std::shared_ptr<Executable> find(const std::vector<uint64_t>& signature, uint64_t hash);
  void add(std::vector<uint64_t> signature, uint64_t hash, std::shared_ptr<Executable> plan);
  size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    std::vector<uint64_t> signature;
    uint64_t hash;
    std::shared_ptr<Executable> plan;
  };
  std::list<Entry> entries_;  // most recent first
  std::unordered_multimap<uint64_t, std::list<Entry>::iterator> index_;
};

}  // namespace torch_lazy
