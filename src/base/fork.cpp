// Handlers of fork.
#include "base/fork.h"

#include "base/ranked_mutex.h"

#include <pthread.h>

#include <array>
#include <vector>

namespace torch_lazy {
namespace {

constexpr size_t kOrders = static_cast<size_t>(ForkOrder::leaves) + 1;
constexpr auto kFirstShort = static_cast<size_t>(ForkOrder::locks);

std::array<std::vector<ForkPart>, kOrders>& parts() {
  static auto* all = new std::array<std::vector<ForkPart>, kOrders>();
  return *all;
}

thread_local bool prepared = false;  // this thread is about to fork

void stop(size_t begin, size_t end) {
  for (size_t order = begin; order < end; ++order) {
    for (const ForkPart& part : parts()[order]) {
      if (part.stop) {
        part.stop();
      }
    }
  }
}

void resume(size_t begin, size_t end, void (*ForkPart::*how)()) {
  for (size_t order = end; order-- > begin;) {
    const std::vector<ForkPart>& of_order = parts()[order];
    for (auto part = of_order.rbegin(); part != of_order.rend(); ++part) {
      if ((*part).*how) {
        ((*part).*how)();
      }
    }
  }
}

void before_fork() {
  prepare_fork();
  stop(kFirstShort, kOrders);
}

void after_fork_in_parent() {
  resume(kFirstShort, kOrders, &ForkPart::go_on);
  end_fork();
}

void after_fork_in_child() {
  lock_order::forget();
  resume(0, kOrders, &ForkPart::start_anew);
  prepared = false;
}

[[maybe_unused]] const bool handled = [] {
  pthread_atfork(&before_fork, &after_fork_in_parent, &after_fork_in_child);
  return true;
}();

}  // namespace

void add_fork_part(ForkOrder order, ForkPart part) {
  parts()[static_cast<size_t>(order)].push_back(part);
}

void prepare_fork() {
  if (!prepared) {
    prepared = true;
    stop(0, kFirstShort);
  }
}

void end_fork() {
  if (prepared) {
    prepared = false;
    resume(0, kFirstShort, &ForkPart::go_on);
  }
}

}  // namespace torch_lazy
