// One value of any type, and what operations do with it: the meaning of the interpreter's
// operations apart from its loops.
#pragma once

#include "codegen/kernel.h"

namespace torch_lazy::codegen {

/// Floats are in `number`, rounded to their type; integers and booleans in `integer`.
struct Scalar {
  double number = 0;
  int64_t integer = 0;
};

Scalar read_scalar(Type type, const void* memory);
void write_scalar(Type type, Scalar value, void* memory);

/// `number` rounded to the float type (or `integer` wrapped to the integer type).
Scalar make_scalar(Type type, double number, int64_t integer);

Scalar convert_scalar(Scalar value, Type from, Type to);

/// Operations from `add` to `round` but for convert. `type` is that of the operands; of select: of
/// what is chosen.
Scalar apply(Opcode op, Type type, const Scalar (&operands)[3]);

/// An operation of mathematics in f64.
double mathematics(Opcode op, double a, double b);

}  // namespace torch_lazy::codegen
