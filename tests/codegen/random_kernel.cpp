// Every float here is an integer of known size, small enough for sums to be exact in any order: so
// machine code and interpreter must agree to the last bit.
#include "random_kernel.h"

#include "codegen/operations.h"
#include "codegen/scalar.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>

namespace torch_lazy::codegen {
namespace {

constexpr int64_t kSmall = 64;  // what a value is brought back to before it grows too large
constexpr int64_t kLarge = 1 << 11;
constexpr int64_t kLookups = 9;  // how far a computed index goes

class Generator {
 public:
  explicit Generator(unsigned seed) : random_(seed) {}

  Problem make() {
    make_space();
    const int stages = 1 + pick(4);
    for (int i = 0; i < stages; ++i) {
      make_stage(i == stages - 1);
    }
    return std::move(problem_);
  }

 private:
  struct Known {
    int32_t value;
    Type type;
    int64_t bound;  // |value| <= bound
    bool row;       // belongs to the row
  };

  int pick(int count) { return static_cast<int>(random_() % static_cast<unsigned>(count)); }
  bool chance(int percent) { return pick(100) < percent; }
  Kernel& kernel() { return problem_.kernel; }
  bool in_row() const { return in_row_; }

  void make_space() {
    kernel().lanes = chance(50) ? Lanes::inner : Lanes::outer;
    kernel().outer = pick(4);
    kernel().inner = pick(3);
    if (kernel().lanes == Lanes::outer && kernel().outer == 0) {
      kernel().outer = 1;
    }
    const int64_t sizes[] = {1, 2, 3, 5, 8, 16, 17, 33, 70, 150, 300, 700};
    const int lane = kernel().lanes == Lanes::outer ? kernel().outer - 1 : kernel().rank() - 1;
    int64_t total = 1;
    for (int d = 0; d < kernel().rank(); ++d) {
      int64_t size = sizes[pick(d == lane ? 12 : 5)];
      if (chance(3)) {
        size = 0;
      }
      problem_.sizes.push_back(size);
      total *= std::max<int64_t>(size, 1);
    }
    for (int d = 0; total > 6000; ++d) {
      total /= std::max<int64_t>(problem_.sizes[d], 1);
      problem_.sizes[d] = std::min<int64_t>(problem_.sizes[d], 1);
    }
    problem_.tile = 1 + pick(chance(50) ? 200 : 1000);
  }

  // ---- Instructions
  // ------------------------------------------------------------------------------

  int32_t append(Opcode op, Type type, std::vector<int32_t> operands, int32_t place = -1,
                 int64_t number = 0) {
    Instruction instruction;
    instruction.op = op;
    instruction.type = type;
    std::copy(operands.begin(), operands.end(), instruction.operands);
    instruction.place = place;
    instruction.number = is_float(type) ? static_cast<double>(number) : 0;
    instruction.integer = is_float(type) ? 0 : number;
    kernel().code.push_back(instruction);
    return static_cast<int32_t>(kernel().code.size()) - 1;
  }

  Known add_known(int32_t value, Type type, int64_t bound) {
    Known known{value, type, bound, in_row()};
    known_.push_back(known);
    return known;
  }

  Known constant(Type type, int64_t number) {
    return {append(Opcode::constant, type, {}, -1, number), type, std::abs(number), in_row()};
  }

  /// Brought back to [-limit, limit]; only for types with arithmetic.
  Known clamp(Known value, int64_t limit) {
    if (value.bound <= limit) {
      return value;
    }
    const Known high = constant(value.type, limit), low = constant(value.type, -limit);
    const int32_t below = append(Opcode::min, value.type, {value.value, high.value});
    const int32_t result = append(Opcode::max, value.type, {below, low.value});
    return {result, value.type, limit, in_row()};
  }

  Known convert(Known value, Type to) {
    if (value.type == to) {
      return value;
    }
    if (value.bound > kLarge && is_wide(value.type)) {
      value = clamp(value, kLarge);
    }
    int64_t bound = value.bound;
    if (to == Type::boolean) {
      bound = 1;
    } else if (to == Type::i8 || to == Type::u8) {
      bound = 255;
    } else if (is_float(to) && !is_wide(to)) {
      bound = bound * 129 / 128 + 1;  // may be rounded up
    }
    return {append(Opcode::convert, to, {value.value}), to, bound, in_row()};
  }

  static bool is_wide(Type type) {
    return type == Type::f32 || type == Type::f64 || type == Type::i32 || type == Type::i64;
  }
  Type wide_type() {
    const Type types[] = {Type::f32, Type::f32, Type::f64, Type::i32, Type::i64};
    return types[pick(5)];
  }
  Type any_type() { return chance(40) ? Type::f32 : static_cast<Type>(pick(kTypes)); }

  /// Something visible here, in this type.
  Known value_of(Type type) {
    std::vector<Known> visible;
    for (const Known& known : known_) {
      if (known.row || (known.value >= stage_begin_ && !in_row())) {
        visible.push_back(known);
      }
    }
    if (visible.empty() || chance(5)) {
      return constant(type, type == Type::boolean ? pick(2) : type == Type::u8 ? 7 : pick(9) - 4);
    }
    return convert(visible[pick(static_cast<int>(visible.size()))], type);
  }

  void make_operation() {
    const Type type = wide_type();
    const bool floats = is_float(type);
    switch (pick(9)) {
      case 0: {
        const int dimension = pick(std::max(1, in_row() ? kernel().outer : kernel().rank()));
        if (dimension < (in_row() ? kernel().outer : kernel().rank())) {
          const bool extent = chance(20);
          add_known(append(extent ? Opcode::extent : Opcode::index, Type::i64, {}, dimension),
                    Type::i64, 700);
        }
        break;
      }
      case 1: {
        const Known a = clamp(value_of(type), kSmall), b = clamp(value_of(type), 16);
        add_known(append(Opcode::mul, type, {a.value, b.value}), type, a.bound * b.bound);
        break;
      }
      case 2:
      case 3: {
        const Opcode ops[] = {Opcode::add, Opcode::sub, Opcode::min, Opcode::max};
        const Known a = clamp(value_of(type), kLarge), b = clamp(value_of(type), kLarge);
        add_known(append(ops[pick(4)], type, {a.value, b.value}), type, a.bound + b.bound);
        break;
      }
      case 4: {
        const Opcode ops[] = {Opcode::neg, Opcode::abs, floats ? Opcode::floor : Opcode::bit_not};
        const Known a = clamp(value_of(type), kLarge);
        add_known(append(ops[pick(3)], type, {a.value}), type, a.bound + 1);
        break;
      }
      case 5: {
        const Opcode ops[] = {Opcode::eq, Opcode::ne, Opcode::lt,
                              Opcode::le, Opcode::gt, Opcode::ge};
        const Known a = value_of(type), b = value_of(type);
        add_known(append(ops[pick(6)], Type::boolean, {a.value, b.value}), Type::boolean, 1);
        break;
      }
      case 6: {
        const Type any = any_type();
        const Known c = value_of(Type::boolean), a = value_of(any), b = value_of(any);
        add_known(append(Opcode::select, any, {c.value, a.value, b.value}), any,
                  std::max(a.bound, b.bound));
        break;
      }
      case 7: {
        const Opcode ops[] = {Opcode::rem_trunc, Opcode::rem_floor, Opcode::div_trunc,
                              Opcode::div_floor};
        const Known a = clamp(value_of(type), kLarge), b = constant(type, 1 + pick(9));
        add_known(append(ops[pick(floats ? 2 : 4)], type, {a.value, b.value}), type,
                  std::max(a.bound, b.bound) + 1);
        break;
      }
      default: {
        const Opcode ops[] = {Opcode::bit_and, Opcode::bit_or, Opcode::bit_xor};
        const Type bits = chance(50) ? Type::boolean : chance(50) ? Type::i32 : Type::i64;
        const Known a = value_of(bits), b = value_of(bits);
        add_known(append(ops[pick(3)], bits, {a.value, b.value}), bits,
                  2 * (a.bound + b.bound) + 1);
      }
    }
  }

  void make_reduction() {
    const Opcode op = static_cast<Opcode>(static_cast<int>(Opcode::reduce_sum) + pick(9));
    if (op == Opcode::reduce_any || op == Opcode::reduce_all) {
      const Known a = value_of(Type::boolean);
      pending_.push_back({append(op, Type::boolean, {a.value}), Type::boolean, 1, true});
      return;
    }
    Type type = wide_type();
    if (op == Opcode::reduce_fmax && !is_float(type)) {
      type = Type::f32;
    }
    const Known a = clamp(value_of(type), op == Opcode::reduce_prod ? 1 : kLarge);
    const bool position = op == Opcode::reduce_argmin || op == Opcode::reduce_argmax;
    int64_t bound = a.bound;
    for (int d = kernel().outer; d < kernel().rank(); ++d) {
      bound *= std::max<int64_t>(problem_.sizes[d], 1);
    }
    // Of nothing the extremes are infinite, which no bound describes.
    bool empty = false;
    for (int d = kernel().outer; d < kernel().rank(); ++d) {
      empty |= problem_.sizes[d] == 0;
    }
    if (empty && (op >= Opcode::reduce_min && op <= Opcode::reduce_fmax)) {
      return;
    }
    pending_.push_back({append(op, position ? Type::i64 : type, {a.value}),
                        position ? Type::i64 : type, std::max<int64_t>(bound, 6000), true});
  }

  void make_scan() {
    const bool product = chance(30);
    const Type type = wide_type();
    const Known a = clamp(value_of(type), product ? 1 : 8);
    int64_t bound = a.bound;
    for (int d = kernel().outer; d < kernel().rank(); ++d) {
      bound *= std::max<int64_t>(problem_.sizes[d], 1);
    }
    add_known(append(product ? Opcode::scan_prod : Opcode::scan_sum, type, {a.value}), type,
              std::max<int64_t>(bound, 1));
  }

  // ---- Memory
  // ------------------------------------------------------------------------------------

  /// Strides over the dimensions that count here, without overlap when `apart`; enough memory.
  int32_t make_access(int32_t pointer, bool apart, std::vector<Lookup> lookups, int32_t mask) {
    Access access;
    access.pointer = pointer;
    access.strides.assign(kernel().rank(), Stride::zero);
    std::vector<int64_t> steps(kernel().rank(), 0);
    std::vector<int> order;
    // Scratch memory may serve one row after the other; not when rows lie in lanes.
    const bool reused = kernel().pointers[pointer].use == Use::scratch &&
                        kernel().lanes == Lanes::inner && chance(80);
    for (int d = reused ? kernel().outer : 0; d < (in_row() ? kernel().outer : kernel().rank());
         ++d) {
      order.push_back(d);
    }
    const int lane = kernel().lanes == Lanes::outer ? kernel().outer - 1 : kernel().rank() - 1;
    std::shuffle(order.begin(), order.end(), random_);
    if (chance(60)) {  // side by side along the lanes
      std::stable_sort(order.begin(), order.end(),
                       [&](int a, int b) { return (a == lane) > (b == lane); });
    }
    int64_t step = 1, last = 0;
    for (const int d : order) {
      if (!apart && chance(25)) {
        continue;
      }
      steps[d] = step;
      const bool dense = step == 1 && chance(80);
      if (!dense) {
        steps[d] *= 1 + pick(2);
      }
      access.strides[d] = steps[d] == 1 && dense ? Stride::one : Stride::argument;
      last += (std::max<int64_t>(problem_.sizes[d], 1) - 1) * steps[d];
      step = steps[d] * std::max<int64_t>(problem_.sizes[d], 1);
    }
    std::vector<int64_t> arguments;
    for (int d = 0; d < kernel().rank(); ++d) {
      if (access.strides[d] == Stride::argument) {
        arguments.push_back(steps[d]);
      }
    }
    for (Lookup& lookup : lookups) {
      lookup.stride = static_cast<Stride>(pick(3));
      const int64_t reach = lookup.stride == Stride::argument ? 3 : lookup.stride == Stride::one;
      if (lookup.stride == Stride::argument) {
        arguments.push_back(reach);
      }
      last += reach * kLookups;
    }
    access.lookups = lookups;
    access.mask = mask;
    kernel().accesses.push_back(access);
    problem_.strides.push_back(arguments);
    const size_t size = (last + 1) * size_of(kernel().pointers[pointer].type);
    if (problem_.memory[pointer].size() < size) {
      problem_.memory[pointer].resize(size);
      fill(pointer);
    }
    return static_cast<int32_t>(kernel().accesses.size()) - 1;
  }

  int32_t make_pointer(Type type, Use use) {
    kernel().pointers.push_back({type, use});
    problem_.memory.emplace_back();
    return static_cast<int32_t>(kernel().pointers.size()) - 1;
  }

  void fill(int32_t pointer) {
    const Type type = kernel().pointers[pointer].type;
    std::vector<char>& bytes = problem_.memory[pointer];
    for (size_t i = 0; i < bytes.size(); i += size_of(type)) {
      const int64_t number = type == Type::boolean ? pick(2)
                             : type == Type::u8    ? pick(9)
                                                   : pick(17) - 8;
      write_scalar(type, make_scalar(type, static_cast<double>(number), number), &bytes[i]);
    }
  }

  int32_t make_mask() { return chance(25) ? value_of(Type::boolean).value : -1; }

  std::vector<Lookup> make_lookups() {
    std::vector<Lookup> lookups;
    while (lookups.size() < 2 && chance(20)) {
      const Known value = clamp(value_of(Type::i64), kLarge);
      const Known range = constant(Type::i64, kLookups);
      lookups.push_back({append(Opcode::rem_floor, Type::i64, {value.value, range.value})});
    }
    return lookups;
  }

  void make_load() {
    auto load = [&](int32_t access, Type type) {
      add_known(append(Opcode::load, type, {}, access), type, type == Type::u8 ? 255 : 8);
    };
    if (!in_row() && !elements_read_.empty() && chance(40)) {  // again, in another stage perhaps
      const auto [access, type] = elements_read_[pick(static_cast<int>(elements_read_.size()))];
      load(access, type);
      return;
    }
    const Type type = any_type();
    const auto lookups = make_lookups();
    const int32_t mask = make_mask();
    const int32_t access = make_access(make_pointer(type, Use::read), false, lookups, mask);
    load(access, type);
    if (!in_row() && lookups.empty() && mask < 0) {
      elements_read_.emplace_back(access, type);
    }
  }

  void make_store() {
    const Type type = any_type();
    const Known value = value_of(type);
    if (chance(20) && is_wide(type)) {  // in place
      const int32_t access =
          make_access(make_pointer(type, Use::read_write), true, {}, make_mask());
      const int32_t old = append(Opcode::load, type, {}, access);
      const Known more = clamp(value, kLarge);
      const int32_t sum = append(Opcode::add, type, {old, more.value});
      append(Opcode::store, type, {sum}, access);
      return;
    }
    const int32_t mask = make_mask();
    const int32_t access = make_access(make_pointer(type, Use::write), chance(90), {}, mask);
    append(Opcode::store, type, {value.value}, access);
  }

  /// Every row has elements of its own, among which lookups choose: they may meet.
  void make_accumulate() {
    Type type = any_type();
    type = type == Type::boolean ? Type::f32 : type;
    Known value = value_of(type);
    if (is_wide(type)) {
      value = clamp(value, kSmall);
    }
    Access access;
    access.lookups = make_lookups();
    access.mask = make_mask();
    access.pointer = make_pointer(type, Use::read_write);
    access.strides.assign(kernel().rank(), Stride::zero);
    // Digits of an element's number: indices of the row, and lookups.
    const int lookups = static_cast<int>(access.lookups.size());
    std::vector<int> order(kernel().outer + lookups);
    std::iota(order.begin(), order.end(), -lookups);
    std::shuffle(order.begin(), order.end(), random_);
    if (kernel().lanes == Lanes::outer && chance(60)) {  // side by side along the lanes
      std::stable_sort(order.begin(), order.end(),
                       [&](int a, int b) { return std::max(a, b) == kernel().outer - 1 && a > b; });
    }
    std::vector<int64_t> row_steps(kernel().outer), lookup_steps(lookups);
    int64_t count = 1;
    for (const int d : order) {
      const bool one = count == 1 && chance(80);
      (d >= 0 ? row_steps[d] : lookup_steps[-d - 1]) = count;
      (d >= 0 ? access.strides[d] : access.lookups[-d - 1].stride) =
          one ? Stride::one : Stride::argument;
      count *= d >= 0 ? std::max<int64_t>(problem_.sizes[d], 1) : kLookups;
    }
    std::vector<int64_t>& arguments = problem_.strides.emplace_back();
    for (int d = 0; d < kernel().outer; ++d) {
      if (access.strides[d] == Stride::argument) {
        arguments.push_back(row_steps[d]);
      }
    }
    for (int i = 0; i < lookups; ++i) {
      if (access.lookups[i].stride == Stride::argument) {
        arguments.push_back(lookup_steps[i]);
      }
    }
    problem_.memory[access.pointer].resize(count * size_of(type));
    fill(access.pointer);
    kernel().accesses.push_back(access);
    append(Opcode::accumulate, type, {value.value},
           static_cast<int32_t>(kernel().accesses.size()) - 1);
  }

  void make_scratch_store() {
    const Type type = any_type();
    const Known value = value_of(type);
    const int32_t pointer = make_pointer(type, Use::scratch);
    const int32_t number = make_access(pointer, true, {}, -1);
    scratch_.push_back({number, type, value.bound, false});
    append(Opcode::store, type, {value.value}, number);
  }

  void make_argument() {
    const Type type = any_type();
    kernel().arguments.push_back(type);
    problem_.arguments.push_back(0);
    write_scalar(type, make_scalar(type, 3, type == Type::boolean ? 1 : 3),
                 &problem_.arguments.back());
    add_known(
        append(Opcode::argument, type, {}, static_cast<int32_t>(kernel().arguments.size()) - 1),
        type, 3);
  }

  // ---- Stages
  // ------------------------------------------------------------------------------------

  void make_stage(bool last) {
    Stage stage;
    stage.kind = chance(35) ? Stage::Kind::row : Stage::Kind::each;
    in_row_ = stage.kind == Stage::Kind::row;
    stage.begin = stage_begin_ = static_cast<int32_t>(kernel().code.size());
    const std::vector<Known> scratch = std::move(scratch_);
    scratch_.clear();
    if (!in_row()) {
      for (const Known& stored : scratch) {
        add_known(append(Opcode::load, stored.type, {}, stored.value), stored.type, stored.bound);
      }
    } else {
      scratch_ = scratch;  // for the next stage of elements
    }
    const int steps = 2 + pick(7);
    for (int i = 0; i < steps; ++i) {
      if (chance(25)) {
        make_load();
      } else if (!in_row() && chance(20)) {
        make_reduction();
      } else if (!in_row() && chance(10)) {
        make_scan();
      } else if (chance(15)) {
        make_store();
      } else if (chance(6)) {
        make_accumulate();
      } else if (chance(5)) {
        make_argument();
      } else if (!in_row() && chance(8)) {
        make_scratch_store();
      } else {
        make_operation();
      }
    }
    if (last || chance(50)) {
      make_store();
    }
    if (chance(8)) {
      append(Opcode::check, Type::boolean, {value_of(Type::boolean).value}, pick(3));
    }
    known_.erase(
        std::remove_if(known_.begin(), known_.end(), [](const Known& known) { return !known.row; }),
        known_.end());
    known_.insert(known_.end(), pending_.begin(), pending_.end());
    pending_.clear();
    stage.end = static_cast<int32_t>(kernel().code.size());
    kernel().stages.push_back(stage);
  }

  std::mt19937_64 random_;
  Problem problem_;
  std::vector<Known> known_;
  std::vector<Known> pending_;                           // reductions: known after the stage
  std::vector<std::pair<int32_t, Type>> elements_read_;  // accesses of loads in stages of elements
  std::vector<Known> scratch_;                           // `value` is the access
  int32_t stage_begin_ = 0;
  bool in_row_ = false;
};

}  // namespace

Problem random_problem(unsigned seed) {
  return Generator(seed).make();
}

}  // namespace torch_lazy::codegen
