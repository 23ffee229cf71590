// The table of descriptions of calls.
#include "ir/description_table.h"

#include "base/settings.h"

#include <c10/util/flat_hash_map.h>

#include <cstring>

namespace torch_lazy {

struct DescriptionTable::Impl {
  // Nearly always one description per hash; equal hashes of different keys share a bucket.
  ska::flat_hash_map<uint64_t, c10::SmallVector<DescriptionPtr, 1>> buckets;
  uint64_t next_id = 1;
};

DescriptionTable::DescriptionTable() : impl_(new Impl()) {}

DescriptionTable& DescriptionTable::instance() {
  static auto* table = new DescriptionTable();
  return *table;
}

Description* DescriptionTable::find(const OperatorInfo& op, const Key& key, uint64_t hash) const {
  auto it = impl_->buckets.find(hash);
  if (it == impl_->buckets.end()) {
    return nullptr;
  }
  for (const DescriptionPtr& candidate : it->second) {
    const Key& other = candidate->key;
    if (candidate->op == &op && other.size() == key.size() &&
        std::memcmp(other.data(), key.data(), key.size() * sizeof(uint64_t)) == 0) {
      return candidate.get();
    }
  }
  return nullptr;
}

Description* DescriptionTable::add(DescriptionPtr description,
                                   std::vector<DescriptionPtr>& evicted) {
  if (Description* present = find(*description->op, description->key, description->hash)) {
    evicted.push_back(std::move(description));
    return present;
  }
  if (size_ >= static_cast<size_t>(settings().layout_cache.load())) {
    // Starting over is simpler than tracking use, and what is in use comes back at once.
    for (auto& [hash, bucket] : impl_->buckets) {
      for (DescriptionPtr& old : bucket) {
        evicted.push_back(std::move(old));
      }
    }
    impl_->buckets.clear();
    size_ = 0;
  }
  description->id = impl_->next_id++;
  Description* raw = description.get();
  impl_->buckets[description->hash].push_back(std::move(description));
  ++size_;
  return raw;
}

}  // namespace torch_lazy
