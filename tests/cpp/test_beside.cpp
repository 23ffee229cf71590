// What a backend keeps beside data lives exactly as long as the data stays as it is.
#include "capture/tensor.h"
#include "ir/node.h"
#include <torch_lazy/torch_lazy.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace torch_lazy {
namespace {

std::shared_ptr<Beside> beside(const at::Tensor& tensor) {
  GraphLock lock;
  return Program::instance().beside(buffer_of(tensor).current);
}

at::Tensor on_lazy(const at::Tensor& tensor) {
  return tensor.to(at::Device("lazy"));
}

TEST(BesideData, StaysWhileTheDataStays) {
  const at::Tensor a = on_lazy(at::ones({3}));
  const std::weak_ptr<Beside> first = beside(a);
  EXPECT_FALSE(first.expired());
  const at::Tensor b = a + 1;
  sync({b}, /*wait=*/true);
  EXPECT_EQ(first.lock(), beside(a));
  EXPECT_NE(first.lock(), beside(b));
}

TEST(BesideData, IsGoneWithTheData) {
  at::Tensor a = on_lazy(at::ones({3}));
  const std::weak_ptr<Beside> first = beside(a);
  a = at::Tensor();
  EXPECT_TRUE(first.expired());
}

TEST(BesideData, IsGoneWhenTheDataIsOverwritten) {
  const at::Tensor a = on_lazy(at::ones({3}));
  const std::weak_ptr<Beside> first = beside(a);
  a.add_(1);
  sync({a}, /*wait=*/true);
  EXPECT_TRUE(first.expired());
  EXPECT_NE(beside(a), nullptr);
}

TEST(BesideData, IsGoneWhenOthersMayWrite) {
  const at::Tensor a = on_lazy(at::ones({3}));
  const std::weak_ptr<Beside> first = beside(a);
  const at::Tensor real = to_real(a);
  EXPECT_TRUE(first.expired());
  EXPECT_EQ(beside(a), nullptr);
  EXPECT_EQ(beside(from_real(at::ones({3}))), nullptr);
  const at::Tensor undefined = at::empty({3}, at::Device("lazy"));
  const at::Tensor memory = to_real(undefined);
  EXPECT_EQ(beside(undefined), nullptr);
}

}  // namespace
}  // namespace torch_lazy
