#include "backends/cpu/product.h"

#include "backends/cpu/arena.h"
#include "base/settings.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <string>

namespace torch_lazy {
namespace {

#ifdef TORCH_LAZY_PRODUCTS
const ProductKernels kAvx512{multiply_avx512, multiply_samples_avx512};

const ProductKernels* find_kernels() {
  static const ProductKernels avx2{multiply_avx2, multiply_samples_avx2};
  __builtin_cpu_init();
  const std::string target = settings().codegen_target.get();
  const bool old = target == "x86-64";
  const bool newest = !old && target != "x86-64-v3";
  if (newest && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl")) {
    return &kAvx512;
  }
  return !old && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? &avx2 : nullptr;
}

bool is_intel() {
  return __builtin_cpu_is("intel");
}
#else
const ProductKernels* find_kernels() {
  return nullptr;
}

bool is_intel() {
  return false;
}
#endif

constexpr int64_t kWorthAThread = 1 << 18;  // multiplications

/// By the thread that calls.
void multiply_here(const ProductBlock& block) {
  auto* scratch = reinterpret_cast<float*>(
      scratch_memory(kProductScratch * static_cast<int64_t>(sizeof(float))));
  product_kernels()->multiply(block, scratch);
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

const ProductKernels* product_kernels() {
  static const ProductKernels* found = find_kernels();
  return found;
}

bool has_avx512() {
#ifdef TORCH_LAZY_PRODUCTS
  return product_kernels() == &kAvx512;
#else
  return false;
#endif
}

bool is_for_pytorch() {
  return settings().products == ProductMode::automatic && is_intel();
}

bool has_product(int64_t rows, int64_t columns, int64_t depth) {
  return !is_for_pytorch() && can_multiply(rows, columns, depth);
}

bool can_multiply(int64_t rows, int64_t columns, int64_t depth) {
  if (settings().products == ProductMode::aten || product_kernels() == nullptr) {
    return false;
  }
  // Of small sides, much of a tile is of no use; what matters little has at least the same bits for
  // any number of threads.
  constexpr int64_t kSmall = 16;
  constexpr int64_t kSmallest = 8;
  constexpr int64_t kLittleWork = 1 << 20;  // multiplications
  const int64_t least = std::min({rows, columns, depth});
  return least >= kSmall || (least >= kSmallest && rows * columns * depth <= kLittleWork);
}

void for_blocks(int64_t row_count, int64_t column_count, int64_t depth,
                const std::function<void(const ResultBlock&)>& compute) {
  const int64_t work = row_count * column_count * depth;
  const int64_t threads =
      std::min<int64_t>(at::get_num_threads(), std::max<int64_t>(1, work / kWorthAThread));
  // One block for each thread: such that the largest is small, and that little is packed.
  Cut rows{row_count, kTileRows, 1};
  Cut columns{column_count, kTileColumns, 1};
  auto cost = [](const Cut& r, const Cut& c) {
    return std::make_pair(r.length() * c.length(), r.length() + c.length());
  };
  for (int64_t parts = 1; parts <= threads; ++parts) {
    const Cut r{row_count, kTileRows, parts};
    const Cut c{column_count, kTileColumns, threads / parts};
    if (cost(r, c) < cost(rows, columns)) {
      rows = r;
      columns = c;
    }
  }
  at::parallel_for(0, rows.parts * columns.parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      const int64_t row = rows.begin(part / columns.parts);
      const int64_t column = columns.begin(part % columns.parts);
      const ResultBlock block{row, rows.end(part / columns.parts) - row, column,
                              columns.end(part % columns.parts) - column};
      if (block.rows > 0 && block.columns > 0) {
        compute(block);
      }
    }
  });
}

void multiply(const ProductBlock& product) {
  for_blocks(product.rows, product.columns, product.depth, [&](const ResultBlock& part) {
    ProductBlock block = product;
    block.rows = part.rows;
    block.columns = part.columns;
    block.a += part.row * product.a_row;
    block.b += part.column * product.b_column;
    block.result += part.row * product.result_row + part.column;
    multiply_here(block);
  });
}

void multiply_each(int64_t count, const std::function<ProductBlock(int64_t)>& product) {
  if (count < at::get_num_threads()) {
    for (int64_t i = 0; i < count; ++i) {
      multiply(product(i));
    }
    return;
  }
  const ProductBlock first = product(0);
  const int64_t work = std::max<int64_t>(1, first.rows * first.columns * first.depth);
  at::parallel_for(0, count, std::max<int64_t>(1, kWorthAThread / work),
                   [&](int64_t begin, int64_t end) {
                     for (int64_t i = begin; i < end; ++i) {
                       multiply_here(product(i));
                     }
                   });
}

}  // namespace torch_lazy
