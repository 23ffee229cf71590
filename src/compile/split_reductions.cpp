// Pass: a reduction to few results becomes one to more of them, and a second one over those. How it
// is cut depends on the shape alone, so that the bits do not depend on the number of threads.
#include "compile/program.h"

#include <algorithm>
#include <cstdlib>

namespace torch_lazy::compile {
namespace {

constexpr int64_t kEnoughRows = 16;
constexpr int64_t kLongRow = 16384;  // elements
constexpr int64_t kChunk = 4096;     // elements, about

bool is_associative(Opcode op) {
  return is_reduction(op) && op != Opcode::reduce_argmax && op != Opcode::reduce_argmin;
}

/// Into how many equal parts a dimension is cut; 1: it is not.
int64_t parts_of(int64_t size, int64_t wanted) {
  for (int64_t parts = std::min(size, wanted); parts > 1; --parts) {
    if (size % parts == 0) {
      return parts;
    }
  }
  return 1;
}

/// Whether one pass over the row is all there is, and only reductions leave it.
bool can_split(const Piece& piece, const std::vector<char>& element) {
  for (size_t i = 0; i < piece.terms.size(); ++i) {
    const Term& term = piece.terms[i];
    if ((is_reduction(term.op) && !is_associative(term.op)) || term.op == Opcode::accumulate ||
        is_scan(term.op)) {
      return false;
    }
    if (!element[i]) {
      const Access* access = has_access(term.op) ? &piece.accesses[term.place] : nullptr;
      if (term.op == Opcode::check || term.op == Opcode::extent ||
          (access && (!access->lookups.empty() || access->mask >= 0))) {
        return false;
      }
      continue;
    }
    // An element that needs the result of a reduction is computed in a second pass.
    for (int32_t operand : term.operands) {
      if (operand >= 0 && !element[operand]) {
        std::vector<int32_t> stack{operand};
        while (!stack.empty()) {
          const int32_t index = stack.back();
          stack.pop_back();
          if (is_reduction(piece.terms[index].op)) {
            return false;
          }
          for (int32_t below : piece.terms[index].operands) {
            if (below >= 0) {
              stack.push_back(below);
            }
          }
        }
      }
    }
  }
  return true;
}

/// The dimension of a long row that gives the most even cut, of several the one that goes furthest
/// through memory, and into how many parts.
struct Cut {
  int dim = -1;
  int64_t parts = 1;
};

/// Between neighbours along a dimension, in all that is read.
int64_t distance(const Piece& piece, int dim) {
  int64_t elements = 0;
  for (const Term& term : piece.terms) {
    elements += term.op == Opcode::load ? std::abs(piece.accesses[term.place].strides[dim]) : 0;
  }
  return elements;
}

std::optional<Cut> find_cut(const Piece& piece) {
  Cut cut;
  const int64_t wanted = piece.inner_elements() / kChunk;
  for (int k = piece.outer; k < piece.rank(); ++k) {
    const int64_t found = parts_of(piece.sizes[k], wanted);
    if (found > cut.parts ||
        (found == cut.parts && found > 1 && distance(piece, k) > distance(piece, cut.dim))) {
      cut = {k, found};
    }
  }
  return cut.dim >= 0 ? std::optional<Cut>(cut) : std::nullopt;
}

/// The piece becomes its own second half; returns the first.
std::optional<Piece> split_piece(Program& program, Piece& piece) {
  if (!piece.reduces() || piece.outer_elements() >= kEnoughRows ||
      piece.inner_elements() < kLongRow) {
    return std::nullopt;
  }
  const std::vector<char> element = element_terms(piece);
  const std::optional<Cut> cut = find_cut(piece);
  if (!cut || !can_split(piece, element)) {
    return std::nullopt;
  }
  const auto [best, parts] = *cut;
  Piece first = piece;
  if (piece.sizes[best] != parts) {
    split(first, best, piece.sizes[best] / parts);
  }
  // The cut dimension becomes an outer one.
  std::vector<int> order;
  for (int k = 0; k < first.outer; ++k) {
    order.push_back(k);
  }
  order.push_back(best);
  for (int k = first.outer; k < first.rank(); ++k) {
    if (k != best) {
      order.push_back(k);
    }
  }
  Sizes sizes;
  for (int k : order) {
    sizes.push_back(first.sizes[k]);
  }
  rearrange(first, sizes, order, first.outer + 1);
  if (!first.reduces()) {
    return std::nullopt;
  }

  // The second half: the reductions again, over what the first half leaves.
  Piece second;
  second.nodes = piece.nodes;
  for (int k = 0; k < piece.outer; ++k) {
    second.sizes.push_back(piece.sizes[k]);
  }
  second.outer = piece.outer;
  second.sizes.push_back(parts);
  std::vector<int32_t> moved(piece.terms.size(), -1);
  std::vector<std::pair<size_t, uint32_t>> partials;  // reduction of `piece`, slot
  for (size_t i = 0; i < piece.terms.size(); ++i) {
    const Term& term = piece.terms[i];
    if (element[i]) {
      continue;
    }
    if (is_reduction(term.op)) {
      Access access;
      access.type = term.type;
      access.slot = program.new_slot(piece.outer_elements() * parts * codegen::size_of(term.type));
      access.strides.resize(second.sizes.size());
      int64_t stride = 1;
      for (size_t k = second.sizes.size(); k-- > 0;) {
        access.strides[k] = stride;
        stride *= second.sizes[k];
      }
      partials.emplace_back(i, access.slot);
      const int32_t loaded = second.load(std::move(access));
      moved[i] = second.add(term.op, term.type, loaded);
      continue;
    }
    Term copy = term;
    for (int32_t& operand : copy.operands) {
      operand = operand >= 0 ? moved[operand] : -1;
    }
    if (term.op == Opcode::load || term.op == Opcode::store) {
      Access access = piece.accesses[term.place];
      access.strides.resize(static_cast<size_t>(piece.outer));
      access.strides.push_back(0);
      copy.place = static_cast<int32_t>(second.accesses.size());
      second.accesses.push_back(std::move(access));
    } else if (term.op == Opcode::argument) {
      second.scalars.push_back(piece.scalars[term.place]);
      copy.place = static_cast<int32_t>(second.scalars.size() - 1);
    }
    moved[i] = static_cast<int32_t>(second.terms.size());
    second.terms.push_back(copy);
  }
  // The first half keeps the stores of elements, and stores the partial results. Splitting a
  // dimension may have added terms: reductions are found in their order.
  size_t next = 0;
  const std::vector<char> first_element = element_terms(first);
  const size_t count = first.terms.size();
  for (size_t i = 0; i < count; ++i) {
    if (first.terms[i].op == Opcode::store && !first_element[i]) {
      first.terms[i].op = Opcode::convert;  // dropped below
      first.terms[i].place = -1;
    } else if (is_reduction(first.terms[i].op)) {
      const uint32_t slot = partials[next++].second;
      Access access;
      access.type = first.terms[i].type;
      access.slot = slot;
      access.strides.assign(first.sizes.size(), 0);
      int64_t stride = 1;
      for (int k = first.outer; k-- > 0;) {
        access.strides[k] = stride;
        stride *= first.sizes[k];
      }
      first.store(std::move(access), static_cast<int32_t>(i));
    }
  }
  simplify(first);
  simplify(second);
  piece = std::move(second);
  return first;
}

}  // namespace

bool runs_in_parts(const Piece& piece) {
  return can_split(piece, element_terms(piece)) &&
         (piece.outer_elements() >= kEnoughRows || find_cut(piece));
}

Program split_reductions(Program program) {
  std::vector<Step> steps;
  for (Step& step : program.steps) {
    if (step.kind == Step::Kind::piece) {
      if (std::optional<Piece> first = split_piece(program, step.piece)) {
        Step before;
        before.kind = Step::Kind::piece;
        before.piece = std::move(*first);
        before.position = step.position;
        find_uses(program, before);
        find_uses(program, step);
        steps.push_back(std::move(before));
      }
    }
    steps.push_back(std::move(step));
  }
  program.steps = std::move(steps);
  return program;
}

}  // namespace torch_lazy::compile
