// Which steps of a program use a slot, for passes that ask how long a value lives.
#pragma once

#include "compile/program.h"

namespace torch_lazy::compile {

constexpr uint32_t kForever = UINT32_MAX;

/// The steps that use a slot, in order.
struct Uses {
  c10::SmallVector<uint32_t, 4> readers;
  c10::SmallVector<uint32_t, 2> writers;
  uint32_t last_read = 0;           // forever: it is a parameter, or survives
  uint32_t overwritten = kForever;  // the first step that writes a next version, maybe in place
};

/// By slot.
std::vector<Uses> uses_of_slots(const Program& program);

}  // namespace torch_lazy::compile
