// Capture: what happens when an operator is called on lazy tensors.
#pragma once

#include "capture/call.h"

#include <ATen/core/dispatch/Dispatcher.h>

namespace torch_lazy {

/// The one boxed kernel: records any operator from its schema, or executes it at once.
void capture(const c10::OperatorHandle& op, Stack* stack);

/// Records a call whose description is known, and replaces the arguments on the stack by results.
void record(Call& call, Description& description, Stack* stack);

/// Runs what the call needs, calls the operator on real tensors and wraps its results. With
/// `observe_layouts`, later calls like it are recorded with the layouts seen here.
void execute_now(Call& call, Stack* stack, bool observe_layouts);

/// Counts the writes of a foreach operator as eager does; for all others autograd's kernels do.
void bump_versions(const Call& call);

/// Draws random numbers over the whole of the tensor the call writes.
void draw_now(Call& call, Stack* stack);

}  // namespace torch_lazy
