// Runs a graph with two backends: a plug-in executes the nodes that it takes, the base backend the
// rest. What the plug-in does is checked, and what it does wrong is an error that names it.
#pragma once

#include <torch_lazy/backend.h>

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>

namespace torch_lazy {

struct Compilation {
  std::shared_ptr<Executable> executable;
  bool failed = false;  // the plug-in failed: what it raised is raised by the executable
};

Compilation compile_parts(std::shared_ptr<const Graph> graph, Backend& plugin, Backend& base);

/// A graph in parts of the base backend's: the nodes that are `alone`, each by itself, and what is
/// between them.
std::shared_ptr<Executable> compile_apart(
    const Graph& graph, const std::function<bool(const GraphNode&)>& alone,
    const std::function<std::shared_ptr<Executable>(std::shared_ptr<const Graph>, bool alone)>&
        compile);

/// Raises the exception in flight again, saying which backend raised it and where.
[[noreturn]] void raise_from(const std::string& backend, const std::string& where);

}  // namespace torch_lazy
