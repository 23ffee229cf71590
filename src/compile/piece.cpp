// Pieces: making, rearranging and printing them.
#include "compile/piece.h"

#include <algorithm>
#include <sstream>

namespace torch_lazy::compile {

int64_t Piece::outer_elements() const {
  int64_t count = 1;
  for (int k = 0; k < outer; ++k) {
    count *= sizes[k];
  }
  return count;
}

int64_t Piece::inner_elements() const {
  int64_t count = 1;
  for (int k = outer; k < rank(); ++k) {
    count *= sizes[k];
  }
  return count;
}

int32_t Piece::add(Opcode op, Type type, int32_t a, int32_t b, int32_t c) {
  Term term;
  term.op = op;
  term.type = type;
  term.operands[0] = a;
  term.operands[1] = b;
  term.operands[2] = c;
  terms.push_back(term);
  return static_cast<int32_t>(terms.size() - 1);
}

int32_t Piece::constant(Type type, double value) {
  const int32_t term = add(Opcode::constant, type);
  if (codegen::is_float(type)) {
    terms[term].number = value;
  } else {
    terms[term].integer = static_cast<int64_t>(value);
  }
  return term;
}

int32_t Piece::load(Access access) {
  const int32_t term = add(Opcode::load, access.type);
  terms[term].place = static_cast<int32_t>(accesses.size());
  accesses.push_back(std::move(access));
  return term;
}

void Piece::store(Access access, int32_t value) {
  const int32_t term = add(Opcode::store, access.type, value);
  terms[term].place = static_cast<int32_t>(accesses.size());
  accesses.push_back(std::move(access));
}

void Piece::accumulate(Access access, int32_t value) {
  store(std::move(access), value);
  terms.back().op = Opcode::accumulate;
  terms.back().integer = reduces() ? 1 : 0;
}

int32_t Piece::scalar(Scalar scalar) {
  const int32_t term = add(Opcode::argument, scalar.type);
  terms[term].place = static_cast<int32_t>(scalars.size());
  scalars.push_back(scalar);
  return term;
}

int64_t elements_touched(const Piece& piece, const Access& access) {
  int64_t elements = 1;
  for (int k = 0; k < piece.rank(); ++k) {
    elements *= access.strides[k] != 0 ? piece.sizes[k] : 1;
  }
  return elements;
}

const Access* store_of(const Piece& piece, uint32_t slot) {
  for (const Term& term : piece.terms) {
    if (term.op == Opcode::store && piece.accesses[term.place].slot == slot) {
      return &piece.accesses[term.place];
    }
  }
  return nullptr;
}

std::vector<char> element_terms(const Piece& piece) {
  std::vector<char> result(piece.terms.size(), 0);
  for (size_t i = 0; i < piece.terms.size(); ++i) {
    const Term& term = piece.terms[i];
    if (is_reduction(term.op)) {
      continue;
    }
    bool varies = is_scan(term.op) || (term.op == Opcode::index && term.place >= piece.outer) ||
                  (term.op == Opcode::accumulate && term.integer);
    for (int32_t operand : term.operands) {
      varies = varies || (operand >= 0 && result[operand]);
    }
    if (has_access(term.op)) {
      const Access& access = piece.accesses[term.place];
      for (int k = piece.outer; k < piece.rank(); ++k) {
        varies = varies || access.strides[k] != 0;
      }
      for (const Lookup& lookup : access.lookups) {
        varies = varies || result[lookup.term];
      }
      varies = varies || (access.mask >= 0 && result[access.mask]);
    }
    result[i] = varies ? 1 : 0;
  }
  return result;
}

bool has_order(const Piece& piece) {
  return std::any_of(piece.terms.begin(), piece.terms.end(), [](const Term& term) {
    return term.op == Opcode::reduce_argmax || term.op == Opcode::reduce_argmin ||
           term.op == Opcode::accumulate || is_scan(term.op);
  });
}

void split(Piece& piece, int dim, int64_t inner_size) {
  const int64_t size = piece.sizes[dim];
  piece.sizes[dim] = size / inner_size;
  piece.sizes.insert(piece.sizes.begin() + dim + 1, inner_size);
  piece.outer += dim < piece.outer ? 1 : 0;
  for (Access& access : piece.accesses) {
    const int64_t stride = access.strides[dim];
    access.strides[dim] = stride * inner_size;
    access.strides.insert(access.strides.begin() + dim + 1, stride);
  }
  // Where an index along the dimension is used: high * inner_size + low.
  std::vector<Term> terms;
  std::vector<int32_t> moved(piece.terms.size(), -1);
  for (size_t i = 0; i < piece.terms.size(); ++i) {
    Term term = piece.terms[i];
    for (int32_t& operand : term.operands) {
      operand = operand >= 0 ? moved[operand] : -1;
    }
    const bool position = term.op == Opcode::index || term.op == Opcode::extent;
    if (term.op == Opcode::index && term.place == dim) {
      auto push = [&](Term made) {
        terms.push_back(made);
        return static_cast<int32_t>(terms.size() - 1);
      };
      Term low = term;
      low.place = dim + 1;
      const int32_t high_term = push(term);
      const int32_t low_term = push(low);
      Term factor;
      factor.op = Opcode::argument;
      factor.type = Type::i64;
      factor.place = static_cast<int32_t>(piece.scalars.size());
      Scalar scalar;
      scalar.type = Type::i64;
      scalar.fixed = static_cast<double>(inner_size);
      piece.scalars.push_back(scalar);
      const int32_t factor_term = push(factor);
      Term product;
      product.op = Opcode::mul;
      product.type = Type::i64;
      product.operands[0] = high_term;
      product.operands[1] = factor_term;
      const int32_t product_term = push(product);
      Term sum = product;
      sum.op = Opcode::add;
      sum.operands[0] = product_term;
      sum.operands[1] = low_term;
      moved[i] = push(sum);
      continue;
    }
    if (position && term.place > dim) {
      ++term.place;
    }
    terms.push_back(term);
    moved[i] = static_cast<int32_t>(terms.size() - 1);
  }
  piece.terms = std::move(terms);
  for (Access& access : piece.accesses) {
    for (Lookup& lookup : access.lookups) {
      lookup.term = moved[lookup.term];
    }
    access.mask = access.mask >= 0 ? moved[access.mask] : -1;
  }
}

void rearrange(Piece& piece, const Sizes& sizes, c10::ArrayRef<int> order, int outer) {
  for (Access& access : piece.accesses) {
    Sizes strides;
    for (int from : order) {
      strides.push_back(from < 0 ? 0 : access.strides[from]);
    }
    access.strides = std::move(strides);
  }
  for (Term& term : piece.terms) {
    if (term.op == Opcode::index || term.op == Opcode::extent) {
      term.place =
          static_cast<int32_t>(std::find(order.begin(), order.end(), term.place) - order.begin());
    }
  }
  piece.sizes = sizes;
  piece.outer = outer;
}

namespace {

template <typename T>
void put_list(std::ostringstream& out, const T& list) {
  out << "(";
  for (size_t i = 0; i < list.size(); ++i) {
    out << (i ? "," : "") << list[i];
  }
  out << ")";
}

}  // namespace

std::string text(const Piece& piece) {
  std::ostringstream out;
  out << "piece outer ";
  put_list(out, c10::ArrayRef<int64_t>(piece.sizes).slice(0, piece.outer));
  out << " inner ";
  put_list(out, c10::ArrayRef<int64_t>(piece.sizes).slice(piece.outer));
  out << "\n";
  for (size_t i = 0; i < piece.terms.size(); ++i) {
    const Term& term = piece.terms[i];
    out << "  ";
    if (!is_write(term.op)) {
      out << "%" << i << " = ";
    }
    out << codegen::operation(term.op).name << " " << codegen::type_name(term.type);
    if (has_access(term.op)) {
      const Access& access = piece.accesses[term.place];
      out << " slot" << access.slot << " ";
      put_list(out, access.strides);
      if (access.offset) {
        out << "+" << access.offset;
      }
      for (const Lookup& lookup : access.lookups) {
        out << " at %" << lookup.term << "*" << lookup.stride;
      }
      if (access.mask >= 0) {
        out << " where %" << access.mask;
      }
    } else if (term.op == Opcode::constant) {
      out << " ";
      if (codegen::is_float(term.type)) {
        out << term.number;
      } else {
        out << term.integer;
      }
    } else if (term.op == Opcode::argument) {
      const Scalar& scalar = piece.scalars[term.place];
      if (scalar.number >= 0) {
        out << " number" << scalar.number;
        if (scalar.element >= 0) {
          out << "[" << scalar.element << "]";
        }
      } else {
        out << " " << scalar.fixed;
      }
    } else if (term.op == Opcode::index || term.op == Opcode::extent) {
      out << " dim " << term.place;
    }
    for (int32_t operand : term.operands) {
      if (operand >= 0) {
        out << " %" << operand;
      }
    }
    out << "\n";
  }
  return out.str();
}

}  // namespace torch_lazy::compile
