// How close results have to be to PyTorch's: equal where its own kernels run, within the tolerances
// of its tests where the compiler's do.
#pragma once

#include <ATen/ATen.h>

#include <cstdlib>
#include <string_view>

namespace torch_lazy_tests {

/// Whether graphs run operator by operator, with PyTorch's kernels.
inline bool has_eager_bits() {
  const char* compiler = std::getenv("TORCH_LAZY_COMPILER");
  return compiler && std::string_view(compiler) == "off";
}

inline bool same_values(const at::Tensor& actual, const at::Tensor& expected,
                        double relative = 1e-5, double absolute = 1e-5) {
  if (!expected.is_floating_point() && !expected.is_complex()) {
    return at::equal(actual, expected);
  }
  const bool exact = has_eager_bits();
  return at::allclose(actual, expected, exact ? 0 : relative, exact ? 0 : absolute,
                      /*equal_nan=*/true);
}

}  // namespace torch_lazy_tests
