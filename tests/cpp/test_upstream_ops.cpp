// How a case of the operator tests is run and compared, and cases of more than one operator.
#include "eager_bits.h"
#include "upstream_ops.h"
#include <torch_lazy/torch_lazy.h>

#include <ATen/CPUGeneratorImpl.h>

namespace upstream_ops {

In::In(torch::Device on)
    : device(on),
      options(torch::TensorOptions().device(on)),
      generator_(at::detail::createCPUGenerator(1)) {}

torch::Tensor In::leaf(const torch::Tensor& data) {
  leaves.push_back(data.to(device).requires_grad_());
  return leaves.back();
}

torch::Tensor In::operator()(at::IntArrayRef sizes) {
  return leaf(torch::randn(sizes, generator_));
}

torch::Tensor In::between(double low, double high, at::IntArrayRef sizes) {
  return leaf(torch::rand(sizes, generator_) * (high - low) + low);
}

torch::Tensor In::plain(at::IntArrayRef sizes, at::ScalarType dtype) {
  return torch::randn(sizes, generator_, torch::TensorOptions()).to(dtype).to(device);
}

torch::Tensor In::ints(int64_t low, int64_t high, at::IntArrayRef sizes) {
  return torch::randint(low, high, sizes, generator_, torch::TensorOptions(at::kLong)).to(device);
}

torch::Tensor In::bools(at::IntArrayRef sizes) {
  return (torch::rand(sizes, generator_) < 0.5).to(device);
}

torch::Tensor In::range(int64_t end) {
  return torch::arange(static_cast<double>(end)).to(device);
}

namespace {

/// The results of a case, then the gradients of its differentiable inputs.
Tensors run(const Case& test, torch::Device device) {
  torch::manual_seed(0);
  In in(device);
  Tensors results = test.body(in);
  Tensors outputs;
  Tensors weights;
  for (const torch::Tensor& result : results) {
    if (result.defined() && result.requires_grad()) {
      outputs.push_back(result);
      weights.push_back(torch::linspace(-1, 2, result.numel())
                            .reshape(result.sizes())
                            .to(result.scalar_type())
                            .to(device));
    }
  }
  if (!outputs.empty()) {
    for (const torch::Tensor& gradient : torch::autograd::grad(
             outputs, in.leaves, weights, /*retain_graph=*/std::nullopt, /*create_graph=*/false,
             /*allow_unused=*/true)) {
      results.push_back(gradient);
    }
  }
  return results;
}

void expect_same(const torch::Tensor& eager, const torch::Tensor& lazy) {
  ASSERT_EQ(eager.defined(), lazy.defined());
  if (!eager.defined()) {
    return;
  }
  EXPECT_EQ(lazy.device().type(), at::kLazy);
  ASSERT_EQ(eager.scalar_type(), lazy.scalar_type());
  ASSERT_EQ(eager.sizes(), lazy.sizes());
  EXPECT_EQ(eager.strides(), lazy.strides());
  EXPECT_EQ(eager.storage_offset(), lazy.storage_offset());
  EXPECT_EQ(eager.requires_grad(), lazy.requires_grad());
  const torch::Tensor read = lazy.detach().cpu();
  EXPECT_TRUE(torch_lazy_tests::same_values(read, eager.detach())) << "eager:\n"
                                                                   << eager << "\nlazy:\n"
                                                                   << read;
}

std::string executed_at_once() {
  std::string names;
  for (const std::string& name : torch_lazy::counter_names()) {
    if (name.rfind("aten::", 0) == 0) {
      names += name + " ";
    }
  }
  return names;
}

TEST_P(UpstreamOps, GivesEagersResults) {
  const Case& test = GetParam();
  const Tensors eager = run(test, at::kCPU);
  run(test, at::kLazy);  // the first call of an operator without a layout function is observed
  torch_lazy::reset_metrics();
  const Tensors lazy = run(test, at::kLazy);
  if (test.at_once) {
    EXPECT_NE(executed_at_once(), "");
  } else {
    EXPECT_EQ(executed_at_once(), "");
  }
  ASSERT_EQ(eager.size(), lazy.size());
  for (size_t i = 0; i < eager.size(); ++i) {
    SCOPED_TRACE("result " + std::to_string(i));
    expect_same(eager[i], lazy[i]);
    for (size_t k = 0; k < i; ++k) {
      if (eager[i].defined() && eager[k].defined()) {
        EXPECT_EQ(eager[i].is_alias_of(eager[k]), lazy[i].is_alias_of(lazy[k])) << "and " << k;
      }
    }
  }
}

}  // namespace
}  // namespace upstream_ops
