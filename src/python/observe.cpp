#include "python/observe.h"

#include "base/hooks.h"

#include <torch/csrc/autograd/python_variable.h>

#include <frameobject.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace py = pybind11;

namespace torch_lazy {
namespace {

/// Methods of tensors that read memory and call no operator.
constexpr std::array<std::string_view, 8> kReadMemory = {
    "tolist",     "numpy",          "data_ptr", "untyped_storage",
    "__dlpack__", "_typed_storage", "storage",  "const_data_ptr"};

py::object code_of(PyFrameObject* frame) {
  return py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)));
}

py::object globals_of(PyFrameObject* frame) {
#if PY_VERSION_HEX >= 0x030B0000
  return py::reinterpret_steal<py::object>(PyFrame_GetGlobals(frame));
#else
  return py::getattr(reinterpret_cast<PyObject*>(frame), "f_globals");
#endif
}

/// Whether code imports a module that was not imported before: what runs then runs once.
bool imports(const py::object& code) {
  auto* parts = reinterpret_cast<PyCodeObject*>(code.ptr());
  return PyUnicode_CompareWithASCIIString(parts->co_name, "_find_and_load") == 0 &&
         PyUnicode_CompareWithASCIIString(parts->co_filename, "<frozen importlib._bootstrap>") == 0;
}

/// Whose function it is: a module, or a type. Not the object it is called on, which would be kept
/// alive.
py::object owner_of(PyObject* function) {
  PyObject* self = PyCFunction_GET_SELF(function);
  if (!self) {
    PyObject* module = reinterpret_cast<PyCFunctionObject*>(function)->m_module;
    return py::reinterpret_borrow<py::object>(module ? module : Py_None);
  }
  if (PyModule_Check(self) || PyType_Check(self)) {
    return py::reinterpret_borrow<py::object>(self);
  }
  return py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(Py_TYPE(self)));
}

}  // namespace

CallObserver::~CallObserver() {
  stop();
}

void CallObserver::start() {
  PyThreadState* thread = PyThreadState_Get();
  previous_ = thread->c_profilefunc;
  previous_argument_ = py::reinterpret_borrow<py::object>(thread->c_profileobj);
  active_ = true;
  hash_code_ = py::module_::import("torch").attr("Tensor").attr("__hash__").attr("__code__");
  py::capsule self(this);
  PyEval_SetProfile(&CallObserver::note, self.ptr());
}

void CallObserver::stop() {
  if (!active_) {
    return;
  }
  active_ = false;
  PyEval_SetProfile(previous_, previous_argument_.ptr());
  previous_ = nullptr;
  previous_argument_ = py::object();
}

/// Never raises: a program must not notice that it is observed.
int CallObserver::note(PyObject* self, PyFrameObject* frame, int what, PyObject* argument) {
  auto* observer = static_cast<CallObserver*>(PyCapsule_GetPointer(self, nullptr));
  if (what == PyTrace_RETURN && frame == observer->import_) {
    observer->import_ = nullptr;
  }
  if ((what == PyTrace_CALL || what == PyTrace_C_CALL) && !observer->import_) {
    py::error_scope keep_errors;
    try {
      if (what == PyTrace_CALL) {
        observer->note_call(frame);
      } else if (argument) {
        observer->note_c_call(frame, argument);
      }
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("torch_lazy: observing a call");
    }
  }
  return observer->previous_
             ? observer->previous_(observer->previous_argument_.ptr(), frame, what, argument)
             : 0;
}

/// Code of this package, which runs only because a call is recorded.
bool CallObserver::is_own(const py::object& globals) {
  auto [known, is_new] = own_.try_emplace(globals.ptr(), false);
  if (is_new) {
    globals_held_.push_back(globals);
    PyObject* module = PyDict_GetItemString(globals.ptr(), "__name__");
    const char* name = module && PyUnicode_Check(module) ? PyUnicode_AsUTF8(module) : nullptr;
    PyErr_Clear();
    const std::string_view own = name ? name : "";
    known->second = own == "torch_lazy" || own.starts_with("torch_lazy.");
  }
  return known->second;
}

/// A dict or set looks for a tensor: what it finds depends on which tensor it is.
void CallObserver::note_hash(PyFrameObject* frame) {
  auto back =
      py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetBack(frame)));
  if (!back) {
    return;
  }
  const py::object globals = globals_of(reinterpret_cast<PyFrameObject*>(back.ptr()));
  const py::object locals = py::getattr(reinterpret_cast<PyObject*>(frame), "f_locals");
  for (const auto& [name, value] : locals.cast<py::dict>()) {
    if (THPVariable_Check(value.ptr()) && hashed_.emplace(value.ptr(), globals.ptr()).second) {
      PyObject* module = PyDict_GetItemString(globals.ptr(), "__name__");
      hashes_.push_back(py::make_tuple(
          reinterpret_cast<uintptr_t>(value.ptr()),
          py::reinterpret_borrow<py::object>(module ? module : Py_None), hooks::source_line()));
    }
  }
}

void CallObserver::note_call(PyFrameObject* frame) {
  py::object code = code_of(frame);
  if (code.ptr() == hash_code_.ptr()) {
    note_hash(frame);
  }
  py::object globals = globals_of(frame);
  if (is_own(globals)) {
    return;
  }
  if (code.ptr() == import_code_) {
    import_ = frame;
    return;
  }
  if (seen_.emplace(code.ptr(), globals.ptr()).second) {
    if (imports(code)) {
      import_code_ = code.ptr();
      import_ = frame;
    }
    functions_.emplace_back(std::move(code), std::move(globals));
  }
}

void CallObserver::note_c_call(PyFrameObject* frame, PyObject* function) {
  if (!PyCFunction_Check(function)) {
    return;
  }
  const py::object globals = globals_of(frame);
  if (is_own(globals)) {
    return;
  }
  const PyMethodDef* method = reinterpret_cast<PyCFunctionObject*>(function)->m_ml;
  PyObject* self = PyCFunction_GET_SELF(function);
  if (self && THPVariable_Check(self) && !THPVariable_Unpack(self).is_lazy() &&
      std::find(kReadMemory.begin(), kReadMemory.end(), method->ml_name) != kReadMemory.end()) {
    host_reads_.push_back(py::make_tuple(py::reinterpret_borrow<py::object>(self), method->ml_name,
                                         hooks::source_line()));
  }
  py::object code = code_of(frame);
  if (seen_c_.emplace(method, code.ptr()).second) {
    PyObject* module = PyDict_GetItemString(globals.ptr(), "__name__");
    c_functions_.push_back(py::make_tuple(
        method->ml_name, owner_of(function),
        py::reinterpret_borrow<py::object>(module ? module : Py_None), hooks::source_line()));
  }
}

py::list CallObserver::functions() const {
  py::list list;
  for (const auto& [code, globals] : functions_) {
    list.append(py::make_tuple(code, globals));
  }
  return list;
}

py::list CallObserver::c_functions() const {
  py::list list;
  for (const py::tuple& function : c_functions_) {
    list.append(function);
  }
  return list;
}

py::list CallObserver::host_reads() const {
  py::list list;
  for (const py::tuple& read : host_reads_) {
    list.append(read);
  }
  return list;
}

py::list CallObserver::hashed() const {
  py::list list;
  for (const py::tuple& hash : hashes_) {
    list.append(hash);
  }
  return list;
}

void bind_observe(py::module_& m) {
  py::class_<CallObserver>(m, "CallObserver")
      .def(py::init<>())
      .def("start", &CallObserver::start)
      .def("stop", &CallObserver::stop)
      .def_property_readonly("functions", &CallObserver::functions)
      .def_property_readonly("c_functions", &CallObserver::c_functions)
      .def_property_readonly("host_reads", &CallObserver::host_reads)
      .def_property_readonly("hashed", &CallObserver::hashed);
}

}  // namespace torch_lazy
