// The boxed kernel and recording.
#include "capture/capture.h"

#include "base/fault.h"
#include "base/hash.h"
#include "base/hooks.h"
#include "base/metrics.h"
#include "base/scopes.h"
#include "base/settings.h"
#include "capture/rehearse.h"
#include "capture/tensor.h"
#include "ir/description_table.h"
#include "ir/trace.h"
#include "runtime/executor.h"
#include "runtime/failure.h"
#include "runtime/recorders.h"
#include "runtime/watch.h"
#include <torch_lazy/backend.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <memory>
#include <optional>

namespace torch_lazy {
namespace {

/// Memory for a CPU tensor that eager accepts beside lazy ones (an index): a private copy.
c10::Storage upload(const at::Tensor& tensor) {
  at::Tensor copy =
      at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(real_device()));
  copy.copy_(tensor);
  return copy.storage();
}

/// The stored value need not be computed, nor kept, when the call overwrites all of it.
bool overwrites_all(const Call& call) {
  if (!call.op.overwrites || !covers_storage(*call.tensors[0])) {
    return false;
  }
  return std::none_of(call.tensors.begin() + 1, call.tensors.end(), [&](const at::Tensor* other) {
    return other->is_alias_of(*call.tensors[0]);
  });
}

void resize(const Call& call, const Description& description) {
  for (const Resize& resize : description.resizes) {
    const at::Tensor& tensor = *call.tensors[resize.operand];
    grow_storage(tensor.storage(), resize.nbytes);
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(resize.layout.sizes, resize.layout.strides,
                                                        resize.layout.offset);
  }
}

bool has_mask(const Call& call) {
  for (const c10::IValue& argument : call.arguments) {
    if (!argument.isOptionalTensorList()) {
      continue;
    }
    for (const c10::IValue& index : argument.toListRef()) {
      if (index.isTensor() && index.toTensor().defined() &&
          (index.toTensor().scalar_type() == at::kBool ||
           index.toTensor().scalar_type() == at::kByte)) {
        return true;
      }
    }
  }
  return false;
}

/// The error of an operand that can never be computed; what is overwritten may be one. Raised after
/// unlocking: it may be the host language's.
std::shared_ptr<Failure> failed_operand(c10::ArrayRef<Buffer*> buffers, bool first_is_overwritten) {
  for (size_t i = first_is_overwritten ? 1 : 0; i < buffers.size(); ++i) {
    const Value* value = buffers[i] ? buffers[i]->current : nullptr;
    if (value && value->failure) {
      return value->failure;
    }
  }
  return nullptr;
}

/// What this thread recorded before, to be followed; null: reuse is switched off.
Trace* trace_to_follow() {
  return settings().reuse_ir.load(std::memory_order_relaxed) ? &Trace::of_this_thread() : nullptr;
}

/// Records the call as a node whose results belong to the buffers of `fresh` and of what the call
/// writes. Returns whether what is pending should run now.
bool append_node(Call& call, Description& description, c10::ArrayRef<at::Tensor> fresh) {
  c10::SmallVector<Buffer*, 8> buffers;
  c10::SmallVector<c10::Storage, 1> uploads;  // in the order of the operands that are not lazy
  for (const at::Tensor* tensor : call.tensors) {
    buffers.push_back(is_lazy(*tensor) ? &buffer_of(*tensor) : nullptr);
    if (!buffers.back()) {
      uploads.push_back(upload(*tensor));
    }
  }
  auto owned = std::make_unique<Node>();
  Node* node = owned.get();
  node->description = DescriptionPtr::reclaim_copy(&description);
  node->numbers.assign(std::make_move_iterator(call.numbers.begin()),
                       std::make_move_iterator(call.numbers.end()));
  node->source = source_for_node();
  node->scope = scope_for_node();
  const bool overwritten = overwrites_all(call);

  watch_call();
  std::optional<GraphLock> guard(std::in_place, c10::ArrayRef<Buffer*>(buffers));
  if (std::shared_ptr<Failure> failure = failed_operand(buffers, overwritten)) {
    guard.reset();
    raise(*failure);
  }
  GraphLock& lock = *guard;
  Program& program = Program::instance();
  size_t uploaded = 0;
  for (size_t i = 0; i < buffers.size(); ++i) {
    Value* value = nullptr;
    if (!buffers[i]) {
      value = program.make_data(std::move(uploads[uploaded++]));
      if (Watch* w = watch()) {
        w->add_upload(value, *call.tensors[i], Layout::of(*call.tensors[i]), lock);
      }
    } else {
      value = program.value_of(*buffers[i]);
      if (i == 0 && overwritten && (value->pending() || value->failure)) {
        value = program.make_value(buffers[0]->nbytes);
      }
    }
    program.retain(value);
    node->operands.push_back(value);
  }
  auto give = [&](Buffer& buffer) {
    Value* value = program.make_value(buffer.nbytes);
    value->producer = node;
    value->output = static_cast<int>(node->outputs.size());
    node->outputs.push_back(value);
    ++node->refs;
    program.assign(buffer, value, lock);
  };
  for (const at::Tensor& tensor : fresh) {
    give(buffer_of(tensor));
  }
  for (const Write& write : description.writes) {
    Buffer& buffer = *buffers[write.operand];
    if (buffer.current && buffer.current->producer == node) {
      node->outputs.push_back(nullptr);  // two written tensors over one buffer: one new value
    } else {
      give(buffer);
    }
  }
  if (call.op.effect) {
    ++node->refs;  // nothing holds an effect but the program itself
  }
  program.append(owned.release(), call.trace);
  note_recorder(program);
  return over_limit(program);
}

/// The description of an equal call: the one that came next the last time, or any other.
DescriptionPtr find_description(Call& call) {
  call.trace = trace_to_follow();
  if (call.trace) {
    call.trace->trim();
    if (Description* expected = call.trace->expect(call.op, call.key)) {
      return DescriptionPtr::reclaim_copy(expected);
    }
  }
  call.hash = hash_words(call.key);
  GraphLock lock;
  Description* found = DescriptionTable::instance().find(call.op, call.key, call.hash);
  return found ? DescriptionPtr::reclaim_copy(found) : DescriptionPtr();
}

/// Whether the setting LTC_FORCE_FALLBACK names the operator or the function of which it is the
/// in-place form.
bool is_forced(const OperatorInfo& op) {
  const TextSetting& forced = settings().force_fallback;
  if (forced.empty()) {
    return false;
  }
  const std::string name = forced.get();
  return op.operator_name.name == name || op.operator_name.name == name + "_";
}

}  // namespace

void bump_versions(const Call& call) {
  if (!call.op.bumps_versions) {
    return;
  }
  for (size_t i = 0; i < call.arguments.size(); ++i) {
    if (!call.op.arguments[i].written) {
      continue;
    }
    for (const c10::IValue& element : call.arguments[i].toListRef()) {
      bump_version(element.toTensor());
    }
  }
}

namespace {

/// TorchScript makes lists of optional tensors of a type that c10 does not take for its own.
void convert_lists(const OperatorInfo& info, Stack& stack) {
  const size_t first = stack.size() - info.arguments.size();
  for (size_t i = 0; i < info.arguments.size(); ++i) {
    c10::IValue& value = stack[first + i];
    if (info.arguments[i].kind != ArgumentKind::tensor_list || !value.isList() ||
        value.isTensorList() || value.isOptionalTensorList()) {
      continue;
    }
    c10::List<std::optional<at::Tensor>> list;
    for (const c10::IValue& element : value.toListRef()) {
      list.push_back(element.toOptional<at::Tensor>());
    }
    value = std::move(list);
  }
}

/// `of_resize`: warnings of this call before its results had their sizes; the others of them come
/// again.
void capture(const OperatorInfo& info, Stack* stack, const Warnings& of_resize) {
  const size_t count = info.arguments.size();
  Call call(info, c10::ArrayRef<c10::IValue>(stack->data() + stack->size() - count, count));
  const bool recordable = info.dynamic_only_with_masks && !has_mask(call);
  if (info.immediate != Immediate::no && !recordable) {
    check_devices(call);
    return info.random_fill ? draw_now(call, stack) : execute_now(call, stack, false);
  }
  if (is_forced(info) || !identify(call)) {
    warn_again(of_resize);
    return execute_now(call, stack, false);
  }
  DescriptionPtr description = find_description(call);
  if (!description) {
    description = infer(call);
    if (!description) {
      warn_again(of_resize);
      // Without a Meta kernel a custom operator may give other shapes for other data.
      return execute_now(call, stack, /*observe_layouts=*/info.aten);
    }
    const Rehearsal rehearsal(call, *description);
    if (!rehearsal.passed()) {
      warn_again(of_resize);
      execute_now(call, stack, /*observe_layouts=*/info.aten);
      return rehearsal.refute();
    }
    std::vector<DescriptionPtr> evicted;  // freed after the lock
    GraphLock lock;
    description = DescriptionPtr::reclaim_copy(
        DescriptionTable::instance().add(std::move(description), evicted));
  }
  if (!description->resizes.empty()) {
    resize(call, *description);
    return capture(info, stack, description->warnings);
  }
  if (!description->warnings.empty() || !of_resize.empty()) {
    warn_again(of_resize, description->warnings);
    warn_again(description->warnings);
  }
  record(call, *description, stack);
}

}  // namespace

void capture(const c10::OperatorHandle& op, Stack* stack) {
  const OperatorInfo& info = operator_info(op);
  if (info.lists_of_optional_tensors) {
    convert_lists(info, *stack);
  }
  capture(info, stack, {});
}

void record(Call& call, Description& description, Stack* stack) {
  fault_point(Stage::capture);
  call.op.captured->add();
  // Tensors are made before the lock is taken, and arguments dropped after it is released.
  c10::SmallVector<at::Tensor, 4> fresh;
  for (const FreshOutput& output : description.fresh) {
    fresh.push_back(make_undefined(output.layout, output.nbytes, description.device));
  }
  const bool over = description.makes_node() && append_node(call, description, fresh);
  bump_versions(call);

  c10::SmallVector<c10::IValue, 4> results;
  for (const ReturnSource& source : description.returns) {
    switch (source.kind) {
      case ReturnSource::Kind::fresh:
        results.emplace_back(std::move(fresh[source.index]));
        break;
      case ReturnSource::Kind::fresh_list: {
        c10::List<at::Tensor> list;
        for (int i = 0; i < source.count; ++i) {
          list.push_back(std::move(fresh[source.index + i]));
        }
        results.emplace_back(std::move(list));
        break;
      }
      case ReturnSource::Kind::view:
        results.emplace_back(
            make_tensor(call.arguments[source.index].toTensor().storage(), source.views[0]));
        break;
      case ReturnSource::Kind::view_list: {
        c10::List<at::Tensor> list;
        for (const Layout& view : source.views) {
          list.push_back(make_tensor(call.arguments[source.index].toTensor().storage(), view));
        }
        results.emplace_back(std::move(list));
        break;
      }
      case ReturnSource::Kind::argument:
        results.push_back(call.arguments[source.index]);
        break;
      case ReturnSource::Kind::undefined:
        results.emplace_back(at::Tensor());
        break;
      case ReturnSource::Kind::constant:
        results.push_back(source.value);
        break;
    }
  }
  torch::jit::drop(*stack, call.arguments.size());
  for (c10::IValue& result : results) {
    stack->push_back(std::move(result));
  }
  if (over) {
    cut();
  }
}

}  // namespace torch_lazy
