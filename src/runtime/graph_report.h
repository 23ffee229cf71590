// Reports about graphs that run, for people: appended to the file LTC_SAVE_TENSORS_FILE, and logged
// where PyTorch's own logging of graphs is switched on (PYTORCH_JIT_LOG_LEVEL=lazy_graph_executor).
#pragma once

#include "ir/node.h"

#include <c10/util/ArrayRef.h>

#include <array>
#include <cstdint>
#include <functional>
#include <string>

namespace torch_lazy {

using GraphHash = std::array<uint64_t, 2>;  // high word, low word

/// 32 hexadecimal digits, without the zeros in front.
std::string hash_text(const GraphHash& hash);

/// Whether graphs are to be saved. Cheap; the first call reads LTC_SAVE_TENSORS_* from the
/// environment, so it belongs to a sync and nowhere else.
bool saves_graph_reports();

/// Appends a report about a graph that is about to run: where the program is, the hashes, and the
/// graph behind `roots` as text, as dot, or as `backend_text` gives it. Called by the thread that
/// syncs, without the graph lock, while the nodes and the roots stay what they are.
void save_graph_report(c10::ArrayRef<const Value*> roots, c10::ArrayRef<GraphHash> hashes,
                       const std::function<std::string()>& backend_text);

/// Logs that a graph was compiled, or that a compiled one runs. Unless logging is switched on it
/// only looks, which is cheap.
void log_graph(bool cached, const GraphHash& hash,
               const std::function<std::string()>& backend_text);

}  // namespace torch_lazy
