#include "backends/cpu/product.h"

#include "backends/cpu/arena.h"
#include "base/settings.h"

#include <ATen/Parallel.h>

#include <algorithm>

namespace torch_lazy {
namespace {

using Kernel = void (*)(const ProductBlock&, float*);

#ifdef TORCH_LAZY_PRODUCTS
Kernel find_kernel() {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl")) {
    return multiply_avx512;
  }
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? multiply_avx2 : nullptr;
}

/// The library that PyTorch's wheels multiply with is Intel's.
bool has_better_ones() {
  return __builtin_cpu_is("intel");
}
#else
Kernel find_kernel() {
  return nullptr;
}

bool has_better_ones() {
  return true;
}
#endif

Kernel kernel() {
  static const Kernel found = find_kernel();
  return found;
}

/// Parts of equal size, but for the last ones, which begin at multiples of `unit`.
struct Cut {
  int64_t size;
  int64_t unit;
  int64_t parts;

  int64_t length() const {
    const int64_t units = (size + unit - 1) / unit;
    return (units + parts - 1) / parts * unit;
  }
  int64_t begin(int64_t part) const { return std::min(size, part * length()); }
  int64_t end(int64_t part) const { return std::min(size, (part + 1) * length()); }
};

}  // namespace

bool has_product(int64_t rows, int64_t columns, int64_t depth) {
  const ProductMode mode = settings().products;
  if (mode == ProductMode::aten || kernel() == nullptr ||
      (mode == ProductMode::automatic && has_better_ones())) {
    return false;
  }
  constexpr int64_t kSmallest = 16;
  return rows >= kSmallest && columns >= kSmallest && depth >= kSmallest;
}

void multiply(const ProductBlock& product) {
  constexpr int64_t kRowUnit = 12;
  constexpr int64_t kColumnUnit = 32;
  constexpr int64_t kWorthAThread = 1 << 18;  // multiplications
  const int64_t work = product.rows * product.columns * product.depth;
  const int64_t threads =
      std::min<int64_t>(at::get_num_threads(), std::max<int64_t>(1, work / kWorthAThread));
  // The result is cut into blocks, one for each thread: such that the largest is small, and that
  // little is packed.
  Cut rows{product.rows, kRowUnit, 1};
  Cut columns{product.columns, kColumnUnit, 1};
  auto cost = [](const Cut& r, const Cut& c) {
    return std::make_pair(r.length() * c.length(), r.length() + c.length());
  };
  for (int64_t parts = 1; parts <= threads; ++parts) {
    const Cut r{product.rows, kRowUnit, parts};
    const Cut c{product.columns, kColumnUnit, threads / parts};
    if (cost(r, c) < cost(rows, columns)) {
      rows = r;
      columns = c;
    }
  }
  at::parallel_for(0, rows.parts * columns.parts, 1, [&](int64_t begin, int64_t end) {
    auto* scratch = reinterpret_cast<float*>(
        scratch_memory(kProductScratch * static_cast<int64_t>(sizeof(float))));
    for (int64_t part = begin; part < end; ++part) {
      const int64_t row = rows.begin(part / columns.parts);
      const int64_t column = columns.begin(part % columns.parts);
      ProductBlock block = product;
      block.rows = rows.end(part / columns.parts) - row;
      block.columns = columns.end(part % columns.parts) - column;
      block.a += row * product.a_row;
      block.b += column * product.b_column;
      block.result += row * product.result_row + column;
      if (block.rows > 0 && block.columns > 0) {
        kernel()(block, scratch);
      }
    }
  });
}

}  // namespace torch_lazy
