// Rows of the table of operators: sums in memory, at positions that are data. A row of such a piece
// is what the positions do not choose: it runs through them in their order, so that the bits do not
// depend on threads.
#include "compile/places.h"

namespace torch_lazy::compile {
namespace {

/// The call returns a new tensor; false: it writes the first argument, or something else.
bool makes_result(const Lowering& l) {
  return l.description().writes.empty();
}

bool can_add(const Lowering& l) {
  const Description& d = l.description();
  return l.wanted(0) && l.is_tensor(0) && is_plain(l.layout(0)) && l.layout(0).dtype != at::kBool &&
         (makes_result(l) || (d.writes.size() == 1 && d.writes[0].operand == l.argument(0).index));
}

/// What the call adds to: the result, as the next version of the first argument or of a copy.
View sums(Lowering& l) {
  const View result{static_cast<uint32_t>(l.node().outputs[0]), l.result_layout(0)};
  if (makes_result(l)) {
    const uint32_t copy = l.new_slot(l.bytes(result.slot));
    l.begin(result.layout.sizes);
    l.store_operand_like(copy, result.layout, l.load(0, *type_of(result.layout.dtype)));
    l.end();
    l.follow(result.slot, copy);
  }
  return result;
}

/// The same in the type of the computation: finish_wide_sums rounds once, as PyTorch does here.
View wide_sums(Lowering& l) {
  const Type type = compute_type(*type_of(l.layout(0).dtype));
  const View before = hand_over(l, type, l.layout(0).sizes);
  const View after = hand_over(l, type, l.layout(0).sizes);
  l.begin(l.layout(0).sizes);
  give(l, before, l.load(0, type));
  l.end();
  l.follow(after.slot, before.slot);
  return {after.slot, after.layout};
}

void finish_wide_sums(Lowering& l, const View& sums) {
  l.begin(sums.layout.sizes);
  l.store(0, l.load_layout(sums.slot, sums.layout, *type_of(sums.layout.dtype)));
  l.end();
}

bool is_half(const Layout& layout) {
  return layout.dtype == at::kBFloat16 || layout.dtype == at::kHalf;
}

bool embedding_dense_backward(Lowering& l) {  // gradient, indices, number, padding, scale by freq
  if (!l.wanted(0) || !makes_result(l) || !l.is_tensor(0) || !l.is_tensor(1) ||
      !is_index(l.layout(1)) || l.constant(4).toBool() ||
      l.layout(0).dtype != l.result_layout(0).dtype) {
    return false;
  }
  const View result{static_cast<uint32_t>(l.node().outputs[0]), l.result_layout(0)};
  const Layout& weight = result.layout;
  const Type memory = *type_of(weight.dtype);
  const uint32_t zeros = l.new_slot(l.bytes(result.slot));
  l.begin(weight.sizes);
  l.store_operand_like(zeros, weight, l.constant_of(memory, 0));
  l.end();
  l.follow(result.slot, zeros);

  Layout places = l.layout(1);
  if (!(l.layout(0).sizes.size() == places.sizes.size() + 1 &&
        std::equal(places.sizes.begin(), places.sizes.end(), l.layout(0).sizes.begin()))) {
    return false;  // a row for each index
  }
  std::vector<int64_t> reduced(places.sizes.size());
  std::iota(reduced.begin(), reduced.end(), 0);
  places.sizes.push_back(1);
  places.strides.push_back(0);
  l.begin_reduction(l.layout(0).sizes, reduced);
  const int32_t place = l.load_layout(slot_of(l, 1), places, Type::i64);
  // PyTorch does not complain here about positions outside of the table, either.
  int32_t counts = between(l, place, 0, weight.sizes[0]);
  if (const int64_t padding = l.constant(3).toInt(); padding >= 0) {
    counts = l.make(Opcode::bit_and, counts, l.make(Opcode::ne, place, integer(l, padding)));
  }
  Layout seen = weight;
  seen.sizes.assign(places.sizes.size(), 1);
  seen.strides.assign(places.sizes.size(), 0);
  seen.sizes.back() = weight.sizes[1];
  seen.strides.back() = weight.strides[1];
  l.accumulate(result, seen, Lookup{place, weight.strides[0]}, counts, l.load(0, memory));
  l.end();
  return true;
}

bool index_put(Lowering& l) {  // self, indices, values, accumulate, unsafe
  if (!can_add(l) || !l.is_tensor(2) || !l.constant(3).toBool() ||
      l.layout(2).dtype != l.layout(0).dtype) {
    return false;
  }
  const std::optional<IndexedSpace> space = indexed_space(l, l.layout(0), 1);
  if (!space) {
    return false;
  }
  const View into = sums(l);
  std::vector<int64_t> reduced(space->rank);
  std::iota(reduced.begin(), reduced.end(), static_cast<int64_t>(space->first));
  l.begin_reduction(space->sizes, reduced);
  const Positions at = positions(l, into.layout, 1, *space);
  l.accumulate(into, at.seen, at.lookups, at.inside, l.load(2, *type_of(into.layout.dtype)));
  l.end();
  return true;
}

bool index_add(Lowering& l) {  // self, dim, index, source, alpha
  if (!can_add(l) || !l.is_tensor(2) || !l.is_tensor(3) || !is_index(l.layout(2)) ||
      l.layout(2).sizes.size() != 1 || l.layout(0).sizes.empty() ||
      l.layout(3).sizes.size() != l.layout(0).sizes.size() ||
      l.layout(3).dtype != l.layout(0).dtype) {
    return false;
  }
  const bool wide = is_half(l.layout(0));
  const View into = wide ? wide_sums(l) : sums(l);
  const size_t dim = wrap(l.constant(1).toInt(), into.layout.sizes.size());
  l.begin_reduction(l.layout(3).sizes, static_cast<int64_t>(dim));
  Layout places = l.layout(2);
  Layout seen = into.layout;
  seen.sizes[dim] = 1;
  places.sizes.assign(seen.sizes.size(), 1);
  places.strides.assign(seen.sizes.size(), 0);
  places.sizes[dim] = l.layout(2).sizes[0];
  places.strides[dim] = l.layout(2).strides[0];
  const int32_t place = l.load_layout(slot_of(l, 2), places, Type::i64);
  const int32_t inside = between(l, place, 0, into.layout.sizes[dim]);
  require(l, inside);
  const Type type = compute_type(*type_of(into.layout.dtype));
  int32_t value = l.load(3, type);
  if (!number_is(l, 4, kClassOne, 1)) {
    // PyTorch rounds alpha to the dtype of the source.
    const int32_t alpha =
        l.convert(l.convert(l.number(4, type), *type_of(l.layout(3).dtype)), type);
    value = l.make(Opcode::mul, value, alpha);
  }
  l.accumulate(into, seen, Lookup{place, into.layout.strides[dim]}, inside, value);
  l.end();
  if (wide) {
    finish_wide_sums(l, into);
  }
  return true;
}

bool scatter_add(Lowering& l) {  // self, dim, index, src
  const at::DimVector& sizes = l.layout(2).sizes;
  if (!can_add(l) || !l.is_tensor(2) || !l.is_tensor(3) || !is_index(l.layout(2)) ||
      sizes.empty() || l.layout(0).sizes.size() != sizes.size() ||
      l.layout(3).sizes.size() != sizes.size() || l.layout(3).dtype != l.layout(0).dtype) {
    return false;
  }
  const bool wide = is_half(l.layout(0));
  const View into = wide ? wide_sums(l) : sums(l);
  const size_t dim = wrap(l.constant(1).toInt(), sizes.size());
  Layout source = l.layout(3);
  Layout seen = into.layout;
  source.sizes = seen.sizes = sizes;  // of both the first elements
  seen.sizes[dim] = 1;
  l.begin_reduction(sizes, static_cast<int64_t>(dim));
  const int32_t place = l.load(2, Type::i64);
  const int32_t inside = between(l, place, 0, into.layout.sizes[dim]);
  require(l, inside);
  l.accumulate(into, seen, Lookup{place, into.layout.strides[dim]}, inside,
               l.load_layout(slot_of(l, 3), source, *type_of(into.layout.dtype)));
  l.end();
  if (wide) {
    finish_wide_sums(l, into);
  }
  return true;
}

bool scatter_reduce(Lowering& l) {  // self, dim, index, src, reduce, include_self
  return l.description().arguments.size() >= 6 && l.constant(4).toStringRef() == "sum" &&
         l.constant(5).toBool() && scatter_add(l);
}

constexpr OperatorRow kRows[] = {
    {"_index_put_impl", index_put},
    {"_unsafe_index_put", index_put},
    {"embedding_dense_backward", embedding_dense_backward},
    {"index_add", index_add},
    {"index_put", index_put},
    {"scatter_add", scatter_add},
    {"scatter_reduce", scatter_reduce},
};

}  // namespace

c10::ArrayRef<OperatorRow> scatter_rows() {
  return kRows;
}

}  // namespace torch_lazy::compile
