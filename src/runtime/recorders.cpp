#include "runtime/recorders.h"

#include <algorithm>
#include <deque>

namespace torch_lazy {
namespace {

/// A node from which on another thread recorded. Most programs have one.
struct Change {
  uint64_t sequence = 0;
  std::thread::id thread;
};

constexpr size_t kMostChanges = 1 << 16;  // more than there are nodes between recording and run

std::deque<Change>& changes() {
  static auto* instance = new std::deque<Change>();  // guarded by the graph lock
  return *instance;
}

}  // namespace

void note_recorder(const Program& program) {
  std::deque<Change>& all = changes();
  const std::thread::id thread = std::this_thread::get_id();
  if (!all.empty() && all.back().thread == thread) [[likely]] {
    return;
  }
  all.push_back({program.last()->sequence, thread});
  if (all.size() > kMostChanges) {
    all.pop_front();
  }
}

std::thread::id recorder_of(const Node& node) {
  const std::deque<Change>& all = changes();
  auto next = std::upper_bound(
      all.begin(), all.end(), node.sequence,
      [](uint64_t sequence, const Change& change) { return sequence < change.sequence; });
  return next == all.begin() ? std::thread::id() : std::prev(next)->thread;
}

}  // namespace torch_lazy
