// A cache of bounded size: the entry used longest ago goes first. Safe from any thread.
#pragma once

#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace torch_lazy {

/// `limit` is asked at every insertion, so that a setting can change it; 0 keeps nothing.
template <typename Key, typename T, typename Hash = std::hash<Key>,
          typename Equal = std::equal_to<Key>>
class LruCache {
 public:
  using Pointer = std::shared_ptr<T>;

  explicit LruCache(std::function<size_t()> limit) : limit_(std::move(limit)) {}

  /// Keeps an entry that is there already; returns the one to use.
  Pointer add(const Key& key, Pointer object) {
    std::list<Entry> evicted;  // freed after the lock
    std::lock_guard<std::mutex> lock(mutex_);
    const size_t limit = limit_();
    if (limit == 0) {
      return object;
    }
    auto [it, inserted] = index_.try_emplace(key, entries_.end());
    if (!inserted) {
      entries_.splice(entries_.begin(), entries_, it->second);
      return it->second->second;
    }
    entries_.emplace_front(key, object);
    it->second = entries_.begin();
    while (entries_.size() > limit) {
      index_.erase(entries_.back().first);
      evicted.splice(evicted.begin(), entries_, std::prev(entries_.end()));
    }
    return object;
  }

  /// The entry, which becomes the latest, or null.
  Pointer find(const Key& key) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto it = index_.find(key);
    if (it == index_.end()) {
      return nullptr;
    }
    entries_.splice(entries_.begin(), entries_, it->second);
    return it->second->second;
  }

  /// The entry that was used last, or null.
  Pointer latest() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return entries_.empty() ? nullptr : entries_.front().second;
  }

  bool erase(const Key& key) {
    std::list<Entry> erased;  // freed after the lock
    std::lock_guard<std::mutex> lock(mutex_);
    auto it = index_.find(key);
    if (it == index_.end()) {
      return false;
    }
    erased.splice(erased.begin(), entries_, it->second);
    index_.erase(it);
    return true;
  }

  void clear() {
    std::list<Entry> erased;  // freed after the lock
    std::lock_guard<std::mutex> lock(mutex_);
    index_.clear();
    erased.swap(entries_);
  }

  size_t size() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return entries_.size();
  }

 private:
  using Entry = std::pair<Key, Pointer>;

  std::function<size_t()> limit_;
  mutable std::mutex mutex_;
  std::list<Entry> entries_;  // latest first
  std::unordered_map<Key, typename std::list<Entry>::iterator, Hash, Equal> index_;
};

}  // namespace torch_lazy
