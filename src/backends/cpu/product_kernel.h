// A product of float matrices that one thread computes: blocks of the operands are packed so that
// the innermost loop reads them in order, and keeps a tile of the result in registers. It is
// compiled once for each kind of vectors, by files that differ in compiler options alone; nothing
// of the standard library may be in it, or its code for new processors would serve old ones.
#pragma once

#include "backends/cpu/product_arguments.h"

namespace torch_lazy {
namespace {

/// The first `count` depths, or those of a list.
struct Depths {
  const int32_t* list;
  int64_t count;
};

/// Tiles of kHeight x (kVectors * kLanes) elements. They and the operands they need at a time fit
/// into the registers.
template <int kLanes, int kVectors, int kHeight>
struct Tile {
  typedef float Vector __attribute__((vector_size(kLanes * sizeof(float))));
  static constexpr int kRows = kHeight;
  static constexpr int kColumns = kLanes * kVectors;
  static constexpr int kTile = kRows * kColumns;

  static Vector load(const float* from) {
    Vector vector;
    __builtin_memcpy(&vector, from, sizeof(vector));
    return vector;
  }

  /// result (+)= a * b, where a is packed as [depth][kRows] and b as [depth][kColumns]; b has only
  /// those of a's depths that are listed.
  template <int rows, bool listed>
  static void multiply(const float* a, const float* b, Depths depths, float* result,
                       int64_t row_stride, bool add) {
    Vector sums[rows][kVectors];
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        sums[r][v] = Vector{};
      }
    }
    for (int64_t p = 0; p < depths.count; ++p) {
      const float* column = a + (listed ? depths.list[p] : p) * kRows;
      Vector right[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        right[v] = load(b + v * kLanes);
      }
#pragma GCC unroll 16
      for (int r = 0; r < rows; ++r) {
        const Vector left = column[r] - Vector{};
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
          sums[r][v] += left * right[v];
        }
      }
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
  static void multiply_rows(int64_t count, const float* a, const float* b, Depths depths,
                            float* result, int64_t row_stride, bool add) {
    if (count != rows) {
      if constexpr (rows > 1) {
        multiply_rows<rows - 1>(count, a, b, depths, result, row_stride, add);
      }
    } else if (depths.list) {
      multiply<rows, true>(a, b, depths, result, row_stride, add);
    } else {
      multiply<rows, false>(a, b, depths, result, row_stride, add);
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
void transpose(const float* const (&from)[8], float* to, int64_t to_row) {
  typedef float Eight __attribute__((vector_size(32)));
  Eight rows[8];
  for (int r = 0; r < 8; ++r) {
    __builtin_memcpy(&rows[r], from[r], sizeof(Eight));
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

template <int width>
void pack_panel(const float* from, int64_t stride, int64_t depth_stride, int64_t depth, float* to) {
  if (stride == 1) {
    copy(from, 1, depth_stride, width, depth, to, width);
    return;
  }
  int64_t i = 0;
  for (; i + 8 <= width && depth_stride == 1; i += 8) {
    int64_t p = 0;
    for (; p + 8 <= depth; p += 8) {
      const float* rows[8];
      for (int r = 0; r < 8; ++r) {
        rows[r] = from + (i + r) * stride + p;
      }
      transpose(rows, to + p * width + i, width);
    }
    copy(from + i * stride + p, stride, 1, 8, depth - p, to + p * width + i, width);
  }
  copy(from + i * stride, stride, depth_stride, width - i, depth, to + i, width);
}

/// Puts a block of `count` x `depth` elements into panels of `width`: [panel][depth][width]. What
/// is missing in the last one is zero.
template <int width>
void pack(const float* from, int64_t stride, int64_t depth_stride, int64_t count, int64_t depth,
          float* to) {
  int64_t first = 0;
  for (; first + width <= count; first += width) {
    pack_panel<width>(from + first * stride, stride, depth_stride, depth, to + first * depth);
  }
  if (first < count) {
    const float* source = from + first * stride;
    float* last = to + first * depth;
    for (int64_t p = 0; p < depth; ++p) {
      for (int64_t i = 0; i < width; ++i) {
        last[p * width + i] = i < count - first ? source[i * stride + p * depth_stride] : 0.0F;
      }
    }
  }
}

/// A matrix whose elements lie at fixed distances.
struct StridedOperand {
  const float* data;
  int64_t stride;
  int64_t depth_stride;

  template <int width>
  void pack(int64_t first, int64_t count, int64_t p, int64_t depth, float* to) const {
    torch_lazy::pack<width>(data + first * stride + p * depth_stride, stride, depth_stride, count,
                            depth, to);
  }

  Depths depths(int64_t, int64_t depth) const { return {nullptr, depth}; }
};

/// A tile that is not written where it lies: `at(row, column)` is the element of the result.
template <class T, class At>
void multiply_apart(int64_t rows, int64_t columns, const float* a, const float* b, Depths depths,
                    bool add, const At& at) {
  float tile[T::kTile];
  T::multiply_rows(rows, a, b, depths, tile, T::kColumns, false);
  for (int64_t y = 0; y < rows; ++y) {
    for (int64_t x = 0; x < columns; ++x) {
      float& element = at(y, x);
      const float sum = tile[y * T::kColumns + x];
      element = add ? element + sum : sum;
    }
  }
}

/// A result whose rows are contiguous.
struct StridedResult {
  float* data;
  int64_t row;

  template <class T>
  void multiply(int64_t i, int64_t count, int64_t j, int64_t columns, const float* a,
                const float* b, Depths depths, bool add) const {
    float* to = data + i * row + j;
    if (columns == T::kColumns) {
      T::multiply_rows(count, a, b, depths, to, row, add);
      return;
    }
    multiply_apart<T>(count, columns, a, b, depths, add,
                      [&](int64_t y, int64_t x) -> float& { return to[y * row + x]; });
  }
};

/// `packed_a` has room for rows * depth elements of a block, `packed_b` for columns * depth.
template <class T, class Left, class Right, class Result>
void multiply_blocks(Left& left, Right& right, const Result& result, Extent size, Extent block,
                     float* packed_a, float* packed_b) {
  for (int64_t j = 0; j < size.columns; j += block.columns) {
    const int64_t columns = size.columns - j < block.columns ? size.columns - j : block.columns;
    for (int64_t p = 0; p < size.depth; p += block.depth) {
      const int64_t depth = size.depth - p < block.depth ? size.depth - p : block.depth;
      right.template pack<T::kColumns>(j, columns, p, depth, packed_b);
      for (int64_t i = 0; i < size.rows; i += block.rows) {
        const int64_t rows = size.rows - i < block.rows ? size.rows - i : block.rows;
        left.template pack<T::kRows>(i, rows, p, depth, packed_a);
        for (int64_t c = 0; c < columns; c += T::kColumns) {
          const int64_t width = columns - c < T::kColumns ? columns - c : T::kColumns;
          const Depths depths = right.depths(c / T::kColumns, depth);
          for (int64_t r = 0; r < rows; r += T::kRows) {
            const int64_t height = rows - r < T::kRows ? rows - r : T::kRows;
            result.template multiply<T>(i + r, height, j + c, width, packed_a + r * depth,
                                        packed_b + c * depth, depths, p > 0);
          }
        }
      }
    }
  }
}

template <class T>
void multiply_block(const ProductBlock& block, float* scratch) {
  static_assert(kProductRows % T::kRows == 0 && kProductColumns % T::kColumns == 0);
  StridedOperand left{block.a, block.a_row, block.a_depth};
  StridedOperand right{block.b, block.b_column, block.b_depth};
  multiply_blocks<T>(left, right, StridedResult{block.result, block.result_row},
                     {block.rows, block.columns, block.depth},
                     {kProductRows, kProductColumns, kProductDepth}, scratch,
                     scratch + kProductRows * kProductDepth);
}

}  // namespace
}  // namespace torch_lazy
