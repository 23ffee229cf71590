// From a kernel's text back to the kernel. Only the form is checked here; verify() has the rules.
#include "codegen/operations.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <stdexcept>

namespace torch_lazy::codegen {
namespace {

/// One line, taken apart from left to right.
class Line {
 public:
  Line(std::string_view rest, int number) : rest_(rest), number_(number) { skip(); }

  [[noreturn]] void fail(const std::string& what) const {
    throw std::invalid_argument("kernel text, line " + std::to_string(number_) + ": " + what);
  }

  bool empty() const { return rest_.empty(); }

  /// The next word, or one of the characters [ ] , =
  std::string_view peek() const {
    constexpr std::string_view kSingle = "[],=";
    if (empty() || kSingle.find(rest_[0]) != std::string_view::npos) {
      return rest_.substr(0, 1);
    }
    return rest_.substr(0, rest_.find_first_of(" \t\r[],="));
  }

  std::string_view next(const char* expected) {
    const std::string_view word = peek();
    if (word.empty()) {
      fail(std::string("expected ") + expected + " before the end of the line");
    }
    rest_.remove_prefix(word.size());
    skip();
    return word;
  }

  bool accept(std::string_view word) {
    if (peek() != word) {
      return false;
    }
    next("");
    return true;
  }

  void expect(const char* word) {
    const std::string_view found = next(word);
    if (found != word) {
      fail(std::string("expected '") + word + "', found '" + std::string(found) + "'");
    }
  }

  void end() const {
    if (!empty()) {
      fail("nothing may follow here, found '" + std::string(rest_) + "'");
    }
  }

  int64_t integer(const char* what) {
    const std::string_view word = next(what);
    int64_t value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (error != std::errc() || end != word.data() + word.size()) {
      fail(std::string("expected ") + what + ", found '" + std::string(word) + "'");
    }
    return value;
  }

  int32_t count(const char* what) {
    const int64_t value = integer(what);
    if (value < 0 || value > std::numeric_limits<int32_t>::max()) {
      fail(std::string(what) + " is out of range");
    }
    return static_cast<int32_t>(value);
  }

  /// A number that must be the one expected: things are numbered in their order.
  void place(size_t expected, const char* what) {
    if (count(what) != static_cast<int32_t>(expected)) {
      fail(std::string(what) + " " + std::to_string(expected) + " comes next");
    }
  }

  double number() {
    std::string_view word = next("a number");
    const std::string found(word);
    const bool negative = word.starts_with('-');
    word.remove_prefix(negative ? 1 : 0);
    double value = 0;
    if (word == "nan" || word == "inf") {
      value = word == "nan" ? std::numeric_limits<double>::quiet_NaN()
                            : std::numeric_limits<double>::infinity();
    } else {
      if (!word.starts_with("0x")) {
        fail("expected a number like 0x1.8p+1, inf or nan, found '" + found + "'");
      }
      word.remove_prefix(2);
      const auto [end, error] =
          std::from_chars(word.data(), word.data() + word.size(), value, std::chars_format::hex);
      if (error != std::errc() || end != word.data() + word.size()) {
        fail("expected a number like 0x1.8p+1, found '" + found + "'");
      }
    }
    return negative ? -value : value;
  }

  int32_t value() {
    const std::string_view word = next("a value like %0");
    int32_t id = 0;
    const auto [end, error] = std::from_chars(word.data() + 1, word.data() + word.size(), id);
    if (word[0] != '%' || error != std::errc() || end != word.data() + word.size() || id < 0) {
      fail("expected a value like %0, found '" + std::string(word) + "'");
    }
    return id;
  }

  Type type() {
    const std::string_view word = next("a type");
    const auto type = type_named(word);
    if (!type) {
      fail("there is no type '" + std::string(word) + "'");
    }
    return *type;
  }

  Stride stride() {
    const std::string_view word = next("a stride");
    if (word != "0" && word != "1" && word != "*") {
      fail("a stride is 0, 1 or *, found '" + std::string(word) + "'");
    }
    return word == "0" ? Stride::zero : word == "1" ? Stride::one : Stride::argument;
  }

 private:
  void skip() {
    const size_t start = rest_.find_first_not_of(" \t\r");
    rest_.remove_prefix(start == std::string_view::npos ? rest_.size() : start);
  }

  std::string_view rest_;
  int number_;
};

Pointer parse_pointer(Line& line) {
  Pointer pointer;
  pointer.type = line.type();
  const std::string_view use = line.next("read, write, read_write or scratch");
  if (use == "read") {
    pointer.use = Use::read;
  } else if (use == "write") {
    pointer.use = Use::write;
  } else if (use == "read_write") {
    pointer.use = Use::read_write;
  } else if (use == "scratch") {
    pointer.use = Use::scratch;
  } else {
    line.fail("expected read, write, read_write or scratch, found '" + std::string(use) + "'");
  }
  return pointer;
}

Access parse_access(Line& line) {
  Access access;
  line.expect("pointer");
  access.pointer = line.count("the number of a pointer");
  line.expect("[");
  while (!line.accept("]")) {
    if (!access.strides.empty()) {
      line.expect(",");
    }
    access.strides.push_back(line.stride());
  }
  while (line.accept("lookup")) {
    Lookup lookup;
    lookup.value = line.value();
    lookup.stride = line.stride();
    access.lookups.push_back(lookup);
  }
  if (line.accept("mask")) {
    access.mask = line.value();
  }
  return access;
}

Instruction parse_instruction(Line& line, size_t number) {
  const bool named = line.peek().starts_with('%');
  if (named) {
    if (line.value() != static_cast<int32_t>(number)) {
      line.fail("value %" + std::to_string(number) + " comes next");
    }
    line.expect("=");
  }
  const std::string name(line.next("an operation"));
  const auto op = opcode_named(name);
  if (!op) {
    line.fail("there is no operation '" + name + "'");
  }
  const Operation& row = operation(*op);
  if (named == (row.result == Operation::Result::nothing)) {
    line.fail("'" + name + "' " +
              (named ? "gives no value" : "gives a value: write %N = before it"));
  }
  Instruction instruction;
  instruction.op = *op;
  instruction.type = *op == Opcode::check ? Type::boolean : line.type();
  switch (*op) {
    case Opcode::constant:
      if (is_float(instruction.type)) {
        instruction.number = line.number();
      } else {
        instruction.integer = line.integer("an integer");
      }
      break;
    case Opcode::argument:
    case Opcode::index:
    case Opcode::extent:
    case Opcode::check:
      instruction.place = line.count("a place");
      break;
    case Opcode::load:
    case Opcode::store:
    case Opcode::accumulate:
      line.expect("access");
      instruction.place = line.count("the number of an access");
      break;
    default:
      break;
  }
  for (int i = 0; i < row.operands; ++i) {
    instruction.operands[i] = line.value();
  }
  return instruction;
}

Stage parse_stage(Line& line, size_t begin) {
  Stage stage;
  const std::string_view kind = line.next("row or each");
  if (kind != "row" && kind != "each") {
    line.fail("a stage is row or each, found '" + std::string(kind) + "'");
  }
  stage.kind = kind == "row" ? Stage::Kind::row : Stage::Kind::each;
  stage.begin = stage.end = static_cast<int32_t>(begin);
  return stage;
}

void parse_head(Line& line, Kernel& kernel) {
  line.expect("kernel");
  line.expect("outer");
  kernel.outer = line.count("the number of outer dimensions");
  line.expect("inner");
  kernel.inner = line.count("the number of inner dimensions");
  line.expect("lanes");
  const std::string_view lanes = line.next("inner or outer");
  if (lanes != "inner" && lanes != "outer") {
    line.fail("lanes are inner or outer, found '" + std::string(lanes) + "'");
  }
  kernel.lanes = lanes == "inner" ? Lanes::inner : Lanes::outer;
}

}  // namespace

Kernel parse(std::string_view text) {
  Kernel kernel;
  bool head = false;
  int number = 0;
  while (!text.empty()) {
    const size_t length = std::min(text.find('\n'), text.size());
    Line line(text.substr(0, length), ++number);
    text.remove_prefix(std::min(length + 1, text.size()));
    if (line.empty()) {
      continue;
    }
    if (!head) {
      parse_head(line, kernel);
      head = true;
    } else if (line.accept("stage")) {
      kernel.stages.push_back(parse_stage(line, kernel.code.size()));
    } else if (!kernel.stages.empty()) {
      kernel.code.push_back(parse_instruction(line, kernel.code.size()));
      kernel.stages.back().end = static_cast<int32_t>(kernel.code.size());
    } else if (line.accept("pointer")) {
      line.place(kernel.pointers.size(), "pointer");
      kernel.pointers.push_back(parse_pointer(line));
    } else if (line.accept("argument")) {
      line.place(kernel.arguments.size(), "argument");
      kernel.arguments.push_back(line.type());
    } else if (line.accept("access")) {
      line.place(kernel.accesses.size(), "access");
      kernel.accesses.push_back(parse_access(line));
    } else {
      line.fail("expected pointer, argument, access or stage, found '" + std::string(line.peek()) +
                "'");
    }
    line.end();
  }
  if (!head) {
    throw std::invalid_argument("kernel text, line 1: expected 'kernel outer ...'");
  }
  return kernel;
}

}  // namespace torch_lazy::codegen
