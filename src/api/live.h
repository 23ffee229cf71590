// A buffer as the executor shows it.
#pragma once

#include "ir/node.h"
#include <torch_lazy/graph_executor.h>

namespace torch_lazy {

/// Needs the graph lock.
inline LiveTensor describe(const Buffer& buffer) {
  return {static_cast<int64_t>(buffer.id), at::Device(at::kLazy, buffer.device), buffer.nbytes,
          buffer.current && buffer.current->pending()};
}

}  // namespace torch_lazy
