// How a kernel's stages become loops: how many vectors at a time, and what each stage needs.
#pragma once

#include "codegen/kernel.h"
#include "codegen/llvm/target.h"

#include <vector>

namespace torch_lazy::codegen {

struct StagePlan {
  std::vector<int32_t> accesses;         // that it loads, stores or fetches through, each once
  std::vector<int32_t> fetched;          // that a later stage of the row stores through, see Plan
  std::vector<int32_t> fetched_of_next;  // that the next row will load through
  std::vector<int32_t> carried;          // instructions with an accumulator: reductions and scans
  bool needs_position = false;           // one of them is argmin or argmax
  bool scans = false;
  bool sums_floats = false;
  bool accumulates = false;  // in memory
  int cost = 0;              // of one vector, roughly in instructions
  int unroll_in_row = 1;     // vectors at a time, with lanes inner; 0: always one, under a mask
};

struct Plan {
  Plan(const Kernel& kernel, const Features& features);

  int lanes;
  std::vector<StagePlan> stages;

  /// With lanes outer: how many vectors are taken at a time, where there are as many; then fewer.
  /// What is left, or all, goes one by one under a mask.
  std::vector<int> vectors;

  /// Whether elements may be computed twice: so the last vectors of a row can overlap those before.
  bool can_repeat = true;
};

}  // namespace torch_lazy::codegen
