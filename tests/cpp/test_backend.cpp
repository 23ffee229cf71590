// A backend in front of PyTorch's kernels: which nodes it gets, what it is told about their data,
// and how it is chosen.
#include "backend_fixture.h"
#include <torch_lazy/graph_executor.h>

#include <cstring>

namespace torch_lazy_tests {
namespace {

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

// ---- Opening a library --------------------------------------------------------------------------

TEST(OpenPlugin, SaysWhatIsWrongWithTheFile) {
  EXPECT_CONTAINS(message_of([] { torch_lazy::load_backend("/nowhere/backend.so"); }),
                  "'/nowhere/backend.so' was not found: there is no such file");
  EXPECT_CONTAINS(message_of([] { torch_lazy::load_backend("/proc/self/status"); }),
                  "/proc/self/status cannot be loaded");
  EXPECT_CONTAINS(message_of([] { torch_lazy::load_backend("/proc/self/exe"); }), "/proc/self/exe");
}

}  // namespace
}  // namespace torch_lazy_tests
