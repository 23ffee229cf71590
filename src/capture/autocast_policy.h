// Which operators autocast casts, and how: the rules of eager on the CPU and on CUDA.
#pragma once

#include <string>
#include <unordered_map>

namespace torch_lazy {

enum class Cast {
  none,
  lower_precision,    // arguments to the region's type
  to_float,           // arguments to float
  promote,            // arguments to the widest type among them
  float_result,       // the optional argument `dtype` to float
  norm_float_result,  // norm, called as the overload that has a `dtype`
  refuse,             // an error that says what to use instead
};

/// One operator's rule for each device that can do the work.
struct AutocastRule {
  Cast cpu = Cast::none;
  Cast cuda = Cast::none;
};

/// Keyed by name and overload without the namespace: "mm", "conv2d.padding".
const std::unordered_map<std::string, AutocastRule>& autocast_policy();

}  // namespace torch_lazy
