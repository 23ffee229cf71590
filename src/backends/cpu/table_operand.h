// Packing of matrices whose elements are found by tables. Compiled like product_kernel.h.
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

}  // namespace
}  // namespace torch_lazy
