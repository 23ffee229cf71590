// Numbers that are too large for a dtype. Kernels refuse them, so a call with one is not like the
// call with a smaller one.
#pragma once

#include "base/overflow.h"
#include "capture/call.h"

namespace torch_lazy {

/// Whether no kernel can refuse the number for its size. False is a reason to look closer.
inline bool surely_fits(const c10::IValue& value) {
  if (value.isDouble()) {
    return always_fits(value.toDouble());
  }
  return value.isInt() ? always_fits(static_cast<double>(value.toInt())) : !value.isComplexDouble();
}

/// The same of a CPU tensor without dimensions, which kernels read as a number.
bool surely_fits(const at::Tensor& number);

/// Adds to a key which numbers of a call do not fit which dtypes of it.
void identify_misfits(const Call& call, Key& key);

}  // namespace torch_lazy
