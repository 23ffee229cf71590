#include "python/call_key.h"

#include "base/settings.h"
#include "capture/autocast.h"
#include "python/same_value.h"
#include <torch_lazy/layout.h>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/SavedTensorHooks.h>
#include <ATen/TracerMode.h>
#include <ATen/autocast_mode.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/forward_grad.h>
#include <torch/csrc/autograd/python_variable.h>

#include <structmember.h>

#include <algorithm>
#include <bit>
#include <string_view>

namespace py = pybind11;

namespace torch_lazy {
namespace {

enum Word : uint64_t {
  kTensor = 1,
  kInt,
  kFloat,
  kTuple,
  kList,
  kDict,
  kAttributes,
  kSlot,
  kPytree,
  kMethod,
  kAgain,
  kValue,
};

/// Objects of Python that are looked for in every call; never freed.
struct Names {
  PyObject* dataclass_fields = PyUnicode_InternFromString("__dataclass_fields__");
  PyObject* attrs_fields = PyUnicode_InternFromString("__attrs_attrs__");
  PyObject* default_factory = PyUnicode_InternFromString("default_factory");
  PyObject* module = import("torch.nn", "Module");
  PyObject* parameter = import("torch.nn", "Parameter");
  PyObject* user_dict = import("collections", "UserDict");
  PyObject* default_dict = import("collections", "defaultdict");
  PyObject* pytrees = import("torch.utils._pytree", "SUPPORTED_NODES");
  PyObject* device_context = import("torch.utils._device", "DeviceContext");

  static PyObject* import(const char* module, const char* name) {
    return py::object(py::module_::import(module).attr(name)).release().ptr();
  }
};

const Names& names() {
  static const auto* found = new Names();
  return *found;
}

PyTypeObject* as_type(PyObject* type) {
  return reinterpret_cast<PyTypeObject*>(type);
}

/// An attribute of a type; null: it has none.
PyObject* type_attribute(PyObject* object, PyObject* name) {
  PyObject* found = PyObject_GetAttr(reinterpret_cast<PyObject*>(Py_TYPE(object)), name);
  if (!found) {
    PyErr_Clear();
  }
  return found;
}

bool is_scalar(PyObject* object) {
  return object == Py_None || PyBool_Check(object) || PyLong_CheckExact(object) ||
         PyUnicode_CheckExact(object) || PyBytes_CheckExact(object) || PyComplex_CheckExact(object);
}

bool is_heap_type(PyTypeObject* type) {
  return (type->tp_flags & Py_TPFLAGS_HEAPTYPE) != 0;
}

/// The attributes that an object has of its own; null: it cannot have any.
py::object dict_of(PyObject* object) {
  auto dict = py::reinterpret_steal<py::object>(PyObject_GenericGetDict(object, nullptr));
  PyErr_Clear();
  return dict && PyDict_Check(dict.ptr()) ? dict : py::object();
}

bool can_be_weak(PyObject* object) {
  // Sets are equal by content, and are held as such.
  return PyType_SUPPORTS_WEAKREFS(Py_TYPE(object)) && !PyAnySet_Check(object) &&
         !PyType_Check(object);
}

py::object referent(PyObject* reference) {
#if PY_VERSION_HEX >= 0x030D0000
  PyObject* object = nullptr;
  PyWeakref_GetRef(reference, &object);
  return py::reinterpret_steal<py::object>(object);
#else
  PyObject* object = PyWeakref_GetObject(reference);
  return object == Py_None ? py::object() : py::reinterpret_borrow<py::object>(object);
#endif
}

/// Where PyTorch's old and new settings contradict each other it refuses to say.
uint64_t matmul_precision(const at::Context& context) {
  try {
    return static_cast<uint64_t>(context.float32MatmulPrecision());
  } catch (const c10::Error&) {
    return 0xff;
  }
}

/// A context that only chooses a device for new tensors; null: it is something else.
PyObject* device_context(int64_t index) {
  PyObject* mode = at::impl::PythonTorchFunctionTLS::get_stack_at(index)->ptr(getPyInterpreter());
  return Py_TYPE(mode) == as_type(names().device_context) ? mode : nullptr;
}

/// Whether the caller is in an `except` block: what `raise` and new errors refer to.
bool is_handling_error() {
  PyObject* type = nullptr;
  PyObject* error = nullptr;
  PyObject* traceback = nullptr;
  PyErr_GetExcInfo(&type, &error, &traceback);
  const bool handling = error && error != Py_None;
  Py_XDECREF(type);
  Py_XDECREF(error);
  Py_XDECREF(traceback);
  return handling;
}

}  // namespace

bool in_special_mode() {
  for (int64_t i = 0; i < at::impl::PythonTorchFunctionTLS::stack_len(); ++i) {
    if (!device_context(i)) {
      return true;
    }
  }
  return c10::impl::TorchDispatchModeTLS::any_modes_set() ||
         torch::autograd::ForwardADLevel::try_get_by_idx(0) ||
         c10::impl::tls_is_dispatch_key_included(
             c10::DispatchKey::FuncTorchDynamicLayerFrontMode) ||
         !at::SavedTensorDefaultHooks::get_tls_state().stack.empty() ||
         torch::autograd::AnomalyMode::is_enabled() || at::tracer::impl::is_dispatch_enabled();
}

CallKey::CallKey(const py::tuple& args, const py::dict& kwargs) {
  add(args.ptr());
  if (!kwargs.empty()) {
    add(kwargs.ptr());
  }
  add_thread_state();
}

void CallKey::add_tensor(const at::Tensor& tensor, PyObject* object) {
  tensors_.push_back(&tensor);
  const bool strided = tensor.layout() == at::kStrided && !tensor.is_nested();
  words_.push_back(kTensor);
  words_.push_back(
      static_cast<uint64_t>(tensor.scalar_type()) << 32 |
      static_cast<uint64_t>(tensor.device().type()) << 16 |
      static_cast<uint64_t>(tensor.device().index() + 1) << 8 |
      static_cast<uint64_t>(tensor.is_view()) << 5 |
      static_cast<uint64_t>(tensor.is_inference()) << 4 |
      static_cast<uint64_t>(tensor.is_conj()) << 3 | static_cast<uint64_t>(tensor.is_neg()) << 2 |
      static_cast<uint64_t>(tensor.requires_grad()) << 1 | static_cast<uint64_t>(strided));
  words_.push_back(static_cast<uint64_t>(tensor.dim()));
  if (strided) {
    for (int64_t size : tensor.sizes()) {
      words_.push_back(static_cast<uint64_t>(size));
    }
    for (int64_t stride : tensor.strides()) {
      words_.push_back(static_cast<uint64_t>(stride));
    }
  }
  if (reinterpret_cast<PyObject*>(Py_TYPE(object)) != THPVariableClass) {
    add_value(reinterpret_cast<PyObject*>(Py_TYPE(object)));
    if (Py_TYPE(object) != as_type(names().parameter)) {
      objects_.push_back(reinterpret_cast<PyObject*>(Py_TYPE(object)));
    }
  }
  PyObject** attributes = _PyObject_GetDictPtr(object);
  if (attributes && *attributes && PyDict_GET_SIZE(*attributes) > 0) {
    PyObject* key = nullptr;
    PyObject* value = nullptr;
    Py_ssize_t position = 0;
    words_.push_back(kAttributes);
    words_.push_back(static_cast<uint64_t>(PyDict_GET_SIZE(*attributes)));
    while (PyDict_Next(*attributes, &position, &key, &value)) {
      add_value(key);
      has_value(value) ? add_value(value) : add_object(value);
    }
  }
}

void CallKey::add_value(PyObject* object) {
  words_.push_back(kValue);
  values_.push_back(object);
}

/// What it holds is not looked at here.
void CallKey::add_object(PyObject* object) {
  add_value(object);
  objects_.push_back(object);
}

/// The class of something that is looked into, and the attributes that only a subclass can have.
void CallKey::add_type(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  add_value(reinterpret_cast<PyObject*>(type));
  if (is_heap_type(type)) {
    objects_.push_back(reinterpret_cast<PyObject*>(type));
    add_attributes(object);
  }
}

bool CallKey::is_met(PyObject* object) {
  constexpr size_t kFew = 32;
  size_t place = met_.size();
  if (met_.size() < kFew) {
    place = std::find(met_.begin(), met_.end(), object) - met_.begin();
  } else {
    if (places_.empty()) {
      for (size_t i = 0; i < met_.size(); ++i) {
        places_.emplace(met_[i], i);
      }
    }
    place = places_.emplace(object, met_.size()).first->second;
  }
  if (place == met_.size()) {
    met_.push_back(object);
    return false;
  }
  words_.push_back(kAgain);
  words_.push_back(static_cast<uint64_t>(place));
  return true;
}

void CallKey::add_sequence(PyObject* sequence) {
  words_.push_back(PyTuple_Check(sequence) ? kTuple : kList);
  words_.push_back(static_cast<uint64_t>(PySequence_Fast_GET_SIZE(sequence)));
  add_type(sequence);
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(sequence); ++i) {
    add(PySequence_Fast_GET_ITEM(sequence, i));
  }
}

void CallKey::add_dict(PyObject* dict) {
  add_type(dict);
  if (PyObject_TypeCheck(dict, as_type(names().default_dict))) {
    auto made_by = py::getattr(py::handle(dict), names().default_factory);
    add_object(made_by.ptr());
    owned_.push_back(std::move(made_by));
  }
  add_items(dict);
}

/// In the order in which the program sees them.
void CallKey::add_items(PyObject* dict) {
  words_.push_back(kDict);
  words_.push_back(static_cast<uint64_t>(PyDict_GET_SIZE(dict)));
  auto add_item = [&](PyObject* key, PyObject* value) {
    is_scalar(key) ? add_value(key) : add_object(key);
    add(value);
  };
  PyObject* key = nullptr;
  PyObject* value = nullptr;
  Py_ssize_t position = 0;
  if (!PyODict_Check(dict)) {
    while (PyDict_Next(dict, &position, &key, &value)) {
      add_item(key, value);
    }
    return;
  }
  auto keys = py::reinterpret_steal<py::object>(PyODict_Type.tp_iter(dict));
  while (auto next = py::reinterpret_steal<py::object>(keys ? PyIter_Next(keys.ptr()) : nullptr)) {
    if (PyObject* found = PyDict_GetItemWithError(dict, next.ptr())) {
      add_item(next.ptr(), found);
    }
    PyErr_Clear();
  }
}

/// Those in its dict and in its slots.
void CallKey::add_attributes(PyObject* object) {
  if (py::object attributes = dict_of(object)) {
    words_.push_back(kAttributes);
    add_items(attributes.ptr());
    owned_.push_back(std::move(attributes));
  }
  for (PyTypeObject* type = Py_TYPE(object); type && is_heap_type(type); type = type->tp_base) {
    PyMemberDef* member = type->tp_members;
    for (Py_ssize_t i = 0; member && i < Py_SIZE(type); ++i, ++member) {
      if (std::string_view(member->name).starts_with("__")) {
        continue;
      }
      auto value = py::reinterpret_steal<py::object>(
          PyMember_GetOne(reinterpret_cast<const char*>(object), member));
      PyErr_Clear();
      words_.push_back(value ? static_cast<uint64_t>(kSlot) : 0);
      if (value) {
        add(value.ptr());
        owned_.push_back(std::move(value));
      }
    }
  }
}

bool CallKey::add_pytree(PyObject* object) {
  PyObject* node =
      PyDict_GetItemWithError(names().pytrees, reinterpret_cast<PyObject*>(Py_TYPE(object)));
  PyErr_Clear();
  if (!node) {
    return false;
  }
  words_.push_back(kPytree);
  if (dict_of(object)) {
    add_type(object);
    return true;
  }
  auto parts = py::cast<py::tuple>(
      py::reinterpret_borrow<py::object>(node).attr("flatten_fn")(py::handle(object)));
  auto children = py::list(parts[0]);
  add_type(object);
  py::object context = parts[1];
  add(context.ptr());
  add(children.ptr());
  owned_.push_back(std::move(context));
  owned_.push_back(std::move(children));
  return true;
}

/// A method is another object each time that it is looked up.
void CallKey::add_method(PyObject* method) {
  words_.push_back(kMethod);
  add_object(PyMethod_GET_FUNCTION(method));
  add_object(PyMethod_GET_SELF(method));
}

bool CallKey::enter(PyObject* object) {
  if (PyFunction_Check(object) || PyType_Check(object) ||
      PyObject_TypeCheck(object, as_type(names().module))) {
    return false;
  }
  for (PyObject* name : {names().dataclass_fields, names().attrs_fields}) {
    if (auto fields = py::reinterpret_steal<py::object>(type_attribute(object, name))) {
      add_type(object);
      return true;
    }
  }
  if (PyObject_TypeCheck(object, as_type(names().user_dict))) {
    add_type(object);
    return true;
  }
  return add_pytree(object);
}

void CallKey::add(PyObject* object) {
  if (PyFloat_CheckExact(object)) {
    words_.push_back(kFloat);
    words_.push_back(std::bit_cast<uint64_t>(PyFloat_AS_DOUBLE(object)));
    return;
  }
  if (is_scalar(object)) {
    return add_value(object);
  }
  if (PyMethod_Check(object)) {
    return add_method(object);
  }
  if (THPVariable_Check(object)) {
    is_met(object);  // both are arguments
    return add_tensor(THPVariable_Unpack(object), object);
  }
  if (!PyTuple_Check(object) && has_value(object)) {
    return add_value(object);
  }
  if (is_met(object)) {
    return;
  }
  if (depth_ == kMostDepth) {
    return add_object(object);
  }
  ++depth_;
  if (PyTuple_Check(object) || PyList_Check(object)) {
    add_sequence(object);
  } else if (PyDict_Check(object)) {
    add_dict(object);
  } else if (!enter(object)) {
    add_object(object);
  }
  --depth_;
}

void CallKey::add_thread_state() {
  const at::Context& context = at::globalContext();
  uint64_t switches = 0;
  for (bool on :
       {c10::GradMode::is_enabled(), c10::InferenceMode::is_enabled(),
        at::autocast::is_autocast_cache_enabled(), context.deterministicAlgorithms(),
        context.deterministicAlgorithmsWarnOnly(), context.deterministicFillUninitializedMemory(),
        context.userEnabledMkldnn(), context.deterministicMkldnn(), context.userEnabledCuDNN(),
        context.benchmarkCuDNN(), context.deterministicCuDNN(), context.userEnabledFlashSDP(),
        context.userEnabledMemEfficientSDP(), context.userEnabledMathSDP(),
        context.userEnabledCuDNNSDP(), context.userEnabledOverrideableSDP(),
        context.allowFP16BF16ReductionMathSDP(), c10::WarningUtils::get_warnAlways(),
        is_handling_error()}) {
    switches = switches << 1 | static_cast<uint64_t>(on);
  }
  words_.push_back(switches);
  words_.push_back(static_cast<uint64_t>(settings().compiler.load(std::memory_order_relaxed))
                       << 48 |
                   matmul_precision(context) << 40 |
                   static_cast<uint64_t>(c10::get_default_dtype_as_scalartype()) << 32 |
                   static_cast<uint64_t>(static_cast<uint32_t>(at::get_num_threads())));
  for (at::DeviceType device : at::autocast::_AUTOCAST_SUPPORTED_DEVICES) {
    words_.push_back(static_cast<uint64_t>(at::autocast::is_autocast_enabled(device)) << 32 |
                     static_cast<uint64_t>(at::autocast::get_autocast_dtype(device)));
  }
  for (int64_t i = 0; i < at::impl::PythonTorchFunctionTLS::stack_len(); ++i) {
    if (PyObject* mode = device_context(i)) {
      py::object device = py::handle(mode).attr("device");
      add_value(device.ptr());
      owned_.push_back(std::move(device));
    }
  }
}

py::object CallKey::value(size_t index) const {
  return weak_[index] ? referent(owned_[index].ptr()) : owned_[index];
}

bool CallKey::is_of(const CallKey& call) const {
  if (words_ != call.words_ || values_.size() != call.values_.size()) {
    return false;
  }
  for (size_t i = 0; i < values_.size(); ++i) {
    const bool one = values_[i] == call.values_[i] && !weak_[i];
    if (!one) {
      const py::object mine = value(i);
      if (!mine || !same_value(mine.ptr(), call.values_[i])) {
        return false;
      }
    }
  }
  return true;
}

bool CallKey::is_dead() const {
  for (size_t i = 0; i < values_.size(); ++i) {
    if (weak_[i] && !referent(owned_[i].ptr())) {
      return true;
    }
  }
  return false;
}

PyObject* CallKey::other_object(const CallKey& call) const {
  if (words_ != call.words_ || values_.size() != call.values_.size()) {
    return nullptr;
  }
  PyObject* other = nullptr;
  for (size_t i = 0; i < values_.size(); ++i) {
    const py::object mine = value(i);
    if (mine && same_value(mine.ptr(), call.values_[i])) {
      continue;
    }
    if (mine && (has_value(mine.ptr()) || Py_TYPE(mine.ptr()) != Py_TYPE(call.values_[i]))) {
      return nullptr;
    }
    other = other ? other : call.values_[i];
  }
  return other;
}

CallKey CallKey::kept() const {
  CallKey copy;
  copy.words_ = words_;
  copy.values_ = values_;
  for (PyObject* value : values_) {
    auto weak = py::reinterpret_steal<py::object>(
        can_be_weak(value) ? PyWeakref_NewRef(value, nullptr) : nullptr);
    PyErr_Clear();
    copy.weak_.push_back(static_cast<bool>(weak));
    copy.owned_.push_back(weak ? std::move(weak) : py::reinterpret_borrow<py::object>(value));
  }
  for (const at::Tensor* tensor : tensors_) {
    copy.text_ += copy.text_.empty() ? "" : ", ";
    copy.text_ += tensor->layout() == at::kStrided ? Layout::of(*tensor).shape_text() : "Tensor";
  }
  copy.text_ = "(" + copy.text_ + ")";
  return copy;
}

}  // namespace torch_lazy
