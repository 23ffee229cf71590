#include "backends/cpu/checked_plan.h"

#include "backends/aten/aten_plan.h"
#include "backends/cpu/cpu_plan.h"
#include "runtime/partition.h"
#include "runtime/real_tensor.h"

#include <ATen/ATen.h>

namespace torch_lazy {
namespace {

/// Relative to the element and to the largest one of its tensor.
double tolerance(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return 1e-9;
    case at::kHalf:
      return 1e-2;
    case at::kBFloat16:
      return 4e-2;
    default:
      return 1e-3;
  }
}

/// What differs between two tensors, or nothing.
std::string difference(const at::Tensor& wanted, const at::Tensor& found) {
  if (!wanted.is_floating_point()) {
    if (wanted.is_complex() || at::equal(wanted, found)) {
      return "";
    }
  }
  const at::Tensor a = wanted.to(at::kDouble).flatten();
  const at::Tensor b = found.to(at::kDouble).flatten();
  const double relative = wanted.is_floating_point() ? tolerance(wanted.scalar_type()) : 0;
  const at::Tensor magnitudes = a.nan_to_num(0, 0, 0).abs();
  const double largest = magnitudes.numel() ? std::min(magnitudes.max().item<double>(), 1e4) : 0;
  const at::Tensor wrong =
      at::isclose(b, a, relative, relative * std::max(largest, 1e-2), /*equal_nan=*/true)
          .logical_not();
  const int64_t count = wrong.sum().item<int64_t>();
  if (count == 0) {
    return "";
  }
  const int64_t at = wrong.to(at::kByte).argmax().item<int64_t>();
  return c10::str(count, " of ", a.numel(), " elements differ, element ", at, " is ",
                  b[at].item<double>(), " instead of ", a[at].item<double>());
}

/// A run of a graph over copies of its data.
Run copy_of_run(const Graph& graph, const Run& run) {
  Run copy;
  copy.slots.resize(graph.slots);
  copy.numbers = run.numbers;
  for (const Parameter& parameter : graph.parameters) {
    const c10::Storage& data = run.slots[parameter.slot];
    if (data) {
      copy.slots[parameter.slot] = parameter.donated ? copy_of(data) : data;
    }
  }
  return copy;
}

std::string first_difference(const GraphNode& node, const Run& wanted, const Run& found) {
  for (size_t k = 0; k < node.outputs.size(); ++k) {
    const int32_t slot = node.outputs[k];
    if (slot < 0 || !wanted.slots[slot] || !found.slots[slot]) {
      continue;
    }
    const Layout& layout = node.description->output_layout(k);
    const std::string text =
        difference(real_tensor(wanted.slots[slot], layout), real_tensor(found.slots[slot], layout));
    if (!text.empty()) {
      return text;
    }
  }
  return "";
}

class CheckedPlan : public Executable {
 public:
  explicit CheckedPlan(const std::shared_ptr<const Graph>& graph)
      : graph_(graph), aten_(graph), compiled_(make_cpu_plan(graph)) {}

  void run(Run& run) override {
    BelowEverything below;
    Run copy = copy_of_run(*graph_, run);
    Run alone = copy_of_run(*graph_, run);
    aten_.run(run);
    const size_t completed = run.completed;
    compiled_->run(copy);
    for (size_t i = 0; i < graph_->nodes.size(); ++i) {
      const std::string text = first_difference(graph_->nodes[i], run, copy);
      if (!text.empty()) {
        run.remarks.push_back(find_culprit(i, text, alone));
        break;
      }
    }
    run.completed = completed;
  }

  std::string text() const override { return compiled_->text(); }
  int64_t bytes() const override { return aten_.bytes() + compiled_->bytes(); }

 private:
  /// Node by node: if one alone differs, it is the one.
  Remark find_culprit(size_t node, const std::string& text, Run& run) {
    std::vector<Owner> owners;
    for (size_t i = 0; i < graph_->nodes.size(); ++i) {
      owners.push_back(i % 2 ? Owner::base : Owner::plugin);  // each a part of its own
    }
    for (Subgraph& part : partition(*graph_, owners)) {
      auto graph = std::make_shared<const Graph>(std::move(part.graph));
      Run local;
      local.slots.resize(graph->slots);
      auto numbers = run.numbers.begin() + part.first_number;
      local.numbers.assign(numbers, numbers + graph->numbers);
      for (const Parameter& parameter : graph->parameters) {
        local.slots[parameter.slot] = run.slots[part.slots[parameter.slot]];
      }
      Run compiled = copy_of_run(*graph, local);
      Run wanted = copy_of_run(*graph, local);
      AtenPlan(graph).run(wanted);
      make_cpu_plan(graph)->run(compiled);
      const std::string alone = first_difference(graph->nodes[0], wanted, compiled);
      if (!alone.empty()) {
        return {part.begin, "torch-lazy: compiled, " + call(part.begin) + " differs: " + alone};
      }
      for (uint32_t root : graph->roots) {
        run.slots[part.slots[root]] = wanted.slots[root];
      }
    }
    return {node, "torch-lazy: compiled together with others, " + call(node) +
                      " differs (alone it does not): " + text};
  }

  std::string call(size_t index) const {
    return graph_->nodes[index].description->call_text() + ", operator " + std::to_string(index) +
           " of the graph,";
  }

  std::shared_ptr<const Graph> graph_;
  AtenPlan aten_;
  std::shared_ptr<Executable> compiled_;
};

}  // namespace

std::shared_ptr<Executable> make_checked_plan(const std::shared_ptr<const Graph>& graph) {
  return std::make_shared<CheckedPlan>(graph);
}

}  // namespace torch_lazy
