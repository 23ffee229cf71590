// What the rows of the table of operators use to say what a node computes.
#pragma once

#include "compile/program.h"

#include <c10/core/ScalarType.h>

#include <optional>
#include <string_view>

namespace torch_lazy::compile {

std::optional<Type> type_of(at::ScalarType dtype);
at::ScalarType dtype_of(Type type);

using codegen::compute_type;

/// A node being lowered: its arguments, and the pieces that it becomes.
class Lowering {
 public:
  Lowering(Program& program, uint32_t node);

  const GraphNode& node() const { return node_; }
  const Description& description() const { return *node_.description; }
  const ArgumentSource& argument(size_t index) const { return description().arguments[index]; }
  bool has_argument(size_t index) const { return index < description().arguments.size(); }

  // ---- Arguments ----
  bool is_tensor(size_t argument) const;  // an operand with data
  bool is_number(size_t argument) const;  // a number, or a constant one
  bool is_absent(size_t argument) const;  // None, or an undefined tensor
  const Layout& layout(size_t argument) const;
  const c10::IValue& constant(size_t argument) const;  // an attribute's value
  bool is_constant(size_t argument) const;
  /// The class of a number that travels, see NumberKind; 0 for constants.
  const NumberKind& number_kind(size_t argument, size_t element = 0) const;

  /// The dtype that PyTorch computes these arguments in, by its rules of promotion.
  at::ScalarType common_dtype(c10::ArrayRef<size_t> arguments) const;

  // ---- Results ----
  size_t results() const { return node_.outputs.size(); }  // fresh ones, then writes
  bool wanted(size_t result) const {
    return result < node_.outputs.size() && node_.outputs[result] >= 0;
  }
  /// The result that the operator returns at `position`; results() for one that was not asked for.
  size_t returned(size_t position) const;
  const Layout& result_layout(size_t result) const;

  // ---- Making pieces ----
  /// Starts a piece over these sizes; the last `inner` of them are reduced. Dimensions of size 1
  /// are left out.
  void begin(at::IntArrayRef sizes, int inner = 0);
  /// Starts a piece over a result's sizes, or an argument's; `reduced` dimensions become the inner
  /// ones.
  void begin_reduction(at::IntArrayRef sizes, c10::ArrayRef<int64_t> reduced);
  Piece& piece() { return piece_; }

  /// The argument's elements, broadcast to the piece's full sizes, in this type. `through`: the
  /// dtype that PyTorch would convert it to first.
  int32_t load(size_t argument, Type type, std::optional<Type> through = std::nullopt);
  int32_t load_operand(int operand, Type type);
  int32_t load_layout(uint32_t slot, const Layout& layout, Type type);
  int32_t number(size_t argument, Type type, size_t element = 0);
  int32_t fixed(Type type, double value);  // depends on the shapes
  int32_t make(Opcode op, int32_t a, int32_t b = -1, int32_t c = -1);
  int32_t convert(int32_t term, Type type);
  int32_t constant_of(Type type, double value) { return piece_.constant(type, value); }

  /// Stores a value as result `result`. Of a row: the result's sizes are those of the outer
  /// dimensions (size 1 where they were reduced, or without them).
  void store(size_t result, int32_t value);
  void store_operand_like(uint32_t slot, const Layout& layout, int32_t value);
  /// Adds a value to elements of `into`: `seen` is how the piece walks over it, with size 1 along
  /// the dimensions that `lookups` find; nothing is added where the mask (-1: none) is false.
  void accumulate(const View& into, const Layout& seen, c10::ArrayRef<Lookup> lookups, int32_t mask,
                  int32_t value);
  /// The slot is written where `base` was: it is the next version of it.
  void follow(uint32_t slot, uint32_t base) { versions_.emplace_back(slot, base); }
  /// Memory of the compiler's own, in the order of the dimensions given.
  uint32_t new_slot(int64_t nbytes) { return program_.new_slot(nbytes); }
  int64_t bytes(uint32_t slot) const { return program_.slots[slot].nbytes; }

  /// The piece is complete.
  void end();

  /// A matrix product as a step of its own.
  void product(View a, View b, View out);
  /// The same for one with several dimensions of the batch, or a convolution. False: the target has
  /// none for it.
  bool own_product(View a, View b, View out, const std::optional<Convolution>& convolution = {});
  View view(size_t argument) const;
  View result_view(size_t result) const;

  Type type(int32_t term) const { return piece_.terms[term].type; }
  bool failed() const { return failed_; }
  /// Whether the steps write every result that is needed.
  bool complete() const;
  void fail() { failed_ = true; }

  c10::ArrayRef<std::pair<uint32_t, uint32_t>> versions() const { return versions_; }
  std::vector<Step> take_steps() { return std::move(steps_); }

 private:
  Sizes strides_for(const Layout& layout, bool rows_only);

  Program& program_;
  uint32_t index_;
  const GraphNode& node_;
  Piece piece_;
  at::DimVector full_;       // the sizes given to begin, with ones, in their own order
  std::vector<int> dim_of_;  // by dimension of full_: the piece's dimension, or -1
  std::vector<char> reduced_;
  std::vector<Step> steps_;
  std::vector<std::pair<uint32_t, uint32_t>> versions_;  // slot and base
  bool failed_ = false;
};

/// Lowers a node by its row of the table. False: no row, or not for these arguments.
bool lower_node(Lowering& lowering);

/// A row: the operator's name without namespace, overload and trailing underscore.
struct OperatorRow {
  const char* name;
  bool (*lower)(Lowering&);
  bool takes_empty = false;  // also arguments and results without elements
};

c10::ArrayRef<OperatorRow> pointwise_rows();
c10::ArrayRef<OperatorRow> reduction_rows();
c10::ArrayRef<OperatorRow> normalization_rows();
c10::ArrayRef<OperatorRow> shape_rows();
c10::ArrayRef<OperatorRow> foreach_rows();
c10::ArrayRef<OperatorRow> product_rows();
c10::ArrayRef<OperatorRow> attention_rows();
c10::ArrayRef<OperatorRow> convolution_rows();
c10::ArrayRef<OperatorRow> pooling_rows();
c10::ArrayRef<OperatorRow> activation_rows();
c10::ArrayRef<OperatorRow> arithmetic_rows();
c10::ArrayRef<OperatorRow> batch_norm_rows();
c10::ArrayRef<OperatorRow> indexing_rows();
c10::ArrayRef<OperatorRow> loss_rows();
c10::ArrayRef<OperatorRow> scan_rows();
c10::ArrayRef<OperatorRow> scatter_rows();
c10::ArrayRef<OperatorRow> optimizer_rows();

}  // namespace torch_lazy::compile
