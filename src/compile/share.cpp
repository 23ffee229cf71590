// Pass: steps that compute the same from the same slots become one. A result is not kept longer for
// it than memory allows: who computes something again to save memory gets that.
#include "compile/program.h"

#include <algorithm>
#include <string>
#include <type_traits>
#include <unordered_map>

namespace torch_lazy::compile {
namespace {

constexpr int64_t kSmall = int64_t{1} << 16;  // bytes that may always live longer

/// What a step computes, as bytes: all of it but the slots that it writes.
class Key {
 public:
  explicit Key(const Program& program, const Step& step) {
    put(step.kind);
    switch (step.kind) {
      case Step::Kind::piece:
        put_piece(step);
        break;
      case Step::Kind::product:
        put_view(step.product.a);
        put_view(step.product.b);
        put_layout(step.product.out.layout);
        put_convolution(step.product.convolution);
        break;
      case Step::Kind::call: {
        // Equal calls have one description: operator, layouts, attributes.
        const GraphNode& node = program.graph->nodes[step.node];
        put(node.description.get());
        put_list(node.operands);
        for (int32_t output : node.outputs) {
          put(output >= 0);
        }
        break;
      }
    }
  }

  std::string take() { return std::move(bytes_); }

 private:
  template <typename T>
  void put(const T& value) {
    static_assert(std::is_scalar_v<T>);  // no padding
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }

  template <typename List>
  void put_list(const List& list) {
    put(list.size());
    for (const auto& value : list) {
      put(value);
    }
  }

  void put_layout(const Layout& layout) {
    put_list(layout.sizes);
    put_list(layout.strides);
    put(layout.offset);
    put(layout.dtype);
    put(layout.conj);
    put(layout.neg);
  }

  void put_convolution(const std::optional<Convolution>& convolution) {
    put(convolution.has_value());
    if (convolution) {
      put(convolution->kind);
      put_list(convolution->stride);
      put_list(convolution->padding);
      put_list(convolution->dilation);
      put(convolution->groups);
    }
  }

  void put_view(const View& view) {
    put(view.slot);
    put_layout(view.layout);
  }

  void put_access(const Access& access, uint32_t slot) {
    put(slot);
    put(access.type);
    put(access.offset);
    put_list(access.strides);
    put(access.lookups.size());
    for (const Lookup& lookup : access.lookups) {
      put(lookup.term);
      put(lookup.stride);
    }
    put(access.mask);
  }

  void put_piece(const Step& step) {
    const Piece& piece = step.piece;
    put_list(piece.sizes);
    put(piece.outer);
    for (const Term& term : piece.terms) {
      put(term.op);
      put(term.type);
      put_list(c10::ArrayRef<int32_t>(term.operands));
      put(term.number);  // its bits: 0 is not -0
      put(term.integer);
      if (term.op == Opcode::load) {
        put_access(piece.accesses[term.place], piece.accesses[term.place].slot);
      } else if (is_write(term.op)) {
        const Access& access = piece.accesses[term.place];
        const auto* written = std::find(step.writes.begin(), step.writes.end(), access.slot);
        put_access(access, static_cast<uint32_t>(written - step.writes.begin()));
      } else if (term.op == Opcode::argument) {
        const Scalar& scalar = piece.scalars[term.place];
        // Two of the graph's numbers may be equal in one run and not in another.
        put(scalar.number);
        put(scalar.element);
        put(scalar.fixed);
      } else {
        put(term.place);
      }
    }
  }

  std::string bytes_;
};

/// Whether a call computes the same whenever it is made with the same operands.
bool is_function(const GraphNode& node) {
  const Description& d = *node.description;
  const OperatorInfo& op = *d.op;
  return op.aten && op.immediate == Immediate::no && !op.effect && !op.writes && !op.random_fill &&
         !op.writes_unannotated_statistics && d.writes.empty() && d.resizes.empty() &&
         d.numbers == 0 && !op.handle.hasTag(at::Tag::nondeterministic_seeded);
}

class Sharer {
 public:
  explicit Sharer(Program& program)
      : program_(program),
        same_(program.slots.size()),
        writers_(program.slots.size(), 0),
        last_writer_(program.slots.size(), 0),
        called_(program.slots.size(), 0),
        has_version_(program.slots.size(), 0),
        begin_(program.slots.size(), SIZE_MAX),
        end_(program.slots.size(), 0),
        live_(program.steps.size(), 0),
        dropped_(program.steps.size(), 0) {
    find_first_versions();
    find_uses_of_slots();
    find_live_bytes();
  }

  void run();

 private:
  void find_uses_of_slots();
  void find_live_bytes();
  void find_first_versions();
  uint32_t first_version(uint32_t slot) const { return first_[slot]; }
  void read_shared(Step& step) const;
  bool is_plain(size_t index) const;
  bool can_share(size_t kept, size_t dropped) const;
  bool fits_in_memory(size_t kept, size_t dropped) const;
  void share(size_t kept, size_t dropped);

  Program& program_;
  std::vector<uint32_t> same_;   // by slot: the one that is read instead
  std::vector<uint32_t> first_;  // by slot: the first version of its buffer
  std::vector<uint32_t> writers_;
  std::vector<size_t> last_writer_;
  std::vector<char> called_;  // read by a call, which finds its operands in the graph
  std::vector<char> has_version_;
  std::vector<size_t> begin_;  // by first version: the step from which on it takes memory
  std::vector<size_t> end_;    // and the last one
  std::vector<int64_t> live_;  // by step: bytes
  int64_t peak_ = 0;
  std::vector<char> dropped_;  // by step
};

/// Follows each chain of versions once: a buffer may have as many as the program has steps.
void Sharer::find_first_versions() {
  constexpr uint32_t unknown = UINT32_MAX;
  first_.assign(program_.slots.size(), unknown);
  std::vector<uint32_t> chain;
  for (uint32_t slot = 0; slot < program_.slots.size(); ++slot) {
    uint32_t at = slot;
    while (first_[at] == unknown && program_.slots[at].base >= 0) {
      chain.push_back(at);
      at = static_cast<uint32_t>(program_.slots[at].base);
    }
    first_[at] = first_[at] == unknown ? at : first_[at];
    for (; !chain.empty(); chain.pop_back()) {
      first_[chain.back()] = first_[at];
    }
  }
}

void Sharer::find_uses_of_slots() {
  for (uint32_t slot = 0; slot < program_.slots.size(); ++slot) {
    same_[slot] = slot;
    if (program_.slots[slot].base >= 0) {
      has_version_[program_.slots[slot].base] = 1;
    }
  }
  for (size_t i = 0; i < program_.steps.size(); ++i) {
    const Step& step = program_.steps[i];
    for (uint32_t slot : step.reads) {
      called_[slot] |= step.kind == Step::Kind::call;
      end_[first_version(slot)] = i;
    }
    for (uint32_t slot : step.writes) {
      ++writers_[slot];
      last_writer_[slot] = i;
      const uint32_t first = first_version(slot);
      begin_[first] = std::min(begin_[first], i);
      end_[first] = i;
    }
  }
}

/// As if every write were in place, which is about what the memory plan makes of it.
void Sharer::find_live_bytes() {
  for (uint32_t slot = 0; slot < program_.slots.size(); ++slot) {
    if (program_.slots[slot].survives) {
      end_[first_version(slot)] = program_.steps.size();
    }
  }
  for (uint32_t slot = 0; slot < program_.slots.size(); ++slot) {
    const Slot& s = program_.slots[slot];
    if (s.base >= 0 || (s.parameter && !s.fresh) || begin_[slot] == SIZE_MAX) {
      continue;
    }
    live_[begin_[slot]] += s.nbytes;
    if (end_[slot] + 1 < live_.size()) {
      live_[end_[slot] + 1] -= s.nbytes;
    }
  }
  for (size_t i = 0; i < live_.size(); ++i) {  // changes so far
    live_[i] += i > 0 ? live_[i - 1] : 0;
    peak_ = std::max(peak_, live_[i]);
  }
}

/// The step reads what is left instead of what was dropped.
void Sharer::read_shared(Step& step) const {
  if (std::all_of(step.reads.begin(), step.reads.end(),
                  [&](uint32_t slot) { return same_[slot] == slot; })) {
    return;
  }
  if (step.kind == Step::Kind::product) {
    step.product.a.slot = same_[step.product.a.slot];
    step.product.b.slot = same_[step.product.b.slot];
  } else {
    for (Access& access : step.piece.accesses) {
      access.slot = same_[access.slot];  // of a store: itself
    }
    simplify(step.piece);
  }
  find_uses(program_, step);
}

/// Whether the step's results are values and nothing else: not the next version of a buffer, not
/// one that is overwritten later, not a part of one; and what it reads is complete.
bool Sharer::is_plain(size_t index) const {
  const Step& step = program_.steps[index];
  if (step.writes.empty() ||
      (step.kind == Step::Kind::call && !is_function(program_.graph->nodes[step.node]))) {
    return false;
  }
  return std::all_of(step.writes.begin(), step.writes.end(),
                     [&](uint32_t slot) {
                       const Slot& s = program_.slots[slot];
                       return s.base < 0 && !s.parameter && !has_version_[slot] &&
                              writers_[slot] == 1;
                     }) &&
         std::all_of(step.reads.begin(), step.reads.end(), [&](uint32_t slot) {
           return writers_[slot] == 0 || last_writer_[slot] < index;
         });
}

/// What is needed after the run keeps memory of its own, and a call reads what the graph says.
bool Sharer::can_share(size_t kept, size_t dropped) const {
  const auto& from = program_.steps[kept].writes;
  const auto& to = program_.steps[dropped].writes;
  for (size_t i = 0; i < to.size(); ++i) {
    if (program_.slots[to[i]].survives || called_[to[i]] ||
        program_.slots[from[i]].nbytes != program_.slots[to[i]].nbytes) {
      return false;
    }
  }
  return fits_in_memory(kept, dropped);
}

/// Whether the program takes no more memory at its worst if the results live on until `dropped`.
bool Sharer::fits_in_memory(size_t kept, size_t dropped) const {
  const auto& slots = program_.steps[kept].writes;
  int64_t bytes = 0;
  for (uint32_t slot : slots) {
    bytes += program_.slots[slot].nbytes;
  }
  if (bytes <= kSmall) {
    return true;
  }
  for (size_t i = kept + 1; i < dropped; ++i) {
    int64_t more = 0;
    for (uint32_t slot : slots) {
      more += end_[slot] < i ? program_.slots[slot].nbytes : 0;
    }
    if (more > 0 && live_[i] + more > peak_) {
      return false;
    }
  }
  return true;
}

void Sharer::share(size_t kept, size_t dropped) {
  for (size_t i = 0; i < program_.steps[kept].writes.size(); ++i) {
    const uint32_t from = program_.steps[kept].writes[i];
    const uint32_t to = program_.steps[dropped].writes[i];
    const int64_t bytes = program_.slots[from].nbytes;
    for (size_t k = end_[from] + 1; k < dropped; ++k) {
      live_[k] += bytes;
    }
    for (size_t k = dropped; k <= std::min(end_[from], end_[to]) && k < live_.size(); ++k) {
      live_[k] -= bytes;
    }
    end_[from] = std::max(end_[from], end_[to]);
    same_[to] = from;
  }
  dropped_[dropped] = 1;
}

void Sharer::run() {
  std::unordered_map<std::string, size_t> known;  // the last step that computes this
  for (size_t i = 0; i < program_.steps.size(); ++i) {
    read_shared(program_.steps[i]);
    if (!is_plain(i)) {
      continue;
    }
    auto [it, fresh] = known.emplace(Key(program_, program_.steps[i]).take(), i);
    if (!fresh && can_share(it->second, i)) {
      share(it->second, i);
    } else {
      it->second = i;
    }
  }
  std::vector<Step> steps;
  for (size_t i = 0; i < program_.steps.size(); ++i) {
    if (!dropped_[i]) {
      steps.push_back(std::move(program_.steps[i]));
    }
  }
  program_.steps = std::move(steps);
}

}  // namespace

Program share(Program program) {
  Sharer(program).run();
  return program;
}

}  // namespace torch_lazy::compile
