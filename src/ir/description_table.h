// Descriptions of calls that were made, by key.
#pragma once

#include <torch_lazy/description.h>

#include <vector>

namespace torch_lazy {

/// The table of descriptions, by key. Guarded by the graph lock; bounded by a setting.
class DescriptionTable {
 public:
  static DescriptionTable& instance();

  Description* find(const OperatorInfo& op, const Key& key, uint64_t hash) const;

  /// Adds it unless an equal one is there, and returns the one that stays. `evicted` takes what the
  /// bound pushed out: the caller frees it when no lock is held.
  Description* add(DescriptionPtr description, std::vector<DescriptionPtr>& evicted);

  size_t size() const { return size_; }

 private:
  struct Impl;
  DescriptionTable();
  Impl* impl_;
  size_t size_ = 0;
};

}  // namespace torch_lazy
