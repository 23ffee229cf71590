// Parts of images with zeros around them, for sampling. Compiled like product_kernel.h.
#pragma once

#include "backends/cpu/product_kernel.h"

namespace torch_lazy {
namespace {

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
        copy_rows<1>(place / grid, first_channel + c, part.first_row * s_.step_y, part.height,
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
    for (; n + 8 <= s_.images; n += 8) {
      copy_rows<8>(n, channel, first, height, to + n, s_.images);
    }
    for (; n < s_.images; ++n) {
      copy_rows<1>(n, channel, first, height, to + n, s_.images);
    }
  }

  /// Rows of a channel, the first of them first_y + `first`, to elements `unit` apart, at which
  /// those of `count` images lie side by side.
  template <int count>
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
        clear<count>(0, begin, row, unit);
        copy_row<count>(from + y * s_.row + x * s_.column, begin, end, row, unit);
        clear<count>(end, part_width_, row, unit);
      }
    }
  }

  template <int count>
  static void clear(int64_t begin, int64_t end, float* to, int64_t unit) {
    for (int64_t i = begin; i < end; ++i) {
      for (int n = 0; n < count; ++n) {
        to[i * unit + n] = 0.0F;
      }
    }
  }

  template <int count>
  void copy_row(const float* from, int64_t begin, int64_t end, float* to, int64_t unit) const {
    const int64_t stride = s_.step_x * s_.column;
    int64_t i = begin;
    if constexpr (count == 8) {
      for (; i + 8 <= end && stride == 1; i += 8) {
        const float* rows[8];
        for (int n = 0; n < 8; ++n) {
          rows[n] = from + n * s_.image + i;
        }
        transpose(rows, to + i * unit, unit);
      }
    } else {
      for (; i + 8 <= end && stride == 1 && unit == 1; i += 8) {
        __builtin_memcpy(to + i, from + i, 8 * sizeof(float));
      }
    }
    for (; i < end; ++i) {
      for (int n = 0; n < count; ++n) {
        to[i * unit + n] = from[n * s_.image + i * stride];
      }
    }
  }

  const Samples& s_;
  float* memory_;
  int32_t* taps_;
  int64_t part_width_;
  int64_t row_;
  int64_t area_ = 0;
};

}  // namespace
}  // namespace torch_lazy
