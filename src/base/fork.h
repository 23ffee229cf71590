// What happens to threads, locks and work at a fork: everything stops in order, and goes on in the
// parent; the child, which has one thread, starts anew.
#pragma once

#include <torch_lazy/export.h>

#include <cstdint>

namespace torch_lazy {

struct ForkPart {
  void (*stop)() = nullptr;        // what other threads do under this part has ended on return
  void (*go_on)() = nullptr;       // in the parent
  void (*start_anew)() = nullptr;  // in the child
};

/// The order in which parts stop. Later ones first they go on.
enum class ForkOrder : uint8_t {
  work,            // runs that were scheduled; may need the host language to end
  code_generator,  // likewise, and it is given a kernel's time to end
  locks,           // all that are RankedMutex
  leaves,          // locks under which nothing else happens
};

/// From static initialisers.
void add_fork_part(ForkOrder order, ForkPart part);

/// The parts that may wait for the host language stop. Called by a host language before it takes
/// locks of its own for the fork; where it is not, the fork itself does this. A fork of this thread
/// must follow, or `end_fork`.
TORCH_LAZY_API void prepare_fork();

/// Everything goes on, where it does not yet.
TORCH_LAZY_API void end_fork();

}  // namespace torch_lazy
