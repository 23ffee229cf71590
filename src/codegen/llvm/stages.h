// The stages of rows: loops over elements and lanes, accumulators, instructions.
#pragma once

#include "codegen/llvm/memory.h"
#include "codegen/llvm/plan.h"
#include "codegen/llvm/reduce.h"

namespace torch_lazy::codegen {

class Stages {
 public:
  Stages(Code& code, const Kernel& kernel, const Plan& plan, const Memory& memory);

  /// Lanes inner: the row at these outer indices.
  void run_row(const Values& index, const Memory::Bases& bases);

  /// Lanes outer: the rows [from, to) along the last outer dimension, at these indices of the
  /// others.
  void run_lanes(const Values& index, const Memory::Bases& bases, llvm::Value* from,
                 llvm::Value* to);

 private:
  /// One vector of lanes and what is known in it. Several are kept at once where a loop is
  /// unrolled.
  struct Copy {
    llvm::Value* lane = nullptr;  // see Place
    llvm::Value* mask = nullptr;
    llvm::Value* count = nullptr;
    Values values;                     // by instruction
    std::vector<Values> accumulators;  // by what the stage at hand carries
  };
  using Copies = std::vector<Copy>;

  static Values flatten(const Copies& copies);
  static void unflatten(Copies& copies, const Values& all);

  void run_vectors(llvm::Value* start, llvm::Value* end, int count);
  void each_in_row(size_t stage, Copy& row);
  void elements_of_row(size_t stage, Copies& copies, const Memory::Bases& bases,
                       llvm::Value* position);
  void each_in_lanes(size_t stage, Copies& copies);

  using Leaf = std::function<void(const Memory::Bases&, llvm::Value* position)>;
  void nest(size_t stage, int32_t dimension, int32_t end, Copies& copies,
            const Memory::Bases& bases, llvm::Value* position, const Leaf& leaf);
  void accumulate(size_t stage, llvm::Value* from, llvm::Value* to, llvm::Value* step,
                  Copies& copies, bool is_long, const std::function<void(llvm::Value*)>& body);

  void start(size_t stage, Copy& copy, bool sums_only = false);
  Reduction reduction(int32_t place) const;
  bool is_float_sum(int32_t place) const;
  bool is_along_lanes(int32_t place) const;

  void run_code(size_t stage, Copy& copy, const Memory::Bases& bases, llvm::Value* position);
  llvm::Value* emit_instruction(const Instruction& instruction, Copy& copy,
                                const Memory::Bases& bases);

  llvm::Value* add(llvm::Value* a, llvm::Value* b) const;  // indices: no overflow
  llvm::Value* sub(llvm::Value* a, llvm::Value* b) const;
  llvm::Value* least(llvm::Value* a, llvm::Value* b) const;
  llvm::Value* next_lane(llvm::Value* start, int count) const;
  void set_lanes(Copies& copies, llvm::Value* start, llvm::Value* end, int count) const;

  Code& code_;
  llvm::IRBuilder<>& builder_;
  const Kernel& kernel_;
  const Plan& plan_;
  const Memory& memory_;
  Values index_;  // by dimension, as far as loops have given one
  Memory::Bases row_bases_;
};

}  // namespace torch_lazy::codegen
