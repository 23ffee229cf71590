// Products with a matrix whose elements are samples of images, which is what convolutions and their
// gradients are. What a block needs of the images is copied with zeros around them, so that the
// place of a sample is a sum of two table entries. Compiled like product_kernel.h.
#pragma once

#include "backends/cpu/image_copy.h"
#include "backends/cpu/table_operand.h"

namespace torch_lazy {
namespace {

/// Where the parts of `scratch` are.
struct Scratch {
  float* a;
  float* b;
  int32_t* taps;
  int32_t* list;
  int32_t* depths;
  int32_t* side;
  float* copy;

  Scratch(const SampledProduct& product, float* memory) {
    a = memory;
    b = a + product.packed_a();
    taps = reinterpret_cast<int32_t*>(b + product.packed_b());
    list = taps + product.b.taps;
    depths = list + 2 * product.b.taps;
    side = depths + product.block.depth;
    copy = b + product.packed_b() + product.tables();
  }
};

/// A product, and the copy of what a block of it needs of the images.
struct CopiedSamples {
  const SampledProduct& product;
  const Scratch& scratch;
  Copy copy;

  CopiedSamples(const SampledProduct& p, const Scratch& memory)
      : product(p), scratch(memory), copy(p.b, memory.taps, memory.copy) {}

  /// Fills the offsets of places and of samples.
  void copy_samples(int64_t place, int64_t places, int32_t* place_offsets, int64_t sample,
                    int64_t samples, int32_t* sample_offsets) {
    const int64_t first = sample / product.b.taps;
    const int64_t last = (sample + samples - 1) / product.b.taps;
    copy.make(place, places, first, last - first + 1, place_offsets);
    copy.find_samples(sample, samples, sample_offsets);
  }
};

/// Samples as the columns of a product, packed.
struct PackedSamples : CopiedSamples {
  using CopiedSamples::CopiedSamples;

  template <int width>
  void prepare(int64_t column, int64_t count, int64_t p, int64_t depth) {
    if (product.sum_over_places) {
      copy_samples(p, depth, scratch.depths, product.first + column, count, scratch.side);
    } else {
      copy_samples(product.first + column, count, scratch.side, p, depth, scratch.depths);
    }
    pack_from_tables<width>(scratch.copy, scratch.side, scratch.depths, count, depth, scratch.b);
  }
};

/// Rows of a tile for samples, packed.
template <class T>
struct PackedRows {
  const float* data;
  int64_t channel;

  static constexpr int64_t distance() { return 1; }
  static int64_t tap(int64_t t) { return t * T::kRows; }
  static void ask_ahead(const float*) {}
};

/// Rows of a tile for samples, where they are.
struct RowsInPlace {
  const float* data;
  int64_t channel;
  int64_t row;
  const int32_t* taps;

  int64_t distance() const { return row; }
  int64_t tap(int64_t t) const { return taps[t]; }
  static void ask_ahead(const float*) {}
};

/// The same, and what the next block needs is brought nearer meanwhile.
template <class T>
struct RowsAndNext : RowsInPlace {
  int64_t next;  // from these rows to those of the next block; 0: they were asked for

  void ask_ahead(const float* from) const {
    if (next != 0) {
#pragma GCC unroll 16
      for (int r = 0; r < T::kRows; ++r) {
        __builtin_prefetch(from + next + r * row, 0, 2);
      }
    }
  }
};

/// A matrix whose rows are read where they are: it is only looked at, which brings it nearer.
struct OperandInPlace {
  const SampledProduct& product;
  int64_t row;  // distances
  int64_t channel;
  int64_t reach;  // of the taps
  int64_t first = 0;
  int64_t first_depth = 0;
  int64_t next = 0;  // from the block to the one after it, if there is one
  bool finite = true;

  explicit OperandInPlace(const SampledProduct& p)
      : product(p),
        row(p.rows > 1 ? p.a_side[1] - p.a_side[0] : 0),
        channel(p.depth > p.b.taps ? p.a_depth[p.b.taps] - p.a_depth[0] : 0),
        reach(p.a_depth[p.b.taps - 1] - p.a_depth[0] + 1) {}

  template <int>
  void prepare(int64_t i, int64_t rows, int64_t p, int64_t depth) {
    first = i;
    first_depth = p;
    const bool is_last = i + rows >= product.rows;
    const int64_t next_row = is_last ? 0 : i + rows;
    const int64_t next_depth = is_last ? p + depth : p;
    next = next_depth < product.depth ? product.a_side[next_row] - product.a_side[i] +
                                            product.a_depth[next_depth] - product.a_depth[p]
                                      : 0;
    const int64_t channels = depth / product.b.taps;
    const float* from = product.a + product.a_side[i] + product.a_depth[p];
    const bool by_row = row > channel;
    const int64_t far = by_row ? row : channel;
    const int64_t count = by_row ? rows : channels;
    const int64_t length = by_row ? (channels - 1) * channel + reach : (rows - 1) * row + reach;
    for (int64_t k = 0; k < count; ++k) {
      finite = finite && are_finite(from + k * far, length);
    }
  }

  RowsInPlace rows(int64_t r) const {
    const int64_t channels = product.a_depth[first_depth] - product.a_depth[0];
    return {product.a + product.a_side[first + r] + channels, channel, row, product.a_depth};
  }
};

/// Samples as the columns of a product, as vectors of the copy.
template <class T>
class SampledVectors {
 public:
  SampledVectors(const SampledProduct& product, const Scratch& scratch)
      : s_(product.b),
        first_place_(product.first),
        scratch_(scratch),
        copy_(product.b, scratch.taps, scratch.copy) {}

  template <int>
  void prepare(int64_t first, int64_t count, int64_t p, int64_t depth) {
    first_ = first_place_ + first;
    count_ = count;
    channels_ = depth / s_.taps;
    listed_ = -1;
    copy_.make(first_, count, p / s_.taps, channels_, scratch_.side);
  }

  /// `Rows` are those of a tile.
  template <class Rows>
  struct Operands {
    Rows rows;
    const float* vectors[T::kVectors];
    const int32_t* taps;     // that are not beside the image everywhere
    const int32_t* offsets;  // of them
    int64_t count;
    int64_t channels;
    int64_t area;

    template <class Step>
    void each(const Step& step) const {
      const float* a = rows.data;
      int64_t channel = 0;
      for (int64_t c = 0; c < channels; ++c) {
        rows.ask_ahead(a);
        for (int64_t t = 0; t < count; ++t) {
          const float* row = a + rows.tap(taps[t]);
          const int64_t offset = channel + offsets[t];
          step([&](int r) { return row[r * rows.distance()]; },
               [&](int v) { return vectors[v] + offset; });
        }
        a += rows.channel;
        channel += area;
      }
    }
  };

  template <class Rows>
  Operands<Rows> operands(int64_t c, const Rows& rows) {
    if (c != listed_) {
      list_taps(c);
    }
    Operands<Rows> operands{rows,   {},        scratch_.list, scratch_.list + s_.taps,
                            found_, channels_, copy_.area()};
    for (int64_t v = 0; v < T::kVectors; ++v) {
      // A vector beyond the last place is computed, but not kept.
      const int64_t place = c + v * T::kLanes < count_ ? c + v * T::kLanes : c;
      operands.vectors[v] = copy_.memory() + scratch_.side[place];
    }
    return operands;
  }

 private:
  void list_taps(int64_t c) {
    const int64_t count = count_ - c < T::kColumns ? count_ - c : T::kColumns;
    found_ = 0;
    for (int64_t t = 0; t < s_.taps; ++t) {
      if (!s_.by_place ||
          reaches(t, (first_ + c) / s_.images, (first_ + c + count - 1) / s_.images)) {
        scratch_.list[found_] = static_cast<int32_t>(t);
        scratch_.list[s_.taps + found_] = copy_.taps()[t];
        ++found_;
      }
    }
    listed_ = c;
  }

  bool reaches(int64_t tap, int64_t first_place, int64_t last_place) const {
    for (int64_t place = first_place; place <= last_place; ++place) {
      const int64_t y = place / s_.grid_width * s_.step_y + s_.tap_y[tap];
      const int64_t x = place % s_.grid_width * s_.step_x + s_.tap_x[tap];
      if (y >= 0 && y < s_.height && x >= 0 && x < s_.width) {
        return true;
      }
    }
    return false;
  }

  const Samples& s_;
  int64_t first_place_;
  Scratch scratch_;
  Copy copy_;
  int64_t first_ = 0;  // place of the block
  int64_t count_ = 0;
  int64_t channels_ = 0;
  int64_t listed_ = -1;  // the column whose taps are listed
  int64_t found_ = 0;
};

/// Samples as the rows of a product, as elements of the copy; the sum goes over places.
template <class T>
struct SampledElements : CopiedSamples {
  int64_t rows = 0;

  using CopiedSamples::CopiedSamples;

  template <int>
  void prepare(int64_t row, int64_t count, int64_t p, int64_t depth) {
    rows = count;
    copy_samples(p, depth, scratch.depths, product.first + row, count, scratch.side);
  }

  struct Operands {
    const float* rows[T::kRows];
    const int32_t* places;
    const float* b;  // [place][columns of a tile]
    int64_t depth;

    template <class Step>
    void each(const Step& step) const {
      const float* columns = b;
      for (int64_t p = 0; p < depth; ++p) {
        const int64_t place = places[p];
        step([&](int r) { return rows[r][place]; }, [=](int v) { return columns + v * T::kLanes; });
        columns += T::kColumns;
      }
    }
  };

  Operands operands(int64_t r, const float* b, int64_t depth) const {
    Operands operands{{}, scratch.depths, b, depth};
    for (int64_t i = 0; i < T::kRows; ++i) {
      operands.rows[i] = copy.memory() + scratch.side[r + i < rows ? r + i : r];
    }
    return operands;
  }
};

/// Rows at a distance, columns by a table.
struct TableResult {
  float* data;
  int64_t row;
  const int32_t* column;

  template <class T, class Operands>
  void multiply(int64_t i, int64_t count, int64_t j, int64_t columns, const Operands& operands,
                bool add) const {
    float* to = data + i * row;
    if (columns == T::kColumns && is_run(column + j, T::kColumns)) {
      T::multiply_rows(count, operands, to + column[j], row, add);
      return;
    }
    multiply_apart<T>(count, columns, operands, add, [&](int64_t y, int64_t x) {
      const int32_t offset = column[j + x];
      return offset == kNowhere ? nullptr : to + y * row + offset;
    });
  }
};

/// Rows by a table, columns at a distance.
struct TransposedResult {
  float* data;
  const int32_t* row;
  int64_t column;

  template <class T, class Operands>
  void multiply(int64_t i, int64_t count, int64_t j, int64_t columns, const Operands& operands,
                bool add) const {
    float* to = data + j * column;
    if (count < T::kRows || columns < T::kColumns || !is_run(row + i, T::kRows)) {
      multiply_apart<T>(count, columns, operands, add,
                        [&](int64_t y, int64_t x) { return to + row[i + y] + x * column; });
      return;
    }
    constexpr int kPadded = (T::kRows + 7) / 8 * 8;
    float tile[kPadded * T::kColumns] = {};
    float turned[8 * kPadded];
    T::multiply_rows(count, operands, tile, T::kColumns, false);
    to += row[i];
    for (int x = 0; x < T::kColumns; x += 8) {
      for (int y = 0; y < kPadded; y += 8) {
        const float* rows[8];
        for (int r = 0; r < 8; ++r) {
          rows[r] = tile + (y + r) * T::kColumns + x;
        }
        transpose(rows, turned + y, kPadded);
      }
      for (int c = 0; c < 8; ++c, to += column) {
        for (int y = 0; y < T::kRows; ++y) {
          to[y] = add ? to[y] + turned[c * kPadded + y] : turned[c * kPadded + y];
        }
      }
    }
  }
};

template <class T>
bool multiply_packed(const SampledProduct& product, const Scratch& scratch) {
  TableOperand a{product.a, product.a_side, product.a_depth, scratch.a};
  PackedSamples samples(product, scratch);
  multiply_blocks<T>(a, samples, TableResult{product.result, product.result_a, product.result_b},
                     {product.rows, product.columns, product.depth}, product.block,
                     [&](int64_t r, int64_t c, int64_t depth) {
                       return PackedOperands<T>{scratch.a + r * depth, scratch.b + c * depth,
                                                depth};
                     });
  return a.finite;
}

template <class T>
bool multiply_vectors(const SampledProduct& product, const Scratch& scratch) {
  SampledVectors<T> samples(product, scratch);
  const TableResult result{product.result, product.result_a, product.result_b};
  const Extent size{product.rows, product.columns, product.depth};
  if (product.a_in_place) {
    OperandInPlace a(product);
    if (product.a_is_large) {  // of one function for both the compiler makes code that takes longer
      multiply_blocks<T>(
          a, samples, result, size, product.block, [&](int64_t r, int64_t c, int64_t) {
            return samples.operands(c, RowsAndNext<T>{a.rows(r), c == 0 ? a.next : 0});
          });
      return a.finite;
    }
    multiply_blocks<T>(a, samples, result, size, product.block, [&](int64_t r, int64_t c, int64_t) {
      return samples.operands(c, a.rows(r));
    });
    return a.finite;
  }
  TableOperand a{product.a, product.a_side, product.a_depth, scratch.a};
  multiply_blocks<T>(
      a, samples, result, size, product.block, [&](int64_t r, int64_t c, int64_t depth) {
        return samples.operands(c, PackedRows<T>{scratch.a + r * depth, product.b.taps * T::kRows});
      });
  return a.finite;
}

template <class T>
bool multiply_elements(const SampledProduct& product, const Scratch& scratch) {
  TableOperand a{product.a, product.a_side, product.a_depth, scratch.a};
  SampledElements<T> samples(product, scratch);
  multiply_blocks<T>(samples, a,
                     TransposedResult{product.result, product.result_b, product.result_a},
                     {product.rows, product.columns, product.depth}, product.block,
                     [&](int64_t r, int64_t c, int64_t depth) {
                       return samples.operands(r, scratch.a + c * depth, depth);
                     });
  return a.finite;
}

/// `Narrow`, where tiles of few places have more taps beside the image in common.
template <class T, class Narrow>
bool multiply_samples(const SampledProduct& product, float* memory) {
  const Scratch scratch(product, memory);
  switch (product.sampling) {
    case Sampling::packed:
      return multiply_packed<T>(product, scratch);
    case Sampling::elements:
      return multiply_elements<T>(product, scratch);
    case Sampling::vectors:
      break;
  }
  return product.b.by_place && product.b.grid_height * product.b.grid_width <= kLowGrid
             ? multiply_vectors<Narrow>(product, scratch)
             : multiply_vectors<T>(product, scratch);
}

}  // namespace
}  // namespace torch_lazy
