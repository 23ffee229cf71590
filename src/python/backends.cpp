// Loading backends from Python, and finding those that packages offer.
#include "python/backends.h"

#include <torch_lazy/backend.h>

namespace py = pybind11;

namespace torch_lazy {

std::string python_backend_path(const std::string& name) {
  if (!Py_IsInitialized()) {
    return "";
  }
  py::gil_scoped_acquire gil;
  return py::module_::import("torch_lazy.backends").attr("path_of")(name).cast<std::string>();
}

void bind_backends(py::module_& m) {
  using Release = py::call_guard<py::gil_scoped_release>;
  m.def("load_backend", &load_backend, py::arg("path"), Release());
  m.def("backend_name", [] { return backend().name(); }, Release());
  m.def("backend_device_type", [] { return backend().device_type(); }, Release());
  m.def("backend_metrics", [] { return backend().metrics(); }, Release());
}

}  // namespace torch_lazy
