// Convolutions by oneDNN. It computes in layouts of its own, in which 16 channels lie side by side:
// images are brought into them and back in each run, weights as well unless they are packed
// already. No header of PyTorch and none of oneDNN is included here: PyTorch has oneDNN's of
// another version.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace torch_lazy::onednn {

/// [images, channels, height, width], or [outputs, inputs, height, width] for weights; in elements.
struct Shape {
  std::array<int64_t, 4> sizes{};
  std::array<int64_t, 4> strides{};
};

struct Problem {
  bool gradient = false;  // of the input, instead of the output
  Shape input;
  Shape weight;
  Shape output;
  std::array<int64_t, 2> stride{};
  std::array<int64_t, 2> padding{};
  std::array<int64_t, 2> dilation{};
  int64_t groups = 1;
  int parts = 1;  // that the work is cut into, however many threads there are
};

/// Calls the function with 0, 1, ... count - 1, on any threads, and returns when all have returned.
using Parallel = void (*)(int count, const std::function<void(int)>& function);

class Convolution {
 public:
  virtual ~Convolution() = default;

  /// Bytes of packed weights, and of what a run needs besides.
  virtual int64_t weight_bytes() const = 0;
  virtual int64_t scratch_bytes() const = 0;

  /// Equal for two convolutions whose packed weights are the same.
  virtual std::string weight_layout() const = 0;

  /// Memory is aligned to 64 bytes, but for that of the problem's shapes.
  virtual void pack(const float* weight, void* packed, void* scratch, Parallel parallel) const = 0;

  /// `image` is the input, or for a gradient the output's.
  virtual void run(const float* image, const void* packed, float* result, void* scratch,
                   Parallel parallel) const = 0;
};

/// Null: oneDNN has nothing fast for this problem or this processor.
std::shared_ptr<const Convolution> make_convolution(const Problem& problem);

}  // namespace torch_lazy::onednn
