// Pass: merges pieces where that saves memory traffic. Producers into consumers first, then pieces
// that read the same memory side by side.
#include "compile/cost.h"
#include "compile/program.h"

#include <algorithm>
#include <queue>

namespace torch_lazy::compile {
namespace {

using List = c10::SmallVector<uint32_t, 6>;

/// The steps and what must run before what.
class Fuser {
 public:
  explicit Fuser(Program& program)
      : program_(program),
        readers_(program.slots.size()),
        writers_(program.slots.size()),
        versions_(program.slots.size()),
        before_(program.steps.size()),
        after_(program.steps.size()),
        dead_(program.steps.size(), 0),
        seen_(program.steps.size(), 0) {
    connect();
  }

  void run() {
    for (uint32_t step = 0; step < program_.steps.size(); ++step) {
      if (dead_[step] || !is_piece(step)) {
        continue;
      }
      absorb_producers(step);
    }
    for (uint32_t slot = 0; slot < program_.slots.size(); ++slot) {
      merge_readers(slot);
    }
    reorder();
  }

 private:
  bool is_piece(uint32_t step) const { return program_.steps[step].kind == Step::Kind::piece; }

  void edge(uint32_t from, uint32_t to) {
    if (from != to) {
      put(after_[from], to);
      put(before_[to], from);
    }
  }

  void connect();
  bool reaches(uint32_t from, uint32_t to);
  bool try_merge(uint32_t first, uint32_t second);
  void absorb_producers(uint32_t step);
  void merge_readers(uint32_t slot);
  void drop_private(uint32_t step);
  bool versions_fit(uint32_t first, uint32_t second, const Piece& merged) const;
  void reorder();

  Program& program_;
  std::vector<List> readers_;
  std::vector<List> writers_;
  std::vector<List> versions_;  // by slot: the slots whose base it is
  std::vector<List> before_;
  std::vector<List> after_;
  std::vector<char> dead_;
  std::vector<uint32_t> seen_;
  uint32_t stamp_ = 0;
};

void Fuser::connect() {
  for (uint32_t i = 0; i < program_.steps.size(); ++i) {
    for (uint32_t slot : program_.steps[i].reads) {
      put(readers_[slot], i);
    }
    for (uint32_t slot : program_.steps[i].writes) {
      put(writers_[slot], i);
    }
  }
  for (uint32_t slot = 0; slot < program_.slots.size(); ++slot) {
    for (uint32_t writer : writers_[slot]) {
      for (uint32_t reader : readers_[slot]) {
        edge(writer, reader);
      }
      const int32_t base = program_.slots[slot].base;
      if (base >= 0) {
        put(versions_[base], slot);
        for (uint32_t before : writers_[base]) {
          edge(before, writer);
        }
        // Readers of the old value first: then the new one can take its memory.
        for (uint32_t reader : readers_[base]) {
          edge(reader, writer);
        }
      }
    }
  }
  // Effects, and operators that are not PyTorch's own, keep their order.
  int64_t last = -1;
  for (uint32_t i = 0; i < program_.steps.size(); ++i) {
    if (program_.steps[i].kind == Step::Kind::call) {
      const OperatorInfo& op = *program_.graph->nodes[program_.steps[i].node].description->op;
      if (op.effect || !op.aten) {
        if (last >= 0) {
          edge(static_cast<uint32_t>(last), i);
        }
        last = i;
      }
    }
  }
}

/// Whether `to` depends on `from` through some third step.
bool Fuser::reaches(uint32_t from, uint32_t to) {
  constexpr size_t kGiveUp = 4000;
  ++stamp_;
  std::vector<uint32_t> stack;
  size_t visited = 0;
  for (uint32_t next : after_[from]) {
    if (next != to) {
      stack.push_back(next);
    }
  }
  while (!stack.empty()) {
    const uint32_t step = stack.back();
    stack.pop_back();
    if (step == to) {
      return true;
    }
    if (seen_[step] == stamp_) {
      continue;
    }
    seen_[step] = stamp_;
    if (++visited > kGiveUp) {
      return true;
    }
    stack.insert(stack.end(), after_[step].begin(), after_[step].end());
  }
  return false;
}

/// Makes `second` do the work of both, if that is possible and worth it.
bool Fuser::try_merge(uint32_t first, uint32_t second) {
  Step& a = program_.steps[first];
  Step& b = program_.steps[second];
  std::optional<Piece> merged = merge(a.piece, b.piece);
  if (!merged) {
    return false;
  }
  simplify(*merged);
  if (!worth_merging(a.piece, b.piece, *merged) || !versions_fit(first, second, *merged) ||
      reaches(first, second)) {
    return false;
  }
  b.piece = std::move(*merged);
  b.position = std::min(a.position, b.position);
  dead_[first] = 1;
  auto replace = [&](List& list) {
    auto it = std::find(list.begin(), list.end(), first);
    if (it != list.end()) {
      list.erase(it);
      return true;
    }
    return false;
  };
  for (uint32_t before : before_[first]) {
    replace(after_[before]);
    edge(before, second);
  }
  for (uint32_t after : after_[first]) {
    replace(before_[after]);
    edge(second, after);
  }
  for (uint32_t slot : a.reads) {
    replace(readers_[slot]);
    put(readers_[slot], second);
  }
  for (uint32_t slot : a.writes) {
    replace(writers_[slot]);
    put(writers_[slot], second);
  }
  before_[first].clear();
  after_[first].clear();
  a.piece = Piece();
  List old_reads(b.reads.begin(), b.reads.end());
  old_reads.append(a.reads.begin(), a.reads.end());
  find_uses(program_, b);
  for (uint32_t slot : old_reads) {
    if (std::find(b.reads.begin(), b.reads.end(), slot) == b.reads.end()) {
      auto it = std::find(readers_[slot].begin(), readers_[slot].end(), second);
      if (it != readers_[slot].end()) {
        readers_[slot].erase(it);
      }
    }
  }
  drop_private(second);
  return true;
}

/// Two versions of one buffer cannot be written by one kernel: the older one must vanish.
bool Fuser::versions_fit(uint32_t first, uint32_t second, const Piece& merged) const {
  const auto& older = program_.steps[first].writes;
  for (uint32_t slot : program_.steps[second].writes) {
    const int32_t base = program_.slots[slot].base;
    if (base < 0 ||
        std::find(older.begin(), older.end(), static_cast<uint32_t>(base)) == older.end()) {
      continue;
    }
    const bool elsewhere =
        std::any_of(readers_[base].begin(), readers_[base].end(),
                    [&](uint32_t reader) { return reader != first && reader != second; });
    const Access* mine = store_of(merged, static_cast<uint32_t>(base));
    const Access* next = store_of(merged, slot);
    if (elsewhere || program_.slots[base].survives || writers_[base].size() != 1 ||
        versions_[base].size() != 1 || !mine || !next || !mine->same_elements(*next)) {
      return false;
    }
  }
  return true;
}

/// Does not store what nobody else reads.
void Fuser::drop_private(uint32_t step) {
  Step& s = program_.steps[step];
  std::vector<char> unused(program_.slots.size(), 0);
  bool any = false;
  for (uint32_t slot : s.writes) {
    if (program_.slots[slot].survives || !readers_[slot].empty() || writers_[slot].size() != 1) {
      continue;
    }
    // A later version of it may need what this one leaves alone.
    bool needed = false;
    for (uint32_t other : versions_[slot]) {
      if (writers_[other].empty()) {
        continue;
      }
      const Access* mine = store_of(s.piece, slot);
      const Access* next = writers_[other].size() == 1 && writers_[other][0] == step
                               ? store_of(s.piece, other)
                               : nullptr;
      if (mine && next && mine->same_elements(*next)) {
        const int32_t base = program_.slots[slot].base;
        program_.slots[other].base = base;
        if (base >= 0) {
          put(versions_[base], other);
        }
      } else {
        needed = true;
      }
    }
    if (!needed) {
      unused[slot] = 1;
      any = true;
      writers_[slot].clear();
    }
  }
  if (any) {
    drop_stores(s.piece, unused);
    find_uses(program_, s);
  }
}

void Fuser::absorb_producers(uint32_t step) {
  bool changed = true;
  List refused;
  while (changed) {
    changed = false;
    std::vector<uint32_t> producers;
    for (uint32_t slot : program_.steps[step].reads) {
      for (uint32_t writer : writers_[slot]) {
        if (writer != step && is_piece(writer) &&
            std::find(refused.begin(), refused.end(), writer) == refused.end()) {
          producers.push_back(writer);
        }
      }
    }
    std::sort(producers.begin(), producers.end(), std::greater<>());
    for (uint32_t producer : producers) {
      if (try_merge(producer, step)) {
        changed = true;
        break;
      }
      refused.push_back(producer);
    }
  }
}

/// Pieces that read the same slot, next to each other in the program.
void Fuser::merge_readers(uint32_t slot) {
  List readers;
  for (uint32_t reader : readers_[slot]) {
    if (is_piece(reader)) {
      readers.push_back(reader);
    }
  }
  std::sort(readers.begin(), readers.end());
  for (size_t i = 0; i + 1 < readers.size(); ++i) {
    const uint32_t first = readers[i];
    const uint32_t second = readers[i + 1];
    if (dead_[first] || dead_[second] || program_.slots[slot].nbytes < 4096) {
      continue;
    }
    const List& after = after_[second];
    if (std::find(after.begin(), after.end(), first) == after.end() && !reaches(second, first)) {
      try_merge(first, second);
    }
  }
}

/// What can run first in the program runs first.
void Fuser::reorder() {
  auto later = [&](uint32_t a, uint32_t b) {
    return program_.steps[a].position > program_.steps[b].position;
  };
  std::priority_queue<uint32_t, std::vector<uint32_t>, decltype(later)> ready(later);
  std::vector<size_t> waits(program_.steps.size(), 0);
  size_t alive = 0;
  for (uint32_t i = 0; i < program_.steps.size(); ++i) {
    waits[i] = before_[i].size();
    alive += dead_[i] ? 0 : 1;
    if (!dead_[i] && waits[i] == 0) {
      ready.push(i);
    }
  }
  std::vector<Step> ordered;
  while (!ready.empty()) {
    const uint32_t step = ready.top();
    ready.pop();
    for (uint32_t next : after_[step]) {
      if (--waits[next] == 0) {
        ready.push(next);
      }
    }
    ordered.push_back(std::move(program_.steps[step]));
  }
  TORCH_INTERNAL_ASSERT(ordered.size() == alive, "fusion made a cycle");
  program_.steps = std::move(ordered);
}

}  // namespace

Program fuse(Program program) {
  Fuser(program).run();
  return program;
}

}  // namespace torch_lazy::compile
