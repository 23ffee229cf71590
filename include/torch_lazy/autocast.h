// Mixed precision from C++: `torch_lazy::Autocast region(at::kBFloat16);` casts for lazy tensors
// until the end of the scope, by the rules of the device that does the work.
#pragma once

#include <torch_lazy/export.h>

#include <c10/core/ScalarType.h>

namespace torch_lazy {

class TORCH_LAZY_API Autocast {
 public:
  explicit Autocast(at::ScalarType dtype, bool enabled = true, bool cache_enabled = true);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  at::ScalarType previous_dtype_;
  bool previous_enabled_;
  bool previous_cache_enabled_;
};

}  // namespace torch_lazy
