// A lazy tensor seen from inside: which value of the recorded program it stands for, which memory
// it has, and how to change both. bridge.h leads from at::Tensor to here and back.
#pragma once

#include <torch_lazy/export.h>
#include <torch_lazy/ir_value.h>
#include <torch_lazy/layout.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace torch_lazy {

struct Buffer;

/// A handle: copies are the same tensor, and one made with no arguments is absent (false).
///
/// A lazy tensor is a view of a buffer, and tensors that share memory share the buffer. So what is
/// set here is seen by every tensor over the same memory, like any write. The buffer's value is an
/// operation's output that is still to be computed (`current_ir_value`), or data
/// (`current_data_handle`), or, in fresh memory, nothing.
class TORCH_LAZY_API LazyTensor {
 public:
  /// What the handles of one tensor share. Derive from it to be told of assignments.
  class TORCH_LAZY_API Data {
   public:
    /// Over an existing lazy tensor; nothing is copied or counted.
    explicit Data(at::Tensor tensor);
    virtual ~Data() = default;
    Data(const Data&) = delete;
    Data& operator=(const Data&) = delete;

    const at::Tensor& tensor() const { return tensor_; }

    /// Called after each assignment of a value of the program through a LazyTensor over this, with
    /// the value; an absent one when data took its place. No lock is held.
    virtual void ir_value_assigned(const IrValue& value);

   private:
    at::Tensor tensor_;
  };

  LazyTensor() = default;  // absent

  /// A new tensor on `device` with a copy of a plain tensor's data.
  static LazyTensor create(const at::Tensor& tensor, at::Device device);

  /// A new tensor over the memory behind the handle; a copy if another tensor has that memory.
  static LazyTensor create(const DataHandle& handle);

  /// A new tensor whose value is `value`; nothing is computed. A value that another tensor stands
  /// for is read through a recorded copy.
  static LazyTensor create(const IrValue& value);

  /// Another handle of an existing tensor: no new buffer, no new id.
  static LazyTensor create(std::shared_ptr<Data> data);

  explicit operator bool() const { return data_ != nullptr; }

  /// The tensor as PyTorch sees it. Its autograd history is whatever it was given.
  const at::Tensor& tensor() const;

  const std::shared_ptr<Data>& data() const { return data_; }

  /// The number of its buffer, from 1 on, never used again.
  int64_t id() const;

  /// How many values the buffer has had.
  int64_t generation() const;

  at::Device device() const;
  at::ScalarType dtype() const;
  Layout layout() const;
  int64_t size(int64_t dim) const;

  // ---- What is there; none of these computes anything

  /// Absent while the value is still to be computed. During an asynchronous run it is there without
  /// a value.
  DataHandle current_data_handle() const;

  /// Absent when the value is data that nobody asked for as a leaf. It stays after the tensor was
  /// read, and goes when a step ends.
  IrValue current_ir_value() const;

  /// The data as a plain CPU tensor, when it came from one or was read as one and was not written
  /// since. Do not write to it.
  std::optional<at::Tensor> current_tensor_data() const;

  // ---- What is made if need be

  /// Runs what the tensor needs. The value of the program stays available beside the data.
  void apply_pending_graph() const;

  /// The memory, computed if need be.
  DataHandle data_handle() const;

  /// The value of the program; data becomes a leaf, and stays one.
  IrValue ir_value() const;

  /// The data as a plain CPU tensor. `detached`: a copy that may be written. Otherwise it may share
  /// memory, must not be written, and is remembered (`current_tensor_data`).
  at::Tensor to_tensor(bool detached) const;

  /// A tensor with a copy of the data on another lazy device.
  LazyTensor copy_to_device(at::Device device) const;

  /// One tensor per output of the operation that makes `value`.
  std::vector<LazyTensor> make_output_tensors(const IrValue& value) const;

  // ---- Changes
  //
  // What fits (same sizes and dtype) is written into the buffer. Otherwise the tensor gets a new
  // buffer, and leaves those it shared memory with behind, as `tensor.set_data` does.

  void set_ir_value(const IrValue& value);

  /// Likewise, after a recorded cast to the tensor's dtype if it has another.
  void set_in_place_ir_value(const IrValue& value);

  /// Replaces value and data by memory. With `sync`, host data that is remembered goes too.
  void set_data_handle(const DataHandle& handle, bool sync = true);

  /// Replaces value and data by a copy of a plain tensor, and remembers it as host data.
  void set_tensor_data(const at::Tensor& tensor);

  /// Likewise; with `sync` the data is a leaf of the program at once instead of host data.
  void update_from_tensor(const at::Tensor& tensor, bool sync);

  /// As the result of an operator with an `out` argument.
  void update_from_tensor_out(const at::Tensor& tensor) { update_from_tensor(tensor, false); }
  void update_from_tensor_out(const LazyTensor& tensor) { set_ir_value(tensor.ir_value()); }

  /// Gives `destination` the value of this tensor; nothing is computed, and no memory shared.
  void shallow_copy_to(LazyTensor& destination) const { destination.set_ir_value(ir_value()); }

 private:
  explicit LazyTensor(at::Tensor tensor);
  Buffer& buffer() const;
  /// Gives this tensor the value of `source`, which is nobody else's.
  void take(const at::Tensor& source);
  /// What is known of the value that was just set.
  void remember(bool leaf, bool host) const;

  std::shared_ptr<Data> data_;
};

}  // namespace torch_lazy
