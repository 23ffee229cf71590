// The table of memory in use, empty but for collectives that have begun and not ended.
#include "runtime/outside.h"

#include "base/hooks.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <vector>

namespace torch_lazy::outside {
namespace {

struct Use {
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;  // its address is not given to another one
  bool written;
  std::shared_ptr<User> user;
};

/// Its lock is the innermost: nothing is called under it but `is_done`.
class Table {
 public:
  static Table& instance() {
    static auto* table = new Table();  // threads of a process that ends may still ask
    return *table;
  }

  bool is_empty() const { return size_.load(std::memory_order_acquire) == 0; }

  void add(Use use) {
    std::vector<Use> done;
    std::lock_guard lock(mutex_);
    done = take_done();
    uses_.push_back(std::move(use));
    size_.store(uses_.size(), std::memory_order_release);
  }

  void forget_done() {
    std::vector<Use> done;  // freed after the lock
    std::lock_guard lock(mutex_);
    done = take_done();
  }

  std::vector<std::shared_ptr<User>> users(const c10::StorageImpl* storage, bool only_writers) {
    std::vector<std::shared_ptr<User>> found;
    std::lock_guard lock(mutex_);
    for (const Use& use : uses_) {
      if (use.storage._unsafe_get_target() == storage && (use.written || !only_writers) &&
          !use.user->is_done()) {
        found.push_back(use.user);
      }
    }
    return found;
  }

 private:
  std::vector<Use> take_done() {
    auto first =
        std::partition(uses_.begin(), uses_.end(), [](const Use& u) { return !u.user->is_done(); });
    std::vector<Use> done(std::make_move_iterator(first), std::make_move_iterator(uses_.end()));
    uses_.erase(first, uses_.end());
    size_.store(uses_.size(), std::memory_order_release);
    return done;
  }

  std::mutex mutex_;
  std::atomic<size_t> size_{0};
  std::vector<Use> uses_;
};

}  // namespace

void begin(const c10::Storage& storage, bool written, std::shared_ptr<User> user) {
  Table::instance().add({storage.getWeakStorageImpl(), written, std::move(user)});
}

void forget_done() {
  if (!Table::instance().is_empty()) {
    Table::instance().forget_done();
  }
}

bool any() {
  return !Table::instance().is_empty();
}

void wait_for_writers(const c10::Storage& storage) {
  if (!any() || !storage) {
    return;
  }
  for (const auto& user :
       Table::instance().users(storage.unsafeGetStorageImpl(), /*only_writers=*/true)) {
    hooks::AllowOtherThreads allow;
    user->wait();
  }
}

bool is_used(const c10::Storage& storage) {
  return any() && storage &&
         !Table::instance().users(storage.unsafeGetStorageImpl(), /*only_writers=*/false).empty();
}

}  // namespace torch_lazy::outside
