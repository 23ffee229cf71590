// Reuse of what was recorded before: one path, a fork, and syncs that know their plan.
#include "executor_testing.h"
#include "ir/trace.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <thread>

namespace {

using torch_lazy::Trace;
using torch_lazy::testing::count;
using torch_lazy::testing::kDevice;
using torch_lazy::testing::Setting;

int64_t reused() {
  int64_t sum = 0;
  for (const std::string& name : torch_lazy::counter_names()) {
    if (name.rfind("IrNodeReused_", 0) == 0) {
      sum += count(name);
    }
  }
  return sum;
}

class Traces : public ::testing::Test {
 protected:
  void SetUp() override {
    x = torch::ones({4}).to(kDevice);
    torch_lazy::mark_step(/*wait=*/true);
    torch_lazy::GraphExecutor::get().clear_computation_cache();
    Trace::of_this_thread().reset();
    torch_lazy::reset_metrics();
  }

  /// Three operations; the last one is another one if `other`.
  torch::Tensor step(bool other = false, double number = 2) const {
    torch::Tensor y = (x * number).exp();
    y = other ? y.cos() : y.sin();
    torch_lazy::mark_step(/*wait=*/true);
    return y;
  }

  torch::Tensor x;
};

TEST_F(Traces, ARepeatedPathIsReused) {
  torch::Tensor first = step();
  EXPECT_EQ(reused(), 0);
  const size_t steps = Trace::of_this_thread().steps();
  torch::Tensor second = step();
  EXPECT_EQ(reused(), 3);
  EXPECT_EQ(count("TrieForked"), 0);
  EXPECT_EQ(Trace::of_this_thread().steps(), steps);
  EXPECT_TRUE(torch::equal(first.cpu(), second.cpu()));
  EXPECT_EQ(count("UncachedCompile"), 1);
}

TEST_F(Traces, APathForksWhereItDiffersAndBothBranchesAreReused) {
  step();
  torch::Tensor other = step(/*other=*/true);
  EXPECT_EQ(reused(), 2);
  EXPECT_EQ(count("TrieForked"), 1);
  EXPECT_TRUE(torch::equal(other.cpu(), (x.cpu() * 2).exp().cos()));
  for (int i = 0; i < 4; ++i) {
    torch::Tensor y = step(/*other=*/i % 2 == 0);
    EXPECT_TRUE(
        torch::equal(y.cpu(), i % 2 == 0 ? (x.cpu() * 2).exp().cos() : (x.cpu() * 2).exp().sin()));
  }
  EXPECT_EQ(reused(), 2 + 4 * 3);
  EXPECT_EQ(count("TrieForked"), 1);
  EXPECT_EQ(count("UncachedCompile"), 2);
}

TEST_F(Traces, NumbersAreReadAnewOnAReusedPath) {
  step();
  torch::Tensor y = step(/*other=*/false, 3.5);
  EXPECT_EQ(reused(), 3);
  EXPECT_TRUE(torch::equal(y.cpu(), (x.cpu() * 3.5).exp().sin()));
}

TEST_F(Traces, OtherDataInTheSamePlacesIsOnThePath) {
  step();
  x = torch::full({4}, 0.25).to(kDevice);
  torch::Tensor y = step();
  EXPECT_EQ(reused(), 3);
  EXPECT_TRUE(torch::equal(y.cpu(), (x.cpu() * 2).exp().sin()));
}

TEST_F(Traces, OtherShapesAreAnotherPath) {
  step();
  x = torch::ones({5}).to(kDevice);
  torch::Tensor y = step();
  EXPECT_EQ(reused(), 0);
  EXPECT_EQ(count("TrieForked"), 1);
  EXPECT_TRUE(torch::equal(y.cpu(), (x.cpu() * 2).exp().sin()));
}

TEST_F(Traces, SwitchedOffNothingIsReused) {
  Setting off("TORCH_LAZY_REUSE_IR", "0");
  step();
  torch::Tensor y = step();
  EXPECT_EQ(reused(), 0);
  EXPECT_TRUE(torch::equal(y.cpu(), (x.cpu() * 2).exp().sin()));
}

TEST_F(Traces, ThreadsHaveTracesOfTheirOwn) {
  step();
  std::thread([this] { step(); }).join();
  EXPECT_EQ(reused(), 0);
  step();
  EXPECT_EQ(reused(), 3);
}

}  // namespace
