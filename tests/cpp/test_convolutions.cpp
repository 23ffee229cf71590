// Convolutions of our own and oneDNN's, against PyTorch's in double precision.
#include "backends/cpu/blocked_convolution.h"
#include "backends/cpu/convolution.h"
#include "backends/cpu/product.h"
#include "base/settings.h"
#include <torch_lazy/metrics.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <sys/mman.h>
#include <unistd.h>

#include <limits>
#include <random>
#include <vector>

namespace torch_lazy {
namespace {

using compile::Convolution;

struct Shape {
  int64_t images, inputs, height, width, outputs, kernel_y, kernel_x;
  Convolution geometry;
};

Convolution geometry(int64_t stride, int64_t padding, int64_t dilation = 1, int64_t groups = 1) {
  return {Convolution::Kind::forward,
          {stride, stride},
          {padding, padding},
          {dilation, dilation},
          groups};
}

compile::View view(const at::Tensor& tensor) {
  compile::View view;
  view.layout.sizes = tensor.sizes();
  view.layout.strides = tensor.strides();
  view.layout.dtype = tensor.scalar_type();
  return view;
}

compile::Product product(Convolution convolution, Convolution::Kind kind, const at::Tensor& a,
                         const at::Tensor& b, const at::Tensor& out) {
  convolution.kind = kind;
  return {view(a), view(b), view(out), convolution};
}

void compute(const Convolution& convolution, Convolution::Kind kind, const at::Tensor& a,
             const at::Tensor& b, const at::Tensor& out) {
  const compile::Product step = product(convolution, kind, a, b, out);
  EXPECT_TRUE(has_convolution(step));
  prepare_convolution(step)->run(a.mutable_data_ptr<float>(), b.mutable_data_ptr<float>(),
                                 out.mutable_data_ptr<float>(), /*beside=*/nullptr);
}

const std::vector<Shape> kShapes = {
    {2, 16, 16, 16, 16, 3, 3, geometry(1, 1)},
    {8, 64, 16, 16, 64, 3, 3, geometry(1, 1)},
    {8, 3, 64, 64, 64, 7, 7, geometry(2, 3)},
    {4, 20, 9, 7, 40, 3, 3, geometry(2, 1)},
    {4, 16, 8, 8, 32, 1, 1, geometry(2, 0)},
    {4, 16, 8, 8, 32, 1, 1, geometry(1, 0)},
    {3, 17, 11, 13, 19, 5, 2, {Convolution::Kind::forward, {3, 2}, {2, 0}, {1, 3}, 1}},
    {8, 70, 2, 2, 130, 3, 3, geometry(1, 1)},
    {3, 30, 5, 4, 130, 3, 2, {Convolution::Kind::forward, {2, 1}, {1, 1}, {1, 2}, 1}},
    {40, 16, 1, 1, 16, 3, 3, geometry(1, 1)},
    {2, 64, 10, 10, 48, 3, 3, geometry(1, 2, 2, 2)},
    {1, 16, 1, 300, 20, 1, 9, {Convolution::Kind::forward, {1, 4}, {0, 4}, {1, 1}, 1}},
    {1, 16, 60, 60, 16, 3, 3, geometry(4, 1)},
    {8, 40, 8, 8, 30, 3, 3, geometry(1, 1)},
    {12, 24, 4, 4, 20, 3, 3, geometry(1, 1)},
    {12, 24, 8, 8, 20, 3, 3, geometry(2, 1)},
    {8, 300, 2, 2, 60, 3, 3, geometry(1, 1)},
    {2, 300, 16, 16, 300, 3, 3, geometry(1, 1)},
    {2, 64, 10, 10, 96, 3, 3, geometry(2, 1, 1, 2)},
    {2, 128, 6, 6, 128, 1, 1, geometry(2, 0, 1, 4)},
};

/// A copy that lies before, or behind, a page that cannot be read or written.
at::Tensor beside_a_wall(const at::Tensor& tensor, bool before) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t room = (tensor.nbytes() + page - 1) / page * page;
  auto* memory = static_cast<char*>(
      mmap(nullptr, room + 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  TORCH_CHECK(memory != MAP_FAILED, "no memory");
  mprotect(memory, page, PROT_NONE);
  mprotect(memory + page + room, page, PROT_NONE);
  at::Tensor copy = at::from_blob(
      memory + page + (before ? room - tensor.nbytes() : 0), tensor.sizes(), tensor.strides(),
      [=](void*) { munmap(memory, room + 2 * page); }, tensor.options());
  return copy.copy_(tensor);
}

struct Results {
  at::Tensor output, input_gradient, weight_gradient;
};

struct Operands {
  at::Tensor input, weight, gradient;

  explicit Operands(const Shape& s) {
    at::manual_seed(0);
    input = at::randn({s.images, s.inputs, s.height, s.width});
    weight = at::randn({s.outputs, s.inputs / s.geometry.groups, s.kernel_y, s.kernel_x});
    gradient = at::randn(expected(s).output.sizes());
  }

  Results expected(const Shape& s, at::ScalarType type = at::kDouble) const {
    const Convolution& g = s.geometry;
    const at::Tensor x = input.to(type);
    const at::Tensor w = weight.to(type);
    Results results;
    results.output = at::conv2d(x, w, {}, g.stride, g.padding, g.dilation, g.groups);
    if (gradient.defined()) {
      std::tie(results.input_gradient, results.weight_gradient, std::ignore) =
          at::convolution_backward(gradient.to(type), x, w, at::nullopt, g.stride, g.padding,
                                   g.dilation, false, {0, 0}, g.groups, {true, true, false});
    }
    return results;
  }

  Results computed(const Shape& s, bool channels_last, bool before_a_wall = true) const {
    const auto format =
        channels_last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
    const auto walled = [&](const at::Tensor& tensor) {
      return beside_a_wall(tensor.contiguous(format), before_a_wall);
    };
    const at::Tensor x = walled(input);
    const at::Tensor w = walled(weight);
    const at::Tensor dy = walled(gradient);
    const auto blank = [&](const at::Tensor& like) { return walled(at::full_like(like, 1e9)); };
    // What is not written shows.
    Results results{blank(dy), blank(x), blank(w)};
    compute(s.geometry, Convolution::Kind::forward, x, w, results.output);
    compute(s.geometry, Convolution::Kind::input_gradient, dy, w, results.input_gradient);
    compute(s.geometry, Convolution::Kind::weight_gradient, dy, x, results.weight_gradient);
    return results;
  }
};

void expect_near(const at::Tensor& actual, const at::Tensor& expected, const char* what) {
  const double scale = expected.abs().max().item<double>();
  EXPECT_LE((actual.to(at::kDouble) - expected).abs().max().item<double>(), 1e-5 * scale)
      << what << " of sizes " << expected.sizes();
}

/// By our own kernels, or by oneDNN wherever it can.
class Convolutions : public testing::TestWithParam<ProductMode> {
 protected:
  void SetUp() override {
    before_ = settings().products;
    threads_ = at::get_num_threads();
    at::set_num_threads(1);
    settings().products = GetParam();
    if (!can_multiply(16, 16, 16) || (GetParam() == ProductMode::onednn && !has_onednn())) {
      GTEST_SKIP() << "not on this processor";
    }
  }
  void TearDown() override {
    settings().products = before_;
    at::set_num_threads(threads_);
  }

  ProductMode before_ = ProductMode::automatic;
  int threads_ = 1;
};

TEST_P(Convolutions, AreThoseOfDoublePrecision) {
  for (const Shape& shape : kShapes) {
    const Operands operands(shape);
    const Results expected = operands.expected(shape);
    for (bool channels_last : {false, true}) {
      const Results results = operands.computed(shape, channels_last);
      expect_near(results.output, expected.output, "output");
      expect_near(results.input_gradient, expected.input_gradient, "gradient of the input");
      expect_near(results.weight_gradient, expected.weight_gradient, "gradient of the weight");
    }
  }
}

TEST_P(Convolutions, HaveTheSameBitsForAnyNumberOfThreads) {
  for (const Shape& shape : kShapes) {
    at::set_num_threads(1);
    const Operands operands(shape);
    const Results one = operands.computed(shape, false);
    for (int count : {2, 7}) {
      at::set_num_threads(count);
      const Results many = operands.computed(shape, false);
      EXPECT_TRUE(at::equal(one.output, many.output));
      EXPECT_TRUE(at::equal(one.input_gradient, many.input_gradient));
      EXPECT_TRUE(at::equal(one.weight_gradient, many.weight_gradient));
    }
  }
}

TEST_P(Convolutions, OfAnyShapeAreThoseOfDoublePrecision) {
  std::mt19937 random(1);
  const auto between = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  for (int i = 0; i < 120; ++i) {
    Shape shape;
    Convolution& g = shape.geometry;
    g = {Convolution::Kind::forward,
         {between(1, 3), between(1, 3)},
         {between(0, 3), between(0, 3)},
         {between(1, 2), between(1, 2)},
         between(1, 2)};
    shape.images = between(0, 1) == 1 ? 8 * between(1, 3) : between(1, 18);
    shape.inputs = between(8, 24) * g.groups;
    shape.outputs = between(16, 40) * g.groups;
    shape.kernel_y = between(1, 4);
    shape.kernel_x = between(2, 4);
    shape.height = between(shape.kernel_y * g.dilation[0], 12);
    shape.width = between(shape.kernel_x * g.dilation[1], i % 4 == 0 ? 36 : 12);
    const Operands operands(shape);
    if (operands.gradient.numel() / shape.outputs < 16) {
      continue;  // too small: PyTorch's
    }
    const Results expected = operands.expected(shape);
    const Results results = operands.computed(shape, between(0, 1) == 1, between(0, 1) == 1);
    expect_near(results.output, expected.output, "output");
    expect_near(results.input_gradient, expected.input_gradient, "gradient of the input");
    expect_near(results.weight_gradient, expected.weight_gradient, "gradient of the weight");
  }
}

TEST_P(Convolutions, KeepWeightsFromTheSecondRunOn) {
  const Shape& shape = kShapes[1];
  const Operands operands(shape);
  const Results expected = operands.expected(shape);
  const at::Tensor output = at::empty_like(operands.gradient);
  const compile::Product step =
      product(shape.geometry, Convolution::Kind::forward, operands.input, operands.weight, output);
  const auto convolution = prepare_convolution(step);
  Beside beside;
  const auto kept = [] { return metrics::counter("KeptWeights").value(); };
  const int64_t before = kept();
  for (int run = 0; run < 3; ++run) {
    output.fill_(1e9);
    convolution->run(operands.input.mutable_data_ptr<float>(),
                     operands.weight.mutable_data_ptr<float>(), output.mutable_data_ptr<float>(),
                     &beside);
    expect_near(output, expected.output, "output");
    const bool keeps = GetParam() == ProductMode::onednn && run > 0;
    EXPECT_EQ(kept() - before, keeps ? 1 : 0) << "in run " << run;
  }
}

TEST_P(Convolutions, OfInfinitiesHaveNoNaNMoreThanPyTorchs) {
  // oneDNN leaves zeros beside an image out where PyTorch may multiply with them, which is NaN.
  const auto expect_same = [](const at::Tensor& actual, const at::Tensor& expected) {
    const bool fewer = GetParam() == ProductMode::onednn;
    const at::Tensor compared = fewer ? at::where(expected.isfinite(), actual, expected) : actual;
    EXPECT_TRUE(at::allclose(compared, expected, 1e-4, 1e-4, /*equal_nan=*/true))
        << "sizes " << expected.sizes();
  };
  for (size_t i : {0, 4, 7, 9, 11, 13, 14, 16}) {
    const Shape& shape = kShapes[i];
    Operands operands(shape);
    operands.weight.view(-1)[0] = std::numeric_limits<float>::infinity();
    operands.gradient.view(-1)[0] = std::numeric_limits<float>::quiet_NaN();
    operands.gradient.view(-1)[-1] = -std::numeric_limits<float>::infinity();
    const Results expected = operands.expected(shape, at::kFloat);
    EXPECT_FALSE(expected.weight_gradient.isfinite().all().item<bool>());
    const Results results = operands.computed(shape, false);
    expect_same(results.output, expected.output);
    expect_same(results.weight_gradient, expected.weight_gradient);
    expect_same(results.input_gradient, expected.input_gradient);
  }
}

TEST_P(Convolutions, OfOverlappingImagesAreRight) {
  Shape shape{2, 32, 8, 8, 32, 3, 3, geometry(1, 1)};
  Operands operands(shape);
  operands.input = at::randn({2, 32, 40}).unfold(2, 8, 4).narrow(2, 0, 8);
  const Results expected = operands.expected(shape);
  const at::Tensor output = at::full_like(operands.gradient, 1e9);
  compute(shape.geometry, Convolution::Kind::forward, operands.input, operands.weight, output);
  expect_near(output, expected.output, "output");
}

TEST_P(Convolutions, OfFewChannelsArePyTorchs) {
  const at::Tensor input = at::randn({2, 8, 8, 8});
  const at::Tensor weight = at::randn({8, 1, 3, 3});
  const at::Tensor output = at::randn({2, 8, 8, 8});
  EXPECT_FALSE(has_convolution(
      product(geometry(1, 1, 1, 8), Convolution::Kind::forward, input, weight, output)));
}

INSTANTIATE_TEST_SUITE_P(By, Convolutions, testing::Values(ProductMode::own, ProductMode::onednn),
                         [](const auto& info) {
                           return info.param == ProductMode::own ? "Ourselves" : "OneDnn";
                         });

}  // namespace
}  // namespace torch_lazy
