// Reports about graphs that run.
#include "runtime/graph_report.h"

#include "base/metrics.h"
#include "base/ranked_mutex.h"
#include "base/settings.h"
#include "ir/dump.h"
#include <torch_lazy/backend.h>
#include <torch_lazy/scope.h>

#include <torch/csrc/jit/jit_log.h>

#include <fstream>
#include <iomanip>
#include <iostream>
#include <mutex>
#include <sstream>
#include <utility>

namespace torch_lazy {
namespace {

std::string graph_in_format(SaveFormat format, const ScheduledGraph& scheduled) {
  if (format == SaveFormat::backend) {
    return scheduled.graph.text();
  }
  return dump_graph(scheduled.graph, scheduled.numbers, scheduled.nodes, scheduled.device,
                    format == SaveFormat::dot ? DumpFormat::dot : DumpFormat::text);
}

void append_to_file(const std::string& path, const std::string& text) {
  static auto* mutex = new RankedMutex(Rank::log);
  std::lock_guard<RankedMutex> lock(*mutex);
  std::ofstream file(path, std::ios_base::app);
  file << text;
  file.flush();
  if (!file) {
    static std::string told;
    if (std::exchange(told, path) != path) {
      std::cerr << "torch-lazy: cannot write graphs to " << path << " (LTC_SAVE_TENSORS_FILE)"
                << std::endl;
    }
  }
}

/// The backend's part of a report on metrics.
std::string backend_line() {
  const std::string own = backend().metrics();
  return "Backend: " + backend().name() + (own.empty() ? "" : "\n" + own);
}

[[maybe_unused]] const bool installed = [] {
  metrics::set_backend_line(&backend_line);
  return true;
}();

}  // namespace

std::string hash_text(const std::array<uint64_t, 2>& hash) {
  std::ostringstream out;
  out << std::hex;
  if (hash[0] != 0) {
    out << hash[0] << std::setfill('0') << std::setw(16);
  }
  out << hash[1];
  return out.str();
}

bool saves_graph_reports() {
  return !settings_at_sync().save_tensors_file.empty();
}

void save_graph_report(const ScheduledGraph& scheduled) {
  const Settings& s = settings();
  std::ostringstream out;
  out << "[ScheduleSyncTensorsGraph]\nPython Stacktrace:\n";
  for (const SourceLocation& frame : source_frames()) {
    out << "  " << frame.function << " (" << frame.file << ":" << frame.line << ")\n";
  }
  out << "\nHashes: (" << hash_text(scheduled.graph.hash) << ")\n\n## BEGIN_GRAPH\n"
      << graph_in_format(s.save_tensors_format, scheduled) << "\n## END_GRAPH\n\n\n";
  append_to_file(s.save_tensors_file.get(), out.str());
}

void log_graph(const ScheduledGraph& scheduled) {
  if (torch::jit::get_jit_logging_levels().empty() ||
      !torch::jit::is_enabled("lazy_graph_executor.cpp",
                              torch::jit::JitLoggingLevels::GRAPH_DUMP)) {
    return;
  }
  std::ostringstream out;
  if (!scheduled.cached) {
    out << "torch-lazy: Add a cached computation with hash " << hash_text(scheduled.graph.hash)
        << "\n";
  }
  out << "torch-lazy: " << (scheduled.cached ? "Run a cached graph: " : "Add a graph to cache: ")
      << scheduled.graph.text() << "\n";
  torch::jit::get_jit_logging_output_stream() << out.str();
}

}  // namespace torch_lazy
