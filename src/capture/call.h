// A boxed call as capture sees it: the words that identify it, its tensors and its numbers.
#pragma once

#include <torch_lazy/description.h>

#include <ATen/core/stack.h>

#include <list>

namespace torch_lazy {

using torch::jit::Stack;

class Trace;

struct Call {
  const OperatorInfo& op;
  c10::ArrayRef<c10::IValue> arguments;
  Key key;
  uint64_t hash = 0;             // of the key, when it was needed
  Trace* trace = nullptr;        // of this thread, to be followed; null: reuse is switched off
  c10::DeviceIndex device = -1;  // of the lazy tensors; -1: none seen
  /// Tensor operands in order: lazy ones, and CPU tensors that eager accepts beside a device's
  /// (indices), which become constants.
  c10::SmallVector<const at::Tensor*, 8> tensors;
  c10::SmallVector<c10::IValue, 4> numbers;
  /// Copies of CPU operands that do not lie plainly in their storage; `tensors` points into it.
  std::list<at::Tensor> copies;

  Call(const OperatorInfo& info, c10::ArrayRef<c10::IValue> args) : op(info), arguments(args) {}
};

/// Fills in the key, tensors and numbers. False: the call has an argument that no key can describe,
/// and must be executed at once. Raises eager's kind of error where devices are mixed.
bool identify(Call& call);

/// Raises eager's kind of error where a call that is not identified mixes devices.
void check_devices(const Call& call);

/// The sources of the arguments, in the order in which `identify` met tensors and numbers.
std::vector<ArgumentSource> argument_sources(const Call& call);

/// Which tensor operands the call writes, by the schema and the table of exceptions.
std::vector<Write> written_operands(const Call& call);

/// The description of a call that is not in the table: its results' layouts come from a layout
/// function or a Meta kernel. Null: there is none, or it failed; run the operator to see.
DescriptionPtr infer(const Call& call);

/// The description of a call from the results it gave when it was run (`results`: real tensors).
/// Null when they do not describe future calls.
DescriptionPtr observe(const Call& call, const Stack& results);

}  // namespace torch_lazy
