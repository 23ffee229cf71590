// Runs what is asked for: chooses the pending nodes, finds or compiles their plan, schedules a
// flight, and hands its results back to the values.
#pragma once

#include "ir/node.h"
#include "runtime/queue.h"
#include <torch_lazy/export.h>

#include <c10/util/ArrayRef.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace torch_lazy {

/// Schedules everything that is pending, of one device or of all. Raises an error of this thread's
/// of an earlier run that the program has not seen yet; where execution is synchronous, also those
/// of this one. Errors of what other threads recorded are left to those threads and to readers.
TORCH_LAZY_API void run_all(std::optional<c10::DeviceIndex> device = std::nullopt);

/// The same, and returns when everything that was scheduled has ended.
void finish_all();

/// Runs everything that is pending as one graph and returns its plan; null: there was nothing.
/// `see` looks at it first, under the graph lock.
std::shared_ptr<Plan> run_seen(const std::function<void(const Collection&)>& see);

/// The same without running it: what was pending never comes to be.
std::shared_ptr<Plan> plan_seen(const std::function<void(const Collection&)>& see);

/// Schedules what those live buffers need, of one device or of all, that `wanted` says yes to. It
/// is asked under the graph lock.
void run_live(std::optional<c10::DeviceIndex> device,
              const std::function<bool(const Buffer&)>& wanted);

/// Schedules what the current values of these buffers need. With `to_write`, also the pending
/// readers of those buffers, and waits for all readers, so that their memory can be written; what
/// is read from outside the graph stays with its readers, and the buffer gets a copy.
TORCH_LAZY_API void run_buffers(c10::ArrayRef<Buffer*> buffers, bool to_write = false);

/// The data of a buffer's value as it was at the call, computed if need be; undefined memory is
/// allocated. While this is alive nothing that is recorded overwrites it.
class TORCH_LAZY_API Reading {
 public:
  explicit Reading(Buffer& buffer);
  ~Reading();
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;

  const c10::Storage& storage() const { return storage_; }

 private:
  void obtain();

  Value* value_;
  c10::Storage storage_;
};

/// The same for who holds the execution lock for as long as it reads or writes.
c10::Storage materialize(Buffer& buffer, bool to_write = false);

/// Returns when everything that was scheduled is finished; raises what failed meanwhile, once.
TORCH_LAZY_API void wait_for_device();

/// Returns when the data of these buffers' values is there.
TORCH_LAZY_API void wait_for_buffers(c10::ArrayRef<Buffer*> buffers);

/// Whether what is pending has grown past a limit and should run. Needs the graph lock.
bool over_limit(const Program& program);

/// Runs what is pending because it has; waits if what is in flight is too much as well.
void cut();

/// Fresh memory on the real device.
TORCH_LAZY_API c10::Storage allocate(int64_t nbytes);

/// Forgets what is pending without running it; its values are lost (benchmarks of capture alone).
TORCH_LAZY_API void discard_pending();

}  // namespace torch_lazy
