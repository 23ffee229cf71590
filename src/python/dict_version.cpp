#include "python/dict_version.h"

#include <unordered_map>

namespace py = pybind11;

namespace torch_lazy {

#if PY_VERSION_HEX < 0x030C0000

// Each dict has a number that every change replaces.
DictVersion::DictVersion(PyObject* dict) : dict_(py::reinterpret_borrow<py::object>(dict)) {}

#elif defined(Py_GIL_DISABLED)

// Without the GIL a dict can change between the watcher's call and the change itself.
struct WatchedDict {};

DictVersion::DictVersion(PyObject*) {}

uint64_t DictVersion::current() const {
  return 0;
}

#else

// Python calls a watcher before it changes a watched dict. It has few places for watchers, so there
// is one for all dicts.
struct WatchedDict : std::enable_shared_from_this<WatchedDict> {
  py::object dict;  // so it lives for as long as it is watched
  uint64_t changes = 1;

  explicit WatchedDict(PyObject* d);
  ~WatchedDict();
};

namespace {

/// Never destroyed: dicts change until Python's very end.
std::unordered_map<PyObject*, WatchedDict*>& watched_dicts() {
  static auto* dicts = new std::unordered_map<PyObject*, WatchedDict*>;
  return *dicts;
}

/// The change follows before any other code can ask for the version: both happen under the GIL.
int note_change(PyDict_WatchEvent, PyObject* dict, PyObject*, PyObject*) {
  auto found = watched_dicts().find(dict);
  if (found != watched_dicts().end()) {
    ++found->second->changes;
  }
  return 0;
}

/// -1: others have taken all places.
int watcher() {
  static const int id = [] {
    py::error_scope keep_errors;
    const int added = PyDict_AddWatcher(note_change);
    PyErr_Clear();
    return added;
  }();
  return id;
}

/// Python 3.13.0 calls no watcher for attributes that it keeps inside of their object
/// (python/cpython#125608); 3.13.1 does.
bool changes_unseen(PyObject* dict) {
  static const bool has_bug = Py_Version >> 8 == 0x030D00;
  return has_bug && reinterpret_cast<PyDictObject*>(dict)->ma_values != nullptr;
}

std::shared_ptr<const WatchedDict> watch(PyObject* dict) {
  auto found = watched_dicts().find(dict);
  if (found != watched_dicts().end()) {
    return found->second->shared_from_this();
  }
  if (watcher() < 0 || changes_unseen(dict)) {
    return nullptr;
  }
  auto made = std::make_shared<WatchedDict>(dict);
  if (PyDict_Watch(watcher(), dict) != 0) {
    PyErr_Clear();
    return nullptr;
  }
  return made;
}

}  // namespace

WatchedDict::WatchedDict(PyObject* d) : dict(py::reinterpret_borrow<py::object>(d)) {
  watched_dicts().emplace(d, this);
}

WatchedDict::~WatchedDict() {
  watched_dicts().erase(dict.ptr());
  py::error_scope keep_errors;
  if (PyDict_Unwatch(watcher(), dict.ptr()) != 0) {
    PyErr_Clear();  // Python is shutting down and has no watchers any more
  }
}

DictVersion::DictVersion(PyObject* dict) : watched_(watch(dict)) {}

uint64_t DictVersion::current() const {
  return watched_ ? watched_->changes : 0;
}

#endif

}  // namespace torch_lazy
