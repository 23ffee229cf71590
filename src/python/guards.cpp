#include "python/guards.h"

#include "python/same_value.h"

#include <algorithm>
#include <string_view>

namespace py = pybind11;

namespace torch_lazy {
namespace {

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

/// Whether Python itself looks up an attribute of this name: by operators, conversions, iteration.
bool is_special(PyObject* name) {
  Py_ssize_t size = 0;
  const char* text = PyUnicode_AsUTF8AndSize(name, &size);
  if (!text) {
    PyErr_Clear();
    return false;
  }
  constexpr std::string_view kOthers[] = {"__doc__",  "__annotations__", "__slotnames__",
                                          "__dict__", "__weakref__",     "__slots__"};
  const std::string_view view(text, static_cast<size_t>(size));
  return view.starts_with("__") && view.ends_with("__") &&
         std::find(std::begin(kOthers), std::end(kOthers), view) == std::end(kOthers);
}

/// Whether a dict has a key that is in `watched` and not in `known`.
bool has_new_key(PyObject* dict, PyObject* watched, PyObject* known, bool special) {
  PyObject* key = nullptr;
  Py_ssize_t position = 0;
  while (PyDict_Next(dict, &position, &key, nullptr)) {
    if (PyUnicode_CheckExact(key) && PySet_Contains(known, key) == 0 &&
        (PySet_Contains(watched, key) == 1 || (special && is_special(key)))) {
      return true;
    }
  }
  return false;
}

/// The content of an object with a buffer, and how it lies there; none: it gives none away.
py::object memory_of(PyObject* object) {
  auto bytes = py::reinterpret_steal<py::object>(PyBytes_FromObject(object));
  PyErr_Clear();
  if (!bytes) {
    return py::none();
  }
  const auto part = [](const py::handle& of, const char* name) {
    return py::getattr(of, name, py::none());
  };
  const py::object dtype = part(object, "dtype");
  return py::make_tuple(std::move(bytes), dtype, part(dtype, "names"), part(object, "shape"),
                        part(object, "strides"), part(part(object, "flags"), "writeable"));
}

/// What a cached function holds: it itself, and the arguments and results that it keeps.
std::vector<PyObject*> contents_of(PyObject* object) {
  std::vector<PyObject*> found;
  auto visit = [](PyObject* item, void* list) {
    static_cast<std::vector<PyObject*>*>(list)->push_back(item);
    return 0;
  };
  if (traverseproc traverse = Py_TYPE(object)->tp_traverse) {
    traverse(object, visit, &found);
  }
  return found;
}

/// Whether an object still holds just these.
bool has_contents(PyObject* object, PyObject* tuple) {
  const std::vector<PyObject*> found = contents_of(object);
  return static_cast<Py_ssize_t>(found.size()) == PyTuple_GET_SIZE(tuple) &&
         std::equal(found.begin(), found.end(), reinterpret_cast<PyTupleObject*>(tuple)->ob_item);
}

/// A number that every change of a class or of a base replaces; 0: there is none.
uint64_t type_version(PyObject* type) {
  auto* as_type = reinterpret_cast<PyTypeObject*>(type);
  if (as_type->tp_version_tag == 0) {  // a look-up gives it a new one
    _PyType_Lookup(as_type, py::str("__name__").ptr());
    PyErr_Clear();
  }
  return as_type->tp_version_tag;
}

py::object field(PyObject* object) {
  return py::reinterpret_borrow<py::object>(object ? object : Py_None);
}

/// A class that is made at run time: the only ones that are guarded.
const PyHeapTypeObject* heap_type(PyObject* type) {
  return reinterpret_cast<PyHeapTypeObject*>(type);
}

/// Everything a function is besides its globals, which it cannot lose.
py::object function_parts(PyObject* object) {
  auto* function = reinterpret_cast<PyFunctionObject*>(object);
  return py::make_tuple(field(function->func_code), field(function->func_defaults),
                        field(function->func_kwdefaults), field(function->func_closure),
                        field(function->func_name), field(function->func_qualname));
}

bool has_parts(PyObject* object, PyObject* parts) {
  auto* function = reinterpret_cast<PyFunctionObject*>(object);
  const auto same = [&](Py_ssize_t i, PyObject* part) {
    return PyTuple_GET_ITEM(parts, i) == (part ? part : Py_None);
  };
  return same(0, function->func_code) && same(1, function->func_defaults) &&
         same(2, function->func_kwdefaults) && same(3, function->func_closure) &&
         same(4, function->func_name) && same(5, function->func_qualname);
}

bool has_parts_of_partial(PyObject* object, PyObject* parts) {
  const char* names[] = {"func", "args", "keywords"};
  for (Py_ssize_t i = 0; i < 3; ++i) {
    const py::object part = py::getattr(py::handle(object), names[i], py::none());
    if (part.ptr() != PyTuple_GET_ITEM(parts, i)) {
      return false;
    }
  }
  return true;
}

/// Whether a weak reference leads to the object with this address, which the guard must not keep
/// alive. Where it is gone the reference leads to None, whatever has taken its place.
bool refers_to(PyObject* reference, PyObject* address) {
  auto target = py::reinterpret_steal<py::object>(PyObject_CallNoArgs(reference));
  auto found = py::reinterpret_steal<py::object>(PyLong_FromVoidPtr(target.ptr()));
  PyErr_Clear();
  return target && found && same_value(found.ptr(), address);
}

/// Whether an object still has its class and its dict.
bool has_dict(PyObject* object, PyObject* type, PyObject* dict) {
  if (reinterpret_cast<PyObject*>(Py_TYPE(object)) != type) {
    return false;
  }
  if (dict == Py_None) {
    return true;
  }
  PyObject** place = _PyObject_GetDictPtr(object);
  if (place && *place) {
    return *place == dict;
  }
  auto current = py::reinterpret_steal<py::object>(PyObject_GenericGetDict(object, nullptr));
  PyErr_Clear();
  return current.ptr() == dict;
}

}  // namespace

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
    if (container.kind == Kind::dict && !PyODict_Check(object)) {  // whose order has no version
      container.version.emplace(object);
    }
    if (container.kind == Kind::type) {
      container.name = field(heap_type(object)->ht_name);
      container.full_name = field(heap_type(object)->ht_qualname);
    }
    if (container.kind == Kind::type && watches) {
      for (const py::object& dict : dicts_of(object)) {
        container.special.push_back(
            !has_new_key(dict.ptr(), py::set().ptr(), container.known.ptr(), /*special=*/true));
      }
    }
    Glance glance;
    glance.object = object;
    if (container.kind == Kind::instance) {
      glance.type = container.items[0].expected.ptr();
      glance.dict = container.items[1].expected.ptr();
    }
    glances_.push_back(glance);
    objects_.insert(object);
    containers_.push_back(std::move(container));
  }
  numbers_ = recorded_numbers_;
}

bool Guards::Glance::holds() const {
  if (type) {
    return has_dict(object, type, dict);
  }
#if PY_VERSION_HEX < 0x030C0000
  return held != 0 && held == reinterpret_cast<PyDictObject*>(object)->ma_version_tag;
#else
  return false;
#endif
}

/// Where a class was changed and nothing has been looked up in it since, its number is 0.
uint64_t Guards::Container::current_version() const {
  if (version) {
    return version->current();
  }
  return kind == Kind::type && has_name()
             ? reinterpret_cast<PyTypeObject*>(object.ptr())->tp_version_tag
             : 0;
}

bool Guards::Container::has_name() const {
  const PyHeapTypeObject* type = heap_type(object.ptr());
  return type->ht_name == name.ptr() && type->ht_qualname == full_name.ptr();
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
  for (size_t i = 0; container.watched && i < dicts.size(); ++i) {
    const bool special = i < container.special.size() && container.special[i];
    if (has_new_key(dicts[i].ptr(), container.watched.ptr(), container.known.ptr(), special)) {
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
  PyObject* dict = container.object.ptr();
  if (PyDict_GET_SIZE(dict) != container.size) {
    return Result::stale;
  }
  if (PyODict_Check(dict)) {
    return check_ordered_dict(container);
  }
  Result result = Result::hold;
  PyObject* key = nullptr;
  PyObject* found = nullptr;
  Py_ssize_t position = 0;
  for (const Item& item : container.items) {
    if (!PyDict_Next(dict, &position, &key, &found)) {
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

/// It keeps its order beside its items.
Guards::Result Guards::check_ordered_dict(const Container& container) {
  PyObject* dict = container.object.ptr();
  auto keys = py::reinterpret_steal<py::object>(PyODict_Type.tp_iter(dict));
  Result result = Result::hold;
  for (const Item& item : container.items) {
    auto key = py::reinterpret_steal<py::object>(keys ? PyIter_Next(keys.ptr()) : nullptr);
    PyErr_Clear();
    if (!key || !same_value(key.ptr(), item.key.ptr())) {
      return Result::stale;
    }
    const auto held = py::reinterpret_borrow<py::object>(PyDict_GetItemWithError(dict, key.ptr()));
    PyErr_Clear();
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
      version = type_version(object);
      if (!container.has_name()) {
        result = Result::stale;
      } else if (container.size < 0) {
        result = check_named(container);
      } else if (static_cast<uint64_t>(container.size) != version) {
        result = Result::stale;
      }
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
      result = same_value(memory_of(object).ptr(), expected(0)) ? Result::hold : Result::other;
      break;
    case Kind::reference:
      result = refers_to(object, expected(0)) ? Result::hold : Result::stale;
      break;
    case Kind::answer:
      result = same_value(py::reinterpret_steal<py::object>(PyObject_CallNoArgs(object)).ptr(),
                          expected(0))
                   ? Result::hold
                   : Result::other;
      PyErr_Clear();
      break;
    case Kind::partial:
      result = has_parts_of_partial(object, expected(0)) ? Result::hold : Result::stale;
      break;
    case Kind::cached:
      result = has_contents(object, expected(0)) ? Result::hold : Result::stale;
      break;
  }
  if (result == Result::hold) {
    container.held = version;
  }
  return result;
}

Guards::Result Guards::check() {
  Result result = Result::hold;
  failed_ = -1;
  for (size_t i = 0; i < containers_.size(); ++i) {
    if (glances_[i].holds()) {
      continue;
    }
    Container& container = containers_[i];
    if (container.held != 0 && container.held == container.current_version()) {
      continue;
    }
    const Result found = check(container);
    glances_[i].held = container.kind == Kind::dict ? container.held : 0;
    if (found > result) {
      result = found;
      failed_ = static_cast<int64_t>(i);
    }
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
      .value("cached", Kind::cached)
      .value("answer", Kind::answer)
      .value("partial", Kind::partial);
  m.def("same_value",
        [](const py::object& a, const py::object& b) { return same_value(a.ptr(), b.ptr()); });
  m.def("has_value", [](const py::object& o) { return has_value(o.ptr()); });
  m.def("type_version", [](const py::type& type) { return type_version(type.ptr()); });
  m.def("function_parts", [](const py::object& f) { return function_parts(f.ptr()); });
  m.def("memory_of", [](const py::object& o) { return memory_of(o.ptr()); });
  m.def("contents_of", [](const py::object& o) {
    const std::vector<PyObject*> found = contents_of(o.ptr());
    py::tuple contents(found.size());
    for (size_t i = 0; i < found.size(); ++i) {
      contents[i] = py::reinterpret_borrow<py::object>(found[i]);
    }
    return contents;
  });
}

}  // namespace torch_lazy
