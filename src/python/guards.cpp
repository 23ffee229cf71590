#include "python/guards.h"

#include <algorithm>

namespace py = pybind11;

namespace torch_lazy {

bool same_value(PyObject* a, PyObject* b) {
  if (a == b) {
    return true;
  }
  if (Py_TYPE(a) != Py_TYPE(b)) {
    return false;
  }
  PyObject* result = PyObject_RichCompare(a, b, Py_EQ);
  if (!result) {
    PyErr_Clear();
    return false;
  }
  const bool equal = result == Py_True;
  Py_DECREF(result);
  return equal;
}

Guards::Guards(const py::list& list) {
  for (const py::handle& entry : list) {
    auto tuple = py::cast<py::tuple>(entry);
    Container container;
    container.object = tuple[0];
    container.size = py::cast<Py_ssize_t>(tuple[2]);
    PyObject* object = container.object.ptr();
    container.kind = PyDict_Check(object)   ? Container::Kind::dict
                     : PyList_Check(object) ? Container::Kind::list
                                            : Container::Kind::cell;
    TORCH_CHECK_TYPE(container.kind != Container::Kind::cell || PyCell_Check(object),
                     "torch-lazy: a guard's container is a dict, a list or a cell");
    for (const py::handle& described : tuple[1]) {
      auto parts = py::cast<py::tuple>(described);
      Item item;
      item.key = parts[0];
      if (container.kind == Container::Kind::list) {
        item.place = py::cast<Py_ssize_t>(item.key);
      }
      item.expected = parts[1];
      item.mode = static_cast<Mode>(py::cast<int>(parts[2]));
      if (item.mode == Mode::number) {
        item.number = recorded_numbers_.size();
        recorded_numbers_.push_back(py::cast<double>(item.expected));
      }
      container.items.push_back(std::move(item));
    }
    if (container.kind == Container::Kind::dict) {
      container.version.emplace(object);
    }
    containers_.push_back(std::move(container));
  }
  numbers_ = recorded_numbers_;
}

Guards::Result Guards::check(const Item& item, PyObject* found) {
  switch (item.mode) {
    case Mode::object:
      return found == item.expected.ptr() ? Result::hold : Result::stale;
    case Mode::value:
      return found && same_value(found, item.expected.ptr()) ? Result::hold : Result::other;
    case Mode::number:
      if (!found || !PyFloat_CheckExact(found)) {
        return Result::other;
      }
      numbers_[item.number] = PyFloat_AS_DOUBLE(found);
      return Result::hold;
  }
  return Result::stale;
}

Guards::Result Guards::check(Container& container) {
  PyObject* object = container.object.ptr();
  // Asked for first: comparing values may run code that changes the dict.
  const uint64_t version = container.current_version();
  if (container.size >= 0 && PyObject_Size(object) != container.size) {
    return Result::stale;
  }
  Result result = Result::hold;
  for (const Item& item : container.items) {
    PyObject* found = nullptr;
    switch (container.kind) {
      case Container::Kind::dict:
        found = PyDict_GetItemWithError(object, item.key.ptr());
        PyErr_Clear();
        break;
      case Container::Kind::list:
        found =
            item.place < PyList_GET_SIZE(object) ? PyList_GET_ITEM(object, item.place) : nullptr;
        break;
      case Container::Kind::cell:
        found = PyCell_GET(object);
        break;
    }
    result = std::max(result, check(item, found));
    if (result == Result::stale) {
      return result;
    }
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

}  // namespace torch_lazy
