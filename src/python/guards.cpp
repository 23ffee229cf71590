#include "python/guards.h"

#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <bit>
#include <cstring>

namespace py = pybind11;

namespace torch_lazy {
namespace {

bool same_bits(double a, double b) {
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
}

/// The dicts of a class and of its bases, in the order of look-ups.
std::vector<py::object> dicts_of(PyObject* type) {
  std::vector<py::object> dicts;
  PyObject* bases = reinterpret_cast<PyTypeObject*>(type)->tp_mro;
  for (Py_ssize_t i = 0; bases && i < PyTuple_GET_SIZE(bases); ++i) {
    auto* base = reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(bases, i));
#if PY_VERSION_HEX >= 0x030C0000
    auto dict = py::reinterpret_steal<py::object>(PyType_GetDict(base));
#else
    auto dict = py::reinterpret_borrow<py::object>(base->tp_dict);
#endif
    if (dict) {
      dicts.push_back(std::move(dict));
    }
  }
  return dicts;
}

/// An attribute of a class; borrowed, null: it has none.
PyObject* find(const std::vector<py::object>& dicts, PyObject* name) {
  for (const py::object& dict : dicts) {
    PyObject* found = PyDict_GetItemWithError(dict.ptr(), name);
    if (found) {
      return found;
    }
    PyErr_Clear();
  }
  return nullptr;
}

/// Whether a dict has a key that is in `watched` and not in `known`.
bool has_new_key(PyObject* dict, PyObject* watched, PyObject* known) {
  PyObject* key = nullptr;
  Py_ssize_t position = 0;
  while (PyDict_Next(dict, &position, &key, nullptr)) {
    if (PyUnicode_CheckExact(key) && PySet_Contains(watched, key) == 1 &&
        PySet_Contains(known, key) == 0) {
      return true;
    }
  }
  return false;
}

/// The bytes of an object with a buffer; none: it gives none away.
py::object bytes_of(PyObject* object) {
  PyObject* bytes = PyBytes_FromObject(object);
  if (!bytes) {
    PyErr_Clear();
    return py::none();
  }
  return py::reinterpret_steal<py::object>(bytes);
}

/// What a cached function has computed so far: (misses, entries).
py::object computed(PyObject* function) {
  PyObject* info = PyObject_CallMethod(function, "cache_info", nullptr);
  if (!info || !PyTuple_Check(info) || PyTuple_GET_SIZE(info) < 4) {
    PyErr_Clear();
    Py_XDECREF(info);
    return py::none();
  }
  auto held = py::reinterpret_steal<py::tuple>(info);
  return py::make_tuple(held[1], held[3]);
}

py::object field(PyObject* object) {
  return py::reinterpret_borrow<py::object>(object ? object : Py_None);
}

/// Everything a function is besides its globals, which it cannot lose.
py::object function_parts(PyObject* object) {
  auto* function = reinterpret_cast<PyFunctionObject*>(object);
  return py::make_tuple(field(function->func_code), field(function->func_defaults),
                        field(function->func_kwdefaults), field(function->func_closure));
}

bool has_parts(PyObject* object, PyObject* parts) {
  auto* function = reinterpret_cast<PyFunctionObject*>(object);
  const auto same = [&](Py_ssize_t i, PyObject* part) {
    return PyTuple_GET_ITEM(parts, i) == (part ? part : Py_None);
  };
  return same(0, function->func_code) && same(1, function->func_defaults) &&
         same(2, function->func_kwdefaults) && same(3, function->func_closure);
}

/// Whether an object still has its class and its dict.
bool has_dict(PyObject* object, PyObject* type, PyObject* dict) {
  if (reinterpret_cast<PyObject*>(Py_TYPE(object)) != type) {
    return false;
  }
  if (dict == Py_None) {
    return true;
  }
  auto current = py::reinterpret_steal<py::object>(PyObject_GenericGetDict(object, nullptr));
  PyErr_Clear();
  return current.ptr() == dict;
}

}  // namespace

bool same_value(PyObject* a, PyObject* b) {
  if (a == b) {
    return true;
  }
  if (Py_TYPE(a) != Py_TYPE(b)) {
    return false;
  }
  if (PyFloat_Check(a)) {
    return same_bits(PyFloat_AS_DOUBLE(a), PyFloat_AS_DOUBLE(b));
  }
  if (PyComplex_Check(a)) {
    return same_bits(PyComplex_RealAsDouble(a), PyComplex_RealAsDouble(b)) &&
           same_bits(PyComplex_ImagAsDouble(a), PyComplex_ImagAsDouble(b));
  }
  if (PyTuple_CheckExact(a)) {  // equal tuples may have items of other types: 1 and True
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
  if (THPVariable_Check(a)) {
    return false;
  }
  auto result = py::reinterpret_steal<py::object>(PyObject_RichCompare(a, b, Py_EQ));
  const int equal = result ? PyObject_IsTrue(result.ptr()) : -1;
  PyErr_Clear();  // arrays have no plain answer
  return equal == 1;
}

Guards::Guards(const py::list& list) {
  for (const py::handle& entry : list) {
    auto tuple = py::cast<py::tuple>(entry);
    Container container;
    container.kind = py::cast<Kind>(tuple[0]);
    container.object = tuple[1];
    container.size = py::cast<Py_ssize_t>(tuple[3]);
    PyObject* object = container.object.ptr();
    const bool watches = container.size < 0 && !tuple[4].is_none();
    if (watches) {
      container.watched = tuple[4];
    }
    for (const py::handle& described : tuple[2]) {
      auto parts = py::cast<py::tuple>(described);
      Item item;
      item.key = parts[0];
      if (watches) {
        container.known.add(item.key);
      }
      item.expected = parts[1];
      item.mode = py::cast<Mode>(parts[2]);
      if (item.mode == Mode::number) {
        item.number = recorded_numbers_.size();
        recorded_numbers_.push_back(py::cast<double>(item.expected));
      }
      container.items.push_back(std::move(item));
    }
    if (container.kind == Kind::dict) {
      container.version.emplace(object);
    }
    containers_.push_back(std::move(container));
  }
  numbers_ = recorded_numbers_;
}

/// A class has a number that every change of it or of a base replaces; 0: it was changed and
/// nothing has been looked up in it since.
uint64_t Guards::Container::current_version() const {
  if (version) {
    return version->current();
  }
  return kind == Kind::type ? reinterpret_cast<PyTypeObject*>(object.ptr())->tp_version_tag : 0;
}

Guards::Result Guards::check(const Item& item, PyObject* found) {
  switch (item.mode) {
    case Mode::same:
      return found == item.expected.ptr() ? Result::hold : Result::stale;
    case Mode::equal:
      return found && same_value(found, item.expected.ptr()) ? Result::hold : Result::other;
    case Mode::number:
      if (!found || !PyFloat_CheckExact(found)) {
        return Result::other;
      }
      numbers_[item.number] = PyFloat_AS_DOUBLE(found);
      return Result::hold;
    case Mode::absent:
      return found ? Result::other : Result::hold;
  }
  return Result::stale;
}

/// Items of a dict, attributes of a class or of an object.
Guards::Result Guards::check_named(const Container& container) {
  PyObject* object = container.object.ptr();
  std::vector<py::object> dicts;
  if (container.kind == Kind::type) {
    dicts = dicts_of(object);
  } else if (container.kind == Kind::dict) {
    dicts.push_back(container.object);
  }
  for (const py::object& dict : dicts) {
    if (container.watched &&
        has_new_key(dict.ptr(), container.watched.ptr(), container.known.ptr())) {
      return Result::other;
    }
  }
  Result result = Result::hold;
  for (const Item& item : container.items) {
    py::object owned;
    PyObject* found = nullptr;
    if (container.kind != Kind::slots) {
      found = find(dicts, item.key.ptr());
    } else {
      owned = py::reinterpret_steal<py::object>(PyObject_GenericGetAttr(object, item.key.ptr()));
      found = owned.ptr();
    }
    PyErr_Clear();
    result = std::max(result, check(item, found));
    if (result == Result::stale) {
      break;
    }
  }
  return result;
}

/// The order of a dict's items is part of what a program sees.
Guards::Result Guards::check_whole_dict(const Container& container) {
  Result result = Result::hold;
  PyObject* key = nullptr;
  PyObject* found = nullptr;
  Py_ssize_t position = 0;
  if (PyDict_GET_SIZE(container.object.ptr()) != container.size) {
    return Result::stale;
  }
  for (const Item& item : container.items) {
    if (!PyDict_Next(container.object.ptr(), &position, &key, &found)) {
      return Result::stale;
    }
    const auto held = py::reinterpret_borrow<py::object>(found);  // comparing may run code
    if (key != item.key.ptr() && !same_value(key, item.key.ptr())) {
      return Result::stale;
    }
    result = std::max(result, check(item, held.ptr()));
    if (result == Result::stale) {
      break;
    }
  }
  return result;
}

Guards::Result Guards::check_list(const Container& container) {
  PyObject* list = container.object.ptr();
  if (PyList_GET_SIZE(list) != container.size) {
    return Result::stale;
  }
  Result result = Result::hold;
  for (Py_ssize_t i = 0; i < container.size && result != Result::stale; ++i) {
    if (i >= PyList_GET_SIZE(list)) {
      return Result::stale;
    }
    result = std::max(result, check(container.items[i], PyList_GET_ITEM(list, i)));
  }
  return result;
}

/// Also a set's: a program sees the order in which it gives its items.
Guards::Result Guards::check_sequence(const Container& container) {
  PyObject* object = container.object.ptr();
  if (PyObject_Size(object) != container.size) {
    return Result::stale;
  }
  auto items = py::reinterpret_steal<py::object>(PyAnySet_Check(object) ? PySet_Type.tp_iter(object)
                                                                        : PyObject_GetIter(object));
  Result result = Result::hold;
  for (const Item& item : container.items) {
    auto found = py::reinterpret_steal<py::object>(items ? PyIter_Next(items.ptr()) : nullptr);
    PyErr_Clear();
    result = std::max(result, check(item, found.ptr()));
    if (result == Result::stale) {
      break;
    }
  }
  return result;
}

Guards::Result Guards::check(Container& container) {
  PyObject* object = container.object.ptr();
  // Asked for first: comparing values may run code that changes the dict.
  uint64_t version = container.current_version();
  Result result = Result::hold;
  const auto expected = [&](size_t i) { return container.items[i].expected.ptr(); };
  switch (container.kind) {
    case Kind::dict:
      result = container.size >= 0 ? check_whole_dict(container) : check_named(container);
      break;
    case Kind::type:
      if (version == 0) {
        py::getattr(container.object, "__name__", py::none());  // a look-up gives it a new one
        version = container.current_version();
      }
      result = check_named(container);
      break;
    case Kind::slots:
      result = check_named(container);
      break;
    case Kind::list:
      result = check_list(container);
      break;
    case Kind::sequence:
      result = check_sequence(container);
      break;
    case Kind::cell:
      result = check(container.items[0], PyCell_GET(object));
      break;
    case Kind::instance:
      result = has_dict(object, expected(0), expected(1)) ? Result::hold : Result::stale;
      break;
    case Kind::function:
      result = has_parts(object, expected(0)) ? Result::hold : Result::stale;
      break;
    case Kind::memory:
      result = same_value(bytes_of(object).ptr(), expected(0)) ? Result::hold : Result::other;
      break;
    case Kind::reference:
      result = py::reinterpret_steal<py::object>(PyObject_CallNoArgs(object)).ptr() == expected(0)
                   ? Result::hold
                   : Result::stale;
      PyErr_Clear();
      break;
    case Kind::cached:
      result = same_value(computed(object).ptr(), expected(0)) ? Result::hold : Result::stale;
      break;
  }
  if (result == Result::hold) {
    container.held = version;
  }
  return result;
}

Guards::Result Guards::check() {
  Result result = Result::hold;
  for (Container& container : containers_) {
    if (container.held != 0 && container.held == container.current_version()) {
      continue;
    }
    result = std::max(result, check(container));
    if (result == Result::stale) {
      break;
    }
  }
  return result;
}

void bind_guards(py::module_& m) {
  using Mode = Guards::Mode;
  using Kind = Guards::Kind;
  py::enum_<Mode>(m, "GuardMode")
      .value("same", Mode::same)
      .value("equal", Mode::equal)
      .value("number", Mode::number)
      .value("absent", Mode::absent);
  py::enum_<Kind>(m, "GuardKind")
      .value("dict", Kind::dict)
      .value("list", Kind::list)
      .value("cell", Kind::cell)
      .value("type", Kind::type)
      .value("slots", Kind::slots)
      .value("sequence", Kind::sequence)
      .value("instance", Kind::instance)
      .value("function", Kind::function)
      .value("memory", Kind::memory)
      .value("reference", Kind::reference)
      .value("cached", Kind::cached);
  m.def("same_value",
        [](const py::object& a, const py::object& b) { return same_value(a.ptr(), b.ptr()); });
  m.def("function_parts", [](const py::object& f) { return function_parts(f.ptr()); });
  m.def("bytes_of", [](const py::object& o) { return bytes_of(o.ptr()); });
  m.def("computed", [](const py::object& f) { return computed(f.ptr()); });
}

}  // namespace torch_lazy
