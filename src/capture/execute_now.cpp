// Operators that cannot wait: results that depend on data, random draws, no known layout.
#include "base/metrics.h"
#include "capture/capture.h"
#include "capture/collectives.h"
#include "capture/nested.h"
#include "capture/tensor.h"
#include "ir/description_table.h"
#include "runtime/draw.h"
#include "runtime/executor.h"
#include "runtime/real_tensor.h"
#include "runtime/watch.h"
#include "runtime/wider.h"
#include <torch_lazy/backend.h>

#include <ATen/ATen.h>

#include <sstream>

namespace torch_lazy {
namespace {

/// The lazy tensors of a call beside their real counterparts.
class RealWorld {
 public:
  explicit RealWorld(const Call& call) : call_(call) {}

  Stack arguments() {
    compute();
    Stack stack;
    for (size_t i = 0; i < call_.arguments.size(); ++i) {
      const c10::IValue& value = call_.arguments[i];
      if (value.isDevice() && value.toDevice().type() == at::kLazy) {
        device_ = checked_index(value.toDevice());
        stack.emplace_back(real_device());
      } else {
        stack.push_back(map_tensors(value, [&](const at::Tensor& t) { return real(t); }));
      }
    }
    return stack;
  }

  /// A result that the schema calls new. One that shares memory with something is copied.
  at::Tensor wrap(const at::Tensor& result) const {
    if (!result.defined()) {
      return result;
    }
    if (is_collective()) {  // they return arguments, and their schemas do not say so
      for (const auto& [lazy, real] : pairs_) {
        if (real.is_same(result)) {
          return lazy;
        }
      }
    }
    TORCH_CHECK_NOT_IMPLEMENTED(
        result.layout() == at::kStrided && !result.is_quantized() && !result.is_nested(),
        "torch-lazy: ", call_.op.name, " gives a ", kind(result), " tensor (", result.toString(),
        "), and device lazy holds plain strided tensors only. Call it on the CPU: tensor.cpu()");
    if (result.device() != real_device()) {
      return result;  // an operator that answers with a CPU tensor on every device
    }
    return adopt(result.storage().use_count() > 1 ? result.clone() : result, device_);
  }

  /// A result that the schema calls a view of `base`.
  at::Tensor wrap_view(const at::Tensor& result, const at::Tensor& base) const {
    if (!result.defined()) {
      return result;
    }
    for (const auto& [lazy, real] : pairs_) {
      if (lazy.is_same(base) && real.is_alias_of(result)) {
        return make_tensor(base.storage(), Layout::of(result));
      }
    }
    return wrap(result);
  }

  /// Gives lazy tensors that the operator resized their new sizes.
  bool follow_resizes() const {
    bool resized = false;
    for (const auto& [lazy, real] : pairs_) {
      Layout after = Layout::of(real);
      if (after.matches(lazy)) {
        continue;
      }
      resized = true;
      Buffer& buffer = buffer_of(lazy);
      int64_t nbytes = static_cast<int64_t>(real.storage().nbytes());
      if (nbytes > buffer.nbytes) {
        {
          GraphLock lock;
          buffer.nbytes = nbytes;
        }
        lazy.storage().unsafeGetStorageImpl()->set_nbytes(nbytes);
        set_buffer_data(buffer, real.storage());
      }
      lazy.unsafeGetTensorImpl()->set_sizes_and_strides(after.sizes, after.strides, after.offset);
    }
    return resized;
  }

  const std::vector<TensorPair>& pairs() const { return pairs_; }

 private:
  static std::string kind(const at::Tensor& t) {
    std::ostringstream layout;
    layout << t.layout();
    return t.is_quantized() ? "quantized" : t.is_nested() ? "nested" : layout.str();
  }

  /// One run for everything the call reads, and the pending readers of what it writes.
  void compute() {
    std::vector<Buffer*> read;
    std::vector<Buffer*> written;
    for (size_t i = 0; i < call_.arguments.size(); ++i) {
      const c10::IValue& value = call_.arguments[i];
      const bool write = is_written(i);
      visit_tensors(value, [&](const at::Tensor& t) {
        if (is_lazy(t)) {
          device_ = t.device().index();
          (write ? written : read).push_back(&buffer_of(t));
        }
      });
    }
    run_buffers(read);
    if (!written.empty()) {
      run_buffers(written, /*to_write=*/true);
    }
  }

  bool is_collective() const { return call_.op.operator_name.name.rfind("c10d::", 0) == 0; }

  bool is_written(size_t argument) const {
    if (is_collective()) {
      return collective_writes(call_.op, argument);
    }
    return call_.op.arguments[argument].written || call_.op.writes_unannotated_statistics ||
           call_.op.immediate == Immediate::unsupported_arguments;
  }

  at::Tensor real(const at::Tensor& tensor) {
    if (!is_lazy(tensor)) {
      return tensor;
    }
    for (const auto& [lazy, real] : pairs_) {
      if (lazy.is_same(tensor)) {
        return real;
      }
    }
    pairs_.emplace_back(tensor, real_of(tensor));
    return pairs_.back().second;
  }

  const Call& call_;
  c10::DeviceIndex device_ = 0;
  std::vector<TensorPair> pairs_;
};

c10::IValue wrap_result(const RealWorld& world, const Call& call, const c10::IValue& result,
                        const ReturnInfo& info) {
  if (info.kind == ReturnInfo::Kind::written) {
    return call.arguments[info.argument];
  }
  const bool view = info.kind == ReturnInfo::Kind::view && call.arguments[info.argument].isTensor();
  auto wrap = [&](const at::Tensor& t) {
    return view ? world.wrap_view(t, call.arguments[info.argument].toTensor()) : world.wrap(t);
  };
  return wrap_work(call, map_tensors(result, wrap), world.pairs());
}

void learn(const Call& call, const Stack& results) {
  DescriptionPtr description = observe(call, results);
  if (!description) {
    return;
  }
  std::vector<DescriptionPtr> evicted;  // freed after the lock
  GraphLock lock;
  DescriptionTable::instance().add(std::move(description), evicted);
}

}  // namespace

void execute_now(Call& call, Stack* stack, bool observe_layouts) {
  metrics::count_fallback(call.op.name);
  watch_obstacle(call.op.name + " is executed at once");
  ExecutionLock execution;
  RealWorld world(call);
  Stack real = world.arguments();
  BelowEverything below;
  call_real(call.op, real, [&](Stack& again) { again = world.arguments(); });
  const bool resized = world.follow_resizes();  // then what we saw describes another call
  bump_versions(call);
  if (observe_layouts && !resized) {
    learn(call, real);
  }
  Stack results;
  for (size_t i = 0; i < real.size(); ++i) {
    c10::IValue value = std::move(real[i]);
    results.push_back(wrap_result(world, call, value, call.op.returns[i]));
  }
  torch::jit::drop(*stack, call.arguments.size());
  for (c10::IValue& result : results) {
    stack->push_back(std::move(result));
  }
}

void draw_now(Call& call, Stack* stack) {
  const at::Tensor self = call.arguments[0].toTensor();
  if (!is_lazy(self) || !covers_storage(self)) {
    return execute_now(call, stack, false);
  }
  call.op.captured->add();
  if (Watch* w = watch()) {
    w->begin_draw();
    if (std::any_of(call.arguments.begin(), call.arguments.end(),
                    [](const c10::IValue& value) { return value.isGenerator(); })) {
      watch_obstacle("it draws from a generator of its own");
    }
  }
  Buffer& buffer = buffer_of(self);
  Stack real(call.arguments.begin(), call.arguments.end());
  c10::Storage memory = allocate(buffer.nbytes);
  real[0] = real_tensor(memory, Layout::of(self));
  draw(call.op, real);
  Value* value = set_buffer_data(buffer, std::move(memory));
  if (Watch* w = watch()) {
    w->end_draw();
    Draw again{&call.op, call.arguments.vec(), Layout::of(self), buffer.nbytes};
    again.arguments[0] = c10::IValue();
    GraphLock lock;
    w->add_draw(value, std::move(again), lock);
  }
  torch::jit::drop(*stack, call.arguments.size());
  stack->emplace_back(self);
}

}  // namespace torch_lazy
