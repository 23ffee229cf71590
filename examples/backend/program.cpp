// The loops behind the instructions.
#include "program.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace loops {
namespace {

constexpr size_t kInputs = 3;

/// An input while the loop is at some place.
struct Cursor {
  const float* floats = nullptr;
  const uint8_t* booleans = nullptr;
  float number = 0;
  int64_t at = 0;

  float load() const {
    return floats ? floats[at] : booleans ? static_cast<float>(booleans[at]) : number;
  }
};

float compute(Opcode code, float a, float b, float c) {
  switch (code) {
    case Opcode::add:
      return a + c * b;
    case Opcode::sub:
      return a - c * b;
    case Opcode::mul:
      return a * b;
    case Opcode::div:
      return a / b;
    case Opcode::maximum:
      return std::isnan(a) || a > b ? a : b;
    case Opcode::neg:
      return -a;
    case Opcode::exp:
      return std::exp(a);
    case Opcode::tanh:
      return std::tanh(a);
    case Opcode::sqrt:
      return std::sqrt(a);
    case Opcode::relu:
      return std::isnan(a) || a > 0 ? a : 0;
    case Opcode::relu_gradient:
      return b <= c ? 0 : a;
    case Opcode::select:
      return a != 0 ? b : c;
    case Opcode::copy:
    case Opcode::sum_of_products:
      return a;
  }
  return 0;
}

/// All indices of the dimensions from `first` to `last`, one call of `body` each.
template <typename Body>
void walk(const Instruction& instruction, size_t first, size_t last,
          std::array<Cursor, kInputs>& cursors, int64_t& result, const Body& body) {
  if (first == last) {
    body();
    return;
  }
  const std::array<Cursor, kInputs> begin = cursors;
  const int64_t begin_result = result;
  for (int64_t i = 0; i < instruction.extents[first]; ++i) {
    walk(instruction, first + 1, last, cursors, result, body);
    for (size_t k = 0; k < instruction.inputs.size(); ++k) {
      if (!instruction.inputs[k].strides.empty()) {
        cursors[k].at += instruction.inputs[k].strides[first];
      }
    }
    result += instruction.result.strides[first];
  }
  cursors = begin;
  result = begin_result;
}

const char* name(Opcode code) {
  constexpr const char* names[] = {
      "add",  "sub",  "mul",  "div",           "maximum", "neg",  "exp",
      "tanh", "sqrt", "relu", "relu_gradient", "select",  "copy", "sum_of_products"};
  return names[static_cast<size_t>(code)];
}

}  // namespace

void execute(const Instruction& instruction, const Memory& memory) {
  std::array<Cursor, kInputs> cursors;
  for (size_t k = 0; k < instruction.inputs.size(); ++k) {
    const Operand& input = instruction.inputs[k];
    cursors[k].at = input.offset;
    if (input.number >= 0) {
      cursors[k].number = memory.numbers[input.number];
    } else if (input.boolean) {
      cursors[k].booleans = static_cast<const uint8_t*>(memory.slots[input.slot]);
    } else {
      cursors[k].floats = static_cast<const float*>(memory.slots[input.slot]);
    }
  }
  auto* out = static_cast<float*>(memory.slots[instruction.result.slot]);
  int64_t at = instruction.result.offset;
  const size_t rank = instruction.extents.size();
  const size_t kept = rank - instruction.reduced;
  if (instruction.code != Opcode::sum_of_products) {
    walk(instruction, 0, rank, cursors, at, [&] {
      out[at] = compute(instruction.code, cursors[0].load(), cursors[1].load(), cursors[2].load());
    });
    return;
  }
  const bool product = instruction.inputs.size() > 1;
  walk(instruction, 0, kept, cursors, at, [&] {
    double sum = 0;
    walk(instruction, kept, rank, cursors, at, [&] {
      double a = cursors[0].load();
      sum += product ? a * cursors[1].load() : a;
    });
    out[at] = static_cast<float>(sum);
  });
}

std::string to_string(const Instruction& instruction) {
  auto operand = [](const Operand& o) {
    return o.number >= 0 ? "#" + std::to_string(o.number) : "%" + std::to_string(o.slot);
  };
  std::string text = operand(instruction.result) + " = " + name(instruction.code);
  for (size_t k = 0; k < instruction.inputs.size(); ++k) {
    text += (k ? ", " : " ") + operand(instruction.inputs[k]);
  }
  text += " over ";
  for (size_t d = 0; d < instruction.extents.size(); ++d) {
    text += (d ? "x" : "") + std::to_string(instruction.extents[d]);
  }
  return text + (instruction.extents.empty() ? "one element" : "");
}

}  // namespace loops
