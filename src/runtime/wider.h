// Calls operators on real tensors. Programs that see a device other than the CPU take the way of
// CUDA; where the CPU has no kernel for a dtype that CUDA has one for, a wider dtype is used.
#pragma once

#include <torch_lazy/operator.h>

#include <ATen/core/stack.h>
#include <c10/util/FunctionRef.h>

namespace torch_lazy {

/// Calls the operator's kernel of the real device on `stack`. `arguments` puts the arguments onto
/// an empty stack again, for another attempt.
void call_real(const OperatorInfo& op, torch::jit::Stack& stack,
               c10::function_ref<void(torch::jit::Stack&)> arguments);

}  // namespace torch_lazy
