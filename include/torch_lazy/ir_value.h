// What a lazy tensor stands for, held on its own: a value of the recorded program (IrValue), and
// memory of the device (DataHandle). Both are cheap to copy, shared, and may be absent.
#pragma once

#include <torch_lazy/export.h>
#include <torch_lazy/layout.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace torch_lazy {

struct Value;

/// One output of a recorded operation, or a leaf: data that operations read. It is never computed
/// by being held, and stays what it is when the tensor it came from is written or goes away.
class TORCH_LAZY_API IrValue {
 public:
  IrValue() = default;  // absent
  IrValue(const IrValue& other);
  IrValue(IrValue&& other) noexcept;
  IrValue& operator=(IrValue other) noexcept;
  ~IrValue();

  explicit operator bool() const { return value_ != nullptr; }

  /// The same output of the same operation, seen the same way.
  bool operator==(const IrValue& other) const;

  /// How the tensor lies in the value's memory.
  const Layout& layout() const { return layout_; }
  at::ScalarType dtype() const { return layout_.dtype; }
  const at::Device& device() const { return device_; }

  /// Whether it is data and not the output of an operation that is still to run. The output of an
  /// operation becomes a leaf when the operation is scheduled.
  bool is_leaf() const;

  /// The operation's name with its overload, "aten::add.Tensor"; "lazy_tensors::device_data" for a
  /// leaf.
  std::string op() const;

  /// Which output of the operation it is; 0 for a leaf.
  int index() const;

  /// What the operation reads; nothing for a leaf.
  std::vector<IrValue> operands() const;

  /// All outputs of the operation that makes this value: its results, then what it writes and
  /// something still wants. For a leaf, the leaf itself.
  std::vector<IrValue> outputs() const;

  /// For torch-lazy's own sources: takes over a share of `value` that the caller began to read.
  IrValue(Value* value, Layout layout, at::Device device);
  Value* value() const { return value_; }

 private:
  Value* value_ = nullptr;
  Layout layout_;
  at::Device device_{at::kLazy, 0};
};

/// Memory of the device, or the place that a result will take (`has_value()` is false until then).
class TORCH_LAZY_API DataHandle {
 public:
  DataHandle() = default;  // absent
  explicit DataHandle(IrValue value) : value_(std::move(value)) {}

  /// A copy of a plain tensor, on the device.
  static DataHandle copy_of(const at::Tensor& tensor, at::Device device);

  /// A place without a value.
  static DataHandle placeholder(const Layout& layout, at::Device device);

  explicit operator bool() const { return static_cast<bool>(value_); }
  bool operator==(const DataHandle& other) const { return value_ == other.value_; }

  const Layout& layout() const { return value_.layout(); }
  const at::Device& device() const { return value_.device(); }

  /// A number that identifies the memory for as long as a handle to it exists.
  int64_t id() const;

  bool has_value() const;

  /// Gives this place a copy of another's value. Tensors over this place then have it.
  void assign(const DataHandle& other);

  /// A plain tensor over the memory, without a copy; do not write to it. It keeps what it shows
  /// when lazy tensors over the memory are written later. An error while there is no value.
  at::Tensor tensor() const;

  /// For torch-lazy's own sources.
  const IrValue& value() const { return value_; }

 private:
  IrValue value_;
};

}  // namespace torch_lazy
