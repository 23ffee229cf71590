// Runs what is asked for: chooses the pending nodes, finds or compiles their plan, executes it and
// hands the results back to the values. One run at a time; lock order: execution, then graph.
#pragma once

#include "ir/node.h"
#include <torch_lazy/export.h>

#include <c10/util/ArrayRef.h>

#include <functional>
#include <memory>
#include <mutex>

namespace torch_lazy {

/// Held while a graph runs, or while something must not change under the holder's feet. A thread
/// may take it again: an operator of the user's that runs inside a graph can use lazy tensors
/// itself.
class ExecutionLock {
 public:
  ExecutionLock();

 private:
  std::unique_lock<std::recursive_mutex> lock_;
};

/// Raises the error that kept a value from being computed, with eager's type.
[[noreturn]] void raise(const Failure& failure);

/// Runs everything that is pending.
void run_all();

/// Runs what the current values of these buffers need. With `to_write`, also the pending readers of
/// those buffers, so that their memory can be written.
void run_buffers(c10::ArrayRef<Buffer*> buffers, bool to_write = false);

/// The memory of the buffer's value as it is at the call, computed if need be; undefined memory is
/// allocated. The caller holds the execution lock for as long as it reads or writes.
c10::Storage materialize(Buffer& buffer, bool to_write = false);

/// Runs everything pending and ends a step.
void end_step();

/// Everything that was run is finished.
void wait_for_device();

/// Whether what is pending has grown past a limit and should run.
bool over_limit(const Program& program);

/// Fresh memory on the real device.
c10::Storage allocate(int64_t nbytes);

/// Forgets what is pending without running it; its values are lost (benchmarks of capture alone).
TORCH_LAZY_API void discard_pending();

}  // namespace torch_lazy
