// Pass: what a kernel makes takes the place of what it reads for the last time, element by element.
// It becomes the next version of that slot, which the memory plan writes in place.
#include "compile/emit.h"
#include "compile/program.h"

#include <algorithm>

namespace torch_lazy::compile {
namespace {

constexpr int64_t kSmallest = 64;  // bytes: what is smaller shares a line with others anyway

/// Whether the piece has one plain store to the slot.
bool is_stored_plainly(const Piece& piece, uint32_t slot) {
  const Access* store = store_of(piece, slot);
  return store && store->lookups.empty() && store->mask < 0;
}

}  // namespace

Program reuse(Program program) {
  const size_t count = program.slots.size();
  std::vector<uint32_t> last_reader(count, 0);
  std::vector<uint32_t> writers(count, 0);
  std::vector<char> taken(count, 0);  // it has a next version
  for (uint32_t i = 0; i < program.steps.size(); ++i) {
    for (uint32_t slot : program.steps[i].reads) {
      last_reader[slot] = i;
    }
    for (uint32_t slot : program.steps[i].writes) {
      ++writers[slot];
      if (program.slots[slot].base >= 0) {
        taken[program.slots[slot].base] = 1;
      }
    }
  }
  for (uint32_t i = 0; i < program.steps.size(); ++i) {
    const Step& step = program.steps[i];
    if (step.kind != Step::Kind::piece) {
      continue;
    }
    for (uint32_t slot : step.writes) {
      Slot& made = program.slots[slot];
      if (made.base >= 0 || made.parameter || made.nbytes < kSmallest || writers[slot] != 1 ||
          !is_stored_plainly(step.piece, slot)) {
        continue;
      }
      for (uint32_t read : step.reads) {
        const Slot& old = program.slots[read];
        if (last_reader[read] == i && !taken[read] && !old.parameter && !old.survives &&
            writers[read] == 1 && old.nbytes == made.nbytes &&
            can_write_in_place(step.piece, slot, read)) {
          made.base = static_cast<int32_t>(read);
          taken[read] = 1;
          break;
        }
      }
    }
  }
  return program;
}

}  // namespace torch_lazy::compile
