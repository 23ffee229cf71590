// The reference: one element after the other, as the kernel says. Sums and products of f32 are kept
// in f64 until the end, so that a comparison sees the code generator's rounding only.
#include "codegen/operations.h"
#include "codegen/scalar.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace torch_lazy::codegen {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Accumulator {
  Scalar value;
  int64_t position = 0;
  bool empty = true;
};

class Interpreter {
 public:
  Interpreter(const Kernel& kernel, const Call& call)
      : kernel_(kernel),
        call_(call),
        values_(kernel.code.size()),
        accumulators_(kernel.code.size()),
        index_(kernel.rank()) {
    const int64_t* next = call.numbers + kernel.rank();
    for (const Access& access : kernel.accesses) {
      std::vector<int64_t>& strides = strides_.emplace_back();
      auto add = [&](Stride stride) {
        strides.push_back(stride == Stride::argument ? *next++ : stride == Stride::one ? 1 : 0);
      };
      for (Stride stride : access.strides) {
        add(stride);
      }
      for (const Lookup& lookup : access.lookups) {
        add(lookup.stride);
      }
    }
    for (size_t i = 0; i < kernel.pointers.size(); ++i) {
      const bool scratch = kernel.pointers[i].use == Use::scratch;
      bases_.push_back(scratch ? call.scratch + *next++ : static_cast<char*>(call.pointers[i]));
    }
  }

  void run() {
    for (int64_t unit = call_.begin; unit < call_.end; ++unit) {
      if (kernel_.lanes == Lanes::inner) {
        set_outer(unit, kernel_.outer);
        run_row();
        continue;
      }
      const int32_t last = kernel_.outer - 1;
      const int64_t size = call_.numbers[last];
      const int64_t tiles = (size + call_.tile - 1) / call_.tile;
      set_outer(unit / tiles, last);
      const int64_t start = unit % tiles * call_.tile;
      for (int64_t i = start; i < std::min(start + call_.tile, size); ++i) {
        index_[last] = i;
        run_row();
      }
    }
  }

 private:
  void set_outer(int64_t number, int32_t dimensions) {
    for (int32_t d = dimensions - 1; d >= 0; --d) {
      index_[d] = number % call_.numbers[d];
      number /= call_.numbers[d];
    }
  }

  void run_row() {
    for (const Stage& stage : kernel_.stages) {
      if (stage.kind == Stage::Kind::row) {
        run_code(stage);
        continue;
      }
      for (int32_t i = stage.begin; i < stage.end; ++i) {
        accumulators_[i] = Accumulator();
      }
      position_ = 0;
      run_inner(stage, kernel_.outer);
      for (int32_t i = stage.begin; i < stage.end; ++i) {
        if (is_reduction(kernel_.code[i].op)) {
          values_[i] = result(kernel_.code[i], accumulators_[i]);
        }
      }
    }
  }

  void run_inner(const Stage& stage, int32_t dimension) {
    if (dimension == kernel_.rank()) {
      run_code(stage);
      ++position_;
      return;
    }
    for (int64_t i = 0; i < call_.numbers[dimension]; ++i) {
      index_[dimension] = i;
      run_inner(stage, dimension + 1);
    }
  }

  void run_code(const Stage& stage) {
    for (int32_t i = stage.begin; i < stage.end; ++i) {
      run_instruction(kernel_.code[i], i);
    }
  }

  void run_instruction(const Instruction& instruction, int32_t place) {
    Scalar operands[3];
    Type type = instruction.type;
    const int count = operation(instruction.op).operands;
    for (int i = 0; i < count; ++i) {
      operands[i] = values_[instruction.operands[i]];
      type = kernel_.code[instruction.operands[i]].type;  // of select: that of the last
    }
    Scalar& value = values_[place];
    switch (instruction.op) {
      case Opcode::constant:
        value = make_scalar(type, instruction.number, instruction.integer);
        break;
      case Opcode::argument:
        value =
            read_scalar(type, static_cast<const char*>(call_.arguments) + 8 * instruction.place);
        break;
      case Opcode::index:
        value.integer = index_[instruction.place];
        break;
      case Opcode::extent:
        value.integer = call_.numbers[instruction.place];
        break;
      case Opcode::load:
        value = active(instruction) ? read_scalar(type, address(instruction)) : Scalar();
        break;
      case Opcode::store:
        if (active(instruction)) {
          write_scalar(type, operands[0], address(instruction));
        }
        break;
      case Opcode::accumulate:
        if (active(instruction)) {
          const Type wide = compute_type(type);
          const Scalar old = read_scalar(type, address(instruction));
          const Scalar sum =
              apply(Opcode::add, wide,
                    {convert_scalar(old, type, wide), convert_scalar(operands[0], type, wide), {}});
          write_scalar(type, convert_scalar(sum, wide, type), address(instruction));
        }
        break;
      case Opcode::check:
        if (!operands[0].integer) {
          *call_.status = instruction.place + 1;
        }
        break;
      case Opcode::convert:
        value = convert_scalar(operands[0], type, instruction.type);
        break;
      default:
        if (is_reduction(instruction.op)) {
          accumulate(instruction.op, type, operands[0], accumulators_[place]);
        } else if (is_scan(instruction.op)) {
          accumulate(instruction.op, type, operands[0], accumulators_[place]);
          const Scalar& total = accumulators_[place].value;
          value = make_scalar(type, total.number, total.integer);
        } else {
          value = apply(instruction.op, type, operands);
        }
    }
  }

  bool active(const Instruction& instruction) const {
    const int32_t mask = kernel_.accesses[instruction.place].mask;
    return mask < 0 || values_[mask].integer;
  }

  char* address(const Instruction& instruction) const {
    const Access& access = kernel_.accesses[instruction.place];
    const std::vector<int64_t>& strides = strides_[instruction.place];
    int64_t offset = 0;
    for (size_t d = 0; d < access.strides.size(); ++d) {
      // A stride of zero may stand for a dimension that has no index here (a row stage).
      offset += strides[d] ? index_[d] * strides[d] : 0;
    }
    for (size_t i = 0; i < access.lookups.size(); ++i) {
      offset += values_[access.lookups[i].value].integer * strides[access.strides.size() + i];
    }
    return bases_[access.pointer] + offset * size_of(instruction.type);
  }

  void accumulate(Opcode op, Type type, Scalar value, Accumulator& into) const {
    const bool first = into.empty;
    into.empty = false;
    Scalar& total = into.value;
    switch (op) {
      case Opcode::reduce_sum:
      case Opcode::scan_sum:
        total.number += value.number;
        total.integer = static_cast<int64_t>(static_cast<uint64_t>(total.integer) +
                                             static_cast<uint64_t>(value.integer));
        break;
      case Opcode::reduce_prod:
      case Opcode::scan_prod:
        total.number = first ? value.number : total.number * value.number;
        total.integer = first ? value.integer
                              : static_cast<int64_t>(static_cast<uint64_t>(total.integer) *
                                                     static_cast<uint64_t>(value.integer));
        break;
      case Opcode::reduce_min:
      case Opcode::reduce_max:
        total = first ? value
                      : apply(op == Opcode::reduce_min ? Opcode::min : Opcode::max, type,
                              {total, value, {}});
        break;
      case Opcode::reduce_fmax:
        total.number = std::fmax(first ? -kInfinity : total.number, value.number);
        break;
      case Opcode::reduce_any:
        total.integer = first ? value.integer : total.integer | value.integer;
        break;
      case Opcode::reduce_all:
        total.integer = first ? value.integer : total.integer & value.integer;
        break;
      default: {
        const Opcode better = op == Opcode::reduce_argmin ? Opcode::lt : Opcode::gt;
        const bool nan = std::isnan(value.number) && !std::isnan(total.number);
        if (first || nan ||
            (!std::isnan(total.number) && apply(better, type, {value, total, {}}).integer)) {
          total = value;
          into.position = position_;
        }
      }
    }
  }

  /// Nothing reduced gives what changes nothing: 0, 1, the least or the greatest number.
  static Scalar result(const Instruction& instruction, const Accumulator& from) {
    const Type type = instruction.type;
    if (from.empty) {
      const bool greatest = instruction.op == Opcode::reduce_min;
      switch (instruction.op) {
        case Opcode::reduce_prod:
        case Opcode::reduce_all:
          return make_scalar(type, 1, 1);
        case Opcode::reduce_min:
        case Opcode::reduce_max:
        case Opcode::reduce_fmax: {
          const int64_t limit = type == Type::i32 ? std::numeric_limits<int32_t>::max()
                                                  : std::numeric_limits<int64_t>::max();
          return make_scalar(type, greatest ? kInfinity : -kInfinity, greatest ? limit : ~limit);
        }
        default:
          return Scalar();
      }
    }
    if (instruction.op == Opcode::reduce_argmin || instruction.op == Opcode::reduce_argmax) {
      return {0, from.position};
    }
    return make_scalar(type, from.value.number, from.value.integer);
  }

  const Kernel& kernel_;
  const Call& call_;
  std::vector<Scalar> values_;
  std::vector<Accumulator> accumulators_;
  std::vector<int64_t> index_;
  std::vector<std::vector<int64_t>> strides_;  // by access: dimensions, then lookups
  std::vector<char*> bases_;
  int64_t position_ = 0;
};

}  // namespace

void interpret(const Kernel& kernel, const Call& call) {
  Interpreter(kernel, call).run();
}

}  // namespace torch_lazy::codegen
