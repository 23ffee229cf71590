// Collectives of torch.distributed, which are executed at once: what they write, and the objects
// that programs wait for.
#pragma once

#include "capture/call.h"

#include <utility>
#include <vector>

namespace torch_lazy {

/// A lazy tensor and the real one that stands for it in a call.
using TensorPair = std::pair<at::Tensor, at::Tensor>;

/// Whether an operator of c10d writes an argument; its schemas do not say.
bool collective_writes(const OperatorInfo& op, size_t argument);

/// The work that a collective gave, for programs on lazy tensors: its results are the lazy tensors,
/// and until it is done their memory is in use. Any other value as it is.
c10::IValue wrap_work(const Call& call, c10::IValue result, const std::vector<TensorPair>& pairs);

}  // namespace torch_lazy
