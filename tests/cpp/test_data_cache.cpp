// The cache of entries by use, and the cache of small constants that is built on it.
#include "api/data_cache.h"
#include "api/lru_cache.h"
#include <torch_lazy/graph_executor.h>
#include <torch_lazy/torch_lazy.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>

namespace {

using torch_lazy::counter_value;
using torch_lazy::DataCache;
using torch_lazy::GraphExecutor;
using torch_lazy::set_setting;
using torch_lazy::tensor_id;

const at::Device kDevice(at::kLazy, 0);

// ---- LRU (test_cache.cpp of the original)
// --------------------------------------------------------

TEST(LruCache, EvictsTheEntryUsedLongestAgo) {
  torch_lazy::LruCache<int, std::string> cache([] { return 2; });
  cache.add(1, std::make_shared<std::string>("one"));
  cache.add(2, std::make_shared<std::string>("two"));
  EXPECT_EQ(*cache.find(1), "one");
  EXPECT_EQ(*cache.latest(), "one");
  cache.add(3, std::make_shared<std::string>("three"));
  EXPECT_EQ(cache.find(2), nullptr);
  EXPECT_EQ(*cache.find(1), "one");
  EXPECT_EQ(*cache.find(3), "three");
  EXPECT_EQ(cache.size(), 2u);
}

TEST(LruCache, AddKeepsWhatIsThere) {
  torch_lazy::LruCache<int, std::string> cache([] { return 2; });
  auto first = cache.add(1, std::make_shared<std::string>("one"));
  EXPECT_EQ(cache.add(1, std::make_shared<std::string>("other")), first);
  EXPECT_EQ(*cache.find(1), "one");
  EXPECT_EQ(cache.size(), 1u);
}

TEST(LruCache, EraseAndClear) {
  torch_lazy::LruCache<int, std::string> cache([] { return 4; });
  cache.add(1, std::make_shared<std::string>("one"));
  cache.add(2, std::make_shared<std::string>("two"));
  EXPECT_TRUE(cache.erase(1));
  EXPECT_FALSE(cache.erase(1));
  EXPECT_EQ(cache.find(1), nullptr);
  EXPECT_EQ(*cache.find(2), "two");
  cache.clear();
  EXPECT_EQ(cache.size(), 0u);
  EXPECT_EQ(cache.latest(), nullptr);
}

TEST(LruCache, SizeZeroKeepsNothing) {
  torch_lazy::LruCache<int, std::string> cache([] { return 0; });
  EXPECT_EQ(*cache.add(1, std::make_shared<std::string>("one")), "one");
  EXPECT_EQ(cache.find(1), nullptr);
}

// ---- Small constants
// -----------------------------------------------------------------------------

class DataCacheTest : public ::testing::Test {
 protected:
  void SetUp() override {
    DataCache::instance().clear();
    torch_lazy::reset_metrics();
  }
  void TearDown() override {
    set_setting("TORCH_LAZY_ENABLE_DEVICE_DATA_CACHE", "1");
    set_setting("TORCH_LAZY_DEVICE_DATA_CACHE_SIZE", "128");
    DataCache::instance().clear();
  }

  static at::Tensor data(const at::Tensor& tensor) {
    return GraphExecutor::get().get_device_data(tensor, kDevice);
  }
  static at::Tensor data(const at::Scalar& value, at::ScalarType dtype) {
    return GraphExecutor::get().get_device_data(value, dtype, kDevice);
  }
  static int64_t misses() { return counter_value("DeviceDataCacheMiss").value_or(0); }
};

TEST_F(DataCacheTest, B70_EqualDataIsOnTheDeviceOnce) {
  at::Tensor first = data(2.5, at::kFloat);
  at::Tensor second = data(2.5, at::kFloat);
  EXPECT_EQ(misses(), 1);
  EXPECT_EQ(tensor_id(first), tensor_id(second));
  EXPECT_EQ(first.device(), kDevice);
  EXPECT_EQ(second.cpu().item<float>(), 2.5f);
}

TEST_F(DataCacheTest, B70_EachDeviceHasItsOwn) {
  GraphExecutor::get().get_device_data(1.0, at::kFloat, kDevice);
  at::Tensor other = GraphExecutor::get().get_device_data(1.0, at::kFloat, {at::kLazy, 1});
  EXPECT_EQ(misses(), 2);
  EXPECT_EQ(other.device(), at::Device(at::kLazy, 1));
}

TEST_F(DataCacheTest, B71_BytesAreCompared) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  data(nan, at::kDouble);
  data(nan, at::kDouble);
  EXPECT_EQ(misses(), 1) << "a NaN equals the same NaN";
  data(0.0, at::kDouble);
  data(-0.0, at::kDouble);
  EXPECT_EQ(misses(), 3) << "0.0 is not -0.0";
}

TEST_F(DataCacheTest, B71_SizesAreCompared) {
  data(at::zeros({4}));
  data(at::zeros({2, 2}));
  data(at::zeros({4, 1}));
  EXPECT_EQ(misses(), 3);
  EXPECT_EQ(data(at::zeros({2, 2})).sizes(), at::IntArrayRef({2, 2}));
  EXPECT_EQ(misses(), 3);
}

TEST_F(DataCacheTest, B72_TheTypeIsPartOfTheKey) {
  data(1, at::kLong);
  data(1.0, at::kDouble);
  EXPECT_EQ(misses(), 2);
  data(0, at::kInt);
  data(0, at::kFloat);  // the same bytes
  EXPECT_EQ(misses(), 4);
}

TEST_F(DataCacheTest, B73_WhatIsKeptIsAPrivateCopy) {
  at::Tensor source = at::tensor({1.0f, 2.0f});
  at::Tensor kept = data(source);
  source.fill_(9);
  EXPECT_TRUE(at::equal(kept.cpu(), at::tensor({1.0f, 2.0f})));
  EXPECT_TRUE(at::equal(data(at::tensor({1.0f, 2.0f})).cpu(), at::tensor({1.0f, 2.0f})));
  EXPECT_EQ(misses(), 1);
}

TEST_F(DataCacheTest, B73_WhoWritesToAConstantChangesNobodyElses) {
  at::Tensor spoiled = data(at::tensor({1.0f, 2.0f}));
  spoiled.add_(1);
  at::Tensor next = data(at::tensor({1.0f, 2.0f}));
  EXPECT_TRUE(at::equal(next.cpu(), at::tensor({1.0f, 2.0f})));
  EXPECT_TRUE(at::equal(spoiled.cpu(), at::tensor({2.0f, 3.0f})));
}

TEST_F(DataCacheTest, B74_SwitchedOffEveryUseIsAMiss) {
  set_setting("TORCH_LAZY_ENABLE_DEVICE_DATA_CACHE", "0");
  EXPECT_NE(tensor_id(data(1.0, at::kFloat)), tensor_id(data(1.0, at::kFloat)));
  EXPECT_EQ(misses(), 2);
  EXPECT_EQ(DataCache::instance().size(kDevice), 0u);
}

TEST_F(DataCacheTest, B75_TheSettingBoundsIt) {
  for (int i = 0; i < 129; ++i) {
    data(i, at::kLong);
  }
  EXPECT_EQ(misses(), 129);
  EXPECT_EQ(DataCache::instance().size(kDevice), 128u);
  data(128, at::kLong);
  EXPECT_EQ(misses(), 129);
  data(0, at::kLong);
  EXPECT_EQ(misses(), 130) << "the first one was evicted";
  set_setting("TORCH_LAZY_DEVICE_DATA_CACHE_SIZE", "2");
  data(1000, at::kLong);
  EXPECT_EQ(DataCache::instance().size(kDevice), 2u);
}

TEST_F(DataCacheTest, LargeDataIsNotKept) {
  data(at::zeros({1000}));
  EXPECT_EQ(DataCache::instance().size(kDevice), 0u);
  EXPECT_EQ(misses(), 1);
}

TEST_F(DataCacheTest, B76_NumbersOfBfloat16) {
  at::Tensor number = data(1.5, at::kBFloat16);
  EXPECT_EQ(number.scalar_type(), at::kBFloat16);
  at::Tensor x = at::ones({2}, at::TensorOptions().dtype(at::kBFloat16).device(kDevice));
  EXPECT_TRUE(at::equal((x * number).cpu(), at::full({2}, 1.5, at::kBFloat16)));
}

TEST_F(DataCacheTest, B80_ANumberKeepsItsOwnType) {
  GraphExecutor& executor = GraphExecutor::get();
  EXPECT_EQ(executor.get_value_for_scalar(1, kDevice).scalar_type(), at::kLong);
  EXPECT_EQ(executor.get_value_for_scalar(1.0, kDevice).scalar_type(), at::kDouble);
  EXPECT_EQ(executor.get_value_for_scalar(true, kDevice).scalar_type(), at::kBool);
}

TEST_F(DataCacheTest, B81_AnExpandedNumberIsAViewUnlessItHasNoDimensions) {
  GraphExecutor& executor = GraphExecutor::get();
  at::Tensor wide = executor.get_value_for_expanded_scalar(3, at::kFloat, {2, 3}, kDevice);
  EXPECT_EQ(wide.strides(), at::IntArrayRef({0, 0}));
  EXPECT_TRUE(at::equal(wide.cpu(), at::full({2, 3}, 3.0f)));
  at::Tensor single = executor.get_value_for_expanded_scalar(3, at::kFloat, {}, kDevice);
  EXPECT_EQ(single.dim(), 0);
  EXPECT_EQ(tensor_id(single), tensor_id(wide)) << "one copy serves both";
}

}  // namespace
