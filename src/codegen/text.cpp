// A kernel as text. Nothing in it depends on the locale, and floats are exact: the text is the key
// under which machine code is kept.
#include "codegen/operations.h"

#include <charconv>
#include <cmath>

namespace torch_lazy::codegen {
namespace {

/// Text that grows at its end.
class Writer {
 public:
  template <class... Parts>
  void write(const Parts&... parts) {
    (add(parts), ...);
  }

  void write_value(int32_t value) { write("%", value); }

  void write_number(double number) {
    if (std::isnan(number)) {
      return add("nan");
    }
    add(std::signbit(number) ? "-" : "");
    if (std::isinf(number)) {
      return add("inf");
    }
    char digits[64];
    const auto end =
        std::to_chars(digits, digits + sizeof digits, std::fabs(number), std::chars_format::hex)
            .ptr;
    add("0x");
    out_.append(digits, end);
  }

  std::string take() { return std::move(out_); }

 private:
  void add(const char* text) { out_ += text; }
  void add(int64_t number) {
    char digits[24];
    out_.append(digits, std::to_chars(digits, digits + sizeof digits, number).ptr);
  }

  std::string out_;
};

const char* stride_text(Stride stride) {
  switch (stride) {
    case Stride::zero:
      return "0";
    case Stride::one:
      return "1";
    case Stride::argument:
      return "*";
  }
  return "?";
}

const char* use_text(Use use) {
  switch (use) {
    case Use::read:
      return "read";
    case Use::write:
      return "write";
    case Use::read_write:
      return "read_write";
    case Use::scratch:
      return "scratch";
  }
  return "?";
}

void write(Writer& out, const Access& access) {
  out.write(" pointer ", access.pointer, " [");
  for (size_t d = 0; d < access.strides.size(); ++d) {
    out.write(d ? ", " : "", stride_text(access.strides[d]));
  }
  out.write("]");
  for (const Lookup& lookup : access.lookups) {
    out.write(" lookup ");
    out.write_value(lookup.value);
    out.write(" ", stride_text(lookup.stride));
  }
  if (access.mask >= 0) {
    out.write(" mask ");
    out.write_value(access.mask);
  }
}

void write(Writer& out, const Instruction& instruction) {
  const Operation& row = operation(instruction.op);
  out.write(row.name);
  if (instruction.op != Opcode::check) {  // always of one type
    out.write(" ", type_name(instruction.type));
  }
  switch (instruction.op) {
    case Opcode::constant:
      out.write(" ");
      if (is_float(instruction.type)) {
        out.write_number(instruction.number);
      } else {
        out.write(instruction.integer);
      }
      break;
    case Opcode::argument:
    case Opcode::index:
    case Opcode::extent:
    case Opcode::check:
      out.write(" ", instruction.place);
      break;
    case Opcode::load:
    case Opcode::store:
    case Opcode::accumulate:
      out.write(" access ", instruction.place);
      break;
    default:
      break;
  }
  for (int i = 0; i < row.operands; ++i) {
    out.write(" ");
    out.write_value(instruction.operands[i]);
  }
}

}  // namespace

std::string text(const Kernel& kernel) {
  Writer out;
  out.write("kernel outer ", kernel.outer, " inner ", kernel.inner, " lanes ",
            kernel.lanes == Lanes::inner ? "inner" : "outer", "\n");
  for (size_t i = 0; i < kernel.pointers.size(); ++i) {
    const Pointer& pointer = kernel.pointers[i];
    out.write("pointer ", static_cast<int64_t>(i), " ", type_name(pointer.type), " ",
              use_text(pointer.use), "\n");
  }
  for (size_t i = 0; i < kernel.arguments.size(); ++i) {
    out.write("argument ", static_cast<int64_t>(i), " ", type_name(kernel.arguments[i]), "\n");
  }
  for (size_t i = 0; i < kernel.accesses.size(); ++i) {
    out.write("access ", static_cast<int64_t>(i));
    write(out, kernel.accesses[i]);
    out.write("\n");
  }
  for (const Stage& stage : kernel.stages) {
    out.write(stage.kind == Stage::Kind::row ? "stage row\n" : "stage each\n");
    for (int32_t i = stage.begin; i < stage.end; ++i) {
      out.write("  ");
      if (operation(kernel.code[i].op).result != Operation::Result::nothing) {
        out.write_value(i);
        out.write(" = ");
      }
      write(out, kernel.code[i]);
      out.write("\n");
    }
  }
  return out.take();
}

}  // namespace torch_lazy::codegen
