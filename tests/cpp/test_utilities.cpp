// Small parts that the rest stands on: hashes, texts of shapes.
#include "base/hash.h"
#include <torch_lazy/graph_executor.h>
#include <torch_lazy/layout.h>
#include <torch_lazy/torch_lazy.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <set>

namespace {

using torch_lazy::GraphExecutor;
using torch_lazy::GraphHash;
using torch_lazy::hash_words;
using torch_lazy::Layout;

const auto kLazy = torch::TensorOptions().device(torch::kLazy);

TEST(Hash, IsRepeatable) {
  EXPECT_EQ(hash_words({1, 2, 3}), hash_words({1, 2, 3}));
  EXPECT_EQ(hash_words({}), hash_words({}));
}

TEST(Hash, DependsOnEveryWordOrderLengthAndSeed) {
  const std::vector<uint64_t> words{7, 0, ~uint64_t{0}, 1};
  std::set<uint64_t> seen{hash_words(words)};
  for (size_t i = 0; i < words.size(); ++i) {
    for (int bit = 0; bit < 64; ++bit) {
      std::vector<uint64_t> changed = words;
      changed[i] ^= uint64_t{1} << bit;
      seen.insert(hash_words(changed));
    }
  }
  EXPECT_EQ(seen.size(), 1 + words.size() * 64);
  EXPECT_NE(hash_words({1, 2}), hash_words({2, 1}));
  EXPECT_NE(hash_words({0}), hash_words({0, 0}));
  EXPECT_NE(hash_words({}), hash_words({0}));
  EXPECT_NE(hash_words({1}, 2), hash_words({1}, 3));
}

/// The hash of a graph over two tensors of data.
GraphHash hash_of(torch::Tensor (*graph)(torch::Tensor x, torch::Tensor y),
                  at::IntArrayRef sizes = {2, 3}, at::ScalarType dtype = at::kFloat) {
  torch::Tensor x = torch::ones(sizes, dtype).to(at::kLazy);
  torch::Tensor y = torch::zeros(sizes, dtype).to(at::kLazy);
  return GraphExecutor::get().get_graph_hash({graph(x, y)});
}

TEST(GraphHashes, AreRepeatable) {
  auto graph = [](torch::Tensor x, torch::Tensor y) { return (x + y).relu() * 2.5; };
  EXPECT_EQ(hash_of(graph), hash_of(graph));
}

TEST(GraphHashes, DependOnOperatorsOperandsShapesAndTypes) {
  auto base = [](torch::Tensor x, torch::Tensor y) { return x.add(y); };
  const GraphHash hash = hash_of(base);
  EXPECT_NE(hash.bytes(), hash_of([](auto x, auto y) { return x.sub(y); }).bytes());
  EXPECT_NE(hash.bytes(), hash_of([](auto x, auto) { return x.add(x); }).bytes());
  EXPECT_NE(hash.bytes(), hash_of([](auto x, auto y) { return x.add(y).add(y); }).bytes());
  EXPECT_NE(hash.bytes(), hash_of(base, {3, 2}).bytes());
  EXPECT_NE(hash.bytes(), hash_of(base, {2, 3}, at::kDouble).bytes());
}

TEST(GraphHashes, DependOnAttributesAndNotOnNumbers) {
  EXPECT_NE(hash_of([](auto x, auto) { return x.sum(0); }).bytes(),
            hash_of([](auto x, auto) { return x.sum(1); }).bytes());
  EXPECT_EQ(hash_of([](auto x, auto) { return x.mul(2.5); }).bytes(),
            hash_of([](auto x, auto) { return x.mul(3.5); }).bytes());
}

TEST(Shapes, AreWrittenLikeTheOriginals) {
  EXPECT_EQ(Layout::of(torch::ones({2, 3})).shape_text(), "Float[2,3]");
  EXPECT_EQ(Layout::of(torch::tensor(1)).shape_text(), "Long[]");
  EXPECT_EQ(Layout::of(torch::ones({0}, at::kBFloat16)).shape_text(), "BFloat16[0]");
  EXPECT_EQ(Layout::of(torch::ones({1}, at::kComplexFloat)).shape_text(), "ComplexFloat[1]");
}

TEST(Shapes, AreComparedWithStridesAndType) {
  const torch::Tensor x = torch::ones({2, 3});
  EXPECT_EQ(Layout::of(x), Layout::of(torch::zeros({2, 3})));
  EXPECT_FALSE(Layout::of(x) == Layout::of(torch::ones({3, 2}).t()));
  EXPECT_FALSE(Layout::of(x) == Layout::of(x.to(at::kDouble)));
  EXPECT_TRUE(Layout::of(x).matches(x));
  EXPECT_FALSE(Layout::of(x).matches(x.narrow(0, 1, 1)));
}

TEST(Shapes, SpanTheirBytes) {
  using torch_lazy::bytes_spanned;
  EXPECT_EQ(bytes_spanned({2, 3}, {3, 1}, 0, at::kFloat), 24);
  EXPECT_EQ(bytes_spanned({2, 3}, {1, 2}, 5, at::kFloat), 44);
  EXPECT_EQ(bytes_spanned({4}, {0}, 0, at::kDouble), 8);
  EXPECT_EQ(bytes_spanned({2, 0}, {1, 1}, 3, at::kFloat), 0);
  EXPECT_EQ(bytes_spanned({}, {}, 0, at::kByte), 1);
}

}  // namespace
