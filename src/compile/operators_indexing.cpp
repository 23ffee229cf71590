// Rows of the table of operators: reading at positions that are data, and parts put together.
#include "compile/places.h"

#include <numeric>

namespace torch_lazy::compile {

std::optional<IndexedSpace> indexed_space(const Lowering& l, const Layout& self, size_t argument) {
  const ArgumentSource& list = l.argument(argument);
  const auto& operands = l.description().operands;
  if (list.kind != ArgumentSource::Kind::optional_list) {
    return std::nullopt;
  }
  IndexedSpace space;
  at::DimVector places;  // the sizes of the indices, broadcast
  for (size_t k = 0; k < list.elements.size(); ++k) {
    const int element = list.elements[k];
    if (element == -1) {
      continue;
    }
    if (element < 0 || !is_index(operands[element])) {
      return std::nullopt;
    }
    space.dims.push_back(k);
    const at::DimVector& sizes = operands[element].sizes;
    if (sizes.size() > places.size()) {
      places.insert(places.begin(), sizes.size() - places.size(), 1);
    }
    for (size_t d = 0; d < sizes.size(); ++d) {
      int64_t& size = places[places.size() - sizes.size() + d];
      size = sizes[d] != 1 ? sizes[d] : size;
    }
  }
  if (space.dims.empty()) {
    return std::nullopt;
  }
  const bool neighbours = space.dims.back() - space.dims.front() + 1 == space.dims.size();
  space.first = neighbours ? space.dims.front() : 0;
  space.rank = places.size();
  for (size_t k = 0; k < self.sizes.size(); ++k) {
    if (std::find(space.dims.begin(), space.dims.end(), k) == space.dims.end()) {
      space.sizes.push_back(self.sizes[k]);
    }
  }
  space.sizes.insert(space.sizes.begin() + static_cast<std::ptrdiff_t>(space.first), places.begin(),
                     places.end());
  return space;
}

Positions positions(Lowering& l, const Layout& self, size_t argument, const IndexedSpace& space) {
  const ArgumentSource& list = l.argument(argument);
  const size_t rank = space.sizes.size();
  Positions found;
  found.seen = self;
  found.seen.sizes.assign(rank, 1);
  found.seen.strides.assign(rank, 0);
  size_t to = 0;
  for (size_t k = 0; k < self.sizes.size(); ++k) {
    if (std::find(space.dims.begin(), space.dims.end(), k) != space.dims.end()) {
      continue;
    }
    if (to == space.first) {
      to += space.rank;
    }
    found.seen.sizes[to] = self.sizes[k];
    found.seen.strides[to] = self.strides[k];
    ++to;
  }
  for (size_t k : space.dims) {
    const int element = list.elements[k];
    Layout places = l.description().operands[element];
    const size_t end = space.first + space.rank;
    places.sizes.resize(places.sizes.size() + rank - end, 1);
    places.strides.resize(places.sizes.size(), 0);
    const int32_t given = l.load_layout(l.node().operands[element], places, Type::i64);
    const int32_t size = integer(l, self.sizes[k]);
    const int32_t here = between(l, given, -self.sizes[k], self.sizes[k]);
    const int32_t negative = l.make(Opcode::lt, given, l.constant_of(Type::i64, 0));
    const int32_t place = l.make(Opcode::select, negative, l.make(Opcode::add, given, size), given);
    found.inside = both(l, found.inside, here);
    found.lookups.push_back({place, self.strides[k]});
  }
  require(l, found.inside);
  return found;
}

namespace {

bool stores(Lowering& l, int32_t value) {
  l.store(0, value);
  l.end();
  return true;
}

/// The number as it is stored in memory of this type.
int32_t number_of(Lowering& l, size_t argument, Type memory) {
  return l.convert(l.number(argument, compute_type(memory)), memory);
}

// ---- Reading at positions ----

bool index_select(Lowering& l) {  // self, dim, index
  const Layout& self = l.layout(0);
  if (!l.is_tensor(2) || !is_plain(self) || !is_index(l.layout(2)) || self.sizes.empty() ||
      l.layout(2).sizes.size() > 1) {
    return false;
  }
  const size_t dim = wrap(l.constant(1).toInt(), self.sizes.size());
  Layout places = l.layout(2);
  const int64_t stride = places.sizes.empty() ? 0 : places.strides[0];
  const int64_t size = places.sizes.empty() ? 1 : places.sizes[0];
  places.sizes.assign(self.sizes.size(), 1);
  places.strides.assign(self.sizes.size(), 0);
  places.sizes[dim] = size;
  places.strides[dim] = stride;
  l.begin(l.result_layout(0).sizes);
  const int32_t place = l.load_layout(slot_of(l, 2), places, Type::i64);
  const int32_t inside = between(l, place, 0, self.sizes[dim]);
  require(l, inside);
  Layout from = self;
  from.sizes[dim] = 1;
  return stores(l, load_at(l, slot_of(l, 0), from, Lookup{place, self.strides[dim]}, inside));
}

bool gather(Lowering& l) {  // self, dim, index, sparse_grad
  const Layout& self = l.layout(0);
  if (!l.is_tensor(2) || !is_plain(self) || !is_index(l.layout(2)) || self.sizes.empty() ||
      l.layout(2).sizes.size() != self.sizes.size()) {
    return false;
  }
  const size_t dim = wrap(l.constant(1).toInt(), self.sizes.size());
  Layout from = self;
  from.sizes = l.layout(2).sizes;
  from.sizes[dim] = 1;
  l.begin(l.result_layout(0).sizes);
  const int32_t place = l.load(2, Type::i64);
  const int32_t inside = between(l, place, 0, self.sizes[dim]);
  require(l, inside);
  return stores(l, load_at(l, slot_of(l, 0), from, Lookup{place, self.strides[dim]}, inside));
}

bool index(Lowering& l) {  // self, indices
  const Layout& self = l.layout(0);
  const std::optional<IndexedSpace> space = indexed_space(l, self, 1);
  if (!space || !is_plain(self) || l.result_layout(0).sizes != space->sizes) {
    return false;
  }
  l.begin(space->sizes);
  const Positions at = positions(l, self, 1, *space);
  return stores(l, load_at(l, slot_of(l, 0), at.seen, at.lookups, at.inside));
}

/// One place of every line along a dimension is written: where the line's index says. Of more
/// places in a line the order of writing would matter.
bool scatter(Lowering& l) {  // self, dim, index, src or value
  const Layout& self = l.layout(0);
  const std::string& name = l.description().op->name;
  if (!l.is_tensor(2) || !is_plain(self) || !is_index(l.layout(2)) || self.sizes.empty() ||
      l.layout(2).sizes.size() != self.sizes.size() || name.find("reduce") != std::string::npos ||
      name.find("out") != std::string::npos) {
    return false;
  }
  const size_t dim = wrap(l.constant(1).toInt(), self.sizes.size());
  at::DimVector lines = self.sizes;
  lines[dim] = 1;
  if (l.layout(2).sizes != lines) {
    return false;
  }
  const Type memory = *type_of(self.dtype);
  l.begin(self.sizes);
  const int32_t place = l.load(2, Type::i64);
  require(l, between(l, place, 0, self.sizes[dim]));
  int32_t value = -1;
  if (l.is_tensor(3)) {
    Layout from = l.layout(3);
    if (from.dtype != self.dtype || from.sizes.size() != lines.size()) {
      return false;
    }
    from.sizes = lines;
    value = l.load_layout(slot_of(l, 3), from, memory);
  } else if (l.is_number(3)) {
    value = number_of(l, 3, memory);
  } else {
    return false;
  }
  const int32_t hit = l.make(Opcode::eq, position(l, self.sizes, dim), place);
  return stores(l, l.make(Opcode::select, hit, value, l.load(0, memory)));
}

// ---- Parts of a whole ----

/// A part of a space: where along `dim` it lies. Its elements are those of a layout.
struct Part {
  size_t dim = 0;
  int64_t start = 0;
  int64_t end = 0;
  int64_t step = 1;
};

/// start and end of a slice as Python understands them.
std::optional<Part> slice_of(const Lowering& l, size_t dim, size_t start, at::IntArrayRef sizes) {
  if (sizes.empty() || !l.is_constant(dim)) {
    return std::nullopt;
  }
  Part part;
  part.dim = wrap(l.constant(dim).toInt(), sizes.size());
  const int64_t size = sizes[part.dim];
  auto bound = [&](size_t argument, int64_t otherwise) {
    if (l.is_absent(argument)) {
      return otherwise;
    }
    int64_t value = l.constant(argument).toInt();
    value += value < 0 ? size : 0;
    return std::clamp<int64_t>(value, 0, size);
  };
  if (!l.is_constant(start) || !l.is_constant(start + 1) || !l.is_constant(start + 2)) {
    return std::nullopt;
  }
  part.start = bound(start, 0);
  part.end = std::max(bound(start + 1, size), part.start);
  part.step = l.constant(start + 2).toInt();
  return part;
}

/// Whether `source` has as many elements as the part: PyTorch broadcasts it where it has fewer.
bool fits(const Part& part, at::DimVector sizes, const Layout& source) {
  if (part.step <= 0 || part.start < 0 || part.end > sizes[part.dim]) {
    return false;
  }
  sizes[part.dim] = (part.end - part.start + part.step - 1) / part.step;
  return source.sizes == sizes;
}

/// The elements of `layout` where they lie in the space, and -1 for the mask or where that is.
struct Placed {
  int32_t value = -1;
  int32_t mask = -1;
};

Placed place(Lowering& l, at::IntArrayRef sizes, const Part& part, uint32_t slot, Layout layout) {
  const int32_t at = position(l, sizes, part.dim);
  Placed placed;
  placed.mask = between(l, at, part.start, part.end);
  if (part.step == 1) {
    // Addresses outside the part are masked, so the layout may be as large as the space.
    layout.sizes[part.dim] = sizes[part.dim];
    layout.offset -= part.start * layout.strides[part.dim];
    placed.value = load_at(l, slot, layout, {}, placed.mask);
    return placed;
  }
  const int32_t distance = l.make(Opcode::sub, at, integer(l, part.start));
  const int32_t step = integer(l, part.step);
  const int32_t rest = l.make(Opcode::rem_floor, distance, step);
  placed.mask =
      l.make(Opcode::bit_and, placed.mask, l.make(Opcode::eq, rest, l.constant_of(Type::i64, 0)));
  const Lookup lookup{l.make(Opcode::div_floor, distance, step), layout.strides[part.dim]};
  layout.sizes[part.dim] = 1;
  placed.value = load_at(l, slot, layout, lookup, placed.mask);
  return placed;
}

Layout with_dimension(Layout layout, size_t dim) {
  layout.sizes.insert(layout.sizes.begin() + static_cast<std::ptrdiff_t>(dim), 1);
  layout.strides.insert(layout.strides.begin() + static_cast<std::ptrdiff_t>(dim), 0);
  return layout;
}

/// self with a part of it from argument 1.
bool scatter_part(Lowering& l, const Part& part, const Layout& source) {
  const Layout& self = l.layout(0);
  if (!is_plain(self) || source.dtype != self.dtype || !fits(part, self.sizes, source)) {
    return false;
  }
  l.begin(self.sizes);
  const Placed placed = place(l, self.sizes, part, slot_of(l, 1), source);
  return stores(l,
                l.make(Opcode::select, placed.mask, placed.value, l.load(0, *type_of(self.dtype))));
}

bool slice_scatter(Lowering& l) {  // self, src, dim, start, end, step
  if (!l.is_tensor(0) || !l.is_tensor(1)) {
    return false;
  }
  const std::optional<Part> part = slice_of(l, 2, 3, l.layout(0).sizes);
  return part && scatter_part(l, *part, l.layout(1));
}

/// Arguments dim and index. Nothing where the tensor that is put there has not one dimension less.
std::optional<Part> selection_of(const Lowering& l, size_t dim, at::IntArrayRef sizes,
                                 const Layout& source) {
  if (!l.is_constant(dim) || !l.is_constant(dim + 1) || source.sizes.size() + 1 != sizes.size()) {
    return std::nullopt;
  }
  Part part;
  part.dim = wrap(l.constant(dim).toInt(), sizes.size());
  part.start = l.constant(dim + 1).toInt();
  part.start += part.start < 0 ? sizes[part.dim] : 0;
  part.end = part.start + 1;
  return part;
}

bool select_scatter(Lowering& l) {  // self, src, dim, index
  if (!l.is_tensor(0) || !l.is_tensor(1)) {
    return false;
  }
  const std::optional<Part> part = selection_of(l, 2, l.layout(0).sizes, l.layout(1));
  return part && scatter_part(l, *part, with_dimension(l.layout(1), part->dim));
}

/// Zeros with a part from argument 0.
bool part_of_zeros(Lowering& l, const Part& part, const Layout& source) {
  const Layout& whole = l.result_layout(0);
  if (!is_plain(source) || source.dtype != whole.dtype || !fits(part, whole.sizes, source)) {
    return false;
  }
  l.begin(whole.sizes);
  return stores(l, place(l, whole.sizes, part, slot_of(l, 0), source).value);
}

bool slice_backward(Lowering& l) {  // grad_output, input_sizes, dim, start, end, step
  if (!l.is_tensor(0)) {
    return false;
  }
  const std::optional<Part> part = slice_of(l, 2, 3, l.result_layout(0).sizes);
  return part && part_of_zeros(l, *part, l.layout(0));
}

bool select_backward(Lowering& l) {  // grad_output, input_sizes, dim, index
  if (!l.is_tensor(0)) {
    return false;
  }
  const std::optional<Part> part = selection_of(l, 2, l.result_layout(0).sizes, l.layout(0));
  return part && part_of_zeros(l, *part, with_dimension(l.layout(0), part->dim));
}

bool constant_pad_nd(Lowering& l) {  // self, pad, value
  const Layout& self = l.layout(0);
  if (!is_plain(self) || !l.is_constant(1)) {
    return false;
  }
  const std::vector<int64_t> pad = l.constant(1).toIntVector();
  const at::DimVector& sizes = l.result_layout(0).sizes;
  const size_t rank = sizes.size();
  const Type memory = *type_of(self.dtype);
  Layout from = self;
  from.sizes = sizes;
  l.begin(sizes);
  int32_t mask = -1;
  for (size_t k = 0; 2 * k + 1 < pad.size(); ++k) {
    const size_t dim = rank - 1 - k;
    const int64_t before = pad[2 * k];
    const int64_t after = pad[2 * k + 1];
    from.offset -= before * self.strides[dim];
    if (before > 0 || after > 0) {
      const int32_t here = between(l, position(l, sizes, dim), before, before + self.sizes[dim]);
      mask = both(l, mask, here);
    }
  }
  const int32_t value = load_at(l, slot_of(l, 0), from, {}, mask);
  return stores(l, mask < 0 ? value : l.make(Opcode::select, mask, value, number_of(l, 2, memory)));
}

// ---- The same elements in another order ----

bool flip(Lowering& l) {  // self, dims
  Layout from = l.layout(0);
  if (!is_plain(from) || !l.is_constant(1) || from.sizes.empty()) {
    return false;
  }
  for (int64_t given : l.constant(1).toIntVector()) {
    const size_t dim = wrap(given, from.sizes.size());
    from.offset += (from.sizes[dim] - 1) * from.strides[dim];
    from.strides[dim] = -from.strides[dim];
  }
  l.begin(l.result_layout(0).sizes);
  return stores(l, l.load_layout(slot_of(l, 0), from, *type_of(from.dtype)));
}

/// Along one dimension: what is moved over the end comes in at the beginning.
bool roll(Lowering& l) {  // self, shifts, dims
  const Layout& self = l.layout(0);
  const std::vector<int64_t> shifts = l.constant(1).toIntVector();
  const std::vector<int64_t> dims = l.constant(2).toIntVector();
  if (!is_plain(self) || self.sizes.empty() || shifts.size() != 1 || dims.size() != 1) {
    return false;
  }
  const size_t dim = wrap(dims[0], self.sizes.size());
  const int64_t size = self.sizes[dim];
  const int64_t shift = ((shifts[0] % size) + size) % size;
  l.begin(self.sizes);
  const int32_t wrapped = l.make(Opcode::lt, position(l, self.sizes, dim), integer(l, shift));
  Layout ahead = self;
  ahead.offset += (size - shift) * self.strides[dim];
  Layout behind = self;
  behind.offset -= shift * self.strides[dim];
  const int32_t first = load_at(l, slot_of(l, 0), ahead, {}, wrapped);
  const int32_t second = load_at(l, slot_of(l, 0), behind, {}, l.make(Opcode::bit_not, wrapped));
  return stores(l, l.make(Opcode::select, wrapped, first, second));
}

/// Both sides in a space where a dimension of the result is (times, size).
bool repeat(Lowering& l) {  // self, repeats
  const Layout& self = l.layout(0);
  const Layout& whole = l.result_layout(0);
  const size_t rank = whole.sizes.size();
  if (!is_plain(self) || !l.is_constant(1) || !l.wanted(0)) {
    return false;
  }
  const std::vector<int64_t> times = l.constant(1).toIntVector();
  if (times.size() != rank || self.sizes.size() > rank) {
    return false;
  }
  Layout from = self;
  Layout to = whole;
  from.sizes.clear();
  from.strides.clear();
  to.sizes.clear();
  to.strides.clear();
  for (size_t k = 0; k < rank; ++k) {
    const size_t missing = rank - self.sizes.size();
    const int64_t size = k < missing ? 1 : self.sizes[k - missing];
    for (bool outer : {true, false}) {
      from.sizes.push_back(outer ? 1 : size);
      from.strides.push_back(outer || k < missing ? 0 : self.strides[k - missing]);
      to.sizes.push_back(outer ? times[k] : size);
      to.strides.push_back(outer ? whole.strides[k] * size : whole.strides[k]);
    }
  }
  l.begin(to.sizes);
  l.store_operand_like(static_cast<uint32_t>(l.node().outputs[0]), to,
                       l.load_layout(slot_of(l, 0), from, *type_of(self.dtype)));
  l.end();
  return true;
}

bool stack(Lowering& l) {  // tensors, dim
  const ArgumentSource& list = l.argument(0);
  const Layout& whole = l.result_layout(0);
  if (list.kind != ArgumentSource::Kind::operand_list || !is_plain(whole) || !l.wanted(0) ||
      !l.description().writes.empty()) {  // parts of one write would be several
    return false;
  }
  const size_t dim = wrap(l.constant(1).toInt(), whole.sizes.size());
  const Type through = compute_type(*type_of(whole.dtype));
  Layout to = whole;
  to.sizes[dim] = 1;
  for (int element : list.elements) {
    if (element < 0 || !type_of(l.description().operands[element].dtype)) {
      return false;
    }
    const Layout& part = l.description().operands[element];
    l.begin(to.sizes);
    const bool same = part.dtype == whole.dtype;
    l.store_operand_like(static_cast<uint32_t>(l.node().outputs[0]), to,
                         l.load_layout(l.node().operands[element], with_dimension(part, dim),
                                       same ? *type_of(part.dtype) : through));
    l.end();
    to.offset += whole.strides[dim];
  }
  return true;
}

constexpr OperatorRow kRows[] = {
    {"_unsafe_index", index},
    {"constant_pad_nd", constant_pad_nd},
    {"flip", flip},
    {"gather", gather},
    {"index", index},
    {"index_select", index_select},
    {"repeat", repeat},
    {"roll", roll},
    {"scatter", scatter},
    {"select_backward", select_backward},
    {"select_scatter", select_scatter},
    {"slice_backward", slice_backward},
    {"slice_scatter", slice_scatter},
    {"stack", stack},
};

}  // namespace

c10::ArrayRef<OperatorRow> indexing_rows() {
  return kRows;
}

}  // namespace torch_lazy::compile
