// Which pending nodes a request needs, in program order. Used under the graph lock.
#pragma once

#include "ir/trace.h"

#include <vector>

namespace torch_lazy {

/// Raises the error of an asked value that can never be computed. With `inside_run`, nodes that
/// need the results of a flight that is being executed are left out.
std::vector<Node*> select_nodes(const SyncRequest& request, bool inside_run);

}  // namespace torch_lazy
