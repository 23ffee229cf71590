// Reports about graphs that run, for people: appended to the file LTC_SAVE_TENSORS_FILE, and logged
// where PyTorch's own logging of graphs is switched on (PYTORCH_JIT_LOG_LEVEL=lazy_graph_executor).
#pragma once

#include "ir/node.h"
#include <torch_lazy/graph.h>

#include <c10/util/ArrayRef.h>

#include <array>
#include <cstdint>
#include <string>

namespace torch_lazy {

/// A graph's hash as a hexadecimal number, high word first.
std::string hash_text(const std::array<uint64_t, 2>& hash);

/// Whether graphs are to be saved. Cheap; the first call reads LTC_SAVE_TENSORS_* from the
/// environment, so it belongs to a sync and nowhere else.
bool saves_graph_reports();

/// A graph that was scheduled and has not begun to run.
struct ScheduledGraph {
  const Graph& graph;
  c10::ArrayRef<c10::IValue> numbers;
  c10::ArrayRef<Node*> nodes;
  c10::DeviceIndex device = 0;
  bool cached = false;  // it had been compiled before
};

/// Appends a report about a graph to the file: where the program is, the hash, and the graph as
/// text, as dot, or as the backend sees it. Called by the thread that syncs, without the graph
/// lock.
void save_graph_report(const ScheduledGraph& scheduled);

/// Logs that a graph was compiled, or that a compiled one runs. Unless logging is switched on it
/// only looks, which is cheap.
void log_graph(const ScheduledGraph& scheduled);

}  // namespace torch_lazy
