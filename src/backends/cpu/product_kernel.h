// A product of float matrices that one thread computes: blocks of the operands are packed so that
// the innermost loop reads them in order, and keeps a tile of the result in registers. It is
// compiled once for each kind of vectors, by files that differ in compiler options alone; nothing
// of the standard library may be in it, or its code for new processors would serve old ones.
#pragma once

#include "backends/cpu/product_arguments.h"

namespace torch_lazy {
namespace {

/// Tiles of kHeight x (kVectors * kLanes) elements. They and the operands they need at a time fit
/// into the registers.
template <int kLaneCount, int kVectorCount, int kHeight>
struct Tile {
  static constexpr int kLanes = kLaneCount;
  static constexpr int kVectors = kVectorCount;
  static constexpr int kRows = kHeight;
  static constexpr int kColumns = kLanes * kVectors;
  static constexpr int kTile = kRows * kColumns;
  typedef float Vector __attribute__((vector_size(kLanes * sizeof(float))));

  static Vector load(const float* from) {
    Vector vector;
    __builtin_memcpy(&vector, from, sizeof(vector));
    return vector;
  }

  /// result (+)= a * b. `operands` goes through the depth: for each it gives the elements of a's
  /// rows, left(r), and where vectors of b are, right(v).
  template <int rows, class Operands>
  static void multiply(const Operands& operands, float* result, int64_t row_stride, bool add) {
    Vector sums[rows][kVectors];
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        sums[r][v] = Vector{};
      }
    }
    operands.each([&](const auto& left, const auto& right) __attribute__((always_inline)) {
      Vector vectors[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        vectors[v] = load(right(v));
      }
#pragma GCC unroll 16
      for (int r = 0; r < rows; ++r) {
        const Vector element = left(r) - Vector{};
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
          sums[r][v] += element * vectors[v];
        }
      }
    });
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

  template <int rows = kRows, class Operands>
  static void multiply_rows(int64_t count, const Operands& operands, float* result,
                            int64_t row_stride, bool add) {
    if (count == rows) {
      multiply<rows>(operands, result, row_stride, add);
    } else if constexpr (rows > 1) {
      multiply_rows<rows - 1>(count, operands, result, row_stride, add);
    }
  }
};

/// a as [depth][rows of a tile], b as [depth][columns of a tile].
template <class T>
struct PackedOperands {
  const float* a;
  const float* b;
  int64_t depth;

  template <class Step>
  void each(const Step& step) const {
    const float* rows = a;
    const float* columns = b;
    for (int64_t p = 0; p < depth; ++p) {
      step([=](int r) { return rows[r]; }, [=](int v) { return columns + v * T::kLanes; });
      rows += T::kRows;
      columns += T::kColumns;
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
  float* packed;

  template <int width>
  void prepare(int64_t first, int64_t count, int64_t p, int64_t depth) const {
    pack<width>(data + first * stride + p * depth_stride, stride, depth_stride, count, depth,
                packed);
  }
};

/// A tile that is not written where it lies: `at(row, column)` is the element of the result, or
/// null.
template <class T, class Operands, class At>
void multiply_apart(int64_t rows, int64_t columns, const Operands& operands, bool add,
                    const At& at) {
  float tile[T::kTile];
  T::multiply_rows(rows, operands, tile, T::kColumns, false);
  for (int64_t y = 0; y < rows; ++y) {
    for (int64_t x = 0; x < columns; ++x) {
      float* element = at(y, x);
      const float sum = tile[y * T::kColumns + x];
      if (element) {
        *element = add ? *element + sum : sum;
      }
    }
  }
}

/// A result whose rows are contiguous.
struct StridedResult {
  float* data;
  int64_t row;

  template <class T, class Operands>
  void multiply(int64_t i, int64_t count, int64_t j, int64_t columns, const Operands& operands,
                bool add) const {
    float* to = data + i * row + j;
    if (columns == T::kColumns) {
      T::multiply_rows(count, operands, to, row, add);
      return;
    }
    multiply_apart<T>(count, columns, operands, add,
                      [&](int64_t y, int64_t x) { return to + y * row + x; });
  }
};

/// `left` and `right` prepare what a block needs of them; `operands(r, c, depth)` are those of the
/// tile at row r and column c of the block.
template <class T, class Left, class Right, class Result, class OfTile>
void multiply_blocks(Left& left, Right& right, const Result& result, Extent size, Extent block,
                     const OfTile& operands) {
  for (int64_t j = 0; j < size.columns; j += block.columns) {
    const int64_t columns = size.columns - j < block.columns ? size.columns - j : block.columns;
    for (int64_t p = 0; p < size.depth; p += block.depth) {
      const int64_t depth = size.depth - p < block.depth ? size.depth - p : block.depth;
      right.template prepare<T::kColumns>(j, columns, p, depth);
      for (int64_t i = 0; i < size.rows; i += block.rows) {
        const int64_t rows = size.rows - i < block.rows ? size.rows - i : block.rows;
        left.template prepare<T::kRows>(i, rows, p, depth);
        for (int64_t c = 0; c < columns; c += T::kColumns) {
          const int64_t width = columns - c < T::kColumns ? columns - c : T::kColumns;
          for (int64_t r = 0; r < rows; r += T::kRows) {
            const int64_t height = rows - r < T::kRows ? rows - r : T::kRows;
            result.template multiply<T>(i + r, height, j + c, width, operands(r, c, depth), p > 0);
          }
        }
      }
    }
  }
}

template <class T>
void multiply_block(const ProductBlock& block, float* scratch) {
  static_assert(kProductRows % T::kRows == 0 && kProductColumns % T::kColumns == 0);
  static_assert(kTileRows % T::kRows == 0 && kTileColumns % T::kColumns == 0);
  StridedOperand left{block.a, block.a_row, block.a_depth, scratch};
  StridedOperand right{block.b, block.b_column, block.b_depth,
                       scratch + kProductRows * kProductDepth};
  multiply_blocks<T>(
      left, right, StridedResult{block.result, block.result_row},
      {block.rows, block.columns, block.depth}, {kProductRows, kProductColumns, kProductDepth},
      [&](int64_t r, int64_t c, int64_t depth) {
        return PackedOperands<T>{left.packed + r * depth, right.packed + c * depth, depth};
      });
}

}  // namespace
}  // namespace torch_lazy
