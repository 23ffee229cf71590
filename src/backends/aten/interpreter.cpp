// Executing nodes one by one.
#include "backends/aten/interpreter.h"

#include "base/hash.h"
#include "base/warnings.h"
#include "runtime/real_tensor.h"
#include "runtime/wider.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <unordered_map>

namespace torch_lazy {
namespace {

template <typename List>
void put(List& list, uint32_t slot) {
  if (std::find(list.begin(), list.end(), slot) == list.end()) {
    list.push_back(slot);
  }
}

}  // namespace

Schedule Schedule::in_order(const Graph& g) {
  Schedule schedule;
  schedule.called.assign(g.nodes.size(), 1);
  schedule.outlives.assign(g.slots, 0);
  for (const Parameter& parameter : g.parameters) {
    schedule.outlives[parameter.slot] = !parameter.donated;
  }
  for (uint32_t slot : g.roots) {
    schedule.outlives[slot] = 1;
  }
  schedule.last_use.assign(g.slots, 0);
  for (size_t i = 0; i < g.nodes.size(); ++i) {
    schedule.time.push_back(i);
    for (uint32_t slot : g.nodes[i].operands) {
      schedule.last_use[slot] = i;
    }
    for (int32_t slot : g.nodes[i].outputs) {
      if (slot >= 0) {
        schedule.last_use[slot] = std::max(schedule.last_use[slot], i);
      }
    }
  }
  return schedule;
}

/// Makes views while instructions are written, and finds equal ones.
class Interpreter::Views {
 public:
  explicit Views(Interpreter& interpreter) : interpreter_(interpreter) {}

  uint32_t of(uint32_t slot, const Layout& layout) {
    // Tensors without elements are kept apart: eager takes one tensor given twice for an overlap.
    if (std::find(layout.sizes.begin(), layout.sizes.end(), 0) != layout.sizes.end()) {
      return add(slot, layout);
    }
    // Mixed one by one: slots and offsets that count up together must not cancel each other.
    uint64_t hash = mix(mix(0, slot), static_cast<uint64_t>(layout.offset));
    for (int64_t size : layout.sizes) {
      hash = mix(hash, static_cast<uint64_t>(size));
    }
    auto [candidate, end] = by_hash_.equal_range(hash);
    for (; candidate != end; ++candidate) {
      const View& view = interpreter_.views_[candidate->second];
      if (view.slot == slot && *view.layout == layout) {
        return candidate->second;
      }
    }
    return by_hash_.emplace(hash, add(slot, layout))->second;
  }

 private:
  uint32_t add(uint32_t slot, const Layout& layout) {
    interpreter_.views_.push_back({slot, &layout});
    const auto view = static_cast<uint32_t>(interpreter_.views_.size() - 1);
    interpreter_.views_of_slot_[slot].push_back(view);
    return view;
  }

  Interpreter& interpreter_;
  std::unordered_multimap<uint64_t, uint32_t> by_hash_;
};

Interpreter::Interpreter(std::shared_ptr<const Graph> graph, const Schedule& schedule)
    : graph_(std::move(graph)) {
  const Graph& g = *graph_;
  views_of_slot_.resize(schedule.last_use.size());
  fresh_bytes_.assign(schedule.last_use.size(), -1);
  for (const Parameter& parameter : g.parameters) {
    if (parameter.fresh) {
      fresh_bytes_[parameter.slot] = parameter.nbytes;
    }
  }
  Views views(*this);
  instructions_.resize(g.nodes.size());
  for (size_t i = 0; i < g.nodes.size(); ++i) {
    if (!schedule.called[i]) {
      continue;
    }
    const GraphNode& node = g.nodes[i];
    const Description& d = *node.description;
    Instruction& instruction = instructions_[i];
    instruction.node = &node;
    for (size_t k = 0; k < node.operands.size(); ++k) {
      auto instead = schedule.instead.find({i, k});
      const uint32_t slot = instead == schedule.instead.end() ? node.operands[k] : instead->second;
      instruction.operands.push_back(views.of(slot, d.operands[k]));
    }
    for (const Write& write : d.writes) {
      const uint32_t base = node.operands[write.operand];
      if (schedule.outlives[base] || schedule.last_use[base] > schedule.time[i]) {
        put(instruction.copy_before, base);
      } else if (!d.op->aten) {
        put(instruction.back_up, base);
      }
    }
    for (size_t k = 0; k < d.fresh.size(); ++k) {
      int32_t slot = node.outputs[k];
      instruction.result_views.push_back(
          slot < 0 ? -1 : static_cast<int32_t>(views.of(slot, d.fresh[k].layout)));
    }
    // A slot that outlives the run keeps its storage.
    auto finished = [&](uint32_t slot) {
      if (schedule.last_use[slot] == schedule.time[i] && !schedule.outlives[slot]) {
        put(instruction.done, slot);
      }
    };
    std::for_each(node.operands.begin(), node.operands.end(), finished);
    for (int32_t slot : node.outputs) {
      if (slot >= 0) {
        finished(static_cast<uint32_t>(slot));
      }
    }
  }
}

Interpreter::State Interpreter::begin() const {
  State state;
  state.tensors.resize(views_.size());
  return state;
}

void Interpreter::forget(uint32_t slot, State& state) const {
  for (uint32_t view : views_of_slot_[slot]) {
    state.tensors[view].reset();
  }
}

void Interpreter::drop(uint32_t slot, Run& run, State& state) const {
  forget(slot, state);
  run.slots[slot] = c10::Storage();
}

const at::Tensor& Interpreter::tensor(uint32_t view, Run& run, State& state) const {
  at::Tensor& made = state.tensors[view];
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

void Interpreter::push_arguments(const Instruction& instruction, Run& run, State& state) const {
  const GraphNode& node = *instruction.node;
  const Description& d = *node.description;
  torch::jit::Stack& stack = state.stack;
  stack.clear();
  const c10::IValue* numbers = run.numbers.data() + node.first_number;
  auto operand = [&](int index) -> const at::Tensor& {
    return tensor(instruction.operands[index], run, state);
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
}

void Interpreter::execute(size_t index, Run& run, State& state) const {
  const Instruction& instruction = instructions_[index];
  const Description& d = *instruction.node->description;
  c10::SmallVector<std::pair<uint32_t, c10::Storage>, 1> saved;
  for (uint32_t slot : instruction.copy_before) {
    forget(slot, state);
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
  push_arguments(instruction, run, state);
  d.op->check_registered();
  std::optional<DefaultDtypeGuard> default_dtype;
  if (d.default_dtype != c10::get_default_dtype_as_scalartype()) {
    default_dtype.emplace(d.default_dtype);
  }
  std::optional<DroppedWarnings> dropped;
  if (!d.warnings.empty()) {
    dropped.emplace(d.warnings);  // given at the call
  }
  auto restore = [&] {
    for (auto& [slot, original] : saved) {
      forget(slot, state);
      run.slots[slot] = std::move(original);
    }
  };
  try {
    call_real(*d.op, state.stack,
              [&](torch::jit::Stack&) { push_arguments(instruction, run, state); });
    adopt(instruction, run, state);
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

void Interpreter::adopt(const Instruction& instruction, Run& run, State& state) const {
  const GraphNode& node = *instruction.node;
  const Description& d = *node.description;
  torch::jit::Stack& stack = state.stack;

  auto take = [&](size_t index, const at::Tensor& result) {
    int32_t slot = node.outputs[index];
    if (slot < 0) {
      return;
    }
    run.slots[slot] = storage_of_result(node, index, result);
    if (run.slots[slot].is_alias_of(result.storage())) {
      state.tensors[instruction.result_views[index]] = result;
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

}  // namespace torch_lazy
