// Memory that lives only during a run: the arena of a plan, and scratch memory of a thread.
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

  /// A part of it as a storage for calls. It must not outlive the arena.
  c10::Storage part(int64_t offset, int64_t nbytes) const;

 private:
  c10::DataPtr data_;
  size_t capacity_ = 0;
};

/// Memory of the calling thread, aligned for vectors. Its content is anything.
char* scratch_memory(int64_t bytes);

}  // namespace torch_lazy
