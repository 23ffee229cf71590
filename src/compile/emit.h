// From a piece to a kernel: order and number of dimensions, stages, strides by class.
#pragma once

#include "compile/program.h"

#include <functional>

namespace torch_lazy::compile {

/// A kernel and what it is called with, but for addresses and numbers of the run.
struct Launch {
  std::string kernel;            // its text
  std::vector<uint32_t> slots;   // by pointer; scratch pointers: none
  std::vector<int64_t> offsets;  // by pointer, in bytes
  std::vector<char> scratch;     // by pointer: whether it is scratch memory
  std::vector<int64_t> numbers;  // sizes, strides, scratch offsets
  std::vector<Scalar> scalars;
  int64_t scratch_bytes = 0;
  int64_t units = 1;
  int64_t tile = 0;
  int64_t elements = 1;  // of the whole space; not fewer than units
};

/// Whether output `slot` can be written into the memory of its base while the kernel runs: every
/// read of the base is of the element that is written, and not in a later stage.
bool can_write_in_place(const Piece& piece, uint32_t slot, uint32_t base);

/// `memory` gives for a slot the one whose memory it uses.
Launch emit(const Piece& piece, const std::function<uint32_t(uint32_t)>& memory);

}  // namespace torch_lazy::compile
