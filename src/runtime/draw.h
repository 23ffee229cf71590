// Random numbers for tensors on the device.
#pragma once

#include <torch_lazy/operator.h>

#include <ATen/core/stack.h>

namespace torch_lazy {

/// Calls an operator that fills its first argument, a tensor of the real device, with random
/// numbers: those that eager would draw, after which the generator stands where eager leaves it.
void draw(const OperatorInfo& op, torch::jit::Stack& arguments);

}  // namespace torch_lazy
