// The rules of a kernel. Whoever makes one learns here, with the offending line, what is wrong; the
// interpreter and the code generator rely on a kernel that passed.
#include "codegen/operations.h"

#include <stdexcept>

namespace torch_lazy::codegen {
namespace {

class Verifier {
 public:
  explicit Verifier(const Kernel& kernel) : kernel_(kernel) {}

  void run() {
    check_space();
    check_accesses();
    check_stages();
    for (const Stage& stage : kernel_.stages) {
      stage_ = &stage;
      for (place_ = stage.begin; place_ < stage.end; ++place_) {
        check_instruction(kernel_.code[place_]);
      }
    }
  }

 private:
  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    std::string message = "invalid kernel: ";
    if (place_ >= 0) {
      message += "instruction " + std::to_string(place_) + " (" +
                 operation(kernel_.code[place_].op).name + "): ";
    }
    ((message += parts), ...);
    throw std::invalid_argument(message);
  }

  static std::string name(int32_t value) { return std::string("%").append(std::to_string(value)); }

  void check_space() const {
    constexpr int32_t kMost = 64;
    if (kernel_.outer < 0 || kernel_.inner < 0 || kernel_.outer > kMost || kernel_.inner > kMost) {
      fail("a number of dimensions is not in 0 to 64");
    }
    if (kernel_.lanes == Lanes::outer && kernel_.outer == 0) {
      fail("lanes outer needs an outer dimension");
    }
  }

  void check_accesses() const {
    for (size_t i = 0; i < kernel_.accesses.size(); ++i) {
      const Access& access = kernel_.accesses[i];
      const std::string which = "access " + std::to_string(i);
      if (access.pointer < 0 || access.pointer >= static_cast<int32_t>(kernel_.pointers.size())) {
        fail(which, " has no pointer");
      }
      if (static_cast<int32_t>(access.strides.size()) != kernel_.rank()) {
        fail(which, " has ", std::to_string(access.strides.size()), " strides for ",
             std::to_string(kernel_.rank()), " dimensions");
      }
      // With lanes outer many rows run at once: one piece of scratch memory cannot serve them all.
      if (kernel_.pointers[access.pointer].use == Use::scratch && kernel_.lanes == Lanes::outer &&
          access.strides[kernel_.outer - 1] == Stride::zero) {
        fail(which, ": scratch memory needs a stride along the lanes");
      }
    }
  }

  void check_stages() const {
    int32_t end = 0;
    for (const Stage& stage : kernel_.stages) {
      if (stage.begin != end || stage.end < stage.begin) {
        fail("the stages do not follow each other");
      }
      end = stage.end;
    }
    if (end != static_cast<int32_t>(kernel_.code.size())) {
      fail("instructions outside of all stages");
    }
  }

  bool in_row() const { return stage_->kind == Stage::Kind::row; }

  /// That the value is there for the instruction at hand; its type.
  Type use(int32_t value) const {
    if (value < 0 || value >= place_) {
      fail(name(value), " is not defined before it");
    }
    const Instruction& definition = kernel_.code[value];
    if (operation(definition.op).result == Operation::Result::nothing) {
      fail(name(value), " is no value");
    }
    const bool same_stage = value >= stage_->begin;
    if (is_reduction(definition.op)) {
      if (same_stage) {
        fail(name(value), ", a reduction, has its result only after the stage");
      }
    } else if (!same_stage && stage_of(value).kind != Stage::Kind::row) {
      fail(name(value), " belongs to the elements of an earlier stage");
    }
    return definition.type;
  }

  const Stage& stage_of(int32_t value) const {
    for (const Stage& stage : kernel_.stages) {
      if (value < stage.end) {
        return stage;
      }
    }
    fail(name(value), " is in no stage");
  }

  void check_type(Type found, Type expected, const std::string& what) const {
    if (found != expected) {
      fail(what, " is ", type_name(found), ", not ", type_name(expected));
    }
  }

  void check_instruction(const Instruction& instruction) const {
    const Operation& row = operation(instruction.op);
    Type operand_type = instruction.type;  // of a leaf: the type that the table restricts
    for (int i = 0; i < row.operands; ++i) {
      const Type type = use(instruction.operands[i]);
      if (instruction.op == Opcode::select && i == 0) {
        check_type(type, Type::boolean, name(instruction.operands[i]));
      } else if (i == (instruction.op == Opcode::select ? 1 : 0)) {
        operand_type = type;
      } else {
        check_type(type, operand_type, name(instruction.operands[i]));
      }
    }
    if (!supports(instruction.op, operand_type)) {
      fail("does not exist for ", type_name(operand_type));
    }
    switch (row.result) {
      case Operation::Result::operand:
        check_type(instruction.type, operand_type, "the result");
        break;
      case Operation::Result::boolean:
        check_type(instruction.type, Type::boolean, "the result");
        break;
      case Operation::Result::i64:
        check_type(instruction.type, Type::i64, "the result");
        break;
      case Operation::Result::nothing:
        check_type(instruction.type, operand_type, "what it says");
        break;
      case Operation::Result::declared:
        break;
    }
    if (is_reduction(instruction.op) && in_row()) {
      fail("a row stage has nothing to reduce");
    }
    if (is_scan(instruction.op) && in_row()) {
      fail("a row stage has no elements to scan");
    }
    check_place(instruction);
  }

  void check_place(const Instruction& instruction) const {
    switch (instruction.op) {
      case Opcode::constant:
        if (instruction.type == Type::boolean && (instruction.integer & ~int64_t{1})) {
          fail("a boolean is 0 or 1");
        }
        break;
      case Opcode::argument:
        check_range(instruction.place, kernel_.arguments.size(), "argument");
        check_type(instruction.type, kernel_.arguments[instruction.place], "the result");
        break;
      case Opcode::extent:
        check_range(instruction.place, kernel_.rank(), "dimension");
        break;
      case Opcode::index:
        check_range(instruction.place, kernel_.rank(), "dimension");
        if (in_row() && instruction.place >= kernel_.outer) {
          fail("a row has no position along an inner dimension");
        }
        break;
      case Opcode::load:
      case Opcode::store:
      case Opcode::accumulate:
        check_range(instruction.place, kernel_.accesses.size(), "access");
        check_access(instruction, kernel_.accesses[instruction.place]);
        break;
      case Opcode::check:
        if (instruction.place < 0) {
          fail("has no place to report");
        }
        break;
      default:
        break;
    }
  }

  void check_range(int32_t place, size_t size, const char* what) const {
    if (place < 0 || place >= static_cast<int32_t>(size)) {
      fail("there is no ", what, " ", std::to_string(place));
    }
  }

  void check_access(const Instruction& instruction, const Access& access) const {
    const Pointer& pointer = kernel_.pointers[access.pointer];
    check_type(instruction.type, pointer.type, "what it moves");
    const Use wrong = instruction.op == Opcode::load ? Use::write : Use::read;
    if (pointer.use == wrong) {
      fail("pointer ", std::to_string(access.pointer), " is only to ",
           wrong == Use::write ? "write" : "read");
    }
    if (instruction.op == Opcode::accumulate && pointer.use != Use::read_write) {
      fail("pointer ", std::to_string(access.pointer), " is not read_write");
    }
    if (in_row()) {
      for (int32_t d = kernel_.outer; d < kernel_.rank(); ++d) {
        if (access.strides[d] != Stride::zero) {
          fail("a row stage cannot move along an inner dimension");
        }
      }
    }
    for (const Lookup& lookup : access.lookups) {
      check_type(use(lookup.value), Type::i64, "the lookup " + name(lookup.value));
    }
    if (access.mask >= 0) {
      check_type(use(access.mask), Type::boolean, "the mask " + name(access.mask));
    }
  }

  const Kernel& kernel_;
  const Stage* stage_ = nullptr;
  int32_t place_ = -1;
};

}  // namespace

void verify(const Kernel& kernel) {
  Verifier(kernel).run();
}

}  // namespace torch_lazy::codegen
