// What a call of a compiled function is recognised by: the tree of its arguments, the kinds of
// their tensors, their other values, and the state of the thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace torch_lazy {

/// Trees are tuples, lists, dicts, dataclasses, classes of attrs, UserDicts, and what is registered
/// with torch.utils._pytree. Another object is the same only while it is one object, or an equal
/// number or text. Which of the arguments are one object is part of the key.
class CallKey {
 public:
  /// Looks at the arguments, which stay alive as long as this does.
  CallKey(const pybind11::tuple& args, const pybind11::dict& kwargs);

  /// Whether a kept key is that of another call.
  bool is_of(const CallKey& call) const;

  /// A copy that needs the arguments no more: it has no tensors, and does not keep objects alive.
  CallKey kept() const;

  /// Whether an object of a kept key is gone: it is of no call any more.
  bool is_dead() const;

  /// An object of another call that is not the one of this kept key, though of the same type, where
  /// nothing else differs; null: something else does.
  PyObject* other_object(const CallKey& call) const;

  /// The tensors among the arguments, in order.
  const std::vector<const at::Tensor*>& tensors() const { return tensors_; }

  /// The other leaves, classes of what is looked into, and what it has besides its content.
  const std::vector<PyObject*>& objects() const { return objects_; }

  /// All that was looked into.
  const std::vector<PyObject*>& parts() const { return met_; }

  /// Like "(Float[4,16], Long[4])".
  std::string text() const { return text_; }

 private:
  CallKey() = default;
  void add(PyObject* object);
  void add_tensor(const at::Tensor& tensor, PyObject* object);
  void add_sequence(PyObject* sequence);
  void add_dict(PyObject* dict);
  void add_items(PyObject* dict);
  void add_type(PyObject* object);
  void add_method(PyObject* method);
  /// Whether it was met before, which is then noted.
  bool is_met(PyObject* object);
  /// False: it is no tree.
  bool enter(PyObject* object);
  void add_attributes(PyObject* object);
  bool add_pytree(PyObject* object);
  void add_value(PyObject* object);
  void add_object(PyObject* object);
  void add_thread_state();
  /// The value, or nothing where it is gone.
  pybind11::object value(size_t index) const;

  std::vector<uint64_t> words_;
  std::vector<PyObject*> values_;        // compared one by one
  std::vector<pybind11::object> owned_;  // of a kept key: the values; else what was made of trees
  std::vector<char> weak_;               // of a kept key, by value: it is held by a weak reference
  std::vector<const at::Tensor*> tensors_;
  std::vector<PyObject*> objects_;
  std::vector<PyObject*> met_;                    // tensors, trees and other objects, in order
  std::unordered_map<PyObject*, size_t> places_;  // of these, where they are many
  std::string text_;
  int depth_ = 0;

  /// Of trees; what is deeper is compared by identity.
  static constexpr int kMostDepth = 200;
};

/// Whether PyTorch is in a mode in which a call is neither recorded nor replayed: transforms of
/// functions, forward-mode differentiation, modes and hooks of the user's that see every operator.
bool in_special_mode();

}  // namespace torch_lazy
