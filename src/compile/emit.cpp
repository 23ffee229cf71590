// From a piece to a kernel.
#include "compile/emit.h"

#include "compile/cost.h"

#include <algorithm>
#include <bit>
#include <map>
#include <numeric>

namespace torch_lazy::compile {
namespace {

using codegen::Kernel;
using codegen::Stride;

/// How much an access says about the best order of dimensions: stores first, then large reads.
const Access* leading_access(const Piece& piece, int begin, int end) {
  const Access* best = nullptr;
  int most = 0;
  for (bool store : {true, false}) {
    for (const Term& term : piece.terms) {
      if (store ? !is_write(term.op) : term.op != Opcode::load) {
        continue;
      }
      const Access& access = piece.accesses[term.place];
      int moving = 0;
      for (int k = begin; k < end; ++k) {
        moving += access.strides[k] != 0 ? 1 : 0;
      }
      if (moving > most) {
        most = moving;
        best = &access;
      }
    }
  }
  return best;
}

/// Dimensions ordered so that neighbours in memory are neighbours in the last one.
void order_dimensions(Piece& piece) {
  std::vector<int> order(piece.sizes.size());
  std::iota(order.begin(), order.end(), 0);
  auto sort_range = [&](int begin, int end) {
    const Access* access = leading_access(piece, begin, end);
    if (access) {
      std::stable_sort(order.begin() + begin, order.begin() + end,
                       [&](int a, int b) { return access->strides[a] > access->strides[b]; });
    }
  };
  sort_range(0, piece.outer);
  if (!has_order(piece)) {
    sort_range(piece.outer, piece.rank());
  }
  Sizes sizes;
  for (int k : order) {
    sizes.push_back(piece.sizes[k]);
  }
  rearrange(piece, sizes, order, piece.outer);
}

/// Makes one dimension of two where every access goes evenly through both.
void collapse(Piece& piece) {
  std::vector<char> fixed(piece.sizes.size(), 0);  // dimensions whose index is used
  for (const Term& term : piece.terms) {
    if (term.op == Opcode::index || term.op == Opcode::extent) {
      fixed[term.place] = 1;
    }
  }
  for (int k = piece.rank() - 2; k >= 0; --k) {
    if (k + 1 == piece.outer || fixed[k] || fixed[k + 1]) {
      continue;
    }
    const bool even =
        std::all_of(piece.accesses.begin(), piece.accesses.end(), [&](const Access& access) {
          return access.strides[k] == access.strides[k + 1] * piece.sizes[k + 1];
        });
    if (!even) {
      continue;
    }
    for (Access& access : piece.accesses) {
      access.strides.erase(access.strides.begin() + k);
    }
    piece.sizes[k + 1] *= piece.sizes[k];
    piece.sizes.erase(piece.sizes.begin() + k);
    piece.outer -= k < piece.outer ? 1 : 0;
    fixed.erase(fixed.begin() + k);
    for (Term& term : piece.terms) {
      if ((term.op == Opcode::index || term.op == Opcode::extent) && term.place > k) {
        --term.place;
      }
    }
  }
}

/// A map that reads along another dimension than it writes: that dimension becomes the inner one,
/// so that what was fetched from memory for one lane is used before it is gone.
void turn(Piece& piece) {
  constexpr int64_t kWorth = 8;
  if (piece.reduces() || piece.outer < 2) {
    return;
  }
  const int last = piece.outer - 1;
  std::vector<int> votes(piece.sizes.size(), 0);
  for (const Access& access : piece.accesses) {
    if (access.strides[last] != 0 && access.strides[last] != 1 && access.lookups.empty()) {
      for (int k = 0; k < last; ++k) {
        votes[k] += access.strides[k] == 1 ? 1 : 0;
      }
    }
  }
  const int best = static_cast<int>(std::max_element(votes.begin(), votes.end()) - votes.begin());
  if (votes[best] == 0 || piece.sizes[best] < kWorth || piece.sizes[last] < kWorth) {
    return;
  }
  std::vector<int> order;
  Sizes sizes;
  for (int k = 0; k < piece.outer; ++k) {
    if (k != best) {
      order.push_back(k);
    }
  }
  order.push_back(best);
  for (int k : order) {
    sizes.push_back(piece.sizes[k]);
  }
  rearrange(piece, sizes, order, piece.outer - 1);
}

codegen::Lanes choose_lanes(const Piece& piece) {
  if (piece.outer == 0) {
    return codegen::Lanes::inner;
  }
  int inner = 0;
  int outer = 0;
  for (const Access& access : piece.accesses) {
    bool element = !access.lookups.empty();
    for (int k = piece.outer; k < piece.rank(); ++k) {
      element = element || access.strides[k] != 0;
    }
    if (element) {
      inner += access.strides.back() == 1 ? 1 : 0;
      outer += access.strides[piece.outer - 1] == 1 ? 1 : 0;
    }
  }
  return outer > inner ? codegen::Lanes::outer : codegen::Lanes::inner;
}

/// The terms that a term needs, those in its access among them.
template <typename Visit>
void for_operands(const Piece& piece, const Term& term, Visit visit) {
  for (int32_t operand : term.operands) {
    if (operand >= 0) {
      visit(operand);
    }
  }
  if (has_access(term.op)) {
    const Access& access = piece.accesses[term.place];
    for (const Lookup& lookup : access.lookups) {
      visit(lookup.term);
    }
    if (access.mask >= 0) {
      visit(access.mask);
    }
  }
}

/// Depths of terms: a row's term of depth d can be computed after d passes over the row; an
/// element's term of depth d is first computed in pass d (from 1 on).
struct Depths {
  std::vector<char> element;
  std::vector<int> depth;
};

Depths depths_of(const Piece& piece) {
  Depths result;
  result.element = element_terms(piece);
  result.depth.assign(piece.terms.size(), 0);
  for (size_t i = 0; i < piece.terms.size(); ++i) {
    const Term& term = piece.terms[i];
    const bool reduction = is_reduction(term.op);
    const bool in_pass = result.element[i] || reduction;
    int depth = in_pass ? 1 : 0;
    for_operands(piece, term, [&](int32_t operand) {
      depth =
          std::max(depth, result.depth[operand] + (in_pass && !result.element[operand] ? 1 : 0));
    });
    result.depth[i] = depth;
  }
  return result;
}

codegen::Use use_of(Opcode op) {
  return op == Opcode::load         ? codegen::Use::read
         : op == Opcode::accumulate ? codegen::Use::read_write
                                    : codegen::Use::write;
}

class Emitter {
 public:
  Emitter(Piece piece, const std::function<uint32_t(uint32_t)>& memory)
      : piece_(std::move(piece)), memory_(memory) {}

  Launch run();

 private:
  template <typename Visit>
  void operands_of(const Term& term, Visit visit) const {
    for_operands(piece_, term, visit);
  }

  std::vector<uint32_t> passes_needing() const;
  void decide_scratch();
  void keep_what_it_becomes(size_t term);
  void find_overwritten();
  int32_t value(int32_t term, int pass);
  int32_t push(codegen::Instruction instruction);
  int32_t pointer_for(const Access& access, codegen::Use use);
  int32_t access_for(const Access& access, codegen::Use use);
  int32_t scratch_access(int32_t term);
  void emit_rows(int depth);
  void emit_pass(int pass);

  Piece piece_;
  const std::function<uint32_t(uint32_t)>& memory_;
  Depths depths_;
  Kernel kernel_;
  Launch launch_;
  std::vector<int> scratch_;         // by term: its pointer, or -1
  std::vector<char> kept_;           // by term: kept in scratch memory
  std::vector<int> last_pass_;       // by term: that needs it
  std::vector<size_t> overwritten_;  // loads of what a store writes in place: they go first
  int pass_ = 0;                     // the current one
  std::vector<int32_t> row_value_;   // by term: instruction
  std::vector<int32_t> pass_value_;  // by term: instruction in the current pass
  std::map<std::tuple<uint32_t, int64_t, Type>, int32_t> pointers_;  // memory, offset in it, type
  std::vector<std::vector<int64_t>> access_strides_;  // by access of the kernel: the arguments
  std::vector<int64_t> scratch_offsets_;
};

int32_t Emitter::push(codegen::Instruction instruction) {
  kernel_.code.push_back(instruction);
  return static_cast<int32_t>(kernel_.code.size() - 1);
}

int32_t Emitter::pointer_for(const Access& access, codegen::Use use) {
  // Where an access begins is part of its pointer. Pointers into one memory that begin at different
  // places either only read, or touch different elements.
  const uint32_t slot = memory_(access.slot);
  const int64_t offset = access.offset * codegen::size_of(access.type);
  auto [it, fresh] = pointers_.emplace(std::make_tuple(slot, offset, access.type),
                                       static_cast<int32_t>(kernel_.pointers.size()));
  if (fresh) {
    kernel_.pointers.push_back({access.type, use});
    launch_.slots.push_back(slot);
    launch_.offsets.push_back(offset);
    launch_.scratch.push_back(0);
  } else if (kernel_.pointers[it->second].use != use) {
    kernel_.pointers[it->second].use = codegen::Use::read_write;
  }
  return it->second;
}

int32_t Emitter::access_for(const Access& access, codegen::Use use) {
  codegen::Access made;
  made.pointer = pointer_for(access, use);
  std::vector<int64_t> arguments;
  for (int64_t stride : access.strides) {
    made.strides.push_back(stride == 0   ? Stride::zero
                           : stride == 1 ? Stride::one
                                         : Stride::argument);
    if (made.strides.back() == Stride::argument) {
      arguments.push_back(stride);
    }
  }
  for (const Lookup& lookup : access.lookups) {
    const int32_t index =
        depths_.element[lookup.term] ? pass_value_[lookup.term] : row_value_[lookup.term];
    made.lookups.push_back({index, lookup.stride == 1 ? Stride::one : Stride::argument});
    if (lookup.stride != 1) {
      arguments.push_back(lookup.stride);
    }
  }
  if (access.mask >= 0) {
    made.mask = depths_.element[access.mask] ? pass_value_[access.mask] : row_value_[access.mask];
  }
  kernel_.accesses.push_back(std::move(made));
  access_strides_.push_back(std::move(arguments));
  return static_cast<int32_t>(kernel_.accesses.size() - 1);
}

int32_t Emitter::scratch_access(int32_t term) {
  const Type type = piece_.terms[term].type;
  if (scratch_[term] < 0) {
    // Memory of a value that no pass from this one on needs.
    for (size_t other = 0; other < scratch_.size() && scratch_[term] < 0; ++other) {
      if (scratch_[other] >= 0 && piece_.terms[other].type == type && last_pass_[other] < pass_ &&
          std::none_of(
              scratch_.begin(), scratch_.end(),
              [&](const int& pointer) {
                return pointer == scratch_[other] &&
                       last_pass_[&pointer - scratch_.data()] >= pass_;
              })) {
        scratch_[term] = scratch_[other];
      }
    }
  }
  if (scratch_[term] < 0) {
    scratch_[term] = static_cast<int>(kernel_.pointers.size());
    kernel_.pointers.push_back({type, codegen::Use::scratch});
    launch_.slots.push_back(0);
    launch_.offsets.push_back(0);
    launch_.scratch.push_back(1);
    scratch_offsets_.push_back(launch_.scratch_bytes);
    const int64_t bytes = piece_.inner_elements() * codegen::size_of(type);
    launch_.scratch_bytes += (bytes + 127) / 64 * 64;
  }
  codegen::Access made;
  made.pointer = scratch_[term];
  std::vector<int64_t> arguments;
  made.strides.assign(piece_.sizes.size(), Stride::zero);
  int64_t stride = 1;
  std::vector<int64_t> reversed;
  for (int k = piece_.rank() - 1; k >= piece_.outer; --k) {
    made.strides[k] = stride == 1 ? Stride::one : Stride::argument;
    if (stride != 1) {
      reversed.push_back(stride);
    }
    stride *= piece_.sizes[k];
  }
  arguments.assign(reversed.rbegin(), reversed.rend());
  kernel_.accesses.push_back(std::move(made));
  access_strides_.push_back(std::move(arguments));
  return static_cast<int32_t>(kernel_.accesses.size() - 1);
}

/// By term, as bits: the passes over the row that need it. What is kept needs its operands once.
std::vector<uint32_t> Emitter::passes_needing() const {
  std::vector<uint32_t> needed(piece_.terms.size(), 0);
  for (size_t i = piece_.terms.size(); i-- > 0;) {
    const Term& term = piece_.terms[i];
    if (is_reduction(term.op) || (is_effect(term.op) && depths_.element[i])) {
      needed[i] |= 1U << depths_.depth[i];
    }
    if (!depths_.element[i] && !is_reduction(term.op)) {
      continue;
    }
    const uint32_t passes = kept_[i] ? needed[i] & (~needed[i] + 1) : needed[i];
    operands_of(term, [&](int32_t operand) {
      if (depths_.element[operand]) {
        needed[operand] |= passes;
      }
    });
  }
  return needed;
}

/// Decides which values of elements are kept from one pass over the row to the next: those that
/// cost more to compute again from what is kept already.
void Emitter::decide_scratch() {
  const size_t count = piece_.terms.size();
  kept_.assign(count, 0);
  scratch_.assign(count, -1);
  last_pass_.assign(count, 0);
  if (kernel_.lanes != codegen::Lanes::inner) {
    return;
  }
  std::vector<uint32_t> needed = passes_needing();
  std::vector<int> costs(count, 0);  // in a later pass
  for (size_t i = 0; i < count; ++i) {
    const Term& term = piece_.terms[i];
    if (!depths_.element[i] || is_reduction(term.op)) {
      continue;
    }
    costs[i] = codegen::operation(term.op).cost;
    operands_of(term,
                [&](int32_t operand) { costs[i] = std::min(costs[i] + costs[operand], 1 << 20); });
    if (std::popcount(needed[i]) > 1 && costs[i] > kRecomputeLimit && !is_effect(term.op)) {
      kept_[i] = 1;
      costs[i] = codegen::operation(Opcode::load).cost;
    }
  }
  for (size_t i = 0; i < count; ++i) {
    keep_what_it_becomes(i);
  }
  needed = passes_needing();
  for (size_t i = 0; i < count; ++i) {
    kept_[i] = kept_[i] && std::popcount(needed[i]) > 1;
    last_pass_[i] = std::bit_width(needed[i]) - 1;
  }
}

/// A kept value of which later passes use only what one other term makes of it: that is kept in its
/// place, and they need not compute it.
void Emitter::keep_what_it_becomes(size_t index) {
  if (!kept_[index]) {
    return;
  }
  const std::vector<uint32_t> needed = passes_needing();
  const uint32_t first = needed[index] & (~needed[index] + 1);
  size_t only = 0;
  for (size_t i = index + 1; i < piece_.terms.size(); ++i) {
    bool uses = false;
    operands_of(piece_.terms[i],
                [&](int32_t operand) { uses |= static_cast<size_t>(operand) == index; });
    const uint32_t passes = kept_[i] ? needed[i] & (~needed[i] + 1) : needed[i];
    if (uses && (passes & ~first)) {
      if (only || !depths_.element[i] || !(passes & first)) {
        return;
      }
      only = i;
    }
  }
  const Term& term = piece_.terms[only];
  if (only && !is_reduction(term.op) && term.op != Opcode::load && term.op != Opcode::store &&
      codegen::size_of(term.type) <= codegen::size_of(piece_.terms[index].type)) {
    kept_[index] = 0;
    kept_[only] = 1;
  }
}

void Emitter::find_overwritten() {
  for (const Term& store : piece_.terms) {
    if (store.op != Opcode::store) {
      continue;
    }
    const uint32_t slot = piece_.accesses[store.place].slot;
    for (size_t i = 0; i < piece_.terms.size() && memory_(slot) != slot; ++i) {
      const Access* access =
          piece_.terms[i].op == Opcode::load ? &piece_.accesses[piece_.terms[i].place] : nullptr;
      if (access && access->slot == memory_(slot) && access->mask < 0 && access->lookups.empty()) {
        overwritten_.push_back(i);
      }
    }
  }
}

/// The instruction that holds a term's value in the current pass.
int32_t Emitter::value(int32_t index, int pass) {
  if (!depths_.element[index]) {
    return row_value_[index];
  }
  if (pass_value_[index] >= 0) {
    return pass_value_[index];
  }
  const Term& term = piece_.terms[index];
  if (kept_[index] && scratch_[index] >= 0) {
    codegen::Instruction load;
    load.op = Opcode::load;
    load.type = term.type;
    load.place = scratch_access(index);
    return pass_value_[index] = push(load);
  }
  operands_of(term, [&](int32_t operand) { value(operand, pass); });
  codegen::Instruction made = term;
  for (int32_t& operand : made.operands) {
    operand = operand >= 0 ? value(operand, pass) : -1;
  }
  if (term.op == Opcode::load) {
    made.place = access_for(piece_.accesses[term.place], codegen::Use::read);
  }
  pass_value_[index] = push(made);
  if (kept_[index]) {
    codegen::Instruction keep;
    keep.op = Opcode::store;
    keep.type = term.type;
    keep.operands[0] = pass_value_[index];
    keep.place = scratch_access(index);
    push(keep);
  }
  return pass_value_[index];
}

/// The terms of the row that can be computed after `depth` passes.
void Emitter::emit_rows(int depth) {
  codegen::Stage stage;
  stage.kind = codegen::Stage::Kind::row;
  stage.begin = static_cast<int32_t>(kernel_.code.size());
  auto emit = [&](size_t i) {
    const Term& term = piece_.terms[i];
    if (depths_.element[i] || is_reduction(term.op) || depths_.depth[i] != depth ||
        row_value_[i] >= 0) {
      return;
    }
    codegen::Instruction made = term;
    for (int32_t& operand : made.operands) {
      operand = operand >= 0 ? row_value_[operand] : -1;
    }
    if (has_access(term.op)) {
      made.place = access_for(piece_.accesses[term.place], use_of(term.op));
    }
    row_value_[i] = push(made);
  };
  std::for_each(overwritten_.begin(), overwritten_.end(), emit);
  for (size_t i = 0; i < piece_.terms.size(); ++i) {
    emit(i);
  }
  stage.end = static_cast<int32_t>(kernel_.code.size());
  if (stage.end > stage.begin) {
    kernel_.stages.push_back(stage);
  }
}

void Emitter::emit_pass(int pass) {
  pass_ = pass;
  codegen::Stage stage;
  stage.kind = codegen::Stage::Kind::each;
  stage.begin = static_cast<int32_t>(kernel_.code.size());
  std::fill(pass_value_.begin(), pass_value_.end(), -1);
  const std::vector<uint32_t> needed = passes_needing();
  for (size_t i : overwritten_) {
    if (depths_.element[i] && (needed[i] >> pass & 1)) {
      value(static_cast<int32_t>(i), pass);
    }
  }
  for (size_t i = 0; i < piece_.terms.size(); ++i) {
    const Term& term = piece_.terms[i];
    if (depths_.depth[i] != pass) {
      continue;
    }
    if (!is_reduction(term.op) && !(is_effect(term.op) && depths_.element[i])) {
      continue;
    }
    operands_of(term, [&](int32_t operand) { value(operand, pass); });
    codegen::Instruction made = term;
    for (int32_t& operand : made.operands) {
      operand = operand >= 0 ? value(operand, pass) : -1;
    }
    if (is_write(term.op)) {
      made.place = access_for(piece_.accesses[term.place], use_of(term.op));
    }
    const int32_t instruction = push(made);
    if (is_reduction(term.op)) {
      row_value_[i] = instruction;
    }
  }
  stage.end = static_cast<int32_t>(kernel_.code.size());
  kernel_.stages.push_back(stage);
}

Launch Emitter::run() {
  order_dimensions(piece_);
  collapse(piece_);
  if (piece_.rank() == 0) {  // one element
    piece_.sizes.push_back(1);
    piece_.outer = 1;
    for (Access& access : piece_.accesses) {
      access.strides.push_back(0);
    }
  }
  const bool map = !piece_.reduces();
  turn(piece_);
  kernel_.lanes = map ? codegen::Lanes::outer : choose_lanes(piece_);
  kernel_.outer = piece_.outer;
  kernel_.inner = piece_.inner();
  depths_ = depths_of(piece_);
  row_value_.assign(piece_.terms.size(), -1);
  pass_value_.assign(piece_.terms.size(), -1);
  decide_scratch();
  find_overwritten();
  int passes = 0;
  for (int depth : depths_.depth) {
    passes = std::max(passes, depth);
  }
  emit_rows(0);
  for (int pass = 1; pass <= passes; ++pass) {
    emit_pass(pass);
    emit_rows(pass);
  }
  for (const Scalar& scalar : piece_.scalars) {
    kernel_.arguments.push_back(scalar.type);
  }
  launch_.kernel = codegen::text(kernel_);
  launch_.scalars = piece_.scalars;
  launch_.numbers.assign(piece_.sizes.begin(), piece_.sizes.end());
  for (const auto& strides : access_strides_) {
    launch_.numbers.insert(launch_.numbers.end(), strides.begin(), strides.end());
  }
  launch_.numbers.insert(launch_.numbers.end(), scratch_offsets_.begin(), scratch_offsets_.end());
  launch_.tile =
      kernel_.lanes == codegen::Lanes::outer ? tile_for(piece_, piece_.sizes[piece_.outer - 1]) : 1;
  launch_.units = codegen::units(kernel_, launch_.numbers.data(), launch_.tile);
  // Empty rows have results, too.
  launch_.elements = std::max(launch_.units, piece_.outer_elements() * piece_.inner_elements());
  return launch_;
}

}  // namespace

bool can_write_in_place(const Piece& piece, uint32_t slot, uint32_t base) {
  const Access* store = nullptr;
  int store_depth = 0;
  bool adds = false;  // to places that may be any
  const Depths depths = depths_of(piece);
  for (size_t i = 0; i < piece.terms.size(); ++i) {
    const Term& term = piece.terms[i];
    if (is_write(term.op) && piece.accesses[term.place].slot == slot) {
      if (store) {
        return false;
      }
      adds = term.op == Opcode::accumulate;
      store = &piece.accesses[term.place];
      store_depth = depths.depth[i];
    }
  }
  if (!store) {
    return false;
  }
  // The passes in which a load may be made again: those of everything that uses it.
  std::vector<int> last(piece.terms.size(), 0);
  for (size_t i = piece.terms.size(); i-- > 0;) {
    const Term& term = piece.terms[i];
    last[i] = std::max(last[i], depths.depth[i]);
    if (is_reduction(term.op) || depths.element[i]) {
      for_operands(piece, term, [&](int32_t operand) {
        if (depths.element[operand]) {
          last[operand] = std::max(last[operand], last[i]);
        }
      });
    }
  }
  for (size_t i = 0; i < piece.terms.size(); ++i) {
    const Term& term = piece.terms[i];
    if (term.op != Opcode::load || piece.accesses[term.place].slot != base) {
      continue;
    }
    const Access& load = piece.accesses[term.place];
    if (adds || !load.same_elements(*store) || !load.lookups.empty() || load.mask >= 0 ||
        last[i] > store_depth) {
      return false;
    }
  }
  return true;
}

Launch emit(const Piece& piece, const std::function<uint32_t(uint32_t)>& memory) {
  return Emitter(piece, memory).run();
}

}  // namespace torch_lazy::compile
