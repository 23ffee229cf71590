// Lifetimes, writes in place, and one arena for what lives only during the run.
#include "compile/memory.h"

#include "compile/emit.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_set>

namespace torch_lazy::compile {
namespace {

constexpr int64_t kAlignment = 64;
constexpr size_t kPlacedByPairs = 2048;  // values in the arena

int64_t aligned(int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

/// Whether a store writes every byte of the slot.
bool covers(const Program& program, const Piece& piece, uint32_t slot) {
  int64_t elements = 0;
  int64_t size = 1;
  for (const Term& term : piece.terms) {
    if (term.op == Opcode::store && piece.accesses[term.place].slot == slot) {
      const Access& access = piece.accesses[term.place];
      const bool plain = access.mask < 0 && access.lookups.empty();
      elements += plain ? elements_touched(piece, access) : 0;
      size = codegen::size_of(access.type);
    }
  }
  return elements * size == program.slots[slot].nbytes;
}

bool has_checks(const Piece& piece) {
  return std::any_of(piece.terms.begin(), piece.terms.end(),
                     [](const Term& term) { return term.op == Opcode::check; });
}

/// From the batch that makes it to the last one that needs it.
struct Life {
  size_t begin = SIZE_MAX;
  size_t end = 0;
  int64_t bytes = 0;

  bool overlaps(const Life& other) const { return begin <= other.end && other.begin <= end; }
};

/// Memory that values share one after the other.
class Region {
 public:
  /// The lowest place that is free while the value lives.
  int64_t find(const Life& life) const {
    int64_t offset = 0;
    for (const Block& block : blocks_) {
      if (!block.life.overlaps(life)) {
        continue;
      }
      if (block.offset - offset >= life.bytes) {
        break;
      }
      offset = std::max(offset, block.offset + block.life.bytes);
    }
    return offset;
  }

  void place(const Life& life, int64_t offset) {
    auto after = std::upper_bound(blocks_.begin(), blocks_.end(), offset,
                                  [](int64_t o, const Block& block) { return o < block.offset; });
    blocks_.insert(after, {offset, life});
  }

 private:
  struct Block {
    int64_t offset;
    Life life;
  };
  std::vector<Block> blocks_;  // by offset
};

/// The same for very many values, in the order in which they begin: memory is given back when a
/// value ends, and the smallest free range that fits is taken. Packs less tightly than Region.
class Ranges {
 public:
  int64_t place(const Life& life) {
    while (!ends_.empty() && ends_.begin()->first < life.begin) {
      give_back(ends_.begin()->second.first, ends_.begin()->second.second);
      ends_.erase(ends_.begin());
    }
    int64_t offset = end_;
    const auto fit = by_size_.lower_bound({life.bytes, 0});
    if (fit != by_size_.end()) {
      offset = fit->second;
      const int64_t rest = fit->first - life.bytes;
      remove(offset, fit->first);
      if (rest > 0) {
        add(offset + life.bytes, rest);
      }
    } else {
      end_ += life.bytes;
    }
    ends_.emplace(life.end, std::pair(offset, life.bytes));
    return offset;
  }

 private:
  void add(int64_t offset, int64_t bytes) {
    by_offset_.emplace(offset, bytes);
    by_size_.emplace(bytes, offset);
  }

  void remove(int64_t offset, int64_t bytes) {
    by_offset_.erase(offset);
    by_size_.erase({bytes, offset});
  }

  void give_back(int64_t offset, int64_t bytes) {
    const auto after = by_offset_.find(offset + bytes);
    if (after != by_offset_.end()) {
      const int64_t more = after->second;
      remove(offset + bytes, more);
      bytes += more;
    }
    auto before = by_offset_.lower_bound(offset);
    if (before != by_offset_.begin() && (--before)->first + before->second == offset) {
      const auto [begin, size] = *before;
      remove(begin, size);
      offset = begin;
      bytes += size;
    }
    add(offset, bytes);
  }

  std::map<int64_t, int64_t> by_offset_;                     // free: offset, bytes
  std::set<std::pair<int64_t, int64_t>> by_size_;            // the same as bytes, offset
  std::multimap<size_t, std::pair<int64_t, int64_t>> ends_;  // in use, by the last batch
  int64_t end_ = 0;
};

class Planner {
 public:
  explicit Planner(const Program& program) : program_(program) {}

  MemoryPlan run() {
    make_batches();
    find_lifetimes();
    find_homes();
    place_in_arena();
    find_live_bytes();
    return std::move(plan_);
  }

 private:
  void make_batches();
  void find_lifetimes();
  void find_homes();
  std::map<uint32_t, Life> find_lives(Home::Kind kind) const;
  void place_in_arena();
  void find_live_bytes();

  const Program& program_;
  MemoryPlan plan_;
};

void Planner::make_batches() {
  std::unordered_set<uint32_t> reads;
  std::unordered_set<uint32_t> writes;
  std::unordered_set<uint32_t> overwritten;  // slots of which others are the next version
  bool open = false;
  for (uint32_t i = 0; i < program_.steps.size(); ++i) {
    const Step& step = program_.steps[i];
    if (step.kind != Step::Kind::piece) {
      plan_.batches.push_back({{i}, {}});
      open = false;
      continue;
    }
    bool fits = open;
    for (uint32_t slot : step.reads) {
      fits = fits && !writes.count(slot);
    }
    for (uint32_t slot : step.writes) {
      const int32_t base = program_.slots[slot].base;
      fits =
          fits && !writes.count(slot) && (base < 0 || (!reads.count(base) && !writes.count(base)));
    }
    // What this one reads must not be overwritten by the others.
    fits = fits && std::none_of(step.reads.begin(), step.reads.end(),
                                [&](uint32_t slot) { return overwritten.count(slot) > 0; });
    if (!fits) {
      plan_.batches.push_back({});
      reads.clear();
      writes.clear();
      overwritten.clear();
      open = true;
    }
    plan_.batches.back().steps.push_back(i);
    reads.insert(step.reads.begin(), step.reads.end());
    for (uint32_t slot : step.writes) {
      writes.insert(slot);
      if (program_.slots[slot].base >= 0) {
        overwritten.insert(static_cast<uint32_t>(program_.slots[slot].base));
      }
    }
  }
}

void Planner::find_lifetimes() {
  plan_.last_use.assign(program_.slots.size(), 0);
  for (size_t b = 0; b < plan_.batches.size(); ++b) {
    for (uint32_t i : plan_.batches[b].steps) {
      const Step& step = program_.steps[i];
      for (uint32_t slot : step.reads) {
        plan_.last_use[slot] = b;
      }
      for (uint32_t slot : step.writes) {
        plan_.last_use[slot] = b;
        if (program_.slots[slot].base >= 0) {
          uint32_t base = static_cast<uint32_t>(program_.slots[slot].base);
          plan_.last_use[base] = std::max(plan_.last_use[base], b);
        }
      }
      const bool fallible = step.kind == Step::Kind::call
                                ? is_fallible(program_.graph->nodes[step.node])
                                : step.kind == Step::Kind::piece && has_checks(step.piece);
      if (fallible) {
        plan_.last_fallible = b + 1;
      }
    }
  }
}

void Planner::find_homes() {
  plan_.homes.resize(program_.slots.size());
  plan_.commit = plan_.batches.size();
  std::vector<char> outside(program_.slots.size(), 0);  // by group: a parameter's or a call's
  std::vector<char> parameter(program_.slots.size(), 0);
  std::vector<char> survives(program_.slots.size(), 0);  // by group
  std::vector<char> written(program_.slots.size(), 0);
  for (uint32_t slot = 0; slot < program_.slots.size(); ++slot) {
    plan_.homes[slot].group = slot;
    const Slot& s = program_.slots[slot];
    outside[slot] = s.parameter && !s.fresh;
    parameter[slot] = outside[slot];
    survives[slot] = s.survives;
  }
  for (size_t b = 0; b < plan_.batches.size(); ++b) {
    for (uint32_t i : plan_.batches[b].steps) {
      const Step& step = program_.steps[i];
      const bool call = step.kind == Step::Kind::call;
      for (uint32_t slot : step.writes) {
        const int32_t base = program_.slots[slot].base;
        Home& home = plan_.homes[slot];
        home.covered = step.kind == Step::Kind::product ||
                       (step.kind == Step::Kind::piece && covers(program_, step.piece, slot));
        if (base < 0) {
          outside[slot] = call;
          continue;
        }
        TORCH_INTERNAL_ASSERT(!written[slot], "two steps write one version of a buffer");
        written[slot] = 1;
        const uint32_t group = plan_.homes[base].group;
        bool in_place = !program_.slots[base].survives && plan_.last_use[base] <= b &&
                        (call || can_write_in_place(step.piece, slot, static_cast<uint32_t>(base)));
        // Data that was there before the run stays as it is until nothing can fail any more.
        if (parameter[group] && (b < plan_.last_fallible)) {
          in_place = false;
        }
        if (in_place) {
          home.in_place = true;
          home.group = group;
          if (parameter[group]) {
            plan_.commit = std::min(plan_.commit, b);
          }
          survives[group] |= program_.slots[slot].survives;
        } else {
          outside[slot] = call;
        }
      }
    }
  }
  for (uint32_t slot = 0; slot < program_.slots.size(); ++slot) {
    Home& home = plan_.homes[slot];
    home.kind = outside[home.group]                           ? Home::Kind::outside
                : survives[home.group]                        ? Home::Kind::own
                : program_.slots[home.group].nbytes >= kBlock ? Home::Kind::block
                                                              : Home::Kind::arena;
  }
  for (size_t b = 0; b < plan_.batches.size(); ++b) {
    for (uint32_t i : plan_.batches[b].steps) {
      const Step& step = program_.steps[i];
      for (const auto* list : {&step.reads}) {
        for (uint32_t slot : *list) {
          if (plan_.last_use[slot] == b && !program_.slots[slot].survives) {
            plan_.batches[b].done.push_back(slot);
          }
        }
      }
      for (uint32_t slot : step.writes) {
        if (plan_.last_use[slot] == b && !program_.slots[slot].survives) {
          plan_.batches[b].done.push_back(slot);
        }
        const int32_t base = program_.slots[slot].base;
        if (base >= 0 && plan_.last_use[base] == b && !program_.slots[base].survives) {
          plan_.batches[b].done.push_back(static_cast<uint32_t>(base));
        }
      }
    }
  }
}

std::map<uint32_t, Life> Planner::find_lives(Home::Kind kind) const {
  std::map<uint32_t, Life> lives;  // by group
  for (size_t b = 0; b < plan_.batches.size(); ++b) {
    auto touch = [&](uint32_t slot) {
      const Home& home = plan_.homes[slot];
      if (home.kind == kind) {
        Life& life = lives[home.group];
        life.begin = std::min(life.begin, b);
        life.end = std::max(life.end, plan_.last_use[slot]);
        life.bytes = std::max(life.bytes, aligned(program_.slots[slot].nbytes));
      }
    };
    for (uint32_t i : plan_.batches[b].steps) {
      const Step& step = program_.steps[i];
      std::for_each(step.reads.begin(), step.reads.end(), touch);
      for (uint32_t slot : step.writes) {
        touch(slot);
        if (program_.slots[slot].base >= 0) {
          touch(static_cast<uint32_t>(program_.slots[slot].base));
        }
      }
    }
  }
  return lives;
}

void Planner::place_in_arena() {
  const std::map<uint32_t, Life> lives = find_lives(Home::Kind::arena);
  std::vector<std::pair<uint32_t, Life>> order(lives.begin(), lives.end());
  // The largest first, each at the lowest place that is free while it lives. That looks at each
  // pair of values: very many are placed as they begin.
  const bool many = order.size() > kPlacedByPairs;
  std::stable_sort(order.begin(), order.end(), [&](const auto& a, const auto& b) {
    return many ? a.second.begin < b.second.begin : a.second.bytes > b.second.bytes;
  });
  Region arena;
  Ranges ranges;
  std::map<uint32_t, int64_t> offsets;  // by group
  for (const auto& [group, life] : order) {
    const int64_t offset = many ? ranges.place(life) : arena.find(life);
    if (!many) {
      arena.place(life, offset);
    }
    offsets[group] = offset;
    plan_.arena_bytes = std::max(plan_.arena_bytes, offset + life.bytes);
  }
  for (Home& home : plan_.homes) {
    auto it = offsets.find(home.group);
    if (home.kind == Home::Kind::arena && it != offsets.end()) {
      home.offset = it->second;
    }
  }
}

void Planner::find_live_bytes() {
  const size_t count = plan_.batches.size();
  std::vector<int64_t> live(count + 1, 0);  // by batch: how much more than in the one before
  std::vector<int64_t> late(count + 1, 0);  // of it, what is allocated from the commit on
  for (Home::Kind kind : {Home::Kind::arena, Home::Kind::block, Home::Kind::own}) {
    for (const auto& [group, life] : find_lives(kind)) {
      const size_t end = kind == Home::Kind::own ? count : std::min(life.end + 1, count);
      if (kind != Home::Kind::own) {
        live[life.begin] += life.bytes;
        live[end] -= life.bytes;
      }
      if (kind != Home::Kind::arena && life.begin >= plan_.commit) {
        late[life.begin] += life.bytes;
        late[end] -= life.bytes;
      }
    }
  }
  int64_t live_now = 0;
  int64_t late_now = 0;
  for (size_t b = 0; b < count; ++b) {
    plan_.live_bytes = std::max(plan_.live_bytes, live_now += live[b]);
    plan_.late_bytes = std::max(plan_.late_bytes, late_now += late[b]);
  }
}

}  // namespace

bool is_fallible(const GraphNode& node) {
  // These fail only when memory runs out: what their arguments allow was checked when recorded.
  static const std::unordered_set<std::string> safe = {
      "aten::mm",
      "aten::addmm",
      "aten::bmm",
      "aten::baddbmm",
      "aten::linear",
      "aten::convolution",
      "aten::mv",
      "aten::dot",
      "aten::convolution_backward",
      "aten::native_batch_norm",
      "aten::native_batch_norm_backward",
      "aten::max_pool2d_with_indices",
      "aten::max_pool2d_with_indices_backward",
      "aten::avg_pool2d",
      "aten::avg_pool2d_backward",
      "aten::_adaptive_avg_pool2d",
      "aten::_adaptive_avg_pool2d_backward",
      "aten::cumsum",
      "aten::_scaled_dot_product_flash_attention_for_cpu",
      "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
      "aten::embedding_dense_backward",
  };
  return !safe.count(node.description->op->name);
}

MemoryPlan plan_memory(const Program& program) {
  return Planner(program).run();
}

}  // namespace torch_lazy::compile
