// Memory that lives only during a run: the arena of a plan, blocks for large values, and scratch
// memory of a thread.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Storage.h>

#include <cstdint>

namespace torch_lazy {

/// Taken from a pool for as long as it lives, and kept there from run to run.
class Arena {
 public:
  explicit Arena(int64_t bytes);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  char* at(int64_t offset) const { return static_cast<char*>(data_.get()) + offset; }

 private:
  c10::DataPtr data_;
  size_t capacity_ = 0;
};

/// A block of memory that goes back to the pool when its last user lets go of it.
c10::Storage take_block(int64_t nbytes);

/// Gives memory that the pool keeps back to the system, as much as is about to be allocated: what
/// is kept from run to run never adds to what is in use.
void make_room(int64_t nbytes);

/// Memory that belongs to someone else as a storage, for calls.
c10::Storage borrowed(char* data, int64_t nbytes);

/// Memory of the calling thread, aligned for vectors. Its content is anything.
char* scratch_memory(int64_t bytes);

}  // namespace torch_lazy
