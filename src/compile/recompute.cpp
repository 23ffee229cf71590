// Pass: what is cheap to compute from values that are there anyway is computed again where it is
// needed, instead of being stored and read. What a training step keeps from forward to backward
// becomes less: of a chain of element-wise operators one tensor, not one per operator. A call needs
// its operands in memory: what only a call of long after needs again is made again before it.
#include "compile/cost.h"
#include "compile/program.h"
#include "compile/uses.h"

#include <algorithm>

namespace torch_lazy::compile {
namespace {

constexpr int64_t kSmallest = 16;  // bytes of a value that is worth it

/// What a recomputation of some of a piece's stored values takes.
struct Recipe {
  std::vector<uint32_t> values;  // slots that are not stored any more
  std::vector<char> terms;       // of the piece: what is computed again
  std::vector<char> leaves;      // of the piece: stored values that are read instead
  int cost = 0;                  // per element
  int64_t kept = 0;              // bytes that have to live longer

  bool makes(uint32_t slot) const {
    return std::find(values.begin(), values.end(), slot) != values.end();
  }
};

class Recomputer {
 public:
  explicit Recomputer(Program& program) : program_(program) {}

  void run() {
    for (uint32_t step = 0; step < program_.steps.size(); ++step) {
      if (program_.steps[step].kind == Step::Kind::piece &&
          program_.steps[step].writes.size() > 1) {
        find_lifetimes();
        shrink(step);
      }
    }
    for (uint32_t step = 0; step < program_.steps.size(); ++step) {
      if (program_.steps[step].kind == Step::Kind::piece) {
        const auto writes = program_.steps[step].writes;
        for (uint32_t slot : writes) {
          find_lifetimes();
          make_again(step, slot);
        }
      }
    }
  }

 private:
  void find_lifetimes();
  void shrink(uint32_t step);
  std::vector<uint32_t> candidates(uint32_t step) const;
  uint32_t last_reader(const std::vector<uint32_t>& values) const;
  bool available(uint32_t slot, uint32_t until) const;
  bool is_plain(uint32_t slot) const;
  std::optional<Recipe> find_recipe(uint32_t step, const std::vector<uint32_t>& values,
                                    uint32_t until) const;
  bool apply(uint32_t step, const Recipe& recipe);
  void make_again(uint32_t step, uint32_t slot);
  void read_instead(Step& reader, uint32_t slot, uint32_t other) const;

  Program& program_;
  bool changed_ = true;
  std::vector<Uses> uses_;  // by slot
};

void Recomputer::find_lifetimes() {
  if (changed_) {
    uses_ = uses_of_slots(program_);
    changed_ = false;
  }
}

/// Whether reading a slot at a later step takes no memory that is not taken anyway.
bool Recomputer::available(uint32_t slot, uint32_t until) const {
  return uses_[slot].last_read >= until && !program_.slots[slot].fresh;
}

/// A value that is made once, read, and forgotten.
bool Recomputer::is_plain(uint32_t slot) const {
  const Slot& s = program_.slots[slot];
  const Uses& uses = uses_[slot];
  return s.base < 0 && !s.cleared && !s.survives && s.nbytes >= kSmallest &&
         uses.writers.size() == 1 && uses.overwritten == kForever && !uses.readers.empty();
}

/// Values that only kernels read.
std::vector<uint32_t> Recomputer::candidates(uint32_t step) const {
  std::vector<uint32_t> found;
  for (uint32_t slot : program_.steps[step].writes) {
    const auto& readers = uses_[slot].readers;
    if (is_plain(slot) && std::all_of(readers.begin(), readers.end(), [&](uint32_t reader) {
          return reader != step && program_.steps[reader].kind == Step::Kind::piece;
        })) {
      found.push_back(slot);
    }
  }
  return found;
}

uint32_t Recomputer::last_reader(const std::vector<uint32_t>& values) const {
  uint32_t last = 0;
  for (uint32_t slot : values) {
    last = std::max(last, uses_[slot].readers.back());
  }
  return last;
}

/// `until`: the step by which they are computed again for the last time.
std::optional<Recipe> Recomputer::find_recipe(uint32_t step, const std::vector<uint32_t>& values,
                                              uint32_t until) const {
  const Piece& piece = program_.steps[step].piece;
  Recipe recipe;
  recipe.values = values;
  recipe.terms.assign(piece.terms.size(), 0);
  recipe.leaves.assign(piece.terms.size(), 0);
  std::vector<int32_t> stack;
  std::vector<char> stored(piece.terms.size(), 0);  // in a slot that can be read later
  for (const Term& term : piece.terms) {
    if (term.op != Opcode::store) {
      continue;
    }
    const Access& access = piece.accesses[term.place];
    if (recipe.makes(access.slot)) {
      stack.push_back(term.operands[0]);
    } else if (available(access.slot, until) && uses_[access.slot].overwritten >= until &&
               access.lookups.empty() && access.mask < 0) {
      stored[term.operands[0]] = 1;
    }
  }
  std::vector<uint32_t> slots;  // that have to live longer
  while (!stack.empty()) {
    const int32_t index = stack.back();
    stack.pop_back();
    if (recipe.terms[index] || recipe.leaves[index]) {
      continue;
    }
    if (stored[index]) {
      recipe.leaves[index] = 1;
      continue;
    }
    const Term& term = piece.terms[index];
    if (is_reduction(term.op) || is_scan(term.op)) {
      return std::nullopt;
    }
    if (term.op == Opcode::load) {
      const Access& access = piece.accesses[term.place];
      if (!access.lookups.empty() || access.mask >= 0 || uses_[access.slot].overwritten < until ||
          program_.slots[access.slot].fresh) {
        return std::nullopt;
      }
      if (!available(access.slot, until)) {
        put(slots, access.slot);
      }
    }
    recipe.terms[index] = 1;
    recipe.cost += codegen::operation(term.op).cost;
    for (int32_t operand : term.operands) {
      if (operand >= 0) {
        stack.push_back(operand);
      }
    }
  }
  for (uint32_t slot : slots) {
    recipe.kept += program_.slots[slot].nbytes;
  }
  return recipe;
}

/// The piece that computes the recipe's values that `reader` needs, and nothing else.
Piece make_piece(const Piece& piece, const Recipe& recipe, const Step& reader) {
  Piece made;
  made.sizes = piece.sizes;
  made.outer = piece.rank();
  made.nodes = piece.nodes;
  std::vector<int32_t> moved(piece.terms.size(), -1);
  auto stored_access = [&](size_t value) -> const Access& {
    for (const Term& term : piece.terms) {
      if (term.op == Opcode::store && term.operands[0] == static_cast<int32_t>(value) &&
          !recipe.makes(piece.accesses[term.place].slot)) {
        return piece.accesses[term.place];
      }
    }
    TORCH_INTERNAL_ASSERT(false, "a value to be read is not stored");
  };
  for (size_t i = 0; i < piece.terms.size(); ++i) {
    Term term = piece.terms[i];
    if (term.op == Opcode::store) {
      const Access& access = piece.accesses[term.place];
      const bool wanted =
          recipe.makes(access.slot) &&
          std::find(reader.reads.begin(), reader.reads.end(), access.slot) != reader.reads.end();
      if (wanted) {
        made.store(access, moved[term.operands[0]]);
      }
      continue;
    }
    if (recipe.leaves[i]) {
      moved[i] = made.load(stored_access(i));
      continue;
    }
    if (!recipe.terms[i]) {
      continue;
    }
    for (int32_t& operand : term.operands) {
      operand = operand >= 0 ? moved[operand] : -1;
    }
    if (term.op == Opcode::load) {
      moved[i] = made.load(piece.accesses[term.place]);
      continue;
    }
    if (term.op == Opcode::argument) {
      moved[i] = made.scalar(piece.scalars[term.place]);
      continue;
    }
    moved[i] = static_cast<int32_t>(made.terms.size());
    made.terms.push_back(term);
  }
  simplify(made);
  return made;
}

/// Bytes that the loads of a piece touch.
int64_t bytes_read(const Piece& piece) {
  int64_t bytes = 0;
  for (const Term& term : piece.terms) {
    if (term.op == Opcode::load) {
      const Access& access = piece.accesses[term.place];
      bytes += elements_touched(piece, access) * codegen::size_of(access.type);
    }
  }
  return bytes;
}

bool Recomputer::apply(uint32_t step, const Recipe& recipe) {
  std::vector<char> unused(program_.slots.size(), 0);
  std::vector<uint32_t> readers;
  for (uint32_t slot : recipe.values) {
    unused[slot] = 1;
    for (uint32_t reader : uses_[slot].readers) {
      put(readers, reader);
    }
  }
  std::vector<Piece> pieces;
  for (uint32_t reader : readers) {
    const Step& r = program_.steps[reader];
    const Piece made = make_piece(program_.steps[step].piece, recipe, r);
    std::optional<Piece> merged = merge(made, r.piece);
    if (!merged) {
      return false;
    }
    drop_stores(*merged, unused);
    if (!worth_merging(made, r.piece, *merged) || merged->reduces() != r.piece.reduces() ||
        bytes_read(*merged) > bytes_read(r.piece)) {
      return false;
    }
    pieces.push_back(std::move(*merged));
  }
  for (size_t i = 0; i < readers.size(); ++i) {
    Step& reader = program_.steps[readers[i]];
    reader.piece = std::move(pieces[i]);
    find_uses(program_, reader);
  }
  drop_stores(program_.steps[step].piece, unused);
  find_uses(program_, program_.steps[step]);
  changed_ = true;
  return true;
}

void Recomputer::shrink(uint32_t step) {
  // Alone each must be possible.
  std::vector<std::pair<int, uint32_t>> alone;  // cost, slot
  for (uint32_t slot : candidates(step)) {
    if (const std::optional<Recipe> recipe = find_recipe(step, {slot}, last_reader({slot}))) {
      alone.emplace_back(recipe->cost, slot);
    }
  }
  std::vector<uint32_t> values;
  for (const auto& [cost, slot] : alone) {
    values.push_back(slot);
  }
  while (!values.empty()) {
    const std::optional<Recipe> recipe = find_recipe(step, values, last_reader(values));
    int64_t bytes = 0;
    for (uint32_t slot : values) {
      bytes += program_.slots[slot].nbytes;
    }
    if (recipe && recipe->kept <= bytes &&
        recipe->cost <= kRecomputeCost * static_cast<int>(values.size()) && apply(step, *recipe)) {
      return;
    }
    // Without the one that is the dearest by itself; of equals the first, which others need.
    const auto dearest = std::max_element(
        alone.begin(), alone.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    values.erase(std::find(values.begin(), values.end(), dearest->second));
    alone.erase(dearest);
  }
}

void Recomputer::read_instead(Step& reader, uint32_t slot, uint32_t other) const {
  if (reader.kind == Step::Kind::piece) {
    for (Access& access : reader.piece.accesses) {
      access.slot = access.slot == slot ? other : access.slot;
    }
  } else if (reader.kind == Step::Kind::product) {
    for (View* view : {&reader.product.a, &reader.product.b}) {
      view->slot = view->slot == slot ? other : view->slot;
    }
  } else {
    const GraphNode& node = program_.graph->nodes[reader.node];
    for (uint32_t k = 0; k < node.operands.size(); ++k) {
      if (read_slot(program_, reader, k) == slot) {
        reader.instead.emplace_back(k, other);
      }
    }
  }
  find_uses(program_, reader);
}

/// A large value that a call or a convolution needs again after long is forgotten meanwhile.
void Recomputer::make_again(uint32_t step, uint32_t slot) {
  if (!is_plain(slot) || program_.slots[slot].nbytes < kRemakeBytes) {
    return;
  }
  const auto readers = uses_[slot].readers;
  size_t late = 0;  // the first reader after the longest time without one
  uint32_t longest = 0;
  for (size_t i = 1; i < readers.size(); ++i) {
    const Step& reader = program_.steps[readers[i]];
    if ((reader.kind == Step::Kind::product && !reader.product.convolution) || readers[i] == step) {
      return;
    }
    if (readers[i] - readers[i - 1] > longest) {
      longest = readers[i] - readers[i - 1];
      late = i;
    }
  }
  if (longest < kRemakeSteps || program_.steps[readers[late]].kind == Step::Kind::piece) {
    return;
  }
  const uint32_t call = readers[late];
  const std::optional<Recipe> recipe = find_recipe(step, {slot}, call);
  if (!recipe || recipe->kept > 0 || recipe->cost > kRecomputeCost) {
    return;
  }
  Step made;
  made.kind = Step::Kind::piece;
  made.piece = make_piece(program_.steps[step].piece, *recipe, program_.steps[call]);
  made.position = program_.steps[call].position;
  const uint32_t other = program_.new_slot(program_.slots[slot].nbytes);
  read_instead(made, slot, other);
  for (size_t i = late; i < readers.size(); ++i) {
    read_instead(program_.steps[readers[i]], slot, other);
  }
  program_.steps.insert(program_.steps.begin() + call, std::move(made));
  changed_ = true;
}

}  // namespace

Program recompute(Program program) {
  Recomputer(program).run();
  return program;
}

}  // namespace torch_lazy::compile
