// Pass: copies that only change a layout. A product reads what was copied, where it lies in a way
// that products can read, and writes where its result would be copied to. Kernels do not need it:
// a copy is merged with what reads it.
#include "compile/lowering.h"
#include "compile/program.h"
#include "compile/uses.h"

#include <c10/util/strides.h>

#include <algorithm>
#include <optional>

namespace torch_lazy::compile {
namespace {

/// Between two slots, as the piece of a step does it; it may do other things as well.
struct Copy {
  uint32_t step = 0;
  Piece piece;  // this copy alone
  uint32_t from = 0;
  uint32_t to = 0;
};

/// A piece that reads a view, or writes it; on the other side its elements lie one after the other.
Piece walk(const View& view, uint32_t plain, bool reads) {
  Piece piece;
  Access there;
  Access here;
  there.slot = view.slot;
  here.slot = plain;
  there.type = here.type = *type_of(view.layout.dtype);  // products are of floats
  there.offset = view.layout.offset;
  const auto contiguous = c10::contiguous_strides(view.layout.sizes);
  for (size_t k = 0; k < view.layout.sizes.size(); ++k) {
    if (view.layout.sizes[k] != 1) {
      piece.sizes.push_back(view.layout.sizes[k]);
      there.strides.push_back(view.layout.strides[k]);
      here.strides.push_back(contiguous[k]);
    }
  }
  piece.outer = piece.rank();
  const int32_t value = piece.load(reads ? there : here);
  piece.store(reads ? std::move(here) : std::move(there), value);
  return piece;
}

const Access* access_of(const Piece& piece, uint32_t slot) {
  for (const Access& access : piece.accesses) {
    if (access.slot == slot) {
      return &access;
    }
  }
  return nullptr;
}

/// How a tensor with these sizes lies in `slot`, when the piece moves it between there and `plain`,
/// where its elements lie one after the other. Nothing where no strides say it.
std::optional<Layout> layout_in(const Piece& piece, uint32_t slot, uint32_t plain,
                                const Layout& like) {
  const Access* there = access_of(piece, slot);
  const Access* here = access_of(piece, plain);
  if (!there || !here) {
    return std::nullopt;
  }
  Layout layout = like;
  layout.offset = there->offset;
  const auto contiguous = c10::contiguous_strides(like.sizes);
  for (size_t k = 0; k < like.sizes.size(); ++k) {
    // The piece may have several dimensions for one of the tensor's: from the last on.
    int64_t size = 1;
    for (bool found = true; size < like.sizes[k] && found;) {
      found = false;
      for (int d = 0; d < piece.rank() && !found; ++d) {
        if (here->strides[d] != contiguous[k] * size) {
          continue;
        }
        found = true;
        if (size == 1) {
          layout.strides[k] = there->strides[d];
        } else if (there->strides[d] != layout.strides[k] * size) {
          return std::nullopt;
        }
        size *= piece.sizes[d];
      }
    }
    if (size != like.sizes[k]) {
      return std::nullopt;
    }
    if (size == 1) {  // any stride will do
      layout.strides[k] = k + 1 < like.sizes.size() ? like.sizes[k + 1] : 1;
    }
  }
  return layout;
}

/// Whether every library reads matrices that lie so: their rows, or their columns, are contiguous.
bool has_rows(const Layout& layout, bool or_columns) {
  const size_t rank = layout.sizes.size();
  auto along = [&](size_t inner, size_t outer) {
    return (layout.strides[inner] == 1 || layout.sizes[inner] == 1) &&
           layout.strides[outer] >= layout.sizes[inner];
  };
  if (std::any_of(layout.strides.begin(), layout.strides.end(),
                  [](int64_t stride) { return stride <= 0; })) {
    return false;
  }
  return along(rank - 1, rank - 2) || (or_columns && along(rank - 2, rank - 1));
}

class Skipper {
 public:
  explicit Skipper(Program& program)
      : program_(program),
        plain_(static_cast<uint32_t>(program.slots.size())),
        uses_(uses_of_slots(program)),
        has_version_(program.slots.size(), 0) {
    for (const Slot& slot : program.slots) {
      if (slot.base >= 0) {
        has_version_[slot.base] = 1;
      }
    }
  }

  void run() {
    for (uint32_t i = 0; i < program_.steps.size(); ++i) {
      const auto writes = program_.steps[i].writes;
      for (uint32_t slot : writes) {
        const std::optional<Copy> copy = find_copy(i, slot);
        if (copy && (read_original(*copy) || write_at_once(*copy))) {
          drop(*copy);
        }
      }
    }
    std::erase_if(program_.steps, [](const Step& step) {
      return step.kind == Step::Kind::piece && step.piece.terms.empty();
    });
  }

 private:
  std::optional<Copy> find_copy(uint32_t step, uint32_t slot) const;
  Piece without(const Copy& copy) const;
  bool read_original(const Copy& copy);
  bool write_at_once(const Copy& copy);
  void drop(const Copy& copy);

  /// Memory that this run makes for one value, which nothing needs afterwards.
  bool is_private(uint32_t slot) const {
    const Slot& s = program_.slots[slot];
    return s.base < 0 && !s.parameter && !s.survives && !s.cleared && !has_version_[slot] &&
           uses_[slot].writers.size() == 1;
  }

  Program& program_;
  const uint32_t plain_;    // no slot of the program
  std::vector<Uses> uses_;  // by slot
  std::vector<char> has_version_;
};

/// The one store to `slot` in a step, if it stores what was loaded.
std::optional<Copy> Skipper::find_copy(uint32_t step, uint32_t slot) const {
  const Piece& piece = program_.steps[step].piece;  // of other steps: without terms
  const Term* found = nullptr;
  for (const Term& term : piece.terms) {
    if (is_write(term.op) && piece.accesses[term.place].slot == slot) {
      if (found || term.op != Opcode::store) {
        return std::nullopt;
      }
      found = &term;
    }
  }
  if (!found || piece.terms[found->operands[0]].op != Opcode::load) {
    return std::nullopt;
  }
  const Access& from = piece.accesses[piece.terms[found->operands[0]].place];
  const Access& to = piece.accesses[found->place];
  if (!from.lookups.empty() || !to.lookups.empty() || from.mask >= 0 || to.mask >= 0) {
    return std::nullopt;
  }
  Copy copy;
  copy.step = step;
  copy.from = from.slot;
  copy.to = slot;
  Access load = from;
  Access store = to;
  load.strides.clear();
  store.strides.clear();
  for (int k = 0; k < piece.rank(); ++k) {
    if (to.strides[k] != 0) {
      copy.piece.sizes.push_back(piece.sizes[k]);
      load.strides.push_back(from.strides[k]);
      store.strides.push_back(to.strides[k]);
    }
  }
  copy.piece.outer = copy.piece.rank();
  copy.piece.store(std::move(store), copy.piece.load(std::move(load)));
  return copy;
}

/// All who read the copy read the original, and there is no copy.
bool Skipper::read_original(const Copy& copy) {
  const Slot& original = program_.slots[copy.from];
  const Uses& of_copy = uses_[copy.to];
  Uses& of_original = uses_[copy.from];
  if (!is_private(copy.to) || original.fresh || of_copy.readers.empty()) {
    return false;
  }
  // What would have died with the copy must not take more memory than it.
  const uint32_t last = of_copy.last_read;
  const bool lives = of_original.last_read >= last;
  if (of_original.overwritten <= last ||
      (!lives && original.nbytes > program_.slots[copy.to].nbytes)) {
    return false;
  }
  std::vector<std::pair<View*, Layout>> changed;
  for (uint32_t reader : of_copy.readers) {
    Step& step = program_.steps[reader];
    if (step.kind != Step::Kind::product || step.product.convolution) {
      return false;
    }
    for (View* view : {&step.product.a, &step.product.b}) {
      if (view->slot != copy.to) {
        continue;
      }
      const std::optional<Piece> merged = merge(copy.piece, walk(*view, plain_, /*reads=*/true));
      const std::optional<Layout> layout =
          merged ? layout_in(*merged, copy.from, plain_, view->layout) : std::nullopt;
      if (!layout || !has_rows(*layout, /*or_columns=*/true)) {
        return false;
      }
      changed.emplace_back(view, *layout);
    }
  }
  for (auto& [view, layout] : changed) {
    view->slot = copy.from;
    view->layout = layout;
  }
  for (uint32_t reader : of_copy.readers) {
    find_uses(program_, program_.steps[reader]);
    put(of_original.readers, reader);
  }
  of_original.last_read = std::max(of_original.last_read, last);
  return true;
}

/// The product whose result is only copied writes it where it is copied to.
bool Skipper::write_at_once(const Copy& copy) {
  const Slot& target = program_.slots[copy.to];
  if (!is_private(copy.from) || uses_[copy.from].readers.size() != 1 || target.base >= 0 ||
      target.parameter || target.cleared) {
    return false;
  }
  // Memory of the target is taken earlier: not much more than the product's own.
  constexpr int64_t kParts = 4;
  Step& step = program_.steps[uses_[copy.from].writers[0]];
  if (step.kind != Step::Kind::product || step.product.convolution ||
      step.product.out.layout.sizes.size() != 2 ||
      target.nbytes > kParts * program_.slots[copy.from].nbytes) {
    return false;
  }
  View& out = step.product.out;
  const std::optional<Piece> merged = merge(walk(out, plain_, /*reads=*/false), copy.piece);
  const std::optional<Layout> layout =
      merged ? layout_in(*merged, copy.to, plain_, out.layout) : std::nullopt;
  if (!layout || !has_rows(*layout, /*or_columns=*/false) || access_of(without(copy), copy.from)) {
    return false;
  }
  out.slot = copy.to;
  out.layout = *layout;
  find_uses(program_, step);
  uses_[copy.to].writers.push_back(uses_[copy.from].writers[0]);
  return true;
}

/// What the step does besides.
Piece Skipper::without(const Copy& copy) const {
  Piece rest = program_.steps[copy.step].piece;
  std::vector<char> unused(program_.slots.size(), 0);
  unused[copy.to] = 1;
  drop_stores(rest, unused);
  return rest;
}

void Skipper::drop(const Copy& copy) {
  Step& step = program_.steps[copy.step];
  step.piece = without(copy);
  find_uses(program_, step);
  auto& writers = uses_[copy.to].writers;
  writers.erase(std::find(writers.begin(), writers.end(), copy.step));
  if (std::find(step.reads.begin(), step.reads.end(), copy.from) == step.reads.end()) {
    auto& readers = uses_[copy.from].readers;
    readers.erase(std::find(readers.begin(), readers.end(), copy.step));
  }
}

}  // namespace

Program skip_copies(Program program) {
  Skipper(program).run();
  return program;
}

}  // namespace torch_lazy::compile
