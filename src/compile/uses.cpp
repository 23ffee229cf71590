#include "compile/uses.h"

namespace torch_lazy::compile {

std::vector<Uses> uses_of_slots(const Program& program) {
  std::vector<Uses> uses(program.slots.size());
  for (uint32_t i = 0; i < program.steps.size(); ++i) {
    for (uint32_t slot : program.steps[i].reads) {
      uses[slot].readers.push_back(i);
      uses[slot].last_read = i;
    }
    for (uint32_t slot : program.steps[i].writes) {
      uses[slot].writers.push_back(i);
      const int32_t base = program.slots[slot].base;
      if (base >= 0) {
        uses[base].overwritten = std::min(uses[base].overwritten, i);
      }
    }
  }
  for (size_t slot = 0; slot < uses.size(); ++slot) {
    if (program.slots[slot].survives || program.slots[slot].parameter) {
      uses[slot].last_read = kForever;
    }
  }
  return uses;
}

}  // namespace torch_lazy::compile
