// The plan that needs no compiler and gives eager's bits: operator by operator, in the order in
// which they were recorded.
#pragma once

#include "backends/aten/interpreter.h"

#include <exception>

namespace torch_lazy {

/// About how many bytes the instructions for a graph take, over so many slots.
int64_t interpreter_bytes(const Graph& graph, size_t slots);

class AtenPlan : public Executable {
 public:
  explicit AtenPlan(const std::shared_ptr<const Graph>& graph);

  void run(Run& run) override { run_until(run, graph_->nodes.size(), nullptr); }

  /// Runs as if `node` had raised `error`: what comes before it is executed.
  void run_until(Run& run, size_t node, const std::exception_ptr& error);

  std::string text() const override { return graph_->text(); }
  int64_t bytes() const override { return interpreter_bytes(*graph_, graph_->slots); }

 private:
  std::shared_ptr<const Graph> graph_;
  Interpreter interpreter_;
};

}  // namespace torch_lazy
