// The form in which a fused kernel reaches the code generator: a space of indices, memory accesses
// as strides over it, and straight code in stages. It says what is computed, not how: loops,
// vectors and blocks of threads are the target's business. Its text is the interface between the
// compiler and the code generator, and the key under which machine code is kept.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace torch_lazy::codegen {

enum class Type : uint8_t { f32, f64, bf16, f16, i8, u8, i16, i32, i64, boolean };

/// Bytes of one element in memory; a boolean has one.
int size_of(Type type);
bool is_float(Type type);
bool is_integer(Type type);  // not boolean
const char* type_name(Type type);

/// The table of operations is in operations.cpp: name, operands, and for which types it exists.
enum class Opcode : uint8_t {
  // Leaves.
  constant,  // `number` (or `integer`, when the type is no float)
  argument,  // scalar argument `place`
  index,     // i64: the position along dimension `place` (outer dimensions first, then inner)
  extent,    // i64: the size of dimension `place`
  load,      // through access `place`
  // Arithmetic: operands and result of one type: f32, f64, i32, i64 (and where it says so boolean).
  add,
  sub,
  mul,
  div,        // floats only
  div_trunc,  // integers; the divisor is never 0
  div_floor,  // likewise
  rem_trunc,  // C's %; floats: fmod
  rem_floor,  // Python's %
  neg,
  abs,
  min,  // NaN if one operand is
  max,
  fma,  // a * b + c with one rounding where the target has it; only for mathematics of our own
  // Boolean or integer.
  bit_and,
  bit_or,
  bit_xor,
  bit_not,
  shift_left,   // by a number of bits outside of the type: 0
  shift_right,  // arithmetic; by a number of bits outside of the type: by all but one
  // Comparisons: operands of one type, result boolean. With NaN all are false but `ne`.
  eq,
  ne,
  lt,
  le,
  gt,
  ge,
  select,  // boolean, a, b: a where true
  // Any type to any type. To boolean: != 0. Float to integer: towards zero; what does not fit (NaN
  // also) becomes the least number, narrow types take the low bits of an i32. bf16 and f16: through
  // f32, to the nearest, of two the even one.
  convert,
  // Mathematics: f32; those that the table says so also f64.
  exp,
  exp2,
  expm1,
  log,
  log2,
  log10,
  log1p,
  sqrt,
  rsqrt,
  sin,
  cos,
  tan,
  asin,
  acos,
  atan,
  sinh,
  cosh,
  tanh,
  asinh,
  acosh,
  atanh,
  erf,
  erfc,
  erfinv,
  lgamma,
  digamma,
  pow,    // a to the power b
  atan2,  // a over b
  hypot,
  sigmoid,
  floor,
  ceil,
  trunc,
  round,  // to even
  // Reductions over the inner dimensions: only in an `each` stage; the result belongs to the row.
  // Of nothing: 0, 1, the greatest, the least number (twice), false, true, position 0.
  reduce_sum,
  reduce_prod,
  reduce_min,  // NaN wins
  reduce_max,
  reduce_fmax,  // NaN does not enter
  reduce_any,   // booleans
  reduce_all,
  reduce_argmin,  // i64: the first position (inner dimensions flattened); NaN wins
  reduce_argmax,
  // Scans: of an element and all before it in its row, inner dimensions flattened. Only in a stage
  // of `each`; products of floats are made in the order of the elements.
  scan_sum,
  scan_prod,
  // Effects.
  store,  // operand 0 through access `place`
  // Adds operand 0 to the element at access `place`, whose pointer is read_write. An element may be
  // added to many times, in the order of the inner dimensions, but by one row only. In memory of a
  // narrow type every sum is rounded (or wraps) to it.
  accumulate,
  check,  // operand 0, boolean: where it is false the kernel reports `place` + 1 in its status
};

/// How far apart neighbours along a dimension lie. `argument`: known only at run time.
enum class Stride : uint8_t { zero, one, argument };

/// An index that is itself computed: `value` (i64) times a stride.
struct Lookup {
  int32_t value = -1;
  Stride stride = Stride::argument;
};

/// A place in memory for every index: base pointer + sum of index times stride, in elements. In a
/// row stage all strides of inner dimensions are zero.
struct Access {
  int32_t pointer = -1;
  std::vector<Stride> strides;  // by dimension, outer ones first
  std::vector<Lookup> lookups;
  int32_t mask =
      -1;  // a boolean: where it is false nothing is read (and the value is 0) or written
};

/// Memory behind different pointers is different memory. Code may compute an element twice and
/// write it again, but not where a pointer is read_write.
enum class Use : uint8_t {
  read,
  write,
  read_write,  // an element is read before it is written, in one iteration
  scratch,     // memory of the calling thread, kept from stage to stage of one row (with lanes
               // outer, where many rows run at once, it needs a stride along the lanes)
};

struct Pointer {
  Type type = Type::f32;
  Use use = Use::read;
};

struct Instruction {
  Opcode op = Opcode::constant;
  Type type = Type::f32;  // of the result; of a store: of what is stored
  int32_t operands[3] = {-1, -1, -1};
  int32_t place = -1;
  double number = 0;
  int64_t integer = 0;
};

/// A stage runs once for every row (an index of the outer dimensions), or once for each element
/// of the row (an index of the inner dimensions). Values of a row stage and results of reductions
/// can be used in all later stages of the row; other values only in their own stage.
struct Stage {
  enum class Kind : uint8_t { row, each } kind = Kind::row;
  int32_t begin = 0;  // its instructions
  int32_t end = 0;
};

/// The dimension along which neighbouring indices are computed together: the last inner one, or
/// the last outer one (then each lane has a row of its own).
enum class Lanes : uint8_t { inner, outer };

struct Kernel {
  int32_t outer = 0;  // number of dimensions
  int32_t inner = 0;
  Lanes lanes = Lanes::outer;
  std::vector<Pointer> pointers;
  std::vector<Type> arguments;  // scalars
  std::vector<Access> accesses;
  std::vector<Instruction> code;
  std::vector<Stage> stages;

  int32_t rank() const { return outer + inner; }
};

// ---- Text ---------------------------------------------------------------------------------------

/// Equal kernels have equal text.
std::string text(const Kernel& kernel);

/// Throws std::invalid_argument that says what is wrong, and in which line.
Kernel parse(std::string_view text);

/// Throws std::invalid_argument when the kernel breaks a rule of this file.
void verify(const Kernel& kernel);

/// Whether the code generator has this operation for this type (of the operands).
bool supports(Opcode op, Type type);

// ---- Calls --------------------------------------------------------------------------------------

/// What a kernel is called with. The order of `numbers`: the sizes of all dimensions, then, access
/// by access, the strides that are arguments (dimensions first, then lookups), then for every
/// scratch pointer the offset in bytes of its memory in `scratch`.
///
/// The work is cut into units. Lanes::inner: a unit is a row. Lanes::outer: a unit is `tile`
/// neighbours (fewer at the end) along the last outer dimension; units run fastest along it.
/// A kernel without outer dimensions has one unit (lanes inner only).
struct Call {
  void* const* pointers = nullptr;  // null for scratch
  const int64_t* numbers = nullptr;
  const void* arguments = nullptr;  // 8 bytes each: the scalar in its own type, at the front
  char* scratch = nullptr;          // of this thread
  int64_t* status = nullptr;        // see Opcode::check
  int64_t begin = 0;                // units
  int64_t end = 0;
  int64_t tile = 0;
};

using Function = void (*)(const Call*);

/// How many units there are for these sizes.
int64_t units(const Kernel& kernel, const int64_t* sizes, int64_t tile);

/// Computes what the kernel says, slowly and plainly: the reference for the code generator.
void interpret(const Kernel& kernel, const Call& call);

}  // namespace torch_lazy::codegen
