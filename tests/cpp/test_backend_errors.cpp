// What a backend's mistakes do: errors that name it and the operator, and a device that goes on.
#include "backend_fixture.h"

namespace torch_lazy_tests {
namespace {

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

}  // namespace
}  // namespace torch_lazy_tests
