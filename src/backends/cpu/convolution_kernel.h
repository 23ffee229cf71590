// Products with a matrix whose elements are samples of images, which is what convolutions and their
// gradients are. Of what is packed at a time the images are copied with zeros around them, so that
// the place of a sample is a sum of two table entries. Compiled like product_kernel.h.
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

struct TableOperand {
  const float* data;
  const int32_t* across;
  const int32_t* along;
  bool finite = true;  // all that was packed

  template <int width>
  void pack(int64_t first, int64_t count, int64_t p, int64_t depth, float* to) {
    pack_from_tables<width>(data, across + first, along + p, count, depth, to);
    finite = finite && are_finite(to, (count + width - 1) / width * width * depth);
  }
};

/// Samples of images. What a block needs of them is copied first, [channel][row][column] for each
/// image or, by place, [channel][row][column][image]. Of a row first the columns 0, step, 2 * step,
/// ... are there, then 1, 1 + step, ..., so that what a tap reads lies side by side.
class SampleOperand {
 public:
  SampleOperand(const SampledProduct& product, float* scratch)
      : s_(product.b),
        first_(product.first_column),
        places_are_depth_(product.places_are_depth),
        places_(reinterpret_cast<int32_t*>(scratch)),
        samples_(places_ + kSampledPlaces),
        taps_(samples_ + kSampledPlaces),
        listed_(taps_ + kSampledPlaces),
        lists_(listed_ + kSampledPlaces),
        copy_(scratch + kSampleTables),
        part_width_(s_.copied_width()),
        row_(part_width_ * s_.parts()) {}

  template <int width>
  void pack(int64_t first, int64_t count, int64_t p, int64_t depth, float* to) {
    if (places_are_depth_) {
      prepare(p, depth, first_ + first, count);
      pack_from_tables<width>(copy_, samples_, places_, count, depth, to);
      return;
    }
    prepare(first_ + first, count, p, depth);
    if (!s_.by_place) {
      pack_from_tables<width>(copy_, places_, samples_, count, depth, to);
      return;
    }
    for (int64_t i = 0; i < count; i += width, to += width * depth) {
      const int64_t there = count - i < width ? count - i : width;
      const Depths found = find_depths(first_ + first + i, there, p, depth, i / width);
      pack_from_tables<width>(copy_, places_ + i, listed_, there, found.count, to);
    }
  }

  Depths depths(int64_t panel, int64_t depth) const {
    if (places_are_depth_ || !s_.by_place) {
      return {nullptr, depth};
    }
    const int32_t* list = lists_ + panel * (depth + 1);
    return {list + 1, list[0]};
  }

 private:
  /// Copies what these need, and fills the tables.
  void prepare(int64_t first_place, int64_t places, int64_t first_sample, int64_t samples) {
    const int64_t first_channel = first_sample / s_.taps;
    const int64_t channels = (first_sample + samples - 1) / s_.taps - first_channel + 1;
    const int64_t unit = s_.by_place ? s_.images : 1;
    for (int64_t t = 0; t < s_.taps; ++t) {
      const int64_t x = s_.tap_x[t] - s_.first_x;
      taps_[t] = static_cast<int32_t>(
          unit * ((s_.tap_y[t] - s_.first_y) * row_ + x % s_.step_x * part_width_ + x / s_.step_x));
    }
    const int64_t area = s_.by_place ? copy_places(first_place, places, first_channel, channels)
                                     : copy_images(first_place, places, first_channel, channels);
    int64_t tap = first_sample % s_.taps;
    int64_t channel = 0;
    for (int64_t k = 0; k < samples; ++k) {
      samples_[k] = static_cast<int32_t>(channel + taps_[tap]);
      if (++tap == s_.taps) {
        tap = 0;
        channel += area;
      }
    }
  }

  /// Elements of a channel's copy.
  int64_t copy_places(int64_t first_place, int64_t places, int64_t first_channel,
                      int64_t channels) const {
    const int64_t height = (s_.grid_height - 1) * s_.step_y + s_.reach_y;
    const int64_t area = height * row_ * s_.images;
    for (int64_t c = 0; c < channels; ++c) {
      for (int64_t n = 0; n < s_.images; ++n) {
        copy_rows(n, first_channel + c, 0, height, copy_ + c * area + n, s_.images);
      }
    }
    int64_t place = first_place / s_.images;
    int64_t image = first_place % s_.images;
    int64_t offset = offset_of(place) * s_.images;
    for (int64_t k = 0; k < places; ++k) {
      places_[k] = static_cast<int32_t>(offset + image);
      if (++image == s_.images) {
        image = 0;
        offset = offset_of(++place) * s_.images;
      }
    }
    return area;
  }

  int64_t copy_images(int64_t first_place, int64_t places, int64_t first_channel,
                      int64_t channels) const {
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
        places_[k - first_place] = static_cast<int32_t>(start + x);
        if (++x == s_.grid_width) {
          x = 0;
          start += s_.step_y * row_;
        }
      }
      for (int64_t c = 0; c < channels; ++c) {
        copy_rows(place / grid, first_channel + c, part.first_row * s_.step_y, part.height,
                  copy_ + c * area + offset, 1);
      }
      offset += part.height * row_;
      place = part.end;
    }
    return area;
  }

  /// Of a place of the grid, in a copy of all of it.
  int64_t offset_of(int64_t place) const {
    return place / s_.grid_width * s_.step_y * row_ + place % s_.grid_width;
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

  /// Which depths of a panel are not all zeros: those of taps that reach an image from one of its
  /// places.
  Depths find_depths(int64_t first, int64_t count, int64_t p, int64_t depth, int64_t panel) {
    int32_t* list = lists_ + panel * (depth + 1);
    int32_t found = 0;
    int64_t tap = p % s_.taps;
    for (int64_t t = 0; t < s_.taps; ++t) {
      taps_[t] = reaches(t, first / s_.images, (first + count - 1) / s_.images) ? 1 : 0;
    }
    for (int64_t k = 0; k < depth; ++k) {
      if (taps_[tap] != 0) {
        listed_[found++] = samples_[k];
        list[found] = static_cast<int32_t>(k);
      }
      tap = tap + 1 == s_.taps ? 0 : tap + 1;
    }
    list[0] = found;
    return {list + 1, found};
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
  int64_t first_;
  bool places_are_depth_;
  int32_t* places_;   // of the copy
  int32_t* samples_;  // of channels and taps, in the copy
  int32_t* taps_;
  int32_t* listed_;  // samples_ of a list
  int32_t* lists_;   // for each panel: how many depths, and which
  float* copy_;
  int64_t part_width_;
  int64_t row_;
};

struct TableResult {
  float* data;
  int64_t row;
  const int32_t* column;

  template <class T>
  void multiply(int64_t i, int64_t count, int64_t j, int64_t columns, const float* a,
                const float* b, Depths depths, bool add) const {
    float* to = data + i * row;
    if (columns == T::kColumns && is_run(column + j, T::kColumns)) {
      T::multiply_rows(count, a, b, depths, to + column[j], row, add);
      return;
    }
    multiply_apart<T>(count, columns, a, b, depths, add,
                      [&](int64_t y, int64_t x) -> float& { return to[y * row + column[j + x]]; });
  }
};

/// By place, with narrow tiles: their columns have more zeros in common.
template <class T, class Narrow>
bool multiply_samples(const SampledProduct& product, float* scratch) {
  const auto multiply = [&](auto tile) {
    TableOperand a{product.a, product.a_row, product.a_depth};
    SampleOperand samples(product, scratch + kProductScratch);
    multiply_blocks<decltype(tile)>(
        a, samples, TableResult{product.result, product.result_row, product.result_column},
        {product.rows, product.columns, product.depth}, product.block, scratch,
        scratch + product.block.rows * product.block.depth);
    return a.finite;
  };
  return product.b.by_place ? multiply(Narrow()) : multiply(T());
}

}  // namespace
}  // namespace torch_lazy
