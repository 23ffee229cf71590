// The few figures that loops are built by, found by measuring (tests/codegen/bench).
#include "codegen/llvm/plan.h"

#include "codegen/operations.h"

#include <algorithm>

namespace torch_lazy::codegen {
namespace {

/// Adds what is not in the list yet.
void put(std::vector<int32_t>& list, int32_t value) {
  if (std::find(list.begin(), list.end(), value) == list.end()) {
    list.push_back(value);
  }
}

bool is_position(Opcode op) {
  return op == Opcode::reduce_argmin || op == Opcode::reduce_argmax;
}

/// Long code is made once, under a mask, where masks cost little: machine code for it takes long.
bool is_heavy(int cost, const Features& features) {
  return features.masks && cost >= 60;
}

StagePlan plan_stage(const Kernel& kernel, const Stage& stage, const Features& features) {
  StagePlan plan;
  for (int32_t i = stage.begin; i < stage.end; ++i) {
    const Instruction& instruction = kernel.code[i];
    if (has_access(instruction.op)) {
      put(plan.accesses, instruction.place);
    }
    if (is_reduction(instruction.op) || is_scan(instruction.op)) {
      plan.carried.push_back(i);
      plan.scans |= is_scan(instruction.op);
      plan.needs_position |= is_position(instruction.op);
      plan.sums_floats |= instruction.op == Opcode::reduce_sum && is_float(instruction.type);
    }
    plan.accumulates |= instruction.op == Opcode::accumulate;
    plan.cost += operation(instruction.op).cost;
  }
  // An addition takes some cycles and can begin in each: a light body needs several accumulators to
  // keep the processor busy, a heavy one is busy by itself.
  // What a scan carries on goes from vector to vector, so there is one of it.
  if (!plan.carried.empty() && !plan.scans) {
    plan.unroll_in_row = plan.cost <= 12 ? 4 : plan.cost <= 30 ? 2 : 1;
  }
  if (is_heavy(plan.cost, features)) {
    plan.unroll_in_row = 0;
  }
  return plan;
}

/// As many lanes as fill a register with the widest type, at most of four bytes: vectors of wider
/// ones take two registers.
int lanes_for(const Kernel& kernel, const Features& features) {
  int widest = 1;
  for (const Pointer& pointer : kernel.pointers) {
    widest = std::max(widest, size_of(pointer.type));
  }
  for (const Instruction& instruction : kernel.code) {
    widest = std::max(widest, size_of(instruction.type));
  }
  return features.vector_bytes / std::min(widest, 4);
}

/// Rows side by side are read a piece of each at a time. Memory likes long pieces: a reduction
/// takes as many vectors as the registers hold accumulators for, a sum in memory likewise.
std::vector<int> vectors_for(const Kernel& kernel, const Features& features,
                             const std::vector<StagePlan>& stages) {
  int cost = 0;
  size_t most = 0;
  for (const StagePlan& stage : stages) {
    cost += stage.cost;
    most = std::max(most, stage.carried.size() * (stage.needs_position ? 4 : 1));
    most = std::max<size_t>(most, stage.accumulates ? 1 : 0);
  }
  if (is_heavy(cost, features)) {
    return {};
  }
  if (most == 0 || kernel.inner == 0) {
    return {1};
  }
  const size_t registers = features.vector_bytes == 64 ? 16 : 8;
  std::vector<int> vectors;
  for (int count : {16, 8, 4, 2, 1}) {
    if (count * cost <= 80 && count * most <= registers) {
      vectors = {count};
      break;
    }
  }
  if (vectors.empty()) {
    return {1};
  }
  if (vectors[0] > 4) {
    vectors.push_back(vectors[0] / 4);
  }
  if (vectors.back() > 1 && !features.masks) {
    vectors.push_back(1);
  }
  return vectors;
}

/// Whether the elements of a row are side by side in memory.
bool is_plain(const Access& access) {
  return access.lookups.empty() && access.mask < 0 && access.strides.back() == Stride::one;
}

/// Rows of many stages read in the first one and compute long before they store. So memory has time
/// to bring what they will write, which else all stores of a row would wait for, and what the next
/// row will read: processors do not look ahead beyond a page of memory.
void fetch_early(const Kernel& kernel, std::vector<StagePlan>& stages) {
  int first = -1, busiest = -1;  // of those with loops; busiest after the first
  for (int s = 0; s < static_cast<int>(stages.size()); ++s) {
    if (kernel.stages[s].kind != Stage::Kind::each) {
      continue;
    }
    if (first < 0) {
      first = s;
      continue;
    }
    if (busiest < 0 || stages[s].cost > stages[busiest].cost) {
      busiest = s;
    }
    for (int32_t i = kernel.stages[s].begin; i < kernel.stages[s].end; ++i) {
      const Instruction& instruction = kernel.code[i];
      if (instruction.op != Opcode::store) {
        continue;
      }
      const Access& access = kernel.accesses[instruction.place];
      if (kernel.pointers[access.pointer].use == Use::write && is_plain(access)) {
        put(stages[first].fetched, instruction.place);
        put(stages[first].accesses, instruction.place);
      }
    }
  }
  if (busiest < 0 || kernel.outer == 0) {
    return;
  }
  for (int32_t place : stages[first].accesses) {
    const Access& access = kernel.accesses[place];
    if (kernel.pointers[access.pointer].use == Use::read && is_plain(access) &&
        access.strides[kernel.outer - 1] == Stride::argument) {
      put(stages[busiest].fetched_of_next, place);
      put(stages[busiest].accesses, place);
    }
  }
}

}  // namespace

Plan::Plan(const Kernel& kernel, const Features& features) : lanes(lanes_for(kernel, features)) {
  for (const Stage& stage : kernel.stages) {
    stages.push_back(plan_stage(kernel, stage, features));
  }
  if (kernel.lanes == Lanes::inner && kernel.inner > 0) {
    fetch_early(kernel, stages);
  }
  vectors = vectors_for(kernel, features, stages);
  for (const Pointer& pointer : kernel.pointers) {
    can_repeat &= pointer.use != Use::read_write;
  }
}

}  // namespace torch_lazy::codegen
