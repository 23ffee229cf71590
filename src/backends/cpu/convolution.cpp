// Who computes a convolution.
#include "backends/cpu/convolution.h"

#include "backends/cpu/blocked_convolution.h"
#include "backends/cpu/convolution_operands.h"
#include "backends/cpu/own_convolution.h"
#include "base/settings.h"

namespace torch_lazy {
namespace {

using compile::Convolution;

enum class Maker : uint8_t { pytorch, ours, onednn };

/// Channels that oneDNN has side by side; what is missing to that is zeros.
constexpr int64_t kBlock = 16;

/// Of the output: then there is little to compute for each weight.
constexpr int64_t kFewPlaces = 64;

bool fills_blocks(int64_t channels) {
  const int64_t missing = (kBlock - channels % kBlock) % kBlock;
  return channels >= 2 * kBlock && missing * 10 <= channels;
}

/// A kernel of our own reads weights where they are. It is fast where places of the result, of all
/// images side by side in a row of pixels, fill vectors.
bool is_all_weight(const ConvolutionOperands& all, const Planes& result) {
  constexpr int64_t kLanes = 16;
  return all.output.places() <= kFewPlaces && result.sizes[0] * result.sizes[3] % kLanes == 0;
}

/// The overhead of its layouts is small against what oneDNN's kernels save: measured on AMD's Zen 4
/// and Intel's Sapphire Rapids, see docs/compiler.md.
bool is_better_blocked(const Convolution& c, const ConvolutionOperands& all) {
  const bool forward = c.kind == Convolution::Kind::forward;
  const bool strided = c.stride[0] > 1 || c.stride[1] > 1;
  const int64_t inputs = all.weight.sizes[1];
  const int64_t outputs = all.weight.sizes[0] / c.groups;
  if (!fills_blocks(outputs)) {
    return false;
  }
  if (all.taps() == 1) {
    constexpr int64_t kLargeWeight = 1 << 18;
    return fills_blocks(inputs) && (inputs * outputs >= kLargeWeight || (strided && !forward));
  }
  constexpr int64_t kColours = 4;  // oneDNN has kernels for the first layer of a network
  if (forward && c.groups == 1 && inputs <= kColours) {
    return true;
  }
  const bool whole = forward || !strided;  // otherwise ours read the weights several times
  return fills_blocks(inputs) && !(whole && is_all_weight(all, forward ? all.output : all.input));
}

/// What lies apart, and is no more than 2 GiB in blocks of channels.
bool has_layout(const Planes& planes) {
  constexpr int64_t kMost = int64_t{1} << 29;  // elements
  int64_t count = 1;
  for (int d = 0; d < 4; ++d) {
    if (planes.sizes[d] == 0 || (planes.sizes[d] > 1 && planes.strides[d] <= 0)) {
      return false;
    }
    const int64_t blocks = (planes.sizes[d] + kBlock - 1) / kBlock;
    count *= d == 1 ? blocks * kBlock : planes.sizes[d];
    if (count > kMost) {
      return false;
    }
  }
  return true;
}

/// Of grouped convolutions oneDNN has those whose groups are whole blocks.
bool can_be_blocked(const Convolution& c, const ConvolutionOperands& all) {
  return has_onednn() && c.kind != Convolution::Kind::weight_gradient && has_layout(all.input) &&
         has_layout(all.weight) && has_layout(all.output) &&
         (c.groups == 1 ||
          (all.weight.sizes[1] % kBlock == 0 && all.weight.sizes[0] / c.groups % kBlock == 0));
}

/// Without oneDNN, PyTorch's are the faster ones where weights are small against the images. The
/// bits of its gradients depend on the number of threads: those are always ours.
bool is_better_here(const Convolution& c, const ConvolutionOperands& all) {
  return c.kind != Convolution::Kind::forward || all.taps() == 1 ||
         all.output.places() <= kFewPlaces;
}

Maker maker_of(const compile::Product& product) {
  for (const compile::View* view : {&product.a, &product.b, &product.out}) {
    if (view->layout.dtype != at::kFloat || view->layout.conj || view->layout.neg) {
      return Maker::pytorch;
    }
  }
  const ProductMode mode = settings().products;
  if (mode == ProductMode::aten) {
    return Maker::pytorch;
  }
  const Convolution& c = *product.convolution;
  const ConvolutionOperands all(product, nullptr, nullptr, nullptr);
  const bool ours = has_own_convolution(product);
  const bool onednn = mode != ProductMode::own && can_be_blocked(c, all);
  if (onednn && (mode == ProductMode::onednn || !ours || is_better_blocked(c, all))) {
    return Maker::onednn;
  }
  const bool here = onednn || mode != ProductMode::automatic || is_better_here(c, all);
  return ours && here ? Maker::ours : Maker::pytorch;
}

}  // namespace

bool has_convolution(const compile::Product& product) {
  return maker_of(product) != Maker::pytorch;
}

std::shared_ptr<const PreparedConvolution> prepare_convolution(const compile::Product& product) {
  const Maker maker = maker_of(product);
  if (maker == Maker::onednn) {
    if (auto blocked = blocked_convolution(product)) {
      return blocked;
    }
  }
  const bool ours = maker == Maker::ours || has_own_convolution(product);
  return ours ? own_convolution(product) : pytorchs_convolution(product);
}

}  // namespace torch_lazy
