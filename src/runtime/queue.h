// The flights that wait, and who executes them: the worker of the device, or, where execution is
// synchronous, the thread that needs them. Lock order: execution, scheduling, queue, graph.
#pragma once

#include "runtime/flight.h"

#include <mutex>

namespace torch_lazy {

/// Held while flights are executed, or while something must not change under the holder's feet. A
/// thread may take it again: an operator of the user's that runs inside a graph can use lazy
/// tensors itself.
class TORCH_LAZY_API ExecutionLock {
 public:
  ExecutionLock();
  ~ExecutionLock();
  ExecutionLock(const ExecutionLock&) = delete;
  ExecutionLock& operator=(const ExecutionLock&) = delete;
};

/// Held from the choice of nodes until their flight is in the queue: a flight never comes before
/// one whose results it reads.
class SchedulingLock {
 public:
  SchedulingLock();
  ~SchedulingLock();
  SchedulingLock(const SchedulingLock&) = delete;
  SchedulingLock& operator=(const SchedulingLock&) = delete;
};

/// While it lives, this thread executes what it schedules: it is about to wait for that anyway, and
/// memory comes from where the thread's other memory does.
class OnThisThread {
 public:
  OnThisThread();
  ~OnThisThread();
  OnThisThread(const OnThisThread&) = delete;
  OnThisThread& operator=(const OnThisThread&) = delete;
};

/// Whether this thread is executing a flight.
bool inside_run();

/// Whether flights are left to the worker.
bool is_asynchronous();

/// Puts a flight at the end of the queue; the worker begins with it as soon as it can.
void enqueue(const FlightPtr& flight);

/// Waits while the program is too far ahead of its device.
void wait_while_far_ahead();

/// Runs a plan on this thread, at once. Everything that was scheduled has finished, and the caller
/// holds the execution lock.
void execute(Executable& executable, Run& run);

/// Returns when the flight is done. Inside a run what can be executed is; a flight that cannot,
/// because it waits for the one that is running here, is put back among what is pending.
void wait_for(const FlightPtr& flight);

/// Returns when all flights are done that were enqueued before.
void wait_for_all();

/// At the end of the process: finishes what was scheduled and ends the worker. What is asked for
/// afterwards is executed by who asks.
TORCH_LAZY_API void finish();

}  // namespace torch_lazy
