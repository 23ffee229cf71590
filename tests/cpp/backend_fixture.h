// Backends for tests: an interpreter for a few operators whose every step a test can replace.
#pragma once

#include <torch_lazy/backend.h>
#include <torch_lazy/torch_lazy.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace torch_lazy_tests {

using torch_lazy::Description;
using torch_lazy::Graph;
using torch_lazy::GraphNode;
using RunState = torch_lazy::Run;  // `Run` is a member of gtest's class

const auto kLazy = torch::TensorOptions().device(torch::kLazy);

inline at::Tensor view(const c10::Storage& storage, const torch_lazy::Layout& layout) {
  return torch_lazy::make_strided(storage, c10::DispatchKeySet(c10::DispatchKey::CPU), layout);
}

/// Executes one node of the few operators that the test backends know.
inline void execute(const GraphNode& node, RunState& run) {
  const Description& d = *node.description;
  auto operand = [&](size_t i) { return view(run.slots[node.operands[i]], d.operands[i]); };
  auto other = [&] {
    return node.operands.size() > 1
               ? operand(1)
               : at::scalar_tensor(torch_lazy::number_value(run.numbers[node.first_number]));
  };
  const std::string& name = d.op->name;
  if (name.rfind("aten::add_.", 0) == 0) {
    operand(0).add_(other());
    run.slots[node.outputs[0]] = run.slots[node.operands[0]];
    return;
  }
  at::Tensor result = name == "aten::neg"                ? operand(0).neg()
                      : name.rfind("aten::add.", 0) == 0 ? operand(0) + other()
                                                         : operand(0) * other();
  if (node.outputs[0] >= 0) {
    run.slots[node.outputs[0]] = torch_lazy::storage_of_result(node, 0, result);
  }
}

/// A backend whose every step a test can replace.
class TestBackend : public torch_lazy::Backend {
 public:
  std::string name() const override { return "test"; }

  bool takes(const GraphNode& node) override {
    if (on_takes) {
      on_takes(node);
    }
    return taken.count(node.description->op->name) != 0;
  }

  std::shared_ptr<torch_lazy::Executable> compile(std::shared_ptr<const Graph> graph) override {
    graphs.push_back(graph);
    if (on_compile) {
      on_compile();
    }
    return std::make_shared<Interpreter>(*this, graph);
  }

  struct Interpreter : torch_lazy::Executable {
    Interpreter(TestBackend& owner, std::shared_ptr<const Graph> graph)
        : backend(owner), graph(std::move(graph)) {}

    void run(RunState& run) override {
      ++backend.runs;
      for (const torch_lazy::Parameter& p : graph->parameters) {
        if (p.fresh) {
          run.slots[p.slot] = torch_lazy::allocate(p.nbytes);
        }
      }
      for (size_t i = 0; i < graph->nodes.size(); ++i) {
        if (backend.on_node) {
          backend.on_node(graph->nodes[i], i, run);
        }
        execute(graph->nodes[i], run);
      }
      if (backend.on_end) {
        backend.on_end(*graph, run);
      }
    }

    std::string text() const override { return "interpreter\n"; }

    TestBackend& backend;
    std::shared_ptr<const Graph> graph;
  };

  void seed(uint64_t seed) override { seeds.push_back(seed); }

  void take_writes() { taken.insert({"aten::add_.Tensor", "aten::add_.Scalar"}); }

  std::set<std::string> taken{"aten::neg", "aten::add.Tensor", "aten::add.Scalar",
                              "aten::mul.Tensor", "aten::mul.Scalar"};
  std::function<void(const GraphNode&)> on_takes;
  std::function<void()> on_compile;
  std::function<void(const GraphNode&, size_t, RunState&)> on_node;
  std::function<void(const Graph&, RunState&)> on_end;
  std::vector<std::shared_ptr<const Graph>> graphs;
  std::vector<uint64_t> seeds;
  int runs = 0;
};

class BackendTest : public ::testing::Test {
 protected:
  void SetUp() override {
    torch_lazy::sync();
    torch_lazy::use_backend(backend);
  }

  void TearDown() override {
    torch_lazy::sync();
    torch_lazy::use_backend(nullptr);
  }

  std::shared_ptr<TestBackend> backend = std::make_shared<TestBackend>();
};

inline torch::Tensor ready(std::initializer_list<float> values) {
  return torch::tensor(std::vector<float>(values)).to(torch::kLazy);
}

inline std::string message_of(const std::function<void()>& function) {
  try {
    function();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

#define EXPECT_CONTAINS(text, part) \
  EXPECT_NE((text).find(part), std::string::npos) << "'" << (part) << "' is not in: " << (text)

/// Runs everything and waits for it.
inline void run_everything() {
  torch_lazy::sync();
  torch_lazy::wait_device_ops();
}

/// The device works, and an error that was raised is not raised again.
inline void expect_usable() {
  EXPECT_NO_THROW(run_everything());
  EXPECT_EQ(torch_lazy::pending_nodes(), 0);
  EXPECT_EQ((ready({2}) * 2).item<float>(), 4);
}

}  // namespace torch_lazy_tests
