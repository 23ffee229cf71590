// Which operators a saved graph may call.
#pragma once

#include <torch_lazy/operator.h>

#include <string>
#include <vector>

namespace torch_lazy {

/// Why a file may not call this operator; empty: it may. By the operator's own facts: it computes
/// tensors of its arguments and does nothing else. `namespaces`: those besides aten that whoever
/// loads the file trusts.
std::string why_not_loadable(const OperatorInfo& op, const std::vector<std::string>& namespaces);

}  // namespace torch_lazy
