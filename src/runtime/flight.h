// A run that was scheduled: what it consists of, its plan, and how it ended.
#pragma once

#include "ir/collection.h"
#include "runtime/plan_cache.h"
#include <torch_lazy/backend.h>

#include <atomic>
#include <memory>
#include <thread>

namespace torch_lazy {

/// Flights are executed in the order in which they were scheduled.
struct Flight : std::enable_shared_from_this<Flight> {
  enum class State { queued, running, done };

  Collection collection;  // its values are held
  std::shared_ptr<Plan> plan;
  Run run;
  std::thread::id scheduler = std::this_thread::get_id();
  int threads = 1;             // of the kernels, as the thread that scheduled it has set them
  unsigned float_control = 0;  // likewise: how the processor treats denormal numbers
  std::atomic<State> state{State::queued};
  std::shared_ptr<Failure> failure;
};

using FlightPtr = std::shared_ptr<Flight>;

/// Executes a flight on this thread and hands its results to the values; never throws. The caller
/// holds the execution lock.
void fly(Flight& flight);

/// Turns the scheduling of a flight back that is not in the queue: its nodes are pending again.
void call_off(Flight& flight);

/// Ends the lives of `failed` (in program order) and of everything recorded that depends on them:
/// it never comes to be. Buffers that would have been written keep their last good value.
void give_up(c10::ArrayRef<Node*> failed, const std::shared_ptr<Failure>& failure, GraphLock& lock);

}  // namespace torch_lazy
