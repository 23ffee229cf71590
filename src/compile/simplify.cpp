// Equal terms once, identities gone, nothing computed that no store needs.
#include "base/hash.h"
#include "compile/piece.h"

#include <cstring>
#include <unordered_map>

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

struct Keys {
  static void put(std::string& key, const void* data, size_t size) {
    key.append(static_cast<const char*>(data), size);
  }
  template <typename T>
  static void put(std::string& key, const T& value) {
    put(key, &value, sizeof(value));
  }
};

std::string key_of(const Piece& piece, const Term& term) {
  std::string key;
  Keys::put(key, term.op);
  Keys::put(key, term.type);
  Keys::put(key, term.operands);
  switch (term.op) {
    case Opcode::constant:
      Keys::put(key, term.number);
      Keys::put(key, term.integer);
      break;
    case Opcode::load: {
      const Access& access = piece.accesses[term.place];
      Keys::put(key, access.slot);
      Keys::put(key, access.offset);
      Keys::put(key, access.strides.data(), access.strides.size() * sizeof(int64_t));
      for (const Lookup& lookup : access.lookups) {
        Keys::put(key, lookup.term);
        Keys::put(key, lookup.stride);
      }
      Keys::put(key, access.mask);
      break;
    }
    case Opcode::argument: {
      const Scalar& scalar = piece.scalars[term.place];
      Keys::put(key, scalar.number);
      Keys::put(key, scalar.element);
      if (scalar.number < 0) {  // numbers that are equal by chance stay apart
        Keys::put(key, term.place);
      }
      break;
    }
    default:
      Keys::put(key, term.place);
  }
  return key;
}

}  // namespace

void simplify(Piece& piece) {
  const std::vector<Term> old = std::move(piece.terms);
  std::vector<Access> old_accesses = std::move(piece.accesses);
  const std::vector<Scalar> old_scalars = std::move(piece.scalars);

  std::vector<char> needed(old.size(), 0);
  for (size_t i = old.size(); i-- > 0;) {
    const Term& term = old[i];
    if (term.op == Opcode::store || term.op == Opcode::check) {
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
    if (term.op == Opcode::load || term.op == Opcode::store) {
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
  std::unordered_map<std::string, int32_t> known;
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
    const bool memory = term.op == Opcode::load || term.op == Opcode::store;
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
    if (term.op != Opcode::store && term.op != Opcode::check) {
      auto [it, fresh] =
          known.emplace(key_of(piece, term), static_cast<int32_t>(piece.terms.size()));
      if (!fresh) {
        moved[i] = it->second;
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
    if (term.op == Opcode::store && unused[piece.accesses[term.place].slot]) {
      // A term that nothing needs: simplify takes it away.
      term.op = Opcode::convert;
      term.place = -1;
    }
  }
  simplify(piece);
}

}  // namespace torch_lazy::compile
