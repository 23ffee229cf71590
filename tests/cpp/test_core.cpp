// Buffers, values, nodes: what is recorded, what runs, what is freed.
#include "eager_bits.h"
#include "ir/node.h"
#include <torch_lazy/torch_lazy.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <thread>

namespace {

using torch_lazy::counter_value;
using torch_lazy::is_pending;
using torch_lazy::pending_nodes;

const auto kLazy = torch::TensorOptions().device(torch::kLazy);

int64_t count(const std::string& name) {
  return counter_value(name).value_or(0);
}

int64_t bytes_allocated() {
  torch_lazy::GraphLock lock;
  return torch_lazy::Program::instance().bytes_allocated();
}

class Core : public ::testing::Test {
 protected:
  void SetUp() override {
    torch_lazy::sync();
    torch_lazy::reset_metrics();
  }
};

TEST_F(Core, RecordsWithoutRunning) {
  torch::Tensor x = torch::ones({2, 3}, kLazy);
  torch::Tensor y = x + 1;
  EXPECT_TRUE(is_pending(y));
  EXPECT_EQ(count("UncachedCompile") + count("CachedCompile"), 0);
  EXPECT_TRUE(torch::equal(y.cpu(), torch::full({2, 3}, 2.0)));
  EXPECT_FALSE(is_pending(y));
}

TEST_F(Core, AValueIsComputedOnce) {
  torch::Tensor y = torch::ones({4}, kLazy).exp();
  y.cpu();
  int64_t runs = count("UncachedCompile") + count("CachedCompile");
  y.cpu();
  EXPECT_EQ(count("UncachedCompile") + count("CachedCompile"), runs);
}

TEST_F(Core, WhatNothingReachesIsNeverRun) {
  int64_t before = pending_nodes();
  {
    torch::Tensor x = torch::ones({3}, kLazy);
    for (int i = 0; i < 10; ++i) {
      x = x * 2;
    }
    EXPECT_GT(pending_nodes(), before);
  }
  EXPECT_EQ(pending_nodes(), before);
  torch_lazy::sync();
  EXPECT_EQ(count("UncachedCompile") + count("CachedCompile"), 0);
}

TEST_F(Core, LongChainsAreFreedWithoutRecursion) {
  torch_lazy::set_setting("TORCH_LAZY_MAX_NODES", "0");
  {
    torch::Tensor x = torch::ones({1}, kLazy);
    for (int i = 0; i < 200000; ++i) {
      x = x + 1;
    }
  }
  torch_lazy::set_setting("TORCH_LAZY_MAX_NODES", "50000");
  EXPECT_EQ(pending_nodes(), 0);
}

TEST_F(Core, ViewsMakeNoNode) {
  torch::Tensor x = torch::arange(12, kLazy).reshape({3, 4});
  torch_lazy::sync();
  torch::Tensor v = x.t().select(0, 1).narrow(0, 0, 2).unsqueeze(0);
  EXPECT_EQ(pending_nodes(), 0);
  EXPECT_TRUE(v.is_alias_of(x));
  EXPECT_EQ(v.storage_offset(), 1);
  EXPECT_TRUE(torch::equal(v.cpu(), torch::tensor({{1, 5}})));
}

TEST_F(Core, WritesThroughViewsAreSeenByTheBaseAndOtherViews) {
  torch::Tensor x = torch::zeros({2, 3}, kLazy);
  torch::Tensor row = x.select(0, 1);
  torch::Tensor column = x.select(1, 2);
  row.add_(1);
  column.mul_(5);
  EXPECT_TRUE(torch::equal(x.cpu(), torch::tensor({{0., 0., 0.}, {1., 1., 5.}})));
  EXPECT_TRUE(torch::equal(column.cpu(), torch::tensor({0., 5.})));
}

TEST_F(Core, ReadersKeepTheVersionTheyRead) {
  torch::Tensor x = torch::ones({3}, kLazy);
  torch::Tensor before = x + 0;
  x.add_(1);
  torch::Tensor after = x + 0;
  EXPECT_TRUE(torch::equal(after.cpu(), torch::full({3}, 2.0)));
  EXPECT_TRUE(torch::equal(before.cpu(), torch::ones({3})));
}

TEST_F(Core, PartialRunLeavesTheRestPending) {
  torch::Tensor x = torch::ones({3}, kLazy);
  torch::Tensor a = x + 1;
  torch::Tensor b = x * 3;
  a.cpu();
  EXPECT_TRUE(is_pending(b));
  EXPECT_TRUE(torch::equal(b.cpu(), torch::full({3}, 3.0)));
}

TEST_F(Core, PartialRunOfAWriteRunsThePendingReadersFirst) {
  torch::Tensor x = torch::ones({1024}, kLazy);
  torch_lazy::sync();
  torch::Tensor reader = x * 2;
  x.add_(10);
  EXPECT_TRUE(torch::equal(x.cpu(), torch::full({1024}, 11.0)));
  EXPECT_FALSE(is_pending(reader));
  EXPECT_TRUE(torch::equal(reader.cpu(), torch::full({1024}, 2.0)));
}

TEST_F(Core, InPlaceUpdateReusesTheMemoryOfTheDeadValue) {
  torch::Tensor x = torch::ones({4096}, kLazy);
  torch_lazy::sync();
  const void* before = torch_lazy::to_real(x).data_ptr();
  for (int i = 0; i < 3; ++i) {
    x.add_(1);
  }
  torch_lazy::sync();
  EXPECT_EQ(torch_lazy::to_real(x).data_ptr(), before);
  EXPECT_TRUE(torch::equal(x.cpu(), torch::full({4096}, 4.0)));
}

TEST_F(Core, IntermediatesAreNotKept) {
  torch::Tensor x = torch::ones({1 << 16}, kLazy);
  torch_lazy::sync();
  int64_t before = bytes_allocated();
  torch::Tensor y = ((x + 1) * 2 - 3).sum();
  torch_lazy::sync();
  EXPECT_EQ(bytes_allocated(), before + 4);
  EXPECT_EQ(y.item<float>(), 1 << 16);
}

TEST_F(Core, NumbersAreInputsOfOneGraph) {
  torch::Tensor x = torch::ones({8}, kLazy);
  torch_lazy::sync();
  torch_lazy::reset_metrics();
  for (int i = 0; i < 20; ++i) {
    torch::Tensor y = x * (0.5 + i) + i;
    EXPECT_FLOAT_EQ(y.cpu()[0].item<float>(), 0.5f + i + i);
  }
  EXPECT_EQ(count("UncachedCompile"), 1);
  EXPECT_EQ(count("CachedCompile"), 19);
}

TEST_F(Core, TheLiveSetIsPartOfTheGraph) {
  torch::Tensor x = torch::ones({8}, kLazy);
  torch_lazy::sync();
  torch_lazy::reset_metrics();
  for (int i = 0; i < 2; ++i) {
    torch::Tensor y = x + 1;
    torch::Tensor z = y * 2;
    torch_lazy::sync();
    EXPECT_TRUE(torch::equal(y.cpu(), torch::full({8}, 2.0)));
  }
  for (int i = 0; i < 2; ++i) {
    torch::Tensor z = (x + 1) * 2;  // the sum dies: another graph
    torch_lazy::sync();
    EXPECT_TRUE(torch::equal(z.cpu(), torch::full({8}, 4.0)));
  }
  EXPECT_EQ(count("UncachedCompile"), 2);
  EXPECT_EQ(count("CachedCompile"), 2);
}

TEST_F(Core, ParameterOrderIsPartOfTheGraph) {
  torch::Tensor a = torch::ones({2}, kLazy);
  torch::Tensor b = torch::full({2}, 3.0, kLazy);
  torch_lazy::sync();
  EXPECT_TRUE(torch::equal((a - b).cpu(), torch::full({2}, -2.0)));
  EXPECT_TRUE(torch::equal((b - a).cpu(), torch::full({2}, 2.0)));
  EXPECT_TRUE(torch::equal((a - a).cpu(), torch::zeros({2})));
}

TEST_F(Core, OverwritingAllDoesNotComputeTheOldValue) {
  torch::Tensor x = torch::ones({4}, kLazy).exp();
  int64_t before = pending_nodes();
  x.zero_();
  EXPECT_LE(pending_nodes(), before);
  EXPECT_TRUE(torch::equal(x.cpu(), torch::zeros({4})));
}

TEST_F(Core, ErrorsLeaveUntouchedTensorsAndTheDeviceUsable) {
  torch::Tensor weight = torch::ones({4, 2}, kLazy);
  torch::Tensor untouched = torch::ones({2}, kLazy) * 3;
  torch::Tensor bad = torch::embedding(weight, torch::full({1}, 9, kLazy.dtype(torch::kLong)));
  weight.add_(bad.sum());
  EXPECT_THROW(torch_lazy::sync(), std::exception);
  EXPECT_NO_THROW(torch_lazy::sync());
  EXPECT_THROW(bad.cpu(), std::exception);
  EXPECT_TRUE(torch::equal(weight.cpu(), torch::ones({4, 2})));
  EXPECT_TRUE(torch::equal(untouched.cpu(), torch::full({2}, 3.0)));
}

TEST_F(Core, AGrowingGraphIsCut) {
  torch_lazy::set_setting("TORCH_LAZY_MAX_NODES", "100");
  torch::Tensor x = torch::zeros({1}, kLazy);
  for (int i = 0; i < 1000; ++i) {
    x = x + 1;
    EXPECT_LE(pending_nodes(), 100);
  }
  torch_lazy::set_setting("TORCH_LAZY_MAX_NODES", "50000");
  EXPECT_EQ(x.item<float>(), 1000);
}

TEST_F(Core, AGraphThatHoldsMuchDataIsCut) {
  torch_lazy::set_setting("TORCH_LAZY_MAX_BYTES_HELD", "1000000");
  torch::Tensor total = torch::zeros({}, kLazy);
  int64_t most = 0;
  for (int i = 0; i < 64; ++i) {
    total = total + torch::ones({1 << 16}).to(torch::kLazy).sum();
    most = std::max(most, bytes_allocated());
  }
  torch_lazy::set_setting("TORCH_LAZY_MAX_BYTES_HELD", "1073741824");
  EXPECT_LT(most, 8 << 20);
  EXPECT_EQ(total.item<float>(), 64 * (1 << 16));
}

TEST_F(Core, ThreadsCaptureAndReadAtOnce) {
  torch::Tensor shared = torch::ones({64}, kLazy);
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        torch::Tensor mine = torch::full({64}, static_cast<double>(t), kLazy);
        mine.add_(shared);
        torch::Tensor y = (mine * 2).sum();
        if (i % 7 == 0) {
          torch_lazy::sync();
        }
        wrong += y.item<float>() != 64 * 2 * (t + 1);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(wrong, 0);
}

TEST_F(Core, TextAndDotShowTheGraph) {
  torch::Tensor x = torch::ones({2}, kLazy);
  torch_lazy::sync();
  torch::Tensor y = (x * 2).relu();
  std::string text = torch_lazy::graph_text({y});
  EXPECT_EQ(text,
            "IR {\n"
            "  %0 = [Long[]] lazy_tensors::device_data(), device=CPU0, value=2\n"
            "  %1 = [Float[2]] lazy_tensors::device_data(), device=CPU0\n"
            "  %2 = [Float[2]] aten::mul(%1, %0)\n"
            "  %3 = [Float[2]] aten::relu(%2), ROOT=0\n"
            "}\n");
  EXPECT_NE(torch_lazy::graph_dot({y}).find("node2 -> node3"), std::string::npos);
  EXPECT_TRUE(is_pending(y));
}

TEST_F(Core, DataDependentOperatorsRunAtOnceAndAreCounted) {
  torch::Tensor x = torch::tensor({0.f, 1.f, 2.f}).to(torch::kLazy);
  torch::Tensor found = torch::nonzero(x);
  EXPECT_EQ(found.size(0), 2);
  EXPECT_FALSE(is_pending(found));
  EXPECT_EQ(count("aten::nonzero"), 1);
}

TEST_F(Core, AutogradMatchesTheCpu) {
  auto run = [](torch::Device device) {
    torch::manual_seed(0);
    torch::nn::Sequential net(torch::nn::Conv2d(3, 4, 3), torch::nn::BatchNorm2d(4),
                              torch::nn::ReLU(), torch::nn::Dropout(0.5), torch::nn::Flatten(),
                              torch::nn::Linear(4 * 36, 5));
    net->to(device);
    torch::Tensor x = torch::randn({2, 3, 8, 8}).to(device);
    torch::Tensor loss =
        torch::cross_entropy_loss(net->forward(x), torch::tensor({1, 2}).to(device));
    loss.backward();
    std::vector<torch::Tensor> results{loss.detach().cpu()};
    for (const torch::Tensor& p : net->parameters()) {
      results.push_back(p.grad().cpu());
    }
    return results;
  };
  std::vector<torch::Tensor> eager = run(torch::kCPU);
  std::vector<torch::Tensor> lazy = run(torch::kLazy);
  for (size_t i = 0; i < eager.size(); ++i) {
    EXPECT_TRUE(torch_lazy_tests::same_values(lazy[i], eager[i])) << i;
  }
}

}  // namespace
