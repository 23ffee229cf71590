#include "python/same_value.h"

#include <torch/csrc/Size.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

namespace py = pybind11;

namespace torch_lazy {
namespace {

/// How values of a type are compared.
enum class Form {
  none,  // they are not
  equal,
  number,   // a float
  complex,  // bit by bit
  items,    // tuples
  set,      // in the order in which it gives its items
  slice,
  range,
  text,   // by what `repr` says
  numpy,  // a scalar: type and bytes
};

py::object imported(const char* module, const char* name) {
  return py::module_::import(module).attr(name);
}

/// Types of Python's and PyTorch's that are looked up once; never freed.
struct Types {
  std::vector<PyObject*> equal;
  std::vector<PyObject*> text;
  PyObject* numpy = imported("numpy", "generic").release().ptr();
  PyObject* numpy_void = imported("numpy", "void").release().ptr();
  PyObject* numpy_object = imported("numpy", "object_").release().ptr();
  PyObject* numpy_dtype = imported("numpy", "dtype").release().ptr();

  Types() {
    for (const char* name : {"device", "finfo", "iinfo"}) {
      equal.push_back(imported("torch", name).release().ptr());
    }
    equal.push_back(imported("re", "Pattern").release().ptr());
    text.push_back(imported("fractions", "Fraction").release().ptr());
    text.push_back(imported("uuid", "UUID").release().ptr());
    for (const char* name : {"date", "time", "datetime", "timedelta", "timezone"}) {
      text.push_back(imported("datetime", name).release().ptr());
    }
    for (const char* name : {"PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath"}) {
      text.push_back(imported("pathlib", name).release().ptr());
    }
  }
};

const Types& types() {
  static const auto* found = new Types();
  return *found;
}

bool is_in(const std::vector<PyObject*>& list, PyObject* type) {
  return std::find(list.begin(), list.end(), type) != list.end();
}

Form form_of(PyObject* object) {
  if (PyLong_CheckExact(object) || PyUnicode_CheckExact(object) || PyBool_Check(object) ||
      PyBytes_CheckExact(object) || object == Py_None || object == Py_Ellipsis ||
      object == Py_NotImplemented) {
    return Form::equal;
  }
  if (PyFloat_CheckExact(object)) {
    return Form::number;
  }
  if (PyTuple_CheckExact(object) || THPSize_Check(object)) {
    return Form::items;
  }
  if (PyComplex_CheckExact(object)) {
    return Form::complex;
  }
  if (PyFrozenSet_CheckExact(object) || PySet_CheckExact(object)) {
    return Form::set;
  }
  if (PySlice_Check(object)) {
    return Form::slice;
  }
  if (PyRange_Check(object)) {
    return Form::range;
  }
  PyTypeObject* type = Py_TYPE(object);
  auto* as_object = reinterpret_cast<PyObject*>(type);
  if (is_in(types().equal, as_object)) {
    return Form::equal;
  }
  if (is_in(types().text, as_object)) {
    return Form::text;
  }
  if ((type->tp_flags & Py_TPFLAGS_HEAPTYPE) == 0) {
    auto is_a = [&](PyObject* base) {
      return PyType_IsSubtype(type, reinterpret_cast<PyTypeObject*>(base)) != 0;
    };
    if (is_a(types().numpy) && !is_a(types().numpy_void) && !is_a(types().numpy_object)) {
      return Form::numpy;
    }
  }
  return PyObject_TypeCheck(object, reinterpret_cast<PyTypeObject*>(types().numpy_dtype))
             ? Form::equal
             : Form::none;
}

bool same_bits(double a, double b) {
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
}

bool are_equal(PyObject* a, PyObject* b) {
  const int equal = PyObject_RichCompareBool(a, b, Py_EQ);
  PyErr_Clear();
  return equal == 1;
}

/// What a function of Python's C interface gives; null, without an error: it raised one.
py::object given(PyObject* object) {
  PyErr_Clear();
  return py::reinterpret_steal<py::object>(object);
}

bool same_attribute(PyObject* a, PyObject* b, const char* name) {
  const py::object x = given(PyObject_GetAttrString(a, name));
  const py::object y = given(PyObject_GetAttrString(b, name));
  return x && y && same_value(x.ptr(), y.ptr());
}

/// Of exact sets: no code of the program's runs.
template <typename Visit>
bool all_items(PyObject* set, Visit visit) {
  const py::object items = given(PyObject_GetIter(set));
  while (const py::object item = given(items ? PyIter_Next(items.ptr()) : nullptr)) {
    if (!visit(item.ptr())) {
      return false;
    }
  }
  return true;
}

bool same_sets(PyObject* a, PyObject* b) {
  if (PySet_GET_SIZE(a) != PySet_GET_SIZE(b)) {
    return false;
  }
  const py::object others = given(PyObject_GetIter(b));
  return all_items(a, [&](PyObject* item) {
    const py::object other = given(others ? PyIter_Next(others.ptr()) : nullptr);
    return other && same_value(item, other.ptr());
  });
}

bool same_tuples(PyObject* a, PyObject* b) {
  const Py_ssize_t size = PyTuple_GET_SIZE(a);
  if (size != PyTuple_GET_SIZE(b)) {
    return false;
  }
  for (Py_ssize_t i = 0; i < size; ++i) {
    if (!same_value(PyTuple_GET_ITEM(a, i), PyTuple_GET_ITEM(b, i))) {
      return false;
    }
  }
  return true;
}

constexpr int kMostParts = 1000;
constexpr int kMostDepth = 50;

/// `budget`: how many parts may still be looked at. What is larger or deeper is compared by
/// identity.
bool has_value(PyObject* object, int& budget, int depth) {
  if (--budget < 0 || depth > kMostDepth) {
    return false;
  }
  const auto part_has_value = [&](PyObject* part) { return has_value(part, budget, depth + 1); };
  switch (form_of(object)) {
    case Form::none:
      return false;
    case Form::items:
      for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(object); ++i) {
        if (!part_has_value(PyTuple_GET_ITEM(object, i))) {
          return false;
        }
      }
      return true;
    case Form::set:
      return PyFrozenSet_CheckExact(object) && all_items(object, part_has_value);
    case Form::slice:
      for (const char* name : {"start", "stop", "step"}) {
        const py::object part = given(PyObject_GetAttrString(object, name));
        if (!part || !part_has_value(part.ptr())) {
          return false;
        }
      }
      return true;
    default:
      return true;
  }
}

bool same_numpy(PyObject* a, PyObject* b) {
  const py::object x = given(PyObject_CallMethod(a, "tobytes", nullptr));
  const py::object y = given(PyObject_CallMethod(b, "tobytes", nullptr));
  return x && y && are_equal(x.ptr(), y.ptr()) && same_attribute(a, b, "dtype");
}

}  // namespace

bool has_value(PyObject* object) {
  int budget = kMostParts;
  return has_value(object, budget, 0);
}

bool same_value(PyObject* a, PyObject* b) {
  if (a == b) {
    return true;
  }
  if (Py_TYPE(a) != Py_TYPE(b)) {
    return false;
  }
  switch (form_of(a)) {
    case Form::none:
      return false;
    case Form::equal:
      return are_equal(a, b);
    case Form::number:
      return same_bits(PyFloat_AS_DOUBLE(a), PyFloat_AS_DOUBLE(b));
    case Form::complex:
      return same_bits(PyComplex_RealAsDouble(a), PyComplex_RealAsDouble(b)) &&
             same_bits(PyComplex_ImagAsDouble(a), PyComplex_ImagAsDouble(b));
    case Form::items:
      return same_tuples(a, b);
    case Form::set:
      return same_sets(a, b);
    case Form::slice:
    case Form::range:
      return same_attribute(a, b, "start") && same_attribute(a, b, "stop") &&
             same_attribute(a, b, "step");
    case Form::text: {
      const py::object x = given(PyObject_Repr(a));
      const py::object y = given(PyObject_Repr(b));
      return x && y && are_equal(x.ptr(), y.ptr());
    }
    case Form::numpy:
      return same_numpy(a, b);
  }
  return false;
}

}  // namespace torch_lazy
