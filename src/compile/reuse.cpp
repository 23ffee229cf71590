// What a kernel makes takes the place of what it reads for the last time, element by element: it
// becomes the next version of that slot, which the memory plan writes in place.
#include "compile/emit.h"
#include "compile/memory.h"
#include "compile/program.h"

namespace torch_lazy::compile {
namespace {

class Reuse {
 public:
  explicit Reuse(Program& program) : program_(program), uses_(program.slots.size()) {
    for (size_t i = 0; i < program.steps.size(); ++i) {
      const Step& step = program.steps[i];
      for (uint32_t slot : step.reads) {
        uses_[slot].last_reader = i;
      }
      for (uint32_t slot : step.writes) {
        // Memory that a call returned may be someone else's as well.
        uses_[slot].ours = step.kind != Step::Kind::call && program.slots[slot].base < 0;
        if (program.slots[slot].base >= 0) {
          uses_[program.slots[slot].base].has_next = true;
        }
      }
    }
  }

  void run() {
    for (size_t i = 0; i < program_.steps.size(); ++i) {
      const Step& step = program_.steps[i];
      if (step.kind != Step::Kind::piece) {
        continue;
      }
      for (uint32_t slot : step.writes) {
        if (!is_large_and_free(slot) || !is_written_once(step.piece, slot)) {
          continue;
        }
        for (uint32_t old : step.reads) {
          if (dies(old, i) && is_large_and_free(old) &&
              program_.slots[old].nbytes == program_.slots[slot].nbytes &&
              can_write_in_place(step.piece, slot, old)) {
            program_.slots[slot].base = static_cast<int32_t>(old);
            uses_[old].has_next = true;
            break;
          }
        }
      }
    }
  }

 private:
  struct Uses {
    size_t last_reader = 0;
    bool ours = false;      // made by a piece or a product, in memory of its own
    bool has_next = false;  // a later version
  };

  /// What is in the arena has the place of what has died there anyway.
  bool is_large_and_free(uint32_t slot) const {
    return program_.slots[slot].nbytes >= kBlock && uses_[slot].ours && !uses_[slot].has_next &&
           !program_.slots[slot].parameter;
  }

  bool dies(uint32_t slot, size_t step) const {
    return uses_[slot].last_reader == step && !program_.slots[slot].survives;
  }

  /// Whether each index of the piece writes an element of its own, and all of them are written.
  bool is_written_once(const Piece& piece, uint32_t slot) const {
    const Access* store = store_of(piece, slot);
    int64_t indices = store ? codegen::size_of(store->type) : 0;
    for (int64_t size : piece.sizes) {
      indices *= size;
    }
    return store && store->lookups.empty() && store->mask < 0 &&
           elements_touched(piece, *store) * codegen::size_of(store->type) == indices &&
           indices == program_.slots[slot].nbytes;
  }

  Program& program_;
  std::vector<Uses> uses_;  // by slot
};

}  // namespace

Program reuse(Program program) {
  Reuse(program).run();
  return program;
}

}  // namespace torch_lazy::compile
