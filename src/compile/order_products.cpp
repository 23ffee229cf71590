// Products that do not need each other: first the one that lets go of more memory than the other,
// as of a layer's two products in backward that with its input, which nobody needs any more.
#include "compile/program.h"

#include <algorithm>
#include <utility>

namespace torch_lazy::compile {
namespace {

bool reads(const Step& step, uint32_t slot) {
  return std::find(step.reads.begin(), step.reads.end(), slot) != step.reads.end();
}

class Order {
 public:
  explicit Order(Program& program)
      : slots_(program.slots), steps_(program.steps), last_use_(program.slots.size(), 0) {
    for (size_t i = 0; i < steps_.size(); ++i) {
      for (uint32_t slot : steps_[i].reads) {
        last_use_[slot] = i;
      }
    }
  }

  void run() {
    bool changed = true;
    for (size_t round = 0; changed && round < steps_.size(); ++round) {
      changed = false;
      for (size_t i = 0; i + 1 < steps_.size(); ++i) {
        if (can_swap(i) && in_use(i + 1, i) < in_use(i, i + 1)) {
          swap(i);
          changed = true;
        }
      }
    }
  }

 private:
  bool can_swap(size_t i) const {
    const Step &a = steps_[i], &b = steps_[i + 1];
    const auto is_plain = [&](const Step& step) {
      return step.kind == Step::Kind::product && slots_[step.product.out.slot].base < 0;
    };
    return is_plain(a) && is_plain(b) && !reads(b, a.product.out.slot);
  }

  int64_t taken(size_t i) const { return slots_[steps_[i].product.out.slot].nbytes; }

  /// What dies with a step and is of no use to its neighbour.
  int64_t freed(size_t i, size_t neighbour) const {
    int64_t bytes = 0;
    for (uint32_t slot : steps_[i].reads) {
      const bool dies = !slots_[slot].survives && !slots_[slot].parameter && last_use_[slot] == i;
      bytes += dies && !reads(steps_[neighbour], slot) ? slots_[slot].nbytes : 0;
    }
    return bytes;
  }

  /// The most that the two take when they run in this order.
  int64_t in_use(size_t first, size_t second) const {
    return taken(first) + std::max<int64_t>(0, taken(second) - freed(first, second));
  }

  void swap(size_t i) {
    for (auto [from, to] : {std::pair(i, i + 1), std::pair(i + 1, i)}) {
      for (uint32_t slot : steps_[from].reads) {
        if (!reads(steps_[to], slot) && last_use_[slot] == from) {
          last_use_[slot] = to;
        }
      }
    }
    std::swap(steps_[i], steps_[i + 1]);
  }

  const std::vector<Slot>& slots_;
  std::vector<Step>& steps_;
  std::vector<size_t> last_use_;  // by slot: the last step that reads it
};

}  // namespace

Program order_products(Program program) {
  Order(program).run();
  return program;
}

}  // namespace torch_lazy::compile
