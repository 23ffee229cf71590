// What the kernels for products and convolutions get. They are compiled for processors that may not
// be there, so nothing of the standard library may be in this file.
#pragma once

#include <stdint.h>

namespace torch_lazy {

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
  /// The columns of the matrix are in the order of places, then images: in grids of a few places,
  /// many taps of a place are beside the image, and need not be multiplied.
  bool by_place = false;

  /// A row is copied in parts, one for each column of a step that a tap may read.
  int64_t parts() const { return step_x < reach_x ? step_x : reach_x; }
  int64_t copied_width() const { return grid_width - 1 + (reach_x + step_x - 1) / step_x; }
};

/// result[rows, columns] = a[rows, depth] * samples[depth, columns], or with the samples
/// transposed.
struct SampledProduct {
  const float* a = nullptr;
  const int32_t* a_row = nullptr;  // a[r, d] is at a_row[r] + a_depth[d]
  const int32_t* a_depth = nullptr;
  Samples b;
  bool places_are_depth = false;  // transposed
  int64_t first_column = 0;
  float* result = nullptr;
  int64_t result_row = 0;  // stride
  const int32_t* result_column = nullptr;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t depth = 0;
  Extent block;  // what is packed at a time
};

/// Places, and samples of a place, that are packed at a time at most.
constexpr int64_t kSampledPlaces = 1024;
/// Tables of them: places, samples, taps, depths; and lists of depths for panels of 16 columns.
constexpr int64_t kSampleTables =
    4 * kSampledPlaces + kProductColumns / 16 * kProductDepth + kProductColumns / 16;

void multiply_avx2(const ProductBlock& block, float* scratch);
void multiply_avx512(const ProductBlock& block, float* scratch);

/// False: `a` has infinities or NaN. They make NaN of zeros beside the images, which are none.
bool multiply_samples_avx2(const SampledProduct& product, float* scratch);
bool multiply_samples_avx512(const SampledProduct& product, float* scratch);

}  // namespace torch_lazy
