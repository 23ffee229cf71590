// What a call of a compiled function is recognised by: the tree of its arguments, the kinds of
// their tensors, their other values, and the state of the thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <string>
#include <vector>

namespace torch_lazy {

class CallKey {
 public:
  /// Looks at the arguments, which stay alive as long as this does.
  CallKey(const pybind11::tuple& args, const pybind11::dict& kwargs);

  bool operator==(const CallKey& other) const;

  /// A copy that needs the arguments no more: it has no tensors.
  CallKey kept() const;

  /// The tensors among the arguments, in order.
  const std::vector<const at::Tensor*>& tensors() const { return tensors_; }

  /// Like "(Float[4,16], Long[4])".
  std::string text() const { return text_; }

 private:
  CallKey() = default;
  void add(PyObject* object);
  void add_tensor(const at::Tensor& tensor);
  void add_value(PyObject* object);
  void add_thread_state();

  std::vector<uint64_t> words_;
  std::vector<PyObject*> values_;  // compared one by one
  std::vector<pybind11::object> owned_;
  std::vector<const at::Tensor*> tensors_;
  std::string text_;
};

}  // namespace torch_lazy
