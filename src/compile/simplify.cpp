// Equal terms once, identities gone, nothing computed that no store needs.
#include "base/hash.h"
#include "compile/piece.h"

#include <algorithm>
#include <cstring>

namespace torch_lazy::compile {
namespace {

bool is_constant(const Piece& piece, int32_t term, double value) {
  const Term& t = piece.terms[term];
  return t.op == Opcode::constant &&
         (codegen::is_float(t.type) ? t.number == value : static_cast<double>(t.integer) == value);
}

/// Whether every value of `narrow` is a value of `wide`.
bool widens(Type narrow, Type wide) {
  if (narrow == wide) {
    return true;
  }
  switch (narrow) {
    case Type::bf16:
    case Type::f16:
      return wide == Type::f32 || wide == Type::f64;
    case Type::f32:
      return wide == Type::f64;
    case Type::boolean:
      return true;
    case Type::i8:
    case Type::u8:
      return wide == Type::i16 || wide == Type::i32 || wide == Type::i64 || wide == Type::f32 ||
             wide == Type::f64;
    case Type::i16:
      return wide == Type::i32 || wide == Type::i64 || wide == Type::f32 || wide == Type::f64;
    case Type::i32:
      return wide == Type::i64 || wide == Type::f64;
    default:
      return false;
  }
}

/// The term that `term` always equals, or -1.
int32_t identity(const Piece& piece, const Term& term) {
  const int32_t a = term.operands[0];
  const int32_t b = term.operands[1];
  switch (term.op) {
    case Opcode::convert: {
      const Term& from = piece.terms[a];
      if (from.type == term.type) {
        return a;
      }
      // There and back again.
      if (from.op == Opcode::convert && piece.terms[from.operands[0]].type == term.type &&
          widens(term.type, from.type)) {
        return from.operands[0];
      }
      return -1;
    }
    case Opcode::mul:
      return is_constant(piece, b, 1) ? a : is_constant(piece, a, 1) ? b : -1;
    case Opcode::div:
      return is_constant(piece, b, 1) ? a : -1;
    case Opcode::sub:
      return is_constant(piece, b, 0) ? a : -1;
    case Opcode::select:
      return term.operands[1] == term.operands[2] ? term.operands[1] : -1;
    case Opcode::bit_and:
    case Opcode::bit_or:
      return a == b ? a : -1;
    default:
      return -1;
  }
}

/// Whether two terms always have the same value.
bool same_value(const Piece& piece, const Term& a, const Term& b) {
  if (a.op != b.op || a.type != b.type ||
      !std::equal(std::begin(a.operands), std::end(a.operands), std::begin(b.operands))) {
    return false;
  }
  switch (a.op) {
    case Opcode::constant:
      return std::memcmp(&a.number, &b.number, sizeof(a.number)) == 0 && a.integer == b.integer;
    case Opcode::load: {
      const Access& x = piece.accesses[a.place];
      const Access& y = piece.accesses[b.place];
      return x.slot == y.slot && x.offset == y.offset && x.strides == y.strides &&
             x.mask == y.mask && x.lookups == y.lookups;
    }
    case Opcode::argument: {
      const Scalar& x = piece.scalars[a.place];
      const Scalar& y = piece.scalars[b.place];
      // Numbers that are equal by chance stay apart.
      return x.number >= 0 && x.number == y.number && x.element == y.element;
    }
    default:
      return a.place == b.place;
  }
}

uint64_t hash_of(const Piece& piece, const Term& term) {
  uint64_t hash = static_cast<uint64_t>(term.op) * 64 + static_cast<uint64_t>(term.type);
  auto put = [&](uint64_t word) { hash = mix(hash, word); };
  for (int32_t operand : term.operands) {
    put(static_cast<uint64_t>(operand));
  }
  if (term.op == Opcode::load) {
    const Access& access = piece.accesses[term.place];
    put(access.slot);
    put(static_cast<uint64_t>(access.offset));
  } else if (term.op == Opcode::argument) {
    put(static_cast<uint64_t>(piece.scalars[term.place].number));
  } else if (term.op == Opcode::constant) {
    uint64_t bits = 0;
    std::memcpy(&bits, &term.number, sizeof(bits));
    put(bits ^ static_cast<uint64_t>(term.integer));
  }
  return hash ^ (hash >> 32);
}

/// Finds the first of equal terms.
class Known {
 public:
  explicit Known(size_t terms) {
    size_t size = 16;
    while (size < 2 * terms) {
      size *= 2;
    }
    table_.assign(size, -1);
  }

  /// A term that equals `term`, or -1: then it is known from now on as number `index`.
  int32_t find(const Piece& piece, const Term& term, int32_t index) {
    const size_t mask = table_.size() - 1;
    for (size_t at = hash_of(piece, term) & mask;; at = (at + 1) & mask) {
      if (table_[at] < 0) {
        table_[at] = index;
        return -1;
      }
      if (same_value(piece, piece.terms[table_[at]], term)) {
        return table_[at];
      }
    }
  }

 private:
  std::vector<int32_t> table_;
};

}  // namespace

void simplify(Piece& piece) {
  const std::vector<Term> old = std::move(piece.terms);
  std::vector<Access> old_accesses = std::move(piece.accesses);
  const std::vector<Scalar> old_scalars = std::move(piece.scalars);

  std::vector<char> needed(old.size(), 0);
  for (size_t i = old.size(); i-- > 0;) {
    const Term& term = old[i];
    if (is_effect(term.op)) {
      needed[i] = 1;
    }
    if (!needed[i]) {
      continue;
    }
    for (int32_t operand : term.operands) {
      if (operand >= 0) {
        needed[operand] = 1;
      }
    }
    if (has_access(term.op)) {
      const Access& access = old_accesses[term.place];
      for (const Lookup& lookup : access.lookups) {
        needed[lookup.term] = 1;
      }
      if (access.mask >= 0) {
        needed[access.mask] = 1;
      }
    }
  }

  piece.terms.clear();
  piece.accesses.clear();
  piece.scalars.clear();
  std::vector<int32_t> moved(old.size(), -1);
  Known known(old.size());
  for (size_t i = 0; i < old.size(); ++i) {
    if (!needed[i]) {
      continue;
    }
    Term term = old[i];
    for (int32_t& operand : term.operands) {
      operand = operand >= 0 ? moved[operand] : -1;
    }
    const int32_t same = identity(piece, term);
    if (same >= 0) {
      moved[i] = same;
      continue;
    }
    const bool memory = has_access(term.op);
    if (memory) {
      Access access = std::move(old_accesses[term.place]);
      for (Lookup& lookup : access.lookups) {
        lookup.term = moved[lookup.term];
      }
      access.mask = access.mask >= 0 ? moved[access.mask] : -1;
      term.place = static_cast<int32_t>(piece.accesses.size());
      piece.accesses.push_back(std::move(access));
    } else if (term.op == Opcode::argument) {
      piece.scalars.push_back(old_scalars[term.place]);
      term.place = static_cast<int32_t>(piece.scalars.size() - 1);
    }
    if (!is_effect(term.op)) {
      const int32_t first = known.find(piece, term, static_cast<int32_t>(piece.terms.size()));
      if (first >= 0) {
        moved[i] = first;
        if (memory) {
          piece.accesses.pop_back();
        } else if (term.op == Opcode::argument) {
          piece.scalars.pop_back();
        }
        continue;
      }
    }
    moved[i] = static_cast<int32_t>(piece.terms.size());
    piece.terms.push_back(term);
  }
}

void drop_stores(Piece& piece, const std::vector<char>& unused) {
  for (Term& term : piece.terms) {
    if (is_write(term.op) && unused[piece.accesses[term.place].slot]) {
      // A term that nothing needs: simplify takes it away.
      term.op = Opcode::convert;
      term.place = -1;
    }
  }
  simplify(piece);
}

}  // namespace torch_lazy::compile
