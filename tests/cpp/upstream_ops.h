// Operator by operator, lazy against eager, in a process without Python: a case makes inputs and
// returns tensors; values, gradients, layouts and aliasing must be eager's.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <ostream>
#include <string>
#include <vector>

namespace upstream_ops {

using Tensors = std::vector<torch::Tensor>;

/// Makes inputs on one device; the same ones on every device.
class In {
 public:
  explicit In(torch::Device device);

  /// Normally distributed, a leaf that gradients are computed for.
  torch::Tensor operator()(at::IntArrayRef sizes = {3, 4});
  /// Likewise, uniform in a range.
  torch::Tensor between(double low, double high, at::IntArrayRef sizes = {3, 4});
  /// Normally distributed, without gradients, so that it may be written in place.
  torch::Tensor plain(at::IntArrayRef sizes = {3, 4}, at::ScalarType dtype = at::kFloat);
  torch::Tensor ints(int64_t low, int64_t high, at::IntArrayRef sizes = {3, 4});
  torch::Tensor bools(at::IntArrayRef sizes = {3, 4});
  torch::Tensor range(int64_t end);

  torch::Device device;
  torch::TensorOptions options;
  Tensors leaves;

 private:
  torch::Tensor leaf(const torch::Tensor& data);
  at::Generator generator_;
};

struct Case {
  const char* name;
  Tensors (*body)(In& in);
  /// Some operator of it, or of its backward pass, is executed at once: it is random, or the shape
  /// of its result depends on data.
  bool at_once = false;
};

inline void PrintTo(const Case& test, std::ostream* out) {
  *out << test.name;
}

inline std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  return info.param.name;
}

class UpstreamOps : public ::testing::TestWithParam<Case> {};

}  // namespace upstream_ops

/// The cases of one table; `family` and the names of the cases make the tests' names.
#define COMPARE_WITH_EAGER(family, table)                                   \
  INSTANTIATE_TEST_SUITE_P(family, UpstreamOps, ::testing::ValuesIn(table), \
                           ::upstream_ops::case_name)
