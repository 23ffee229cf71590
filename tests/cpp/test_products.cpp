// Matrix products of our own, against sums in double precision.
#include "backends/cpu/product.h"
#include "base/settings.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

namespace torch_lazy {
namespace {

using Kernel = void (*)(const ProductBlock&, float*);

/// A matrix that lies by rows, by columns, or with gaps.
at::Tensor matrix(int64_t rows, int64_t columns, int how) {
  switch (how) {
    case 0:
      return at::randn({rows, columns});
    case 1:
      return at::randn({columns, rows}).t();
    default:
      return at::randn({rows, 2, columns, 3}).select(3, 1).select(1, 0);
  }
}

ProductBlock block_of(const at::Tensor& a, const at::Tensor& b, const at::Tensor& result) {
  ProductBlock block;
  block.a = a.const_data_ptr<float>();
  block.a_row = a.stride(0);
  block.a_depth = a.stride(1);
  block.b = b.const_data_ptr<float>();
  block.b_depth = b.stride(0);
  block.b_column = b.stride(1);
  block.result = result.mutable_data_ptr<float>();
  block.result_row = result.stride(0);
  block.rows = a.size(0);
  block.columns = b.size(1);
  block.depth = a.size(1);
  return block;
}

void expect_product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& result) {
  const at::Tensor expected = a.to(at::kDouble).mm(b.to(at::kDouble));
  const double bound = 1e-6 * static_cast<double>(a.size(1));
  EXPECT_LT((result.to(at::kDouble) - expected).abs().max().item<double>(), bound)
      << a.sizes() << " " << a.strides() << " by " << b.sizes() << " " << b.strides();
}

class Products : public testing::TestWithParam<std::tuple<std::string, Kernel>> {
 protected:
  void SetUp() override {
    __builtin_cpu_init();
    const std::string& name = std::get<0>(GetParam());
    if (name == "avx512" ? !__builtin_cpu_supports("avx512vl") : !__builtin_cpu_supports("avx2")) {
      GTEST_SKIP() << "not on this processor";
    }
    at::manual_seed(0);
  }
};

TEST_P(Products, AreThoseOfDoublePrecision) {
  const std::vector<std::tuple<int64_t, int64_t, int64_t>> sizes = {
      {1, 1, 1},      {12, 8, 32},     {13, 9, 33},     {5, 300, 7},
      {192, 256, 96}, {193, 257, 801}, {31, 513, 1000}, {400, 17, 65}};
  std::vector<float> scratch(kProductScratch);
  for (auto [rows, depth, columns] : sizes) {
    for (int left = 0; left < 3; ++left) {
      for (int right = 0; right < 3; ++right) {
        const at::Tensor a = matrix(rows, depth, left);
        const at::Tensor b = matrix(depth, columns, right);
        // What stands beside the result stays as it is.
        const at::Tensor wide = at::full({rows, columns + 3}, 7.0F);
        const at::Tensor result = wide.narrow(1, 1, columns);
        std::get<1>(GetParam())(block_of(a, b, result), scratch.data());
        expect_product(a, b, result);
        EXPECT_TRUE(wide.select(1, 0).eq(7).all().item<bool>());
        EXPECT_TRUE(wide.narrow(1, columns + 1, 2).eq(7).all().item<bool>());
      }
    }
  }
}

TEST_P(Products, PassOnWhatIsNotANumber) {
  at::Tensor a = at::ones({20, 20});
  at::Tensor b = at::ones({20, 40});
  a[3][4] = std::numeric_limits<float>::infinity();
  b[5][39] = std::numeric_limits<float>::quiet_NaN();
  const at::Tensor result = at::empty({20, 40});
  std::vector<float> scratch(kProductScratch);
  std::get<1>(GetParam())(block_of(a, b, result), scratch.data());
  EXPECT_TRUE(at::equal(result.isnan(), a.mm(b).isnan()));
  EXPECT_TRUE(at::equal(result.isinf(), a.mm(b).isinf()));
}

INSTANTIATE_TEST_SUITE_P(Kernels, Products,
                         testing::Values(std::make_tuple("avx2", &multiply_avx2),
                                         std::make_tuple("avx512", &multiply_avx512)),
                         [](const auto& info) { return std::get<0>(info.param); });

TEST(ThreadedProducts, HaveTheSameBitsForAnyNumberOfThreads) {
  const ProductMode before = settings().products;
  settings().products = ProductMode::own;
  const bool possible = has_product(16, 16, 16);
  settings().products = before;
  if (!possible) {
    GTEST_SKIP() << "not on this processor";
  }
  const int threads = at::get_num_threads();
  for (auto [rows, depth, columns] : std::vector<std::tuple<int64_t, int64_t, int64_t>>{
           {512, 300, 40}, {24, 700, 1000}, {257, 128, 255}}) {
    const at::Tensor a = matrix(rows, depth, 0);
    const at::Tensor b = matrix(depth, columns, 1);
    std::vector<at::Tensor> results;
    for (int count : {1, 2, 3, 7, 16}) {
      at::set_num_threads(count);
      results.push_back(at::full({rows, columns}, -1.0F));
      multiply(block_of(a, b, results.back()));
      EXPECT_TRUE(at::equal(results.front(), results.back())) << count << " threads";
    }
    expect_product(a, b, results.front());
  }
  at::set_num_threads(threads);
}

}  // namespace
}  // namespace torch_lazy
