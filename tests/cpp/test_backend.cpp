// A backend in front of PyTorch's kernels: which nodes it gets, what it is told about their data,
// and what its mistakes do.
#include "ir/node.h"
#include "runtime/backend_choice.h"
#include <torch_lazy/backend.h>
#include <torch_lazy/graph_executor.h>
#include <torch_lazy/torch_lazy.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <set>

namespace {

using torch_lazy::Description;
using torch_lazy::Graph;
using torch_lazy::GraphNode;
using RunState = torch_lazy::Run;  // `Run` is a member of gtest's class

const auto kLazy = torch::TensorOptions().device(torch::kLazy);

at::Tensor view(const c10::Storage& storage, const torch_lazy::Layout& layout) {
  return torch_lazy::make_strided(storage, c10::DispatchKeySet(c10::DispatchKey::CPU), layout);
}

/// Executes one node of the few operators that the test backends know.
void execute(const GraphNode& node, RunState& run) {
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

torch::Tensor ready(std::initializer_list<float> values) {
  return torch::tensor(std::vector<float>(values)).to(torch::kLazy);
}

std::string message_of(const std::function<void()>& function) {
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

TEST_F(BackendTest, GetsTheNodesItTakesAndPyTorchTheRest) {
  torch::Tensor x = ready({1, 2, 3});
  torch::Tensor y = ((-x).exp() * 2 + x).tanh().neg();
  torch::Tensor eager = torch::tensor({1.f, 2.f, 3.f});
  EXPECT_TRUE(torch::equal(y.cpu(), ((-eager).exp() * 2 + eager).tanh().neg()));
  ASSERT_EQ(backend->graphs.size(), 3u);  // neg; mul and add; neg
  EXPECT_EQ(backend->graphs[1]->nodes.size(), 2u);
  EXPECT_EQ(backend->graphs[1]->nodes[0].description->op->name, "aten::mul.Scalar");
  EXPECT_EQ(backend->runs, 3);
}

TEST_F(BackendTest, AGraphWithNothingForItIsNotGivenToIt) {
  torch::Tensor x = ready({1, 2});
  EXPECT_TRUE(torch::equal(x.exp().cpu(), torch::tensor({1.f, 2.f}).exp()));
  EXPECT_TRUE(backend->graphs.empty());
}

TEST_F(BackendTest, PartsKnowWhatDiesAndWhatIsNeededLater) {
  torch::Tensor x = ready({1, 2});
  torch::Tensor kept;
  torch::Tensor y;
  {
    torch::Tensor first = -x;  // x lives on; `first` dies in the plug-in's second part
    kept = first + x;          // a result that stays
    torch::Tensor aten = first.exp();
    y = aten + first;  // both operands die here
  }
  torch_lazy::sync();
  ASSERT_EQ(backend->graphs.size(), 2u);
  EXPECT_EQ(backend->graphs[0]->text(),
            "graph(%0: 8 bytes) {\n"
            "  %1: Float[2] = aten::neg(%0 Float[2])\n"
            "  %2: Float[2] = aten::add.Tensor(%1 Float[2], %0 Float[2])\n"
            "  return %1 %2\n"
            "}\n");
  EXPECT_EQ(backend->graphs[1]->text(),
            "graph(%0: 8 bytes donated, %1: 8 bytes donated) {\n"
            "  %2: Float[2] = aten::add.Tensor(%0 Float[2], %1 Float[2])\n"
            "  return %2\n"
            "}\n");
  EXPECT_NE(backend->graphs[0]->hash, backend->graphs[1]->hash);
  EXPECT_TRUE(torch::equal(kept.cpu(), torch::zeros({2})));
}

TEST_F(BackendTest, NumbersReachTheirNodes) {
  torch::Tensor x = ready({1, 2});
  for (int i = 1; i < 4; ++i) {
    torch::Tensor y = (x * i).exp() + 10 * i;
    EXPECT_TRUE(torch::equal(y.cpu(), (torch::tensor({1.f, 2.f}) * i).exp() + 10 * i));
  }
  EXPECT_EQ(backend->graphs.size(), 2u);  // compiled once
  EXPECT_EQ(backend->runs, 6);
}

TEST_F(BackendTest, ValuesAreFreedAtTheirLastUse) {
  torch::Tensor x = ready({1, 2});
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> made;
  std::vector<bool> alive;
  backend->on_node = [&](const GraphNode& node, size_t, RunState& run) {
    if (node.description->op->name == "aten::mul.Scalar") {  // before the second part's node
      for (auto& storage : made) {
        alive.push_back(!storage.expired());
      }
    }
    (void)run;
  };
  backend->on_end = [&](const Graph& graph, RunState& run) {
    for (uint32_t root : graph.roots) {
      made.emplace_back(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(
          run.slots[root].unsafeGetStorageImpl()));
    }
  };
  torch::Tensor y = (-x).exp() * 3;
  torch_lazy::sync();
  EXPECT_EQ(alive, std::vector<bool>{false});
}

TEST_F(BackendTest, WritesAcrossPartsKeepWhatReadersSaw) {
  backend->take_writes();
  auto program = [](torch::Tensor x) {
    torch::Tensor before = x.exp();
    x.add_(1);  // the plug-in writes
    torch::Tensor between = x.exp();
    x.mul_(2);  // PyTorch's kernel writes
    torch::Tensor after = -x;
    x.select(0, 1).add_(after.select(0, 0));  // through a view
    return torch::stack({before, between, after, x});
  };
  torch::Tensor lazy = program(ready({1, 2}));
  EXPECT_TRUE(torch::equal(lazy.cpu(), program(torch::tensor({1.f, 2.f}))));
  EXPECT_EQ(backend->runs, 2);
}

TEST_F(BackendTest, AWriteReusesMemoryAcrossParts) {
  backend->take_writes();
  torch::Tensor x = ready({1, 2});
  const void* before = torch_lazy::to_real(x).data_ptr();
  x.add_(1);
  x.mul_(2);
  x.add_(1);
  torch_lazy::sync();
  EXPECT_EQ(torch_lazy::to_real(x).data_ptr(), before);
  EXPECT_TRUE(torch::equal(x.cpu(), torch::tensor({5.f, 7.f})));
}

TEST_F(BackendTest, AWriteToMemorySharedWithAPlainTensorIsSeenThere) {
  backend->take_writes();
  backend->on_end = [](const Graph& graph,
                       RunState& run) {  // like a backend that never writes in place
    for (uint32_t root : graph.roots) {
      c10::Storage copy = torch_lazy::allocate(static_cast<int64_t>(run.slots[root].nbytes()));
      std::memcpy(copy.mutable_data(), run.slots[root].data(), run.slots[root].nbytes());
      run.slots[root] = copy;
    }
  };
  torch::Tensor plain = torch::ones({3});
  torch::Tensor lazy = torch_lazy::from_real(plain);
  lazy.add_(1);
  torch_lazy::sync();
  EXPECT_TRUE(torch::equal(plain, torch::full({3}, 2.0)));
}

TEST_F(BackendTest, FreshMemoryIsAllocatedWhereItIsNeeded) {
  backend->take_writes();
  torch::Tensor x = torch::empty({2}, kLazy);
  torch::Tensor y = torch::empty({2}, kLazy);
  x.zero_();
  x.add_(1);
  torch::Tensor z = -y;  // undefined, but there
  torch_lazy::sync();
  EXPECT_TRUE(torch::equal(x.cpu(), torch::ones({2})));
  EXPECT_TRUE(torch::equal(z.cpu(), -y.cpu()) || y.cpu().isnan().any().item<bool>());
}

TEST_F(BackendTest, ALargeGraphOfAlternatingPartsIsRight) {
  torch::Tensor x = ready({0.5, -0.5});
  torch::Tensor eager = torch::tensor({0.5f, -0.5f});
  for (int i = 0; i < 500; ++i) {
    x = (x + 1).tanh();
    eager = (eager + 1).tanh();
  }
  EXPECT_TRUE(torch::equal(x.cpu(), eager));
  EXPECT_EQ(backend->runs, 500);
}

// ---- Changing the backend -----------------------------------------------------------------------

TEST_F(BackendTest, GraphsCompiledBeforeFollowTheChange) {
  torch::Tensor x = ready({1, 2});
  (x * 2 + 1).cpu();
  EXPECT_EQ(backend->runs, 1);
  torch_lazy::use_backend(nullptr);
  (x * 2 + 1).cpu();
  EXPECT_EQ(backend->runs, 1);
  EXPECT_EQ(torch_lazy::backend().name(), "aten");
  torch_lazy::use_backend(backend);
  EXPECT_TRUE(torch::equal((x * 2 + 1).cpu(), torch::tensor({3.f, 5.f})));
  EXPECT_EQ(backend->runs, 2);
  EXPECT_EQ(torch_lazy::backend().name(), "test");
}

TEST_F(BackendTest, CannotBeChangedWhileSomethingIsPending) {
  torch::Tensor y = ready({1}) + 1;
  std::string message = message_of([] { torch_lazy::use_backend(nullptr); });
  EXPECT_CONTAINS(message, "1 recorded operations have not run");
  EXPECT_EQ(torch_lazy::backend().name(), "test");
  EXPECT_EQ(y.item<float>(), 2);
}

TEST_F(BackendTest, IsToldTheSeed) {
  const at::Device device(torch::kLazy, 0);
  torch_lazy::GraphExecutor::get().set_rng_seed(device, 7);
  torch_lazy::GraphExecutor::get().mark_step(device);
  EXPECT_EQ(backend->seeds, (std::vector<uint64_t>{7, 1012031 + 7012063 * 7}));
}

TEST_F(BackendTest, TextShowsTheParts) {
  torch::Tensor x = ready({1, 2});
  (-x).exp().cpu();
  // The whole graph, compiled once more, as the runtime does it.
  auto whole = std::make_shared<Graph>(*backend->graphs[0]);
  EXPECT_EQ(torch_lazy::backend().compile(whole)->text(), "backend test, 1 nodes:\ninterpreter\n");
}

// ---- Mistakes -----------------------------------------------------------------------------------

/// Runs everything and waits for it.
void run_everything() {
  torch_lazy::sync();
  torch_lazy::wait_device_ops();
}

/// The device works, and an error that was raised is not raised again.
void expect_usable() {
  EXPECT_NO_THROW(run_everything());
  EXPECT_EQ(torch_lazy::pending_nodes(), 0);
  EXPECT_EQ((ready({2}) * 2).item<float>(), 4);
}

TEST_F(BackendTest, AnErrorInTakesNamesBackendAndOperator) {
  backend->on_takes = [](const GraphNode& node) {
    if (node.description->op->name == "aten::mul.Tensor") {
      throw std::runtime_error("no idea");
    }
  };
  torch::Tensor x = ready({1});
  torch::Tensor untouched = x.exp();
  torch::Tensor bad = x * x;
  std::string message = message_of(run_everything);
  EXPECT_CONTAINS(message,
                  "backend 'test' failed in takes() of aten::mul.Tensor(Float[1], "
                  "Float[1]): no idea");
  EXPECT_CONTAINS(message_of([&] { bad.cpu(); }), "no idea");  // the second attempt
  backend->on_takes = nullptr;
  EXPECT_EQ(untouched.item<float>(), torch::tensor(1.f).exp().item<float>());
  EXPECT_EQ((x * x).item<float>(), 1);  // the same graph: asked again
  expect_usable();
}

TEST_F(BackendTest, AnErrorInCompileNamesBackendAndOperator) {
  backend->on_compile = [] { TORCH_CHECK_NOT_IMPLEMENTED(false, "no compiler"); };
  torch::Tensor x = ready({1});
  torch::Tensor untouched = x.exp();
  torch::Tensor bad = x * x;
  EXPECT_THROW(run_everything(), c10::NotImplementedError);
  std::string message = message_of([&] { bad.cpu(); });
  EXPECT_CONTAINS(message, "no compiler");
  EXPECT_CONTAINS(message, "backend 'test' failed in compile() of aten::mul.Tensor(Float[1]");
  backend->on_compile = nullptr;
  EXPECT_EQ(untouched.item<float>(), torch::tensor(1.f).exp().item<float>());
  EXPECT_EQ((x * x).item<float>(), 1);  // nothing that failed is kept
  expect_usable();
}

TEST_F(BackendTest, AnErrorInRunFailsThePartAndReadingTriesAgain) {
  torch::Tensor x = ready({1});
  torch::Tensor first = x.exp();
  torch::Tensor a = x + x;
  torch::Tensor b = x * x;
  torch::Tensor independent = x.tanh();
  backend->on_node = [](const GraphNode&, size_t i, RunState&) {
    if (i == 1) {
      throw std::runtime_error("it broke");
    }
  };
  std::string message = message_of(run_everything);
  EXPECT_CONTAINS(message,
                  "backend 'test' failed in run() of aten::add.Tensor(Float[1], "
                  "Float[1]), aten::mul.Tensor(Float[1], Float[1]): it broke");
  expect_usable();  // though the backend still breaks on such graphs
  EXPECT_FALSE(torch_lazy::is_pending(first));
  EXPECT_FALSE(torch_lazy::is_pending(independent));
  EXPECT_TRUE(torch_lazy::is_pending(a));
  backend->on_node = nullptr;
  EXPECT_EQ(a.item<float>(), 2);
  EXPECT_EQ(b.item<float>(), 1);
  EXPECT_EQ(first.item<float>(), torch::tensor(1.f).exp().item<float>());
  EXPECT_EQ(independent.item<float>(), torch::tensor(1.f).tanh().item<float>());
  expect_usable();
}

TEST_F(BackendTest, ABackendThatSaysWhichNodeFailedKeepsTheOthers) {
  torch::Tensor x = ready({1});
  torch::Tensor a = x + x;
  torch::Tensor b = x * x;
  torch::Tensor c = -x;
  backend->on_node = [](const GraphNode&, size_t i, RunState& run) {
    run.completed = i;
    run.failed = 1;
    TORCH_CHECK_INDEX(i != 1, "it broke");
  };
  EXPECT_THROW(run_everything(), c10::IndexError);
  EXPECT_FALSE(torch_lazy::is_pending(a));
  EXPECT_TRUE(torch_lazy::is_pending(c));
  backend->on_node = nullptr;
  EXPECT_EQ(a.item<float>(), 2);
  EXPECT_EQ(c.item<float>(), -1);
  EXPECT_CONTAINS(message_of([&] { b.cpu(); }), "raised by aten::mul.Tensor(Float[1], Float[1])");
  expect_usable();
}

TEST_F(BackendTest, WhatAFailedPartMayHaveOverwrittenIsNotReadAgain) {
  backend->take_writes();
  torch::Tensor x = ready({1});
  torch::Tensor y = ready({1});
  x.add_(1);
  torch::Tensor z = y + 1;
  backend->on_end = [](const Graph&, RunState&) { throw std::runtime_error("late"); };
  EXPECT_CONTAINS(message_of(run_everything), "late");
  backend->on_end = nullptr;
  EXPECT_CONTAINS(message_of([&] { x.cpu(); }), "late");
  EXPECT_EQ(y.item<float>(), 1);
  EXPECT_EQ(z.item<float>(), 2);
  x.fill_(3);
  EXPECT_EQ(x.item<float>(), 3);
  expect_usable();
}

TEST_F(BackendTest, AFailureBeforeAnythingWasWrittenLosesNothing) {
  backend->take_writes();
  torch::Tensor x = ready({1});
  x.add_(1);
  backend->on_compile = [] { throw std::runtime_error("no compiler"); };
  EXPECT_CONTAINS(message_of(run_everything), "no compiler");
  backend->on_compile = nullptr;
  EXPECT_EQ(x.item<float>(), 2);
  expect_usable();
}

struct Mistake {
  const char* name;
  std::function<void(const Graph&, RunState&)> make;
  const char* message;
};

class BackendMistakes : public BackendTest, public ::testing::WithParamInterface<Mistake> {};

TEST_P(BackendMistakes, NameBackendAndOperator) {
  torch::Tensor x = ready({1, 2});
  torch::Tensor untouched = x.exp();
  torch::Tensor bad = x * x;
  backend->on_end = GetParam().make;
  std::string message = message_of(run_everything);
  EXPECT_CONTAINS(message, "backend 'test'");
  EXPECT_CONTAINS(message, "aten::mul.Tensor(Float[2], Float[2])");
  EXPECT_CONTAINS(message, GetParam().message);
  torch::Tensor worse = x * x;
  EXPECT_CONTAINS(message_of([&] { worse.cpu(); }), GetParam().message);
  backend->on_end = nullptr;
  EXPECT_TRUE(torch::equal(bad.cpu(), torch::tensor({1.f, 4.f})));  // the second attempt
  EXPECT_TRUE(torch::equal(untouched.cpu(), torch::tensor({1.f, 2.f}).exp()));
  EXPECT_TRUE(torch::equal((x * x).cpu(), torch::tensor({1.f, 4.f})));
  expect_usable();
}

const Mistake kMistakes[] = {
    {"NoResult", [](const Graph& g, RunState& r) { r.slots[g.roots[0]] = c10::Storage(); },
     "gave no data for result 0 of"},
    {"TooFewSlots", [](const Graph&, RunState& r) { r.slots.clear(); },
     "left 0 slots where there were"},
    {"TooManySlots", [](const Graph&, RunState& r) { r.slots.resize(9); },
     "left 9 slots where there were"},
    {"TooSmall", [](const Graph& g, RunState& r) { r.slots[g.roots[0]] = torch_lazy::allocate(4); },
     "gave 4 bytes for result 0"},
    {"TooLarge",
     [](const Graph& g, RunState& r) { r.slots[g.roots[0]] = torch_lazy::allocate(16); },
     "gave 16 bytes for result 0"},
    {"WrongShape",
     [](const Graph& g, RunState& r) {
       r.slots[g.roots[0]] = torch_lazy::storage_of_result(g.nodes[0], 0, torch::ones({2, 1}));
     },
     "gave Float[2, 1] where Float[2] was promised"},
    {"WrongDtype",
     [](const Graph& g, RunState& r) {
       r.slots[g.roots[0]] =
           torch_lazy::storage_of_result(g.nodes[0], 0, torch::ones({2}, torch::kInt));
     },
     "gave Int[2] where Float[2] was promised"},
    {"Aliases",
     [](const Graph& g, RunState& r) { r.slots[g.roots[0]] = r.slots[g.parameters[0].slot]; },
     "gave memory that another value uses"},
    {"NoException", [](const Graph&, RunState&) { throw 42; },
     "threw something that is no std::exc"},
};

INSTANTIATE_TEST_SUITE_P(All, BackendMistakes, ::testing::ValuesIn(kMistakes),
                         [](const auto& info) { return info.param.name; });

// ---- Memory of its own --------------------------------------------------------------------------

/// Keeps data elsewhere and inverted, so that data which was not moved is noticed.
class FarBackend : public TestBackend {
 public:
  std::string name() const override { return "far"; }
  std::string device_type() const override { return "FAR"; }
  at::Device memory() const override { return at::Device(at::kXLA, 0); }

  c10::Storage upload(const c10::Storage& real) override {
    ++uploads;
    return invert(real, memory());
  }

  c10::Storage download(const c10::Storage& own) override {
    ++downloads;
    EXPECT_EQ(own.device(), memory());
    return invert(own, at::Device(at::kCPU));
  }

  std::shared_ptr<torch_lazy::Executable> compile(std::shared_ptr<const Graph> graph) override {
    return std::make_shared<FarExecutable>(*this, TestBackend::compile(graph), graph);
  }

  static c10::Storage invert(const c10::Storage& from, at::Device device) {
    auto* bytes = new std::vector<unsigned char>(from.nbytes());
    for (size_t i = 0; i < bytes->size(); ++i) {
      (*bytes)[i] = ~static_cast<const unsigned char*>(from.data())[i];
    }
    c10::DataPtr pointer(
        bytes->data(), bytes,
        [](void* context) { delete static_cast<std::vector<unsigned char>*>(context); }, device);
    return c10::Storage(c10::Storage::use_byte_size_t(), from.nbytes(), std::move(pointer));
  }

  struct FarExecutable : torch_lazy::Executable {
    FarExecutable(FarBackend& owner, std::shared_ptr<Executable> inner,
                  std::shared_ptr<const Graph> graph)
        : backend(owner), inner(std::move(inner)), graph(std::move(graph)) {}

    void run(RunState& run) override {
      for (c10::Storage& slot : run.slots) {
        if (slot) {
          EXPECT_EQ(slot.device(), backend.memory());
          slot = invert(slot, at::Device(at::kCPU));
        }
      }
      inner->run(run);
      for (c10::Storage& slot : run.slots) {
        if (slot) {
          slot = invert(slot, backend.memory());
        }
      }
    }

    FarBackend& backend;
    std::shared_ptr<torch_lazy::Executable> inner;
    std::shared_ptr<const Graph> graph;
  };

  int uploads = 0;
  int downloads = 0;
};

void use_far_backend() {
  auto far = std::make_shared<FarBackend>();
  far->take_writes();
  torch::Tensor made_before = torch::ones({3}, kLazy) * 2;
  torch_lazy::sync();
  torch_lazy::use_backend(far);
  EXPECT_EQ(torch_lazy::backend().device_type(), "FAR");

  torch::Tensor plain = torch::ones({3});
  torch::Tensor shared = torch_lazy::from_real(plain);
  torch::Tensor y = ((made_before + shared).exp() * 2 + made_before).tanh();
  torch::Tensor e = ((torch::full({3}, 2.f) + 1).exp() * 2 + 2).tanh();
  EXPECT_TRUE(torch::equal(y.cpu(), e));
  shared.add_(made_before);
  torch_lazy::sync();
  EXPECT_TRUE(torch::equal(plain, torch::full({3}, 3.f)));  // shared memory stays shared

  // What the backend has stays with it from run to run.
  torch::Tensor weight = torch::ones({3}, kLazy) + 0;
  torch_lazy::sync();
  weight.add_(made_before);
  torch_lazy::sync();
  const int uploads = far->uploads;
  const int downloads = far->downloads;
  for (int i = 0; i < 5; ++i) {
    weight.add_(made_before);
    torch_lazy::sync();
  }
  EXPECT_EQ(far->uploads, uploads);
  EXPECT_EQ(far->downloads, downloads);
  EXPECT_TRUE(torch::equal(weight.cpu(), torch::full({3}, 13.f)));
  EXPECT_EQ(far->downloads, downloads + 1);
  EXPECT_TRUE(torch::equal(made_before.cpu(), torch::full({3}, 2.f)));
  EXPECT_TRUE(torch::equal((weight.exp() + 1).cpu(), torch::full({3}, 13.f).exp() + 1));

  EXPECT_CONTAINS(message_of([] { torch_lazy::use_backend(nullptr); }), "cannot be replaced");
}

// In a process of its own: such a backend stays.
TEST(FarBackendDeathTest, DataIsMovedWhereItIsNeeded) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        use_far_backend();
        std::_Exit(::testing::Test::HasFailure() ? 1 : 0);
      },
      ::testing::ExitedWithCode(0), "");
}

// ---- Opening a library --------------------------------------------------------------------------

TEST(OpenPlugin, SaysWhatIsWrongWithTheFile) {
  EXPECT_CONTAINS(message_of([] { torch_lazy::load_backend("/nowhere/backend.so"); }),
                  "'/nowhere/backend.so' was not found: there is no such file");
  EXPECT_CONTAINS(message_of([] { torch_lazy::load_backend("/proc/self/status"); }),
                  "/proc/self/status cannot be loaded");
  EXPECT_CONTAINS(message_of([] { torch_lazy::load_backend("/proc/self/exe"); }), "/proc/self/exe");
}

}  // namespace
