// Random numbers that are made many at a time: PyTorch's, bit by bit.
#include "runtime/draw.h"
#include "runtime/mersenne.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <random>

namespace torch_lazy {
namespace {

TEST(Mersenne, GivesTheStandardsNumbers) {
  for (size_t before : {0, 1, 623, 624, 1000}) {
    std::mt19937 expected(17);
    Mersenne::State state;
    state[0] = 17;
    for (uint32_t i = 1; i < Mersenne::kWords; ++i) {
      state[i] = 1812433253u * (state[i - 1] ^ (state[i - 1] >> 30)) + i;
    }
    Mersenne words(state, Mersenne::kWords);
    std::vector<uint32_t> numbers(2000);
    words.draw(1.0, 1u, numbers.data(), before);
    words.draw(0.25, 1u, numbers.data(), numbers.size());
    expected.discard(2 * before);
    for (uint32_t number : numbers) {
      const uint64_t high = expected(), low = expected();
      const uint64_t bits = ((high << 32) | low) & ((uint64_t{1} << 53) - 1);
      ASSERT_EQ(number, bits < (uint64_t{1} << 51) ? 1u : 0u);
    }
  }
}

class Draw : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  const OperatorInfo& op() {
    return operator_info(
        c10::Dispatcher::singleton().findSchemaOrThrow("aten::bernoulli_", "float"));
  }

  /// Ours and PyTorch's, from generators that stand alike, and what comes after them.
  void compare(std::vector<int64_t> sizes, double probability, at::Generator generator) {
    at::Generator other = generator.clone();
    at::Tensor expected = at::empty(sizes, GetParam()), found = at::empty(sizes, GetParam());
    expected.bernoulli_(probability, generator);
    torch::jit::Stack arguments{found, probability, other};
    draw(op(), arguments);
    EXPECT_TRUE(at::equal(expected, found)) << expected.sizes() << " with " << probability;
    EXPECT_TRUE(at::equal(at::rand({7}, generator), at::rand({7}, other)));
    EXPECT_TRUE(at::equal(generator.get_state(), other.get_state()));
  }
};

TEST_P(Draw, LikePyTorch) {
  for (double probability : {0.0, 1e-20, 0.1, 0.3, 0.5, 0.9, 1 - 1e-16, 1.0}) {
    for (int64_t size : {0, 1, 127, 128, 311, 312, 313, 1000, 100000}) {
      for (int64_t before : {0, 1, 623, 624, 625}) {
        at::Generator generator = at::detail::createCPUGenerator(size + before);
        for (int64_t i = 0; i < before; ++i) {
          at::check_generator<at::CPUGeneratorImpl>(generator)->random();
        }
        compare({size}, probability, generator);
      }
    }
  }
}

TEST_P(Draw, LeavesToPyTorchWhatLiesApart) {
  at::manual_seed(3);
  at::Tensor expected = at::zeros({40, 50}, GetParam()), found = expected.clone();
  expected.t().bernoulli_(0.4);
  const at::Tensor next = at::rand({3});
  at::manual_seed(3);
  torch::jit::Stack arguments{found.t(), 0.4, c10::IValue()};
  draw(op(), arguments);
  EXPECT_TRUE(at::equal(expected, found));
  EXPECT_TRUE(at::equal(next, at::rand({3})));
}

TEST_P(Draw, WrongProbabilitiesRaise) {
  for (double probability : {-0.1, 1.1, std::nan("")}) {
    torch::jit::Stack arguments{at::empty({200}, GetParam()), probability, c10::IValue()};
    EXPECT_THROW(draw(op(), arguments), c10::Error) << probability;
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Draw,
                         ::testing::Values(at::kFloat, at::kDouble, at::kHalf, at::kBFloat16,
                                           at::kBool, at::kByte, at::kLong),
                         [](const auto& info) { return c10::toString(info.param); });

}  // namespace
}  // namespace torch_lazy
