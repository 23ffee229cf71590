// What a convolution reads and writes, whichever of the three is the result.
#pragma once

#include "compile/program.h"

#include <cstdint>

namespace torch_lazy {

/// Images, [images, channels, height, width], or weights, [outputs, inputs, height, width].
struct Planes {
  float* data = nullptr;
  int64_t sizes[4] = {};
  int64_t strides[4] = {};

  Planes(const compile::View& view, float* memory) : data(memory) {
    const Layout& layout = view.layout;
    const bool flat = layout.sizes.size() == 3;  // height 1
    for (size_t d = 0; d < 4; ++d) {
      const size_t from = flat && d > 2 ? 2 : d;
      const bool height = flat && d == 2;
      sizes[d] = height ? 1 : layout.sizes[from];
      strides[d] = height ? 0 : layout.strides[from];
    }
  }

  /// `count` of a dimension, from the `first` on.
  Planes part(int dimension, int64_t first, int64_t count) const {
    Planes planes = *this;
    planes.data += planes.data ? first * planes.strides[dimension] : 0;
    planes.sizes[dimension] = count;
    return planes;
  }

  int64_t places() const { return sizes[0] * sizes[2] * sizes[3]; }  // of images
};

struct ConvolutionOperands {
  Planes input;
  Planes weight;
  Planes output;

  ConvolutionOperands(const compile::Product& p, float* a, float* b, float* out)
      : ConvolutionOperands(p.convolution->kind, Planes(p.a, a), Planes(p.b, b),
                            Planes(p.out, out)) {}

  ConvolutionOperands(compile::Convolution::Kind kind, const Planes& a, const Planes& b,
                      const Planes& out)
      : input(kind == compile::Convolution::Kind::forward           ? a
              : kind == compile::Convolution::Kind::weight_gradient ? b
                                                                    : out),
        weight(kind == compile::Convolution::Kind::weight_gradient ? out : b),
        output(kind == compile::Convolution::Kind::forward ? out : a) {}

  int64_t taps() const { return weight.sizes[2] * weight.sizes[3]; }

  /// Input and output along their channels, the weight along its outputs.
  ConvolutionOperands of_group(int64_t group, int64_t groups) const {
    const int64_t inputs = input.sizes[1] / groups;
    const int64_t outputs = output.sizes[1] / groups;
    ConvolutionOperands part = *this;
    part.input = input.part(1, group * inputs, inputs);
    part.weight = weight.part(0, group * outputs, outputs);
    part.output = output.part(1, group * outputs, outputs);
    return part;
  }
};

}  // namespace torch_lazy
