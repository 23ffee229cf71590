// The machine that this backend compiles for: a list of instructions over arrays of floats, and the
// loops that execute them. There is no PyTorch in here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace loops {

enum class Opcode : uint8_t {
  add,  // a + c * b
  sub,  // a - c * b
  mul,
  div,
  maximum,
  neg,
  exp,
  tanh,
  sqrt,
  relu,
  relu_gradient,  // b > c ? a : 0
  select,         // a ? b : c
  copy,
  sum_of_products,  // of a, or of a and b, over the reduced dimensions
};

/// An array as a loop walks over it: where it begins, and its stride in every dimension of the loop
/// (0 where it repeats itself). Or a number that is given with each run.
struct Operand {
  int slot = -1;
  int number = -1;
  bool boolean = false;  // one byte per element, 0 or 1
  int64_t offset = 0;
  std::vector<int64_t> strides;
};

struct Instruction {
  Opcode code = Opcode::copy;
  std::vector<int64_t> extents;  // of the loop
  size_t reduced = 0;            // how many of its inner dimensions the result does not have
  Operand result;
  std::vector<Operand> inputs;
};

/// The memory of every slot and the numbers of one run.
struct Memory {
  std::vector<void*> slots;
  std::vector<float> numbers;
};

void execute(const Instruction& instruction, const Memory& memory);

/// Like "%3 = add %1, %2, #0 over 2x3".
std::string to_string(const Instruction& instruction);

}  // namespace loops
