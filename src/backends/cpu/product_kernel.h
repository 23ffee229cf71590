// A product of float matrices that one thread computes: blocks of the operands are packed so that
// the innermost loop reads them in order, and keeps a tile of the result in registers. It is
// compiled once for each kind of vectors, by files that differ in compiler options alone; nothing
// of the standard library may be in it, or its code for new processors would serve old ones.
#pragma once

#include "backends/cpu/product.h"

namespace torch_lazy {
namespace {

/// Tiles of kRows x (kVectors * kLanes) elements. They and the operands they need at a time fit
/// into the registers.
template <int kLanes, int kVectors, int kRows>
struct Tile {
  typedef float Vector __attribute__((vector_size(kLanes * sizeof(float))));
  static constexpr int64_t kColumns = kLanes * kVectors;

  static Vector load(const float* from) {
    Vector vector;
    __builtin_memcpy(&vector, from, sizeof(vector));
    return vector;
  }

  /// result (+)= a * b, where a is packed as [depth][kRows] and b as [depth][kColumns].
  template <int rows>
  static void multiply(const float* a, const float* b, int64_t depth, float* result,
                       int64_t row_stride, bool add) {
    Vector sums[rows][kVectors];
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        sums[r][v] = Vector{};
      }
    }
    for (int64_t p = 0; p < depth; ++p) {
      Vector right[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        right[v] = load(b + v * kLanes);
      }
#pragma GCC unroll 16
      for (int r = 0; r < rows; ++r) {
        const Vector left = a[r] - Vector{};
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
          sums[r][v] += left * right[v];
        }
      }
      a += kRows;
      b += kColumns;
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        float* to = result + r * row_stride + v * kLanes;
        const Vector sum = add ? load(to) + sums[r][v] : sums[r][v];
        __builtin_memcpy(to, &sum, sizeof(sum));
      }
    }
  }

  template <int rows = kRows>
  static void multiply_rows(int64_t count, const float* a, const float* b, int64_t depth,
                            float* result, int64_t row_stride, bool add) {
    if (count == rows) {
      multiply<rows>(a, b, depth, result, row_stride, add);
    } else if constexpr (rows > 1) {
      multiply_rows<rows - 1>(count, a, b, depth, result, row_stride, add);
    }
  }
};

/// to[p * width + i] = from[i * stride + p * depth_stride]
void copy(const float* from, int64_t stride, int64_t depth_stride, int64_t count, int64_t depth,
          float* to, int64_t width) {
  for (int64_t p = 0; p < depth; ++p) {
    for (int64_t i = 0; i < count; ++i) {
      to[p * width + i] = from[i * stride + p * depth_stride];
    }
  }
}

/// Eight rows of eight elements become columns.
void transpose(const float* from, int64_t from_row, float* to, int64_t to_row) {
  typedef float Eight __attribute__((vector_size(32)));
  Eight rows[8];
  for (int r = 0; r < 8; ++r) {
    __builtin_memcpy(&rows[r], from + r * from_row, sizeof(Eight));
  }
  Eight pairs[8];  // of rows r and r + 1: columns 0 1 4 5, then 2 3 6 7
  for (int r = 0; r < 8; r += 2) {
    pairs[r] = __builtin_shufflevector(rows[r], rows[r + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    pairs[r + 1] = __builtin_shufflevector(rows[r], rows[r + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
  Eight fours[8];  // of four rows: columns 0 4, 1 5, 2 6, 3 7
  for (int r = 0; r < 8; r += 4) {
    for (int k = 0; k < 2; ++k) {
      const Eight a = pairs[r + k];
      const Eight b = pairs[r + k + 2];
      fours[r + 2 * k] = __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13);
      fours[r + 2 * k + 1] = __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15);
    }
  }
  for (int c = 0; c < 4; ++c) {
    const Eight low = __builtin_shufflevector(fours[c], fours[c + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    const Eight high = __builtin_shufflevector(fours[c], fours[c + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    __builtin_memcpy(to + c * to_row, &low, sizeof(Eight));
    __builtin_memcpy(to + (c + 4) * to_row, &high, sizeof(Eight));
  }
}

/// Puts a block of `count` x `depth` elements into panels of `width`: [panel][depth][width]. What
/// is missing in the last one is zero.
template <int width>
void pack(const float* from, int64_t stride, int64_t depth_stride, int64_t count, int64_t depth,
          float* to) {
  for (int64_t first = 0; first < count; first += width, to += width * depth) {
    const float* source = from + first * stride;
    const int64_t there = count - first < width ? count - first : width;
    if (there < width) {
      for (int64_t p = 0; p < depth; ++p) {
        for (int64_t i = 0; i < width; ++i) {
          to[p * width + i] = i < there ? source[i * stride + p * depth_stride] : 0.0F;
        }
      }
    } else if (stride == 1) {
      copy(source, 1, depth_stride, width, depth, to, width);
    } else {
      int64_t i = 0;
      for (; i + 8 <= width && depth_stride == 1; i += 8) {
        int64_t p = 0;
        for (; p + 8 <= depth; p += 8) {
          transpose(source + i * stride + p, stride, to + p * width + i, width);
        }
        copy(source + i * stride + p, stride, 1, 8, depth - p, to + p * width + i, width);
      }
      copy(source + i * stride, stride, depth_stride, width - i, depth, to + i, width);
    }
  }
}

template <int kLanes, int kVectors, int kRows>
void multiply_block(const ProductBlock& block, float* scratch) {
  using T = Tile<kLanes, kVectors, kRows>;
  static_assert(kProductRows % kRows == 0 && kProductColumns % T::kColumns == 0);
  float* packed_a = scratch;
  float* packed_b = scratch + kProductRows * kProductDepth;
  float edge[kRows * T::kColumns];
  for (int64_t j = 0; j < block.columns; j += kProductColumns) {
    const int64_t columns =
        block.columns - j < kProductColumns ? block.columns - j : kProductColumns;
    for (int64_t p = 0; p < block.depth; p += kProductDepth) {
      const int64_t depth = block.depth - p < kProductDepth ? block.depth - p : kProductDepth;
      pack<T::kColumns>(block.b + j * block.b_column + p * block.b_depth, block.b_column,
                        block.b_depth, columns, depth, packed_b);
      for (int64_t i = 0; i < block.rows; i += kProductRows) {
        const int64_t rows = block.rows - i < kProductRows ? block.rows - i : kProductRows;
        pack<kRows>(block.a + i * block.a_row + p * block.a_depth, block.a_row, block.a_depth, rows,
                    depth, packed_a);
        for (int64_t c = 0; c < columns; c += T::kColumns) {
          const float* b = packed_b + c * depth;
          for (int64_t r = 0; r < rows; r += kRows) {
            const float* a = packed_a + r * depth;
            float* result = block.result + (i + r) * block.result_row + j + c;
            const int64_t count = rows - r < kRows ? rows - r : kRows;
            if (columns - c >= T::kColumns) {
              T::multiply_rows(count, a, b, depth, result, block.result_row, p > 0);
              continue;
            }
            T::multiply_rows(count, a, b, depth, edge, T::kColumns, false);
            for (int64_t y = 0; y < count; ++y) {
              for (int64_t x = 0; x < columns - c; ++x) {
                float& to = result[y * block.result_row + x];
                to = p > 0 ? to + edge[y * T::kColumns + x] : edge[y * T::kColumns + x];
              }
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace torch_lazy
