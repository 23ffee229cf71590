// A piece of work that becomes one kernel: a space of indices with known sizes, accesses to slots
// as strides over it, and terms. Nodes of the graph are lowered to pieces, pieces are merged, and
// what remains is emitted as kernels. Dimensions of size 1 do not occur.
#pragma once

#include "codegen/kernel.h"
#include "codegen/operations.h"

#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace torch_lazy::compile {

using codegen::has_access;
using codegen::is_effect;
using codegen::is_reduction;
using codegen::is_scan;
using codegen::is_write;
using codegen::Opcode;
using codegen::Type;
using Sizes = c10::SmallVector<int64_t, 6>;

/// An operation on elements; operands are numbers of earlier terms. `place` is an access, a scalar
/// or a dimension of the piece. An accumulate's `integer` says whether it happens for each element
/// of a row, even where nothing about it changes from one to the next.
using Term = codegen::Instruction;

/// A computed index into a slot: the term's value times a stride.
struct Lookup {
  int32_t term = -1;
  int64_t stride = 0;

  bool operator==(const Lookup&) const = default;
};

struct Access {
  uint32_t slot = 0;
  Type type = Type::f32;
  int64_t offset = 0;  // in elements
  Sizes strides;       // by dimension, in elements
  c10::SmallVector<Lookup, 1> lookups;
  int32_t mask = -1;  // a boolean term

  /// Whether both walk over the same elements of a buffer, whatever the version.
  bool same_elements(const Access& other) const {
    return type == other.type && offset == other.offset && strides == other.strides;
  }
  bool same_place(const Access& other) const {
    return slot == other.slot && same_elements(other) && lookups.empty() && other.lookups.empty() &&
           mask == -1 && other.mask == -1;
  }
};

/// A number that a kernel is called with: one of the graph's, or one that depends on the shapes.
struct Scalar {
  Type type = Type::f32;
  int32_t number = -1;   // of the graph
  int32_t element = -1;  // of a list of numbers
  double fixed = 0;

  bool operator==(const Scalar&) const = default;
};

struct Piece {
  Sizes sizes;  // outer dimensions first
  int outer = 0;
  std::vector<Access> accesses;
  std::vector<Scalar> scalars;
  std::vector<Term> terms;
  std::vector<uint32_t> nodes;  // of the graph: what it computes

  int rank() const { return static_cast<int>(sizes.size()); }
  int inner() const { return rank() - outer; }
  bool reduces() const { return outer < rank(); }
  int64_t outer_elements() const;
  int64_t inner_elements() const;

  int32_t add(Opcode op, Type type, int32_t a = -1, int32_t b = -1, int32_t c = -1);
  int32_t constant(Type type, double value);
  int32_t load(Access access);
  void store(Access access, int32_t value);
  void accumulate(Access access, int32_t value);
  int32_t scalar(Scalar scalar);
};

/// By term: whether it differs from element to element of a row.
std::vector<char> element_terms(const Piece& piece);

/// Whether it matters in which order the elements of a row come.
bool has_order(const Piece& piece);

/// How many elements an access of the piece touches, as far as its strides say.
int64_t elements_touched(const Piece& piece, const Access& access);

/// The access of the first store to a slot; null: there is none.
const Access* store_of(const Piece& piece, uint32_t slot);

/// Keeps what stores need, in order, equal terms once, identities gone.
void simplify(Piece& piece);

/// Removes the stores to slots for which `unused` says so, and what only they needed.
void drop_stores(Piece& piece, const std::vector<char>& unused);

/// Dimension `dim` becomes two: (size / inner_size, inner_size).
void split(Piece& piece, int dim, int64_t inner_size);

/// Dimension k of the result is dimension order[k] of the piece, or a new one of size sizes[k] over
/// which nothing moves (order[k] == -1).
void rearrange(Piece& piece, const Sizes& sizes, c10::ArrayRef<int> order, int outer);

/// One piece that does the work of both; the second may read what the first writes. Nothing when
/// their spaces do not fit.
std::optional<Piece> merge(const Piece& first, const Piece& second);

std::string text(const Piece& piece);

}  // namespace torch_lazy::compile
