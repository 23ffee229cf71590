// What the kernels for products and convolutions get. They are compiled for processors that may not
// be there, so nothing of the standard library may be in this file.
#pragma once

#include <stdint.h>

namespace torch_lazy {

/// The largest tile of a result. Threads share results in units of it.
constexpr int64_t kTileRows = 12;
constexpr int64_t kTileColumns = 32;

/// Rows, columns and depth that are packed at a time.
constexpr int64_t kProductRows = 192;
constexpr int64_t kProductColumns = 768;
constexpr int64_t kProductDepth = 256;
constexpr int64_t kProductScratch = (kProductRows + kProductColumns) * kProductDepth;  // floats

/// Rows, columns and depth of a product, or of what is packed of it at a time.
struct Extent {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t depth = 0;
};

/// result[rows, columns] = a[rows, depth] * b[depth, columns]. Rows of the result are contiguous.
struct ProductBlock {
  const float* a = nullptr;
  int64_t a_row = 0;  // strides, in elements
  int64_t a_depth = 0;
  const float* b = nullptr;
  int64_t b_depth = 0;
  int64_t b_column = 0;
  float* result = nullptr;
  int64_t result_row = 0;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t depth = 0;
};

/// Images as a matrix, with a row for each channel and tap of the kernel, and a column for each
/// place in the grids that are laid over the images. The element of tap t at place (y, x) is that
/// at (y * step_y + tap_y[t], x * step_x + tap_x[t]), or zero beside the image.
struct Samples {
  const float* data = nullptr;
  int64_t image = 0;  // strides
  int64_t channel = 0;
  int64_t row = 0;
  int64_t column = 0;
  int64_t height = 0;
  int64_t width = 0;
  int64_t images = 0;
  int64_t grid_height = 0;
  int64_t grid_width = 0;
  int64_t step_y = 1;
  int64_t step_x = 1;
  int64_t taps = 0;
  const int32_t* tap_y = nullptr;
  const int32_t* tap_x = nullptr;
  int64_t first_y = 0;  // of the taps
  int64_t first_x = 0;
  int64_t reach_y = 0;  // rows from the first to the last tap
  int64_t reach_x = 0;
  /// Places are in the order of images, rows, columns, or else of rows, columns, images. Then
  /// vectors of places that follow each other are there in narrow grids too, and in low ones all
  /// places of a tile have taps beside the image, which need not be multiplied.
  bool by_place = false;

  /// A row is copied in parts, one for each column of a step that a tap may read.
  int64_t parts() const { return step_x < reach_x ? step_x : reach_x; }
  int64_t copied_width() const { return grid_width - 1 + (reach_x + step_x - 1) / step_x; }
};

/// Among offsets of results: one that is not kept.
constexpr int32_t kNowhere = -1;

/// Grids of so few places are low.
constexpr int64_t kLowGrid = 16;

/// How samples are read: packed, like the operands of any product, or from the copy of the images.
enum class Sampling {
  packed,
  vectors,   // of places that follow each other
  elements,  // the sum goes over the places
};

/// A product of a matrix `a` with samples, which are its columns; if they are read as elements, its
/// rows. A sum over places means that rows or columns are channels and taps, else they are places.
struct SampledProduct {
  Sampling sampling = Sampling::packed;
  bool sum_over_places = false;
  const float* a = nullptr;
  const int32_t* a_side = nullptr;  // an element is at a_side[row or column] + a_depth[depth]
  const int32_t* a_depth = nullptr;
  bool a_in_place = false;  // not packed: vectors only, rows and channels at one distance each
  bool a_is_large = false;  // more than a cache holds
  Samples b;
  int64_t first = 0;  // place, or sample
  float* result = nullptr;
  int64_t result_a = 0;               // distance along the side of `a`
  const int32_t* result_b = nullptr;  // offsets along the other
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t depth = 0;
  Extent block;  // what is prepared at a time

  bool samples_are_rows() const { return sampling == Sampling::elements; }
  /// Floats that are packed for a block, of `a` and of the samples.
  int64_t packed_a() const {
    return a_in_place ? 0 : block.depth * (samples_are_rows() ? block.columns : block.rows);
  }
  int64_t packed_b() const {
    return sampling == Sampling::packed ? block.depth * block.columns : 0;
  }
  /// Places and samples of a block, and three for each tap.
  int64_t tables() const {
    return block.depth + (samples_are_rows() ? block.rows : block.columns) + 3 * b.taps;
  }
};

void multiply_avx2(const ProductBlock& block, float* scratch);
void multiply_avx512(const ProductBlock& block, float* scratch);

/// False: `a` has infinities or NaN. They make NaN of zeros beside the images, which are none.
bool multiply_samples_avx2(const SampledProduct& product, float* scratch);
bool multiply_samples_avx512(const SampledProduct& product, float* scratch);

}  // namespace torch_lazy
