// Memory that something outside the graph (a collective) still reads or writes on threads of its
// own.
#pragma once

#include <c10/core/Storage.h>

#include <functional>
#include <memory>

namespace torch_lazy::outside {

/// What uses the memory. Both may be called from any thread.
struct User {
  std::function<bool()> is_done;
  std::function<void()> wait;  // raises what it failed with
};

/// From now on until `user` is done its memory may not be overwritten and, where the user writes,
/// not be read.
void begin(const c10::Storage& storage, bool written, std::shared_ptr<User> user);

/// Forgets users that are done.
void forget_done();

/// False, nearly always: nothing outside uses any memory.
bool any();

/// Returns when nothing outside writes the memory; raises what a writer failed with.
void wait_for_writers(const c10::Storage& storage);

/// Whether something outside uses the memory, so that a run must not write into it.
bool is_used(const c10::Storage& storage);

}  // namespace torch_lazy::outside
