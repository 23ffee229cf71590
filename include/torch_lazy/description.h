// The description of a call: everything about it but the data. Equal calls share one description,
// so a node is a pointer to it plus operands and numbers, and its results need no layout inference.
#pragma once

#include <torch_lazy/export.h>
#include <torch_lazy/layout.h>
#include <torch_lazy/operator.h>

#include <ATen/core/ivalue.h>
#include <c10/util/Exception.h>
#include <c10/util/SmallVector.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <string>
#include <vector>

namespace torch_lazy {

/// The words that identify a call: operator, layouts of tensors, attributes, kinds of numbers.
using Key = c10::SmallVector<uint64_t, 96>;

/// What a graph knows of a number that travels beside its parameters.
struct NumberKind {
  at::ScalarType type = at::kDouble;  // of a Scalar: kLong, kDouble, kBool or kComplexDouble
  bool wrapped = true;                // it takes part in type promotion as a Python number does
  uint8_t value_class = 0;            // where kernels look at the value: see number_class
};

/// Classes of values that kernels treat alike; 0 where the class is not part of the graph.
enum NumberClass : uint8_t {
  kClassUnknown,
  kClassNaN,
  kClassInfinity,
  kClassMinusInfinity,
  kClassZero,
  kClassOne,
  kClassTwo,
  kClassThree,
  kClassHalf,
  kClassOther,  // and above
};

/// Where an argument's value comes from when the call is made on the real device.
struct ArgumentSource {
  enum class Kind : uint8_t {
    constant,       // `value`
    operand,        // the tensor operand `index`
    operand_list,   // `elements`: operands, -1 for none, -2 - k for the zero-dim tensor number k
    optional_list,  // likewise, of optional tensors
    number,         // the node's number `index` (a Scalar, a list of them, or a zero-dim tensor)
  };
  Kind kind = Kind::constant;
  int index = -1;
  c10::SmallVector<int, 4> elements;
  c10::SmallVector<NumberKind, 1> numbers;  // of `number`; of a list: one for each element
  c10::IValue value;
};

/// A result with data of its own.
struct FreshOutput {
  Layout layout;
  int64_t nbytes = 0;  // of its storage
};

/// An operand that the call writes.
struct Write {
  int operand = -1;
};

/// An operand that the call resizes before it writes it (`out=`). Capture resizes the tensor itself
/// and describes the call anew, so nodes never resize.
struct Resize {
  int operand = -1;
  Layout layout;
  int64_t nbytes = 0;  // that its storage needs
};

/// How a value that the call returns is made.
struct ReturnSource {
  enum class Kind : uint8_t { fresh, fresh_list, view, view_list, argument, undefined, constant };
  Kind kind = Kind::constant;
  int index = -1;  // first fresh output, or the argument viewed or returned
  int count = 1;   // of a list
  std::vector<Layout> views;
  c10::IValue value;  // constant
};

struct Description : c10::intrusive_ptr_target {
  const OperatorInfo* op = nullptr;
  uint64_t id = 0;
  uint64_t hash = 0;
  Key key;
  std::vector<ArgumentSource> arguments;
  std::vector<Layout> operands;
  std::vector<FreshOutput> fresh;
  std::vector<Write> writes;
  std::vector<Resize> resizes;
  std::vector<ReturnSource> returns;
  int numbers = 0;
  c10::DeviceIndex device = 0;                // of the lazy device that it was called on
  at::ScalarType default_dtype = at::kFloat;  // of the process when the call was made
  std::vector<c10::Warning> warnings;         // that eager gives at each such call

  /// Of outputs: fresh results come first, then writes.
  const Layout& output_layout(size_t output) const {
    return output < fresh.size() ? fresh[output].layout
                                 : operands[writes[output - fresh.size()].operand];
  }

  /// Like "aten::add.Tensor(Float[2,3], Float[3])".
  TORCH_LAZY_API std::string call_text() const;

  bool makes_node() const { return !fresh.empty() || !writes.empty() || op->effect; }
};

using DescriptionPtr = c10::intrusive_ptr<Description>;

}  // namespace torch_lazy
