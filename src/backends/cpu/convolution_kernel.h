// Products with a matrix whose elements are samples of images, which is what convolutions and their
// gradients are. What a block needs of the images is copied with zeros around them, so that the
// place of a sample is a sum of two table entries. Compiled like product_kernel.h.
#pragma once

#include "backends/cpu/product_kernel.h"

namespace torch_lazy {
namespace {

/// Whether `count` entries from a table follow each other.
bool is_run(const int32_t* table, int64_t count) {
  for (int64_t i = 1; i < count; ++i) {
    if (table[i] != table[i - 1] + 1) {
      return false;
    }
  }
  return true;
}

bool has_runs(const int32_t* table, int64_t count, int64_t length) {
  for (int64_t i = 0; i < count; i += length) {
    if (!is_run(table + i, length)) {
      return false;
    }
  }
  return true;
}

/// to[p * width + i] = from[across[i] + along[p]], where `across` consists of runs.
template <int width, int run>
void copy_runs(const float* from, const int32_t* across, const int32_t* along, int64_t depth,
               float* to) {
  for (int64_t p = 0; p < depth; ++p, to += width) {
    const float* source = from + along[p];
#pragma GCC unroll 32
    for (int i = 0; i < width; i += run) {
      __builtin_memcpy(to + i, source + across[i], run * sizeof(float));
    }
  }
}

/// False: there are no such runs.
template <int width, int run>
bool copy_if_runs(const float* from, const int32_t* across, const int32_t* along, int64_t depth,
                  float* to) {
  if constexpr (width % run == 0) {
    if (has_runs(across, width, run)) {
      copy_runs<width, run>(from, across, along, depth, to);
      return true;
    }
  }
  return false;
}

/// The same as copy_runs for `count` elements of any kind.
void copy_each(const float* from, const int32_t* across, int64_t count, const int32_t* along,
               int64_t depth, float* to, int64_t width) {
  for (int64_t p = 0; p < depth; ++p) {
    const float* source = from + along[p];
    for (int64_t i = 0; i < count; ++i) {
      to[p * width + i] = source[across[i]];
    }
  }
}

/// A whole panel one by one.
template <int width>
void copy_panel(const float* from, const int32_t* across, const int32_t* along, int64_t depth,
                float* to) {
  for (int64_t p = 0; p < depth; ++p, to += width) {
    const float* source = from + along[p];
#pragma GCC unroll 32
    for (int i = 0; i < width; ++i) {
      to[i] = source[across[i]];
    }
  }
}

/// Where `along` has runs of eight, eight rows at a time are transposed.
template <int width>
void copy_columns(const float* from, const int32_t* across, const int32_t* along, int64_t depth,
                  float* to) {
  constexpr int kEights = width / 8 * 8;
  constexpr int64_t kLong = 16;
  if (!is_run(along, depth < kLong ? depth : kLong)) {
    copy_panel<width>(from, across, along, depth, to);
    return;
  }
  int64_t p = 0;
  while (p < depth) {
    if (p + 8 > depth || !is_run(along + p, 8)) {
      copy_panel<width>(from, across, along + p, 1, to + p * width);
      ++p;
      continue;
    }
    for (int i = 0; i < kEights; i += 8) {
      const float* rows[8];
      for (int r = 0; r < 8; ++r) {
        rows[r] = from + across[i + r] + along[p];
      }
      transpose(rows, to + p * width + i, width);
    }
    copy_each(from, across + kEights, width - kEights, along + p, 8, to + p * width + kEights,
              width);
    p += 8;
  }
}

/// One panel of pack_from_tables, or some of its depths.
template <int width>
void pack_panel(const float* from, const int32_t* across, const int32_t* along, int64_t count,
                int64_t depth, float* to) {
  if (count < width) {
    for (int64_t i = 0; i < width * depth; ++i) {
      to[i] = 0.0F;
    }
    copy_each(from, across, count, along, depth, to, width);
    return;
  }
  if (!(copy_if_runs<width, 16>(from, across, along, depth, to) ||
        copy_if_runs<width, 8>(from, across, along, depth, to) ||
        copy_if_runs<width, 4>(from, across, along, depth, to) ||
        copy_if_runs<width, 2>(from, across, along, depth, to))) {
    copy_columns<width>(from, across, along, depth, to);
  }
}

/// Like `pack`, for elements from[across[i] + along[p]].
template <int width>
void pack_from_tables(const float* from, const int32_t* across, const int32_t* along, int64_t count,
                      int64_t depth, float* to) {
  // In the order of the memory: where depths follow each other for long, panel by panel.
  constexpr int64_t kLong = 64;
  constexpr int64_t kAtATime = 32;
  const int64_t step = is_run(along, depth < kLong ? depth : kLong) ? depth : kAtATime;
  for (int64_t p = 0; p < depth; p += step) {
    const int64_t depths = depth - p < step ? depth - p : step;
    for (int64_t i = 0; i < count; i += width) {
      pack_panel<width>(from, across + i, along + p, count - i, depths, to + i * depth + p * width);
    }
  }
}

bool are_finite(const float* elements, int64_t count) {
  constexpr uint32_t kExponent = 0x7f800000;
  uint32_t found = 0;
  for (int64_t i = 0; i < count; ++i) {
    uint32_t bits = 0;
    __builtin_memcpy(&bits, elements + i, sizeof(bits));
    found |= (bits & kExponent) == kExponent ? 1 : 0;
  }
  return found == 0;
}

/// A matrix whose elements lie at across[i] + along[p].
struct TableOperand {
  const float* data;
  const int32_t* across;
  const int32_t* along;
  float* packed;
  bool finite = true;  // all that was packed

  template <int width>
  void prepare(int64_t first, int64_t count, int64_t p, int64_t depth) {
    pack_from_tables<width>(data, across + first, along + p, count, depth, packed);
    finite = finite && are_finite(packed, (count + width - 1) / width * width * depth);
  }
};

/// What some places need of some channels of the images: [channel][row][column] for each image or,
/// by place, [channel][row][column][image]. Of a row first the columns 0, step, 2 * step, ... are
/// there, then 1, 1 + step, ..., so that what a tap reads lies side by side.
class Copy {
 public:
  Copy(const Samples& samples, int32_t* tables, float* memory)
      : s_(samples),
        memory_(memory),
        taps_(tables),
        part_width_(s_.copied_width()),
        row_(part_width_ * s_.parts()) {
    const int64_t unit = s_.by_place ? s_.images : 1;
    for (int64_t t = 0; t < s_.taps; ++t) {
      const int64_t x = s_.tap_x[t] - s_.first_x;
      taps_[t] = static_cast<int32_t>(
          unit * ((s_.tap_y[t] - s_.first_y) * row_ + x % s_.step_x * part_width_ + x / s_.step_x));
    }
  }

  /// Fills `offsets`: an element is at that of its place plus that of its tap.
  void make(int64_t first_place, int64_t places, int64_t first_channel, int64_t channels,
            int32_t* offsets) {
    area_ = s_.by_place ? copy_places(first_place, places, first_channel, channels, offsets)
                        : copy_images(first_place, places, first_channel, channels, offsets);
  }

  /// Fills `offsets` of samples from the first one that `make` has copied a channel of.
  void find_samples(int64_t first, int64_t count, int32_t* offsets) const {
    int64_t tap = first % s_.taps;
    int64_t channel = 0;
    for (int64_t k = 0; k < count; ++k) {
      offsets[k] = static_cast<int32_t>(channel + taps_[tap]);
      if (++tap == s_.taps) {
        tap = 0;
        channel += area_;
      }
    }
  }

  const float* memory() const { return memory_; }
  const int32_t* taps() const { return taps_; }
  int64_t area() const { return area_; }  // elements of a channel

 private:
  int64_t copy_places(int64_t first_place, int64_t places, int64_t first_channel, int64_t channels,
                      int32_t* offsets) const {
    const int64_t run = s_.grid_width * s_.images;
    const int64_t first_row = first_place / run;
    const int64_t last_row = (first_place + places - 1) / run;
    const int64_t height = (last_row - first_row) * s_.step_y + s_.reach_y;
    const int64_t area = height * row_ * s_.images;
    for (int64_t c = 0; c < channels; ++c) {
      copy_rows_of_all(first_channel + c, first_row * s_.step_y, height, memory_ + c * area);
    }
    int64_t in_row = first_place % run;
    int64_t start = 0;
    for (int64_t k = 0; k < places; ++k) {
      offsets[k] = static_cast<int32_t>(start + in_row);
      if (++in_row == run) {
        in_row = 0;
        start += s_.step_y * row_ * s_.images;
      }
    }
    return area;
  }

  int64_t copy_images(int64_t first_place, int64_t places, int64_t first_channel, int64_t channels,
                      int32_t* offsets) const {
    const int64_t grid = s_.grid_height * s_.grid_width;
    const int64_t end = first_place + places;
    int64_t area = 0;
    for (int64_t place = first_place; place < end;) {
      const Part part = part_at(place, end, grid);
      area += part.height * row_;
      place = part.end;
    }
    int64_t offset = 0;
    for (int64_t place = first_place; place < end;) {
      const Part part = part_at(place, end, grid);
      int64_t x = place % s_.grid_width;
      int64_t start = offset;
      for (int64_t k = place; k < part.end; ++k) {
        offsets[k - first_place] = static_cast<int32_t>(start + x);
        if (++x == s_.grid_width) {
          x = 0;
          start += s_.step_y * row_;
        }
      }
      for (int64_t c = 0; c < channels; ++c) {
        copy_rows(place / grid, first_channel + c, part.first_row * s_.step_y, part.height,
                  memory_ + c * area + offset, 1);
      }
      offset += part.height * row_;
      place = part.end;
    }
    return area;
  }

  /// Places of one image.
  struct Part {
    int64_t end;
    int64_t first_row;  // of the grid
    int64_t height;     // rows to copy
  };

  Part part_at(int64_t place, int64_t end, int64_t grid) const {
    const int64_t image_end = (place / grid + 1) * grid;
    Part part;
    part.end = image_end < end ? image_end : end;
    part.first_row = place % grid / s_.grid_width;
    const int64_t last_row = (part.end - 1) % grid / s_.grid_width;
    part.height = (last_row - part.first_row) * s_.step_y + s_.reach_y;
    return part;
  }

  void copy_rows_of_all(int64_t channel, int64_t first, int64_t height, float* to) const {
    int64_t n = 0;
    if (s_.step_x == 1 && s_.column == 1) {
      for (; n + 8 <= s_.images; n += 8) {
        copy_rows_of_eight(n, channel, first, height, to + n);
      }
    }
    for (; n < s_.images; ++n) {
      copy_rows(n, channel, first, height, to + n, s_.images);
    }
  }

  /// Of images from `n` on, whose elements are to be side by side.
  void copy_rows_of_eight(int64_t n, int64_t channel, int64_t first, int64_t height,
                          float* to) const {
    typedef float Eight __attribute__((vector_size(32)));
    const Eight zeros{};
    const float* from = s_.data + n * s_.image + channel * s_.channel;
    const int64_t before = s_.first_x < 0 ? -s_.first_x : 0;
    const int64_t inside = s_.width - s_.first_x;
    const int64_t last = inside < part_width_ ? inside : part_width_;
    for (int64_t r = 0; r < height; ++r, to += row_ * s_.images) {
      const int64_t y = s_.first_y + first + r;
      const bool is_inside = y >= 0 && y < s_.height && before < last;
      const int64_t begin = is_inside ? before : part_width_;
      const int64_t end = is_inside ? last : part_width_;
      for (int64_t i = 0; i < begin; ++i) {
        __builtin_memcpy(to + i * s_.images, &zeros, sizeof(zeros));
      }
      const float* row = from + y * s_.row + s_.first_x;
      int64_t i = begin;
      for (; i + 8 <= end; i += 8) {
        const float* rows[8];
        for (int k = 0; k < 8; ++k) {
          rows[k] = row + k * s_.image + i;
        }
        transpose(rows, to + i * s_.images, s_.images);
      }
      for (; i < end; ++i) {
        for (int k = 0; k < 8; ++k) {
          to[i * s_.images + k] = row[k * s_.image + i];
        }
      }
      for (; i < part_width_; ++i) {
        __builtin_memcpy(to + i * s_.images, &zeros, sizeof(zeros));
      }
    }
  }

  /// Rows of a channel, the first of them first_y + `first`, to elements `unit` apart.
  void copy_rows(int64_t image, int64_t channel, int64_t first, int64_t height, float* to,
                 int64_t unit) const {
    const float* from = s_.data + image * s_.image + channel * s_.channel;
    for (int64_t k = 0; k < s_.parts(); ++k) {
      // Element i is column x + i * step_x, or zero beside the image.
      const int64_t x = s_.first_x + k;
      const int64_t before = x < 0 ? (-x + s_.step_x - 1) / s_.step_x : 0;
      const int64_t inside = x < s_.width ? (s_.width - 1 - x) / s_.step_x + 1 : 0;
      const int64_t last = inside < part_width_ ? inside : part_width_;
      for (int64_t r = 0; r < height; ++r) {
        if (s_.reach_y < s_.step_y && r % s_.step_y >= s_.reach_y) {
          continue;  // no tap reads it
        }
        const int64_t y = s_.first_y + first + r;
        const int64_t end = y < 0 || y >= s_.height ? 0 : last;
        const int64_t begin = before < end ? before : end;
        float* row = to + (r * row_ + k * part_width_) * unit;
        for (int64_t i = 0; i < begin; ++i) {
          row[i * unit] = 0.0F;
        }
        copy_row(from + y * s_.row + x * s_.column, begin, end, row, unit);
        for (int64_t i = end; i < part_width_; ++i) {
          row[i * unit] = 0.0F;
        }
      }
    }
  }

  void copy_row(const float* from, int64_t begin, int64_t end, float* to, int64_t unit) const {
    const int64_t stride = s_.step_x * s_.column;
    if (stride != 1 || unit != 1) {
      for (int64_t i = begin; i < end; ++i) {
        to[i * unit] = from[i * stride];
      }
      return;
    }
    int64_t i = begin;
    for (; i + 8 <= end; i += 8) {
      __builtin_memcpy(to + i, from + i, 8 * sizeof(float));
    }
    for (; i < end; ++i) {
      to[i] = from[i];
    }
  }

  const Samples& s_;
  float* memory_;
  int32_t* taps_;
  int64_t part_width_;
  int64_t row_;
  int64_t area_ = 0;
};

/// Channels that hold samples `first` to `first + count`.
struct Channels {
  int64_t first;
  int64_t count;

  Channels(const Samples& samples, int64_t first_sample, int64_t samples_count)
      : first(first_sample / samples.taps),
        count((first_sample + samples_count - 1) / samples.taps - first + 1) {}
};

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

/// Samples as the columns of a product, packed.
struct PackedSamples {
  const SampledProduct& product;
  Scratch scratch;
  Copy copy;

  PackedSamples(const SampledProduct& p, const Scratch& memory)
      : product(p), scratch(memory), copy(p.b, memory.taps, memory.copy) {}

  template <int width>
  void prepare(int64_t column, int64_t count, int64_t p, int64_t depth) {
    if (product.sum_over_places) {
      copy_samples(p, depth, scratch.depths, product.first + column, count, scratch.side);
    } else {
      copy_samples(product.first + column, count, scratch.side, p, depth, scratch.depths);
    }
    pack_from_tables<width>(scratch.copy, scratch.side, scratch.depths, count, depth, scratch.b);
  }

 private:
  void copy_samples(int64_t place, int64_t places, int32_t* place_offsets, int64_t sample,
                    int64_t samples, int32_t* sample_offsets) {
    const Channels channels(product.b, sample, samples);
    copy.make(place, places, channels.first, channels.count, place_offsets);
    copy.find_samples(sample, samples, sample_offsets);
  }
};

/// Rows of a tile for samples, packed.
template <class T>
struct PackedRows {
  const float* data;
  int64_t channel;

  static constexpr int64_t distance() { return 1; }
  static int64_t tap(int64_t t) { return t * T::kRows; }
};

/// Rows of a tile for samples, where they are.
struct RowsInPlace {
  const float* data;
  int64_t channel;
  int64_t row;
  const int32_t* taps;

  int64_t distance() const { return row; }
  int64_t tap(int64_t t) const { return taps[t]; }
};

/// A matrix whose rows are read where they are: it is only looked at, which brings it nearer.
struct OperandInPlace {
  const SampledProduct& product;
  int64_t row;  // distances
  int64_t channel;
  int64_t reach;  // of the taps
  int64_t first = 0;
  int64_t first_depth = 0;
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
class SampledElements {
 public:
  SampledElements(const SampledProduct& product, const Scratch& scratch)
      : s_(product.b),
        first_sample_(product.first),
        scratch_(scratch),
        copy_(product.b, scratch.taps, scratch.copy) {}

  template <int>
  void prepare(int64_t first, int64_t count, int64_t p, int64_t depth) {
    const Channels channels(s_, first_sample_ + first, count);
    copy_.make(p, depth, channels.first, channels.count, scratch_.depths);
    copy_.find_samples(first_sample_ + first, count, scratch_.side);
    count_ = count;
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
    Operands operands{{}, scratch_.depths, b, depth};
    for (int64_t i = 0; i < T::kRows; ++i) {
      operands.rows[i] = copy_.memory() + scratch_.side[r + i < count_ ? r + i : r];
    }
    return operands;
  }

 private:
  const Samples& s_;
  int64_t first_sample_;
  Scratch scratch_;
  Copy copy_;
  int64_t count_ = 0;
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
