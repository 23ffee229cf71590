// Computations that are kept by their hash: what they take, what they give, when they go.
#include "executor_testing.h"

namespace torch_lazy::testing {
namespace {

class CachedGraphs : public ExecutorTest {
 protected:
  /// Syncs the tensors and returns the hash under which their computation is kept.
  static GraphHash keep(at::TensorList tensors) {
    GraphHash hash = executor().get_graph_hash(tensors);
    executor().sync_tensors(tensors);
    return hash;
  }
};

TEST_F(CachedGraphs, B25_TheHashIsTheKeyOfTheNextSync) {
  at::Tensor x = at::ones({2}).to(kDevice);
  at::Tensor y = x * 3 + 1;
  GraphInputs inputs = executor().get_graph_inputs({y});
  const GraphHash hash = executor().get_graph_hash({y});
  EXPECT_THROW(executor().run_cached_graph(hash, inputs.values), c10::Error) << "not synced yet";
  executor().sync_tensors({y});
  inputs.values[0] = at::full({2}, 5.0f);
  std::vector<at::Tensor> results = executor().run_cached_graph(hash, inputs.values);
  ASSERT_EQ(results.size(), 1u);
  EXPECT_TRUE(results[0].is_cpu());
  EXPECT_TRUE(at::equal(results[0], at::full({2}, 16.0f)));
}

TEST_F(CachedGraphs, B24_B37_AHashIs16Bytes) {
  at::Tensor y = at::ones({2}, kLazy) + 1;
  const GraphHash hash = executor().get_graph_hash({y});
  EXPECT_EQ(hash.bytes().size(), 16u);
  EXPECT_TRUE(GraphHash::from_bytes(hash.bytes()) == hash);
  EXPECT_THROW(GraphHash::from_bytes("short"), c10::Error);
}

TEST_F(CachedGraphs, B38_WhatWasForgottenGivesTheDocumentedMessage) {
  at::Tensor y = at::ones({2}).to(kDevice) + 1;
  const GraphHash hash = keep({y});
  executor().clear_computation_cache();
  try {
    executor().run_cached_graph(hash, {});
    ADD_FAILURE() << "no error";
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what())
                  .find("Failed to get computation by hash. Maybe the entry get kicked out of the "
                        "LRU cache"),
              std::string::npos);
  }
}

TEST_F(CachedGraphs, B39_B135_OneResultPerDistinctTensorInTheOrderOfTheList) {
  at::Tensor x = at::ones({2}).to(kDevice);
  at::Tensor a = x + 1;
  at::Tensor b = x * 7;
  GraphInputs inputs = executor().get_graph_inputs({b, a, b, x});
  const GraphHash hash = keep({b, a, b, x});
  at::Tensor given = at::full({2}, 2.0f);
  inputs.values[0] = given;
  std::vector<at::Tensor> results = executor().run_cached_graph(hash, inputs.values);
  ASSERT_EQ(results.size(), 3u);
  EXPECT_TRUE(at::equal(results[0], at::full({2}, 14.0f)));
  EXPECT_TRUE(at::equal(results[1], at::full({2}, 3.0f)));
  EXPECT_TRUE(results[2].is_same(given)) << "an argument that is not changed is itself the result";
}

TEST_F(CachedGraphs, B34_ALeafIsListedOnce) {
  at::Tensor a = at::ones({2}).to(kDevice);
  GraphInputs inputs = executor().get_graph_inputs({at::mul(a, a)});
  EXPECT_EQ(inputs.ids, std::vector<int64_t>{tensor_id(a)});
}

TEST_F(CachedGraphs, B35_TheIdOfALeafIsThatOfTheArgumentAlsoWhenItWasWritten) {
  at::Tensor a = at::ones({2}).to(kDevice);
  const int64_t id = tensor_id(a);
  a.add_(1);
  a.mul_(2);
  EXPECT_EQ(tensor_id(a), id);
  EXPECT_EQ(executor().get_graph_inputs({a}).ids[0], id);
}

TEST_F(CachedGraphs, B36_B77_NumbersAreListedAsNumbers) {
  at::Tensor a = at::ones({2}).to(kDevice);
  at::Tensor y = at::addcmul(a, a, a, 5);
  GraphInputs inputs = executor().get_graph_inputs({y});
  ASSERT_EQ(inputs.ids, (std::vector<int64_t>{tensor_id(a), -1}));
  EXPECT_EQ(inputs.values[1].toInt(), 5);
  const GraphHash hash = keep({y});
  inputs.values[1] = 2;
  EXPECT_TRUE(at::equal(executor().run_cached_graph(hash, inputs.values)[0], at::full({2}, 3.0f)));
}

TEST_F(CachedGraphs, InputsAreNeverWritten) {
  at::Tensor a = at::zeros({4}).to(kDevice);
  at::Tensor b = at::ones({4}).to(kDevice);
  GraphInputs inputs = executor().get_graph_inputs({a, b});
  a.sub_(b);
  b.mul_(3);
  inputs = executor().get_graph_inputs({a, b});
  const GraphHash hash = keep({a, b});
  at::Tensor first = at::full({4}, 10.0f);
  at::Tensor second = at::full({4}, 2.0f);
  inputs.values[0] = first;
  inputs.values[1] = second;
  for (int i = 0; i < 2; ++i) {
    std::vector<at::Tensor> results = executor().run_cached_graph(hash, inputs.values);
    EXPECT_TRUE(at::equal(results[0], at::full({4}, 8.0f)));
    EXPECT_TRUE(at::equal(results[1], at::full({4}, 6.0f)));
    EXPECT_TRUE(at::equal(first, at::full({4}, 10.0f)));
    EXPECT_TRUE(at::equal(second, at::full({4}, 2.0f)));
  }
  EXPECT_TRUE(at::equal(a.cpu(), at::full({4}, -1.0f))) << "the traced tensors keep their values";
}

TEST_F(CachedGraphs, WhatLeavesHeldSurvivesTheSync) {
  at::Tensor a = at::ones({2}).to(kDevice);
  a.add_(1);
  GraphInputs inputs = executor().get_graph_inputs({a});
  executor().sync_tensors({a});  // overwrites the memory of the leaf
  EXPECT_TRUE(at::equal(inputs.values[0].toTensor(), at::ones({2})));
}

TEST_F(CachedGraphs, InputsWithOtherStridesAreTakenByTheirShape) {
  at::Tensor x = at::ones({2, 3}).to(kDevice);
  at::Tensor y = x.t().contiguous() * 2;
  GraphInputs inputs = executor().get_graph_inputs({x, y});
  const GraphHash hash = keep({x, y});
  at::Tensor other = at::arange(6, at::kFloat).view({3, 2}).t();  // strides 1, 2
  inputs.values[0] = other;
  EXPECT_TRUE(at::equal(executor().run_cached_graph(hash, inputs.values)[1], other.t() * 2));
  inputs.values[0] = at::arange(12, at::kFloat).view({2, 6}).slice(1, 0, 6, 2);
  EXPECT_TRUE(at::equal(executor().run_cached_graph(hash, inputs.values)[1],
                        inputs.values[0].toTensor().t() * 2));
}

TEST_F(CachedGraphs, ALeafThatIsReadThroughAViewOnlyHasTheShapeOfItsMemory) {
  at::Tensor x = at::ones({3, 3}).to(kDevice);
  at::Tensor y = x.t() + 0;
  GraphInputs inputs = executor().get_graph_inputs({y});
  const GraphHash hash = keep({y});
  at::Tensor other = at::arange(9, at::kFloat).view({3, 3});
  inputs.values[0] = other;
  EXPECT_TRUE(at::equal(executor().run_cached_graph(hash, inputs.values)[0], other.t()));
}

TEST_F(CachedGraphs, WrongInputsAreRefused) {
  at::Tensor x = at::ones({2}).to(kDevice);
  at::Tensor y = at::addcmul(x, x, x, 5);
  GraphInputs inputs = executor().get_graph_inputs({x, y});
  const GraphHash hash = keep({x, y});
  auto refused = [&](std::vector<c10::IValue> values) {
    try {
      executor().run_cached_graph(hash, values);
    } catch (const c10::Error& error) {
      return std::string(error.what()).find("run_cached_graph") != std::string::npos;
    }
    return false;
  };
  c10::IValue tensor = inputs.values[0];
  c10::IValue number = inputs.values[1];
  EXPECT_FALSE(refused({tensor, number}));
  EXPECT_TRUE(refused({tensor}));
  EXPECT_TRUE(refused({number, number}));
  EXPECT_TRUE(refused({at::ones({3}), number}));
  EXPECT_TRUE(refused({at::ones({2, 1}), number}));
  EXPECT_TRUE(refused({at::ones({2}, at::kDouble), number}));
  EXPECT_TRUE(refused({x, number}));
  EXPECT_TRUE(refused({tensor, at::ones({2})}));
  EXPECT_TRUE(refused({tensor, 2.5})) << "it was a whole number";
}

TEST_F(CachedGraphs, ViewsOfOneBufferAreSeparateResults) {
  at::Tensor x = at::arange(4, at::kFloat).view({2, 2}).to(kDevice);
  at::Tensor y = x * 2;
  at::Tensor view = y.t();
  GraphInputs inputs = executor().get_graph_inputs({y, view});
  const GraphHash hash = keep({y, view});
  std::vector<at::Tensor> results = executor().run_cached_graph(hash, inputs.values);
  ASSERT_EQ(results.size(), 2u);
  EXPECT_TRUE(at::equal(results[0].t(), results[1]));
}

TEST_F(CachedGraphs, AListWithoutOperationsIsItself) {
  at::Tensor x = at::ones({2}).to(kDevice);
  GraphInputs inputs = executor().get_graph_inputs({x});
  const GraphHash hash = keep({x});
  at::Tensor other = at::full({2}, 4.0f);
  EXPECT_TRUE(executor().run_cached_graph(hash, {other})[0].is_same(other));
}

TEST_F(CachedGraphs, B131_LeavesInFlightAreWaitedFor) {
  Mode asynchronous(true);
  at::Tensor x = at::ones({64, 64}, kLazy);
  for (int i = 0; i < 50; ++i) {
    x = x.matmul(x) / 64;
  }
  step(/*wait=*/false);
  GraphInputs inputs = executor().get_graph_inputs({at::add(x, 1)});
  EXPECT_TRUE(at::allclose(inputs.values[0].toTensor(), at::ones({64, 64})));
}

// test_lazy_graph_executor.cpp of the original
TEST_F(CachedGraphs, ClearingAndRemovingComputations) {
  at::Tensor x = at::ones({2}).to(kDevice);
  at::Tensor a = x + 1;
  const GraphHash first = keep({a});
  at::Tensor b = x.exp();
  const GraphHash second = keep({b});
  EXPECT_EQ(executor().computation_cache_size(), 2u);
  EXPECT_TRUE(executor().remove_from_computation_cache(first));
  EXPECT_FALSE(executor().remove_from_computation_cache(first));
  EXPECT_EQ(executor().computation_cache_size(), 1u);
  EXPECT_THROW(executor().run_cached_graph(first, {}), c10::Error);
  EXPECT_NO_THROW(executor().run_cached_graph(second, {at::ones({2})}));

  reset_metrics();
  at::Tensor again = x + 1;
  EXPECT_TRUE(keep({again}) == first);
  EXPECT_EQ(compiled(), 1) << "what was removed is compiled anew";
  executor().clear_computation_cache();
  EXPECT_EQ(executor().computation_cache_size(), 0u);
  at::Tensor once_more = x + 1;
  executor().sync_tensors({once_more});
  EXPECT_EQ(compiled(), 2);
}

}  // namespace
}  // namespace torch_lazy::testing
