// The aten backend: runs a graph operator by operator with PyTorch's own kernels, and so gives
// eager's bits. A plan is the graph with every decision that does not need data already taken.
#include "base/fault.h"
#include "runtime/backend_choice.h"
#include "runtime/real_tensor.h"
#include <torch_lazy/backend.h>

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>

namespace torch_lazy {
namespace {

using torch::jit::Stack;

/// A tensor over a slot, as some operand wants to see it. Equal ones are made once per run.
struct View {
  uint32_t slot;
  const Layout* layout;
};

struct Instruction {
  const GraphNode* node;
  c10::SmallVector<uint32_t, 4> operands;     // views
  c10::SmallVector<uint32_t, 1> copy_before;  // slots whose memory must survive the write
  c10::SmallVector<uint32_t, 1> back_up;      // slots to be put right if a custom operator fails
  c10::SmallVector<uint32_t, 4> done;         // slots that nobody needs after this
  c10::SmallVector<int32_t, 3> result_views;  // the view that each fresh result is, or -1
};

/// The default dtype that was in force when a call was recorded decides what it computes.
class DefaultDtypeGuard {
 public:
  explicit DefaultDtypeGuard(at::ScalarType dtype) : before_(c10::get_default_dtype()) {
    c10::set_default_dtype(c10::scalarTypeToTypeMeta(dtype));
  }
  ~DefaultDtypeGuard() { c10::set_default_dtype(before_); }
  DefaultDtypeGuard(const DefaultDtypeGuard&) = delete;
  DefaultDtypeGuard& operator=(const DefaultDtypeGuard&) = delete;

 private:
  caffe2::TypeMeta before_;
};

class AtenPlan : public Executable {
 public:
  explicit AtenPlan(std::shared_ptr<const Graph> graph);
  void run(Run& run) override;
  std::string text() const override { return graph_->text(); }

 private:
  void execute(const Instruction& instruction, Run& run, std::vector<at::Tensor>& tensors,
               Stack& stack);
  void adopt(const Instruction& instruction, Run& run, std::vector<at::Tensor>& tensors,
             Stack& stack);
  const at::Tensor& tensor(uint32_t view, Run& run, std::vector<at::Tensor>& tensors);
  uint32_t view_of(uint32_t slot, const Layout& layout);

  std::shared_ptr<const Graph> graph_;
  std::vector<View> views_;
  std::vector<c10::SmallVector<uint32_t, 2>> views_of_slot_;
  std::vector<int64_t> fresh_bytes_;  // by slot; -1: not fresh
  std::vector<Instruction> instructions_;
};

uint32_t AtenPlan::view_of(uint32_t slot, const Layout& layout) {
  // Tensors without elements are kept apart: eager takes one tensor given twice for an overlap.
  const bool shareable =
      std::find(layout.sizes.begin(), layout.sizes.end(), 0) == layout.sizes.end();
  for (uint32_t view : views_of_slot_[slot]) {
    if (shareable && *views_[view].layout == layout) {
      return view;
    }
  }
  views_.push_back({slot, &layout});
  views_of_slot_[slot].push_back(static_cast<uint32_t>(views_.size() - 1));
  return views_of_slot_[slot].back();
}

AtenPlan::AtenPlan(std::shared_ptr<const Graph> graph) : graph_(std::move(graph)) {
  const Graph& g = *graph_;
  views_of_slot_.resize(g.slots);
  fresh_bytes_.assign(g.slots, -1);
  std::vector<char> outlives(g.slots, 0);
  for (const Parameter& parameter : g.parameters) {
    outlives[parameter.slot] = !parameter.donated;
    if (parameter.fresh) {
      fresh_bytes_[parameter.slot] = parameter.nbytes;
    }
  }
  for (uint32_t slot : g.roots) {
    outlives[slot] = 1;
  }
  std::vector<size_t> last_use(g.slots, 0);
  for (size_t i = 0; i < g.nodes.size(); ++i) {
    for (uint32_t slot : g.nodes[i].operands) {
      last_use[slot] = i;
    }
    for (int32_t slot : g.nodes[i].outputs) {
      if (slot >= 0) {
        last_use[slot] = std::max(last_use[slot], i);
      }
    }
  }
  instructions_.reserve(g.nodes.size());
  for (size_t i = 0; i < g.nodes.size(); ++i) {
    const GraphNode& node = g.nodes[i];
    const Description& d = *node.description;
    Instruction instruction;
    instruction.node = &node;
    for (size_t k = 0; k < node.operands.size(); ++k) {
      instruction.operands.push_back(view_of(node.operands[k], d.operands[k]));
    }
    for (const Write& write : d.writes) {
      uint32_t base = node.operands[write.operand];
      bool listed = std::find(instruction.copy_before.begin(), instruction.copy_before.end(),
                              base) != instruction.copy_before.end();
      if ((outlives[base] || last_use[base] > i) && !listed) {
        instruction.copy_before.push_back(base);
      } else if (!d.op->aten && !listed) {
        instruction.back_up.push_back(base);
      }
    }
    for (size_t k = 0; k < d.fresh.size(); ++k) {
      int32_t slot = node.outputs[k];
      instruction.result_views.push_back(
          slot < 0 ? -1 : static_cast<int32_t>(view_of(slot, d.fresh[k].layout)));
    }
    auto finished = [&](uint32_t slot) {
      bool listed = std::find(instruction.done.begin(), instruction.done.end(), slot) !=
                    instruction.done.end();
      if (last_use[slot] == i && !listed) {
        instruction.done.push_back(slot);
      }
    };
    for (uint32_t slot : node.operands) {
      finished(slot);
    }
    for (int32_t slot : node.outputs) {
      if (slot >= 0) {
        finished(static_cast<uint32_t>(slot));
      }
    }
    instructions_.push_back(std::move(instruction));
  }
  // A slot that outlives the run keeps its storage; only its tensors are dropped.
  for (Instruction& instruction : instructions_) {
    auto& done = instruction.done;
    done.erase(std::remove_if(done.begin(), done.end(),
                              [&](uint32_t slot) { return outlives[slot] != 0; }),
               done.end());
  }
}

const at::Tensor& AtenPlan::tensor(uint32_t view, Run& run, std::vector<at::Tensor>& tensors) {
  at::Tensor& made = tensors[view];
  if (!made.defined()) {
    uint32_t slot = views_[view].slot;
    if (!run.slots[slot]) {
      TORCH_INTERNAL_ASSERT(fresh_bytes_[slot] >= 0, "an operand has no data");
      run.slots[slot] = allocate(fresh_bytes_[slot]);
    }
    made = real_tensor(run.slots[slot], *views_[view].layout);
  }
  return made;
}

void AtenPlan::run(Run& run) {
  BelowEverything below;
  c10::OptionalDeviceGuard device_guard;
  if (real_device().is_cuda()) {
    device_guard.reset_device(real_device());
  }
  std::vector<at::Tensor> tensors(views_.size());
  Stack stack;
  run.failed = 1;
  for (run.completed = 0; run.completed < instructions_.size(); ++run.completed) {
    const Instruction& instruction = instructions_[run.completed];
    fault_point(Stage::execute);
    execute(instruction, run, tensors, stack);
    for (uint32_t slot : instruction.done) {
      for (uint32_t view : views_of_slot_[slot]) {
        tensors[view].reset();
      }
      run.slots[slot] = c10::Storage();
    }
  }
}

void AtenPlan::execute(const Instruction& instruction, Run& run, std::vector<at::Tensor>& tensors,
                       Stack& stack) {
  const GraphNode& node = *instruction.node;
  const Description& d = *node.description;
  c10::SmallVector<std::pair<uint32_t, c10::Storage>, 1> saved;
  for (uint32_t slot : instruction.copy_before) {
    for (uint32_t view : views_of_slot_[slot]) {
      tensors[view].reset();
    }
    if (!run.slots[slot]) {
      run.slots[slot] = allocate(fresh_bytes_[slot]);
    }
    c10::Storage original = run.slots[slot];
    c10::Storage copy = copy_of(original);
    saved.emplace_back(slot, std::move(original));
    run.slots[slot] = std::move(copy);
  }

  c10::SmallVector<std::pair<uint32_t, c10::Storage>, 1> backups;
  for (uint32_t slot : instruction.back_up) {
    if (run.slots[slot]) {
      backups.emplace_back(slot, copy_of(run.slots[slot]));
    }
  }

  stack.clear();
  const c10::IValue* numbers = run.numbers.data() + node.first_number;
  auto operand = [&](int index) -> const at::Tensor& {
    return tensor(instruction.operands[index], run, tensors);
  };
  for (const ArgumentSource& argument : d.arguments) {
    switch (argument.kind) {
      case ArgumentSource::Kind::constant:
        stack.push_back(argument.value);
        break;
      case ArgumentSource::Kind::operand:
        stack.emplace_back(operand(argument.index));
        break;
      case ArgumentSource::Kind::number:
        stack.push_back(numbers[argument.index]);
        break;
      case ArgumentSource::Kind::operand_list: {
        c10::List<at::Tensor> list;
        list.reserve(argument.elements.size());
        for (int element : argument.elements) {
          list.push_back(element >= 0    ? operand(element)
                         : element == -1 ? at::Tensor()
                                         : numbers[-2 - element].toTensor());
        }
        stack.emplace_back(std::move(list));
        break;
      }
      case ArgumentSource::Kind::optional_list: {
        c10::List<std::optional<at::Tensor>> list;
        list.reserve(argument.elements.size());
        for (int element : argument.elements) {
          list.push_back(element >= 0 ? std::optional<at::Tensor>(operand(element))
                         : element == -1
                             ? std::nullopt
                             : std::optional<at::Tensor>(numbers[-2 - element].toTensor()));
        }
        stack.emplace_back(std::move(list));
        break;
      }
    }
  }
  d.op->check_registered();
  std::optional<DefaultDtypeGuard> default_dtype;
  if (d.default_dtype != c10::get_default_dtype_as_scalartype()) {
    default_dtype.emplace(d.default_dtype);
  }
  auto restore = [&] {
    for (auto& [slot, original] : saved) {
      for (uint32_t view : views_of_slot_[slot]) {
        tensors[view].reset();
      }
      run.slots[slot] = std::move(original);
    }
  };
  try {
    d.op->handle.redispatchBoxed(c10::DispatchKeySet(real_key()), &stack);
    adopt(instruction, run, tensors, stack);
  } catch (...) {
    restore();
    for (auto& [slot, backup] : backups) {
      copy_bytes(backup, run.slots[slot]);
    }
    run.spoiled = d.op->aten && saved.size() < d.writes.size();
    throw;
  }
  restore();
}

void AtenPlan::adopt(const Instruction& instruction, Run& run, std::vector<at::Tensor>& tensors,
                     Stack& stack) {
  const GraphNode& node = *instruction.node;
  const Description& d = *node.description;

  auto take = [&](size_t index, const at::Tensor& result) {
    int32_t slot = node.outputs[index];
    if (slot < 0) {
      return;
    }
    run.slots[slot] = storage_of_result(node, index, result);
    if (run.slots[slot].is_alias_of(result.storage())) {
      tensors[instruction.result_views[index]] = result;
    }
  };

  for (size_t i = 0; i < d.returns.size(); ++i) {
    const ReturnSource& source = d.returns[i];
    if (source.kind == ReturnSource::Kind::fresh) {
      take(static_cast<size_t>(source.index), stack[i].toTensor());
    } else if (source.kind == ReturnSource::Kind::fresh_list) {
      auto list = stack[i].toListRef();
      TORCH_CHECK(static_cast<int>(list.size()) == source.count, "torch-lazy: ", d.op->name,
                  " gave ", list.size(), " tensors where ", source.count, " were promised");
      for (int k = 0; k < source.count; ++k) {
        take(static_cast<size_t>(source.index + k), list[k].toTensor());
      }
    }
  }
  stack.clear();

  for (size_t k = 0; k < d.writes.size(); ++k) {
    int32_t slot = node.outputs[d.fresh.size() + k];
    if (slot < 0) {
      continue;
    }
    uint32_t base = node.operands[d.writes[k].operand];
    run.slots[slot] = run.slots[base];
  }
}

class AtenBackend : public Backend {
 public:
  std::string name() const override { return "aten"; }

  std::shared_ptr<Executable> compile(std::shared_ptr<const Graph> graph) override {
    return std::make_shared<AtenPlan>(std::move(graph));
  }

  void wait() override {
    if (real_device().is_cuda()) {
      c10::impl::getDeviceGuardImpl(at::kCUDA)->synchronizeDevice(real_device().index());
    }
  }
};

Backend& aten_backend() {
  static auto* instance = new AtenBackend();
  return *instance;
}

const bool registered = [] {
  register_base_backend(&aten_backend);
  return true;
}();

}  // namespace
}  // namespace torch_lazy
