// Pass: reads of slots that hold one number everywhere become that number. It is then computed
// where it is used, and its memory is often not needed at all. Sums that begin with zeros are made
// in memory that is cleared.
#include "compile/cost.h"
#include "compile/program.h"

#include <algorithm>
#include <cmath>

namespace torch_lazy::compile {
namespace {

/// The terms below `root`, if they need neither memory nor position; empty: they do.
std::vector<int32_t> number_terms(const Piece& piece, int32_t root) {
  std::vector<int32_t> found;
  std::vector<int32_t> stack{root};
  while (!stack.empty()) {
    const int32_t index = stack.back();
    stack.pop_back();
    if (std::find(found.begin(), found.end(), index) != found.end()) {
      continue;
    }
    const Term& term = piece.terms[index];
    if (term.op == Opcode::load || term.op == Opcode::index || is_reduction(term.op) ||
        is_scan(term.op) || codegen::operation(term.op).cost > kRecomputeLimit ||
        found.size() > 8) {
      return {};
    }
    found.push_back(index);
    for (int32_t operand : term.operands) {
      if (operand >= 0) {
        stack.push_back(operand);
      }
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

struct Fill {
  const Piece* piece = nullptr;
  int32_t value = -1;
  Type type = Type::f32;
  std::vector<int32_t> terms;
};

void replace(Piece& piece, int32_t load, const Fill& fill) {
  // The new terms come first; all others move up.
  const auto count = static_cast<int32_t>(fill.terms.size());
  std::vector<Term> terms;
  for (int32_t index : fill.terms) {
    Term term = fill.piece->terms[index];
    for (int32_t& operand : term.operands) {
      operand =
          operand < 0
              ? -1
              : static_cast<int32_t>(std::find(fill.terms.begin(), fill.terms.end(), operand) -
                                     fill.terms.begin());
    }
    if (term.op == Opcode::argument) {
      piece.scalars.push_back(fill.piece->scalars[term.place]);
      term.place = static_cast<int32_t>(piece.scalars.size() - 1);
    }
    terms.push_back(term);
  }
  const auto value = static_cast<int32_t>(
      std::find(fill.terms.begin(), fill.terms.end(), fill.value) - fill.terms.begin());
  auto moved = [&](int32_t operand) {
    return operand < 0 ? -1 : operand == load ? value : operand + count;
  };
  for (Term term : piece.terms) {
    for (int32_t& operand : term.operands) {
      operand = moved(operand);
    }
    terms.push_back(term);
  }
  for (Access& access : piece.accesses) {
    for (Lookup& lookup : access.lookups) {
      lookup.term = moved(lookup.term);
    }
    access.mask = moved(access.mask);
  }
  piece.terms = std::move(terms);
}

bool is_zero(const Fill& fill) {
  if (!fill.piece) {
    return false;
  }
  const Term& term = fill.piece->terms[fill.value];
  return term.op == Opcode::constant && term.number == 0 && !std::signbit(term.number) &&
         term.integer == 0;
}

/// Slots that are sums, one after zeros that nothing else needs.
void clear_sums(Program& program, const std::vector<Fill>& fills) {
  std::vector<int> uses(program.slots.size(), 0);
  for (const Step& step : program.steps) {
    for (uint32_t slot : step.reads) {
      ++uses[slot];
    }
  }
  for (const Slot& slot : program.slots) {
    if (slot.base >= 0) {
      ++uses[slot.base];
    }
  }
  for (const Step& step : program.steps) {
    for (const Term& term : step.piece.terms) {
      if (term.op != Opcode::accumulate) {
        continue;
      }
      Slot& sums = program.slots[step.piece.accesses[term.place].slot];
      if (sums.base >= 0 && is_zero(fills[sums.base]) && uses[sums.base] == 1 &&
          !program.slots[sums.base].survives && !program.slots[sums.base].parameter) {
        sums.base = -1;
        sums.cleared = true;
      }
    }
  }
}

}  // namespace

Program inline_fills(Program program) {
  std::vector<Fill> fills(program.slots.size());
  std::vector<int> writers(program.slots.size(), 0);
  for (const Step& step : program.steps) {
    for (uint32_t slot : step.writes) {
      ++writers[slot];
    }
  }
  std::vector<Piece> kept;  // fills point into these
  kept.reserve(program.steps.size());
  for (Step& step : program.steps) {
    if (step.kind != Step::Kind::piece) {
      continue;
    }
    bool changed = false;
    for (size_t i = 0; i < step.piece.terms.size(); ++i) {
      const Term& term = step.piece.terms[i];
      if (term.op != Opcode::load) {
        continue;
      }
      const Access& access = step.piece.accesses[term.place];
      const Fill& fill = fills[access.slot];
      if (fill.piece && fill.type == access.type && access.mask < 0 && access.lookups.empty()) {
        replace(step.piece, static_cast<int32_t>(i), fill);
        i += fill.terms.size();
        changed = true;
      }
    }
    if (changed) {
      simplify(step.piece);
      find_uses(program, step);
    }
    // What this one fills. Only whole slots: of others something else may be read.
    for (const Term& term : step.piece.terms) {
      if (term.op != Opcode::store) {
        continue;
      }
      const Access& access = step.piece.accesses[term.place];
      const int64_t elements = elements_touched(step.piece, access);
      if (writers[access.slot] != 1 || access.mask >= 0 || !access.lookups.empty() ||
          elements * codegen::size_of(access.type) != program.slots[access.slot].nbytes) {
        continue;
      }
      std::vector<int32_t> terms = number_terms(step.piece, term.operands[0]);
      if (!terms.empty()) {
        kept.push_back(step.piece);
        fills[access.slot] = {&kept.back(), term.operands[0], access.type, std::move(terms)};
        break;
      }
    }
  }
  clear_sums(program, fills);
  // What nothing reads any more.
  std::vector<char> read(program.slots.size(), 0);
  for (const Step& step : program.steps) {
    for (uint32_t slot : step.reads) {
      read[slot] = 1;
    }
  }
  for (const Slot& slot : program.slots) {
    if (slot.base >= 0) {
      read[slot.base] = 1;
    }
  }
  std::vector<Step> steps;
  for (Step& step : program.steps) {
    const bool needed = step.kind != Step::Kind::piece ||
                        std::any_of(step.writes.begin(), step.writes.end(), [&](uint32_t slot) {
                          return read[slot] || program.slots[slot].survives || !fills[slot].piece;
                        });
    if (needed) {
      steps.push_back(std::move(step));
    }
  }
  program.steps = std::move(steps);
  return program;
}

}  // namespace torch_lazy::compile
