#include "python/call_key.h"

#include "capture/autocast.h"
#include "python/guards.h"
#include <torch_lazy/layout.h>

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/python_variable.h>

#include <bit>

namespace py = pybind11;

namespace torch_lazy {
namespace {

enum Word : uint64_t { kTensor = 1, kInt, kFloat, kTuple, kList, kDict, kValue };

}  // namespace

CallKey::CallKey(const py::tuple& args, const py::dict& kwargs) {
  add(args.ptr());
  if (!kwargs.empty()) {
    add(kwargs.ptr());
  }
  add_thread_state();
}

void CallKey::add_tensor(const at::Tensor& tensor) {
  tensors_.push_back(&tensor);
  const bool strided = tensor.layout() == at::kStrided && !tensor.is_nested();
  words_.push_back(kTensor);
  words_.push_back(static_cast<uint64_t>(tensor.scalar_type()) << 32 |
                   static_cast<uint64_t>(tensor.device().type()) << 16 |
                   static_cast<uint64_t>(tensor.device().index() + 1) << 8 |
                   static_cast<uint64_t>(tensor.requires_grad()) << 1 |
                   static_cast<uint64_t>(strided));
  words_.push_back(static_cast<uint64_t>(tensor.dim()));
  if (strided) {
    for (int64_t size : tensor.sizes()) {
      words_.push_back(static_cast<uint64_t>(size));
    }
    for (int64_t stride : tensor.strides()) {
      words_.push_back(static_cast<uint64_t>(stride));
    }
  }
}

void CallKey::add_value(PyObject* object) {
  words_.push_back(kValue);
  values_.push_back(object);
}

void CallKey::add(PyObject* object) {
  if (THPVariable_Check(object)) {
    add_tensor(THPVariable_Unpack(object));
  } else if (PyFloat_CheckExact(object)) {
    words_.push_back(kFloat);
    words_.push_back(std::bit_cast<uint64_t>(PyFloat_AS_DOUBLE(object)));
  } else if (PyTuple_Check(object) || PyList_Check(object)) {
    const bool tuple = PyTuple_Check(object);
    words_.push_back(tuple ? kTuple : kList);
    words_.push_back(static_cast<uint64_t>(PySequence_Fast_GET_SIZE(object)));
    add_value(reinterpret_cast<PyObject*>(Py_TYPE(object)));
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(object); ++i) {
      add(PySequence_Fast_GET_ITEM(object, i));
    }
  } else if (PyDict_Check(object)) {
    words_.push_back(kDict);
    words_.push_back(static_cast<uint64_t>(PyDict_GET_SIZE(object)));
    add_value(reinterpret_cast<PyObject*>(Py_TYPE(object)));
    PyObject* key = nullptr;
    PyObject* value = nullptr;
    Py_ssize_t position = 0;
    while (PyDict_Next(object, &position, &key, &value)) {
      add_value(key);
      add(value);
    }
  } else {
    add_value(object);
  }
}

void CallKey::add_thread_state() {
  words_.push_back(static_cast<uint64_t>(c10::GradMode::is_enabled()) |
                   static_cast<uint64_t>(c10::InferenceMode::is_enabled()) << 1 |
                   static_cast<uint64_t>(at::globalContext().deterministicAlgorithms()) << 2 |
                   static_cast<uint64_t>(c10::get_default_dtype_as_scalartype()) << 8);
  for (at::DeviceType device : {kLazyAutocastDeviceType, at::kCPU}) {
    const bool on = at::autocast::is_autocast_enabled(device);
    words_.push_back(on ? 1 + static_cast<uint64_t>(at::autocast::get_autocast_dtype(device)) : 0);
  }
}

bool CallKey::operator==(const CallKey& other) const {
  if (words_ != other.words_ || values_.size() != other.values_.size()) {
    return false;
  }
  for (size_t i = 0; i < values_.size(); ++i) {
    if (!same_value(values_[i], other.values_[i])) {
      return false;
    }
  }
  return true;
}

CallKey CallKey::kept() const {
  CallKey copy;
  copy.words_ = words_;
  copy.values_ = values_;
  for (PyObject* value : values_) {
    copy.owned_.push_back(py::reinterpret_borrow<py::object>(value));
  }
  for (const at::Tensor* tensor : tensors_) {
    copy.text_ += copy.text_.empty() ? "" : ", ";
    copy.text_ += tensor->layout() == at::kStrided ? Layout::of(*tensor).shape_text() : "Tensor";
  }
  copy.text_ = "(" + copy.text_ + ")";
  return copy;
}

}  // namespace torch_lazy
