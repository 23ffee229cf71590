// Which compiled graphs are kept, and when they go.
#include "executor_testing.h"
#include "runtime/plan_cache.h"

#include <ATen/Parallel.h>

#include <memory>
#include <thread>

namespace torch_lazy::testing {
namespace {

/// Holds as much as it says.
struct Held : Executable {
  explicit Held(int64_t bytes) : held(bytes) {}
  void run(Run& /*run*/) override {}
  int64_t bytes() const override { return held; }
  int64_t held;
};

class PlanCacheTest : public ::testing::Test {
 protected:
  static constexpr int64_t kMiB = 1 << 20;

  std::shared_ptr<Plan> add(uint64_t number, int64_t bytes) {
    auto plan = std::make_shared<Plan>();
    plan->graph = std::make_shared<const Graph>();
    plan->executable = std::make_shared<Held>(bytes);
    plan->signature = {number};
    cache_.add(plan);
    return plan;
  }

  bool has(uint64_t number) { return cache_.find({number}) != nullptr; }

  static void grow(const std::shared_ptr<Plan>& plan, int64_t bytes) {
    static_cast<Held&>(*plan->executable).held = bytes;
  }

  void SetUp() override { cache_.clear(); }
  void TearDown() override { cache_.clear(); }

  PlanCache& cache_ = PlanCache::instance();
};

TEST_F(PlanCacheTest, ThoseUsedLongestAgoGoWhenTheyHoldTooMuch) {
  const Setting most("TORCH_LAZY_PLAN_CACHE_BYTES", std::to_string(7 * kMiB / 2));
  const int64_t evicted = count("PlanCacheEvicted");
  std::weak_ptr<Plan> second;
  add(1, kMiB);
  second = add(2, kMiB);
  add(3, kMiB);
  EXPECT_EQ(count("PlanCacheEvicted"), evicted);
  EXPECT_TRUE(has(1)) << "and now it is the latest";
  add(4, kMiB);
  EXPECT_TRUE(second.expired());
  EXPECT_FALSE(has(2));
  EXPECT_TRUE(has(1) && has(3) && has(4));
  EXPECT_EQ(count("PlanCacheEvicted"), evicted + 1);
  EXPECT_GE(cache_.bytes(), 3 * kMiB);
  EXPECT_LT(cache_.bytes(), 3 * kMiB + kMiB / 2);
}

TEST_F(PlanCacheTest, TheLatestStaysHoweverMuchItHolds) {
  const Setting most("TORCH_LAZY_PLAN_CACHE_BYTES", std::to_string(kMiB));
  add(1, kMiB / 2);
  add(2, 8 * kMiB);
  EXPECT_EQ(cache_.size(), 1u);
  EXPECT_TRUE(has(2));
}

TEST_F(PlanCacheTest, ZeroBytesAreNoLimit) {
  const Setting most("TORCH_LAZY_PLAN_CACHE_BYTES", "0");
  for (uint64_t i = 0; i < 5; ++i) {
    add(i, int64_t{1} << 40);
  }
  EXPECT_EQ(cache_.size(), 5u);
}

TEST_F(PlanCacheTest, TheirNumberIsBoundedAsWell) {
  const Setting most("TORCH_LAZY_PLAN_CACHE", "2");
  const int64_t evicted = count("PlanCacheEvicted");
  for (uint64_t i = 0; i < 5; ++i) {
    add(i, 1);
  }
  EXPECT_EQ(cache_.size(), 2u);
  EXPECT_EQ(count("PlanCacheEvicted"), evicted + 3);
  EXPECT_LT(cache_.bytes(), 8192) << "only of those that are there";
}

TEST_F(PlanCacheTest, APlanThatHasGrownIsCountedWhenItIsUsedAgain) {
  const Setting most("TORCH_LAZY_PLAN_CACHE_BYTES", std::to_string(4 * kMiB));
  add(1, kMiB);
  const std::shared_ptr<Plan> growing = add(2, kMiB);
  grow(growing, 7 * kMiB / 2);
  cache_.weigh(*growing);
  EXPECT_FALSE(has(1));
  EXPECT_TRUE(has(2));
  cache_.remove(*growing);
  EXPECT_EQ(cache_.bytes(), 0);
  grow(growing, kMiB);
  cache_.weigh(*growing);
  EXPECT_EQ(cache_.bytes(), 0) << "what is not in the cache does not count";
}

TEST_F(PlanCacheTest, GrowthInTheBackgroundIsCountedWhenTheNextPlanComes) {
  const Setting most("TORCH_LAZY_PLAN_CACHE_BYTES", std::to_string(4 * kMiB));
  const std::shared_ptr<Plan> growing = add(1, kMiB);
  grow(growing, 7 * kMiB / 2);
  cache_.note_growth();
  add(2, kMiB);
  EXPECT_FALSE(has(1));
  EXPECT_TRUE(has(2));
}

/// Many operators after one another, each of which matters.
float run_chain(int64_t size, int length) {
  at::Tensor x = at::ones({size}, kLazy);
  for (int i = 0; i < length; ++i) {
    x = i % 2 ? x.sin() : x + 1;
  }
  return x.sum().item<float>();
}

class HeldPlans : public ExecutorTest {};

TEST_F(HeldPlans, NothingKeepsAPlanThatWasEvicted) {
  const Setting most("TORCH_LAZY_PLAN_CACHE_BYTES", "1");
  for (const char* compiler : {"off", "on", "force"}) {
    const Setting mode("TORCH_LAZY_COMPILER", compiler);
    run_chain(11, 40);
    const std::weak_ptr<Plan> first = PlanCache::instance().latest();
    run_chain(12, 40);
    EXPECT_TRUE(first.expired()) << compiler;
    EXPECT_EQ(PlanCache::instance().size(), 1u);
  }
}

TEST_F(HeldPlans, LongerGraphsHoldMore) {
  for (const char* compiler : {"off", "force"}) {
    const Setting mode("TORCH_LAZY_COMPILER", compiler);
    PlanCache::instance().clear();
    run_chain(13, 100);
    const int64_t small = PlanCache::instance().bytes();
    PlanCache::instance().clear();
    run_chain(13, 1000);
    const int64_t large = PlanCache::instance().bytes();
    EXPECT_GT(small, 100 * 200) << compiler;
    EXPECT_GT(large, 5 * small / 2) << compiler;
    EXPECT_LT(large, 20 * small) << compiler;
  }
}

TEST_F(HeldPlans, WhatIsCompiledLaterCounts) {
  const Setting mode("TORCH_LAZY_COMPILER", "on");
  const Mode synchronous(false);
  const int threads = at::get_num_threads();
  at::set_num_threads(static_cast<int>(std::thread::hardware_concurrency()));  // none to spare
  PlanCache::instance().clear();
  run_chain(14, 100);
  const int64_t interpreted = PlanCache::instance().bytes();
  const int64_t compiled = count("GraphCompiled");
  run_chain(14, 100);  // compiles
  run_chain(14, 100);
  at::set_num_threads(threads);
  if (count("GraphCompiled") == compiled) {
    GTEST_SKIP() << "no code generator";
  }
  EXPECT_GT(PlanCache::instance().bytes(), interpreted + interpreted / 4);
  EXPECT_EQ(PlanCache::instance().size(), 1u);
}

}  // namespace
}  // namespace torch_lazy::testing
