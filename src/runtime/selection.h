// Which pending nodes a request needs, in program order. Used under the graph lock.
#pragma once

#include "ir/trace.h"

#include <memory>
#include <vector>

namespace torch_lazy {

/// Why one of the asked values can never be computed; null: nothing is known. To be raised after
/// unlocking.
std::shared_ptr<Failure> find_failure(const SyncRequest& request);

/// With `inside_run`, nodes that need the results of a flight that is being executed are left out.
std::vector<Node*> select_nodes(const SyncRequest& request, bool inside_run);

}  // namespace torch_lazy
