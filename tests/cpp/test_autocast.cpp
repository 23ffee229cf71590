// Mixed precision from C++: a region casts for lazy tensors, and only for them.
#include <torch_lazy/autocast.h>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

namespace torch_lazy {
namespace {

at::Tensor ones() {
  return at::ones({2, 2}, at::TensorOptions().device(at::kLazy));
}

TEST(Autocast, LastsUntilTheEndOfItsScope) {
  at::Tensor x = ones();
  {
    Autocast region(at::kBFloat16);
    EXPECT_EQ(at::mm(x, x).scalar_type(), at::kBFloat16);
    {
      Autocast off(at::kBFloat16, /*enabled=*/false);
      EXPECT_EQ(at::mm(x, x).scalar_type(), at::kFloat);
    }
    EXPECT_EQ(at::mm(x, x).scalar_type(), at::kBFloat16);
  }
  EXPECT_EQ(at::mm(x, x).scalar_type(), at::kFloat);
}

TEST(Autocast, LeavesOtherDevicesAlone) {
  at::Tensor x = at::ones({2, 2});
  Autocast region(at::kBFloat16);
  EXPECT_EQ(at::mm(x, x).scalar_type(), at::kFloat);
}

TEST(Autocast, GradientsHaveTheTypeOfTheWeight) {
  at::Tensor weight = ones().requires_grad_();
  at::Tensor loss;
  {
    Autocast region(at::kBFloat16);
    loss = at::mm(at::mm(ones(), weight), weight).sum();
  }
  loss.backward();
  EXPECT_EQ(weight.grad().scalar_type(), at::kFloat);
  EXPECT_TRUE(at::equal(weight.grad().cpu(), at::full({2, 2}, 8.0)));
}

TEST(Autocast, AChangedWeightIsCastAgain) {
  at::Tensor weight = ones().requires_grad_();
  Autocast region(at::kBFloat16);
  at::Tensor before = at::mm(ones(), weight);
  {
    c10::AutoGradMode no_grad(false);
    weight.add_(1);
  }
  at::Tensor after = at::mm(ones(), weight);
  EXPECT_EQ(before[0][0].item<float>(), 2);
  EXPECT_EQ(after[0][0].item<float>(), 4);
}

}  // namespace
}  // namespace torch_lazy
