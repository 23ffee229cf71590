// The one watch there is.
#include "runtime/watch.h"

#include "base/hooks.h"
#include "base/ranked_mutex.h"
#include "base/scopes.h"
#include "runtime/real_tensor.h"
#include <torch_lazy/backend.h>

#include <ATen/Context.h>
#include <ATen/ops/equal.h>

#include <atomic>
#include <mutex>

namespace torch_lazy {
namespace {

RankedMutex& watch_mutex() {
  static auto* mutex = new RankedMutex(Rank::watch);
  return *mutex;
}

std::atomic<Watch*> current{nullptr};
thread_local Watch* of_this_thread = nullptr;

at::Tensor state_of_generator() {
  at::Generator generator = at::globalContext().defaultGenerator(real_device());
  std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

}  // namespace

Watch* watch() {
  return of_this_thread;
}

Watch::Watch() {
  generator_state_ = state_of_generator();
  std::lock_guard<RankedMutex> lock(watch_mutex());
  if (!current.load(std::memory_order_relaxed)) {
    active_ = true;
    of_this_thread = this;
    current = this;
    keep_source_lines(true);
  }
}

Watch::~Watch() {
  if (!active_) {
    return;
  }
  {
    std::lock_guard<RankedMutex> lock(watch_mutex());
    current = nullptr;
    of_this_thread = nullptr;
    keep_source_lines(false);
  }
  GraphLock lock;
  for (const std::vector<Value*>* values : {&drawn_, &uploaded_}) {
    for (Value* value : *values) {
      Program::instance().let_go(value, lock);
    }
  }
}

void Watch::begin_draw() {
  BelowEverything below;
  if (!at::equal(generator_state_, state_of_generator())) {
    watch_obstacle("it seeds the random numbers, or draws some outside of the device");
  }
}

void Watch::end_draw() {
  generator_state_ = state_of_generator();
}

void Watch::add_draw(Value* value, Draw draw, GraphLock& /*lock*/) {
  Program::instance().hold(value);
  drawn_.push_back(value);
  draws_.push_back(std::move(draw));
}

void Watch::add_upload(Value* value, const at::Tensor& source, const Layout& layout,
                       GraphLock& /*lock*/) {
  Program::instance().hold(value);
  uploaded_.push_back(value);
  uploads_.push_back({source, layout, value->nbytes});
}

std::string Watch::obstacle() const {
  std::lock_guard<RankedMutex> lock(watch_mutex());
  return obstacle_;
}

bool Watch::is_disturbed() const {
  std::lock_guard<RankedMutex> lock(watch_mutex());
  return disturbed_;
}

void watch_obstacle(const std::string& what) {
  if (!current.load(std::memory_order_relaxed)) {
    return;
  }
  const std::string line = hooks::source_line();  // not under the lock: it may take Python's
  std::lock_guard<RankedMutex> lock(watch_mutex());
  Watch* watch = current.load(std::memory_order_relaxed);
  if (watch && watch->obstacle_.empty()) {
    watch->obstacle_ = line.empty() ? what : what + " (" + line + ")";
    watch->disturbed_ = !of_this_thread;
  }
}

void watch_call() {
  if (!of_this_thread && current.load(std::memory_order_relaxed)) {
    watch_obstacle("another thread uses the device while it is recorded");
  }
}

}  // namespace torch_lazy
