#include "backends/cpu/own_convolution.h"

#include "backends/cpu/arena.h"
#include "backends/cpu/convolution_operands.h"
#include "backends/cpu/product.h"

#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <numeric>
#include <vector>

namespace torch_lazy {
namespace {

using compile::Convolution;
using Table = std::vector<int32_t>;

/// Elements of images that are copied for a block.
constexpr int64_t kMostCopied = 1 << 20;
constexpr int64_t kBestCopied = 1 << 17;  // leaves room for others in the cache

/// For so few places it does not pay to pack weights.
constexpr int64_t kFewColumns = 512;

/// Samples of a place that are multiplied at a time.
constexpr int64_t kDeepest = 2400;

/// Places that are sampled at a time.
constexpr int64_t kMostPlaces = 1024;

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

/// A product being put together, with the tables that it refers to.
struct Job {
  SampledProduct product;
  Table a_side;
  Table a_depth;
  Table result_b;
  Table tap_y;
  Table tap_x;

  void add_tap(int64_t y, int64_t x) {
    tap_y.push_back(static_cast<int32_t>(y));
    tap_x.push_back(static_cast<int32_t>(x));
  }

  void connect() {
    SampledProduct& p = product;
    p.a_side = a_side.data();
    p.a_depth = a_depth.data();
    p.result_b = result_b.data();
    const auto side = static_cast<int64_t>(a_side.size());
    const auto samples = static_cast<int64_t>(result_b.size());
    p.rows = p.samples_are_rows() ? samples : side;
    p.columns = p.samples_are_rows() ? side : samples;
    p.depth = static_cast<int64_t>(a_depth.size());
    Samples& s = p.b;
    s.taps = static_cast<int64_t>(tap_y.size());
    s.tap_y = tap_y.data();
    s.tap_x = tap_x.data();
    const auto [low_y, high_y] = std::minmax_element(tap_y.begin(), tap_y.end());
    const auto [low_x, high_x] = std::minmax_element(tap_x.begin(), tap_x.end());
    s.first_y = *low_y;
    s.first_x = *low_x;
    s.reach_y = *high_y - *low_y + 1;
    s.reach_x = *high_x - *low_x + 1;
    choose_blocks();
  }

  /// What is read in place needs no packed columns: deeper blocks instead, whose sums stay in
  /// registers for longer. The same where columns are few.
  void choose_blocks() {
    Extent& block = product.block;
    block = {kProductRows, kProductColumns, kProductDepth};
    if (product.sampling == Sampling::vectors) {
      const int64_t taps = product.b.taps;
      block.columns = kMostPlaces;
      block.depth = std::min(product.depth, std::max<int64_t>(1, kDeepest / taps) * taps);
      while (block.depth > taps && copied() > kBestCopied) {
        block.depth = ceil_div(block.depth / taps, 2) * taps;
      }
      product.a_in_place = product.columns <= kFewColumns;
      product.a_is_large = product.rows * product.depth > 2 * kBestCopied;
      const int64_t room = !product.a_in_place  ? kProductRows * kProductDepth
                           : product.a_is_large ? kBestCopied / 2
                                                : kBestCopied;
      block.rows = std::max<int64_t>(1, room / block.depth / kTileRows) * kTileRows;
      return;
    }
    while (block.depth < kMostPlaces && product.columns <= block.columns / 2) {
      block.columns /= 2;
      block.depth *= 2;
      block.rows /= product.samples_are_rows() ? 1 : 2;
    }
  }

  /// Elements that are copied for a block, at most.
  int64_t copied() const {
    const Samples& s = product.b;
    const Extent& block = product.block;
    const int64_t side = product.samples_are_rows() ? block.rows : block.columns;
    const int64_t places = product.sum_over_places ? block.depth : side;
    const int64_t samples = product.sum_over_places ? side : block.depth;
    const int64_t row = s.copied_width() * s.parts() * (samples / s.taps + 2);
    if (s.by_place) {
      const int64_t rows = std::min(places / (s.images * s.grid_width) + 2, s.grid_height);
      return (rows * s.step_y + s.reach_y) * s.images * row;
    }
    const int64_t images = std::min(s.images, places / (s.grid_height * s.grid_width) + 2);
    const int64_t rows = std::min(places / s.grid_width + 2 * images, images * s.grid_height);
    return (rows * s.step_y + images * s.reach_y) * row;
  }
};

void set_images(Samples& samples, const Planes& images) {
  samples.images = images.sizes[0];
  samples.data = images.data;
  samples.image = images.strides[0];
  samples.channel = images.strides[1];
  samples.row = images.strides[2];
  samples.column = images.strides[3];
  samples.height = images.sizes[2];
  samples.width = images.sizes[3];
}

/// Entries first * strides[0] + second * strides[1] + ..., in the order of the dimensions.
Table offsets(const Planes& planes, std::initializer_list<int> dimensions) {
  Table table{0};
  for (int d : dimensions) {
    Table next;
    next.reserve(table.size() * static_cast<size_t>(planes.sizes[d]));
    for (int32_t begin : table) {
      for (int64_t i = 0; i < planes.sizes[d]; ++i) {
        next.push_back(begin + static_cast<int32_t>(i * planes.strides[d]));
      }
    }
    table = std::move(next);
  }
  return table;
}

/// False: an operand is not finite, see multiply_samples.
bool compute(Job& job) {
  job.connect();
  const SampledProduct& all = job.product;
  const int64_t scratch_floats = all.packed_a() + all.packed_b() + all.tables() + job.copied();
  std::atomic<bool> finite{true};
  for_blocks(all.rows, all.columns, all.depth, [&](const ResultBlock& block) {
    SampledProduct product = all;
    const int64_t side = all.samples_are_rows() ? block.column : block.row;
    const int64_t other = all.samples_are_rows() ? block.row : block.column;
    product.a_side += side;
    product.result += side * all.result_a;
    product.result_b += other;
    product.first = other;
    product.rows = block.rows;
    product.columns = block.columns;
    auto* scratch = reinterpret_cast<float*>(
        scratch_memory(scratch_floats * static_cast<int64_t>(sizeof(float))));
    if (!product_kernels()->multiply_samples(product, scratch)) {
      finite = false;
    }
  });
  return finite;
}

/// Chooses how places are ordered and read; returns their offsets in `grid`. Rows of small grids
/// may be a little wider than those, so that they fill vectors.
Table choose_places(Job& job, const Planes& grid) {
  constexpr int64_t kLanes = 16;
  constexpr int64_t kMostImages = 64;
  const int64_t images = grid.sizes[0];
  const int64_t width = grid.sizes[3];
  const auto filled = [&](int64_t unit) {
    const int64_t step = kLanes / std::gcd(unit, kLanes);
    return ceil_div(width, step) * step;
  };
  const auto is_near = [&](int64_t wide) {
    return wide == width ||
           ((wide - width) * 7 <= width && images * grid.sizes[2] * wide <= kFewColumns);
  };
  Samples& s = job.product.b;
  s.by_place = filled(1) != width && is_near(filled(images)) && images <= kMostImages &&
               job.tap_y.size() > 1;
  const int64_t chosen = filled(s.by_place ? images : 1);
  if (is_near(chosen)) {
    job.product.sampling = Sampling::vectors;
    s.grid_width = chosen;
  }
  Planes wide = grid;
  wide.sizes[3] = s.grid_width;
  Table table = s.by_place ? offsets(wide, {2, 3, 0}) : offsets(wide, {0, 2, 3});
  const int64_t unit = s.by_place ? images : 1;
  for (size_t i = 0; i < table.size() && s.grid_width > width; ++i) {
    if (static_cast<int64_t>(i) / unit % s.grid_width >= width) {
      table[i] = kNowhere;
    }
  }
  return table;
}

/// The input at the places of the output.
void sample_input(Job& job, const Planes& input, const Planes& weight, const Planes& output,
                  const Convolution& g) {
  Samples& s = job.product.b;
  set_images(s, input);
  s.grid_height = output.sizes[2];
  s.grid_width = output.sizes[3];
  s.step_y = g.stride[0];
  s.step_x = g.stride[1];
  for (int64_t y = 0; y < weight.sizes[2]; ++y) {
    for (int64_t x = 0; x < weight.sizes[3]; ++x) {
      job.add_tap(y * g.dilation[0] - g.padding[0], x * g.dilation[1] - g.padding[1]);
    }
  }
}

/// The convolution of one group: rows are output channels, columns places of the output.
Job forward_job(const Planes& input, const Planes& weight, const Planes& output,
                const Convolution& g) {
  Job job;
  sample_input(job, input, weight, output, g);
  job.product.a = weight.data;
  job.a_side = offsets(weight, {0});
  job.a_depth = offsets(weight, {1, 2, 3});
  job.product.result = output.data;
  job.product.result_a = output.strides[1];
  job.result_b = choose_places(job, output);
  return job;
}

/// Output channels by input channels and taps; the sum goes over the places. Where these are few,
/// writing the result matters more than packing.
Job weight_job(const Planes& output, const Planes& input, const Planes& weight,
               const Convolution& g) {
  Job job;
  sample_input(job, input, weight, output, g);
  job.product.sum_over_places = true;
  constexpr int64_t kFewPlaces = 256;
  job.product.sampling = output.places() > kFewPlaces ? Sampling::elements : Sampling::packed;
  job.product.a = output.data;
  job.a_side = offsets(output, {1});
  job.a_depth = offsets(output, {0, 2, 3});
  job.product.result = weight.data;
  job.product.result_a = weight.strides[0];
  job.result_b = offsets(weight, {1, 2, 3});
  return job;
}

/// Taps along one dimension that reach inputs at `phase`, `phase` + stride, ..., and the outputs
/// that they come from, relative to the place.
struct Reach {
  std::vector<int64_t> taps;
  std::vector<int64_t> outputs;

  Reach(int64_t kernel, int64_t stride, int64_t padding, int64_t dilation, int64_t phase) {
    for (int64_t t = 0; t < kernel; ++t) {
      const int64_t distance = phase + padding - t * dilation;
      if (distance % stride == 0) {
        taps.push_back(t);
        outputs.push_back(distance / stride);
      }
    }
  }
};

/// Inputs at every stride-th place have the same taps. Rows are input channels.
Job back_job(const Planes& output, const Planes& weight, const Planes& input, const Reach& y,
             const Reach& x) {
  Job job;
  job.product.a = weight.data;
  job.a_side = offsets(weight, {1});
  Samples& s = job.product.b;
  set_images(s, output);
  s.grid_height = input.sizes[2];
  s.grid_width = input.sizes[3];
  for (size_t i = 0; i < y.taps.size(); ++i) {
    for (size_t j = 0; j < x.taps.size(); ++j) {
      job.add_tap(y.outputs[i], x.outputs[j]);
    }
  }
  for (int64_t o = 0; o < weight.sizes[0]; ++o) {
    for (int64_t i : y.taps) {
      for (int64_t j : x.taps) {
        job.a_depth.push_back(static_cast<int32_t>(o * weight.strides[0] + i * weight.strides[2] +
                                                   j * weight.strides[3]));
      }
    }
  }
  job.product.result = input.data;
  job.product.result_a = input.strides[1];
  job.result_b = choose_places(job, input);
  return job;
}

void clear(const Planes& planes) {
  for (int32_t place : offsets(planes, {0, 2, 3})) {
    for (int64_t c = 0; c < planes.sizes[1]; ++c) {
      planes.data[place + c * planes.strides[1]] = 0;
    }
  }
}

bool fits(const Planes& planes) {
  int64_t reach = 0;
  for (int d = 0; d < 4; ++d) {
    if (planes.sizes[d] == 0 || planes.strides[d] < 0) {
      return false;
    }
    reach += (planes.sizes[d] - 1) * planes.strides[d];
  }
  return reach < std::numeric_limits<int32_t>::max();
}

/// The gradient of the input.
bool convolve_back(const Planes& output, const Planes& weight, const Planes& input,
                   const Convolution& g) {
  bool finite = true;
  for (int64_t y = 0; y < std::min(g.stride[0], input.sizes[2]); ++y) {
    for (int64_t x = 0; x < std::min(g.stride[1], input.sizes[3]); ++x) {
      Planes places = input;
      places.data += y * input.strides[2] + x * input.strides[3];
      places.sizes[2] = ceil_div(input.sizes[2] - y, g.stride[0]);
      places.sizes[3] = ceil_div(input.sizes[3] - x, g.stride[1]);
      places.strides[2] *= g.stride[0];
      places.strides[3] *= g.stride[1];
      const Reach down(weight.sizes[2], g.stride[0], g.padding[0], g.dilation[0], y);
      const Reach right(weight.sizes[3], g.stride[1], g.padding[1], g.dilation[1], x);
      if (down.taps.empty() || right.taps.empty()) {
        clear(places);
        continue;
      }
      Job job = back_job(output, weight, places, down, right);
      finite = compute(job) && finite;
    }
  }
  return finite;
}

at::Tensor tensor(const compile::View& view, float* memory) {
  return at::from_blob(memory, view.layout.sizes, view.layout.strides, at::kFloat);
}

void convolve_with_pytorch(const compile::Product& product, float* a, float* b, float* out) {
  const Convolution& c = *product.convolution;
  const int64_t rank = static_cast<int64_t>(product.a.layout.sizes.size()) - 2;
  const auto last = [&](const std::array<int64_t, 2>& values) {
    return at::IntArrayRef(values).slice(2 - rank);
  };
  const at::Tensor left = tensor(product.a, a);
  const at::Tensor right = tensor(product.b, b);
  at::Tensor result = tensor(product.out, out);
  const std::vector<int64_t> none(rank, 0);
  if (c.kind == Convolution::Kind::forward) {
    result.copy_(at::convolution(left, right, {}, last(c.stride), last(c.padding), last(c.dilation),
                                 false, none, c.groups));
    return;
  }
  const bool weight = c.kind == Convolution::Kind::weight_gradient;
  const auto gradients =
      at::convolution_backward(left, weight ? right : at::empty(product.out.layout.sizes),
                               weight ? at::empty(product.out.layout.sizes) : right,
                               at::OptionalIntArrayRef(), last(c.stride), last(c.padding),
                               last(c.dilation), false, none, c.groups, {!weight, weight, false});
  result.copy_(weight ? std::get<1>(gradients) : std::get<0>(gradients));
}

/// False: an operand is not finite, see multiply_samples.
bool convolve(const compile::Product& product, float* a, float* b, float* out) {
  const Convolution& convolution = *product.convolution;
  const ConvolutionOperands all(product, a, b, out);
  bool finite = true;
  for (int64_t g = 0; g < convolution.groups; ++g) {
    const auto [input, weight, output] = all.of_group(g, convolution.groups);
    if (convolution.kind == Convolution::Kind::input_gradient) {
      finite = convolve_back(output, weight, input, convolution) && finite;
      continue;
    }
    Job job = convolution.kind == Convolution::Kind::forward
                  ? forward_job(input, weight, output, convolution)
                  : weight_job(output, input, weight, convolution);
    finite = compute(job) && finite;
  }
  return finite;
}

class OwnConvolution final : public PreparedConvolution {
 public:
  explicit OwnConvolution(const compile::Product& product) : product_(product) {}

  void run(float* a, float* b, float* out, Beside* /*beside*/) const override {
    if (!convolve(product_, a, b, out)) {
      convolve_with_pytorch(product_, a, b, out);
    }
  }

 private:
  compile::Product product_;
};

class PyTorchsConvolution final : public PreparedConvolution {
 public:
  explicit PyTorchsConvolution(const compile::Product& product) : product_(product) {}

  void run(float* a, float* b, float* out, Beside* /*beside*/) const override {
    convolve_with_pytorch(product_, a, b, out);
  }

 private:
  compile::Product product_;
};

}  // namespace

bool has_own_convolution(const compile::Product& product) {
  const Convolution& convolution = *product.convolution;
  const ConvolutionOperands all(product, nullptr, nullptr, nullptr);
  const auto& [input, weight, output] = all;
  if (!can_multiply(weight.sizes[0] / convolution.groups, output.places(),
                    weight.sizes[1] * all.taps()) ||
      all.taps() > kDeepest || !fits(input) || !fits(weight) || !fits(output)) {
    return false;
  }
  const auto [i, w, o] = all.of_group(0, convolution.groups);
  bool small = true;
  for (Job job : {forward_job(i, w, o, convolution), weight_job(o, i, w, convolution)}) {
    job.connect();
    small = small && job.copied() <= kMostCopied;
  }
  return small;
}

std::shared_ptr<const PreparedConvolution> own_convolution(const compile::Product& product) {
  return std::make_shared<OwnConvolution>(product);
}

std::shared_ptr<const PreparedConvolution> pytorchs_convolution(const compile::Product& product) {
  return std::make_shared<PyTorchsConvolution>(product);
}

}  // namespace torch_lazy
