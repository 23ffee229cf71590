// The 24 bindings of PyTorch's Lazy Tensor Core under their own names: torch_lazy._C._lazy and
// torch_lazy._C._lazy_ts_backend have what torch._C._lazy and torch._C._lazy_ts_backend have.
#include "python/lazy_bindings.h"

#include "ir/trace.h"
#include <torch_lazy/backend.h>
#include <torch_lazy/graph_executor.h>
#include <torch_lazy/torch_lazy.h>

#include <c10/util/Logging.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <fstream>

namespace py = pybind11;

namespace torch_lazy {
namespace {

using Tensors = std::vector<at::Tensor>;
using Names = std::vector<std::string>;

at::Device lazy_device(const std::string& name) {
  at::Device device(name.empty() ? "lazy" : name);
  TORCH_CHECK(device.type() == at::kLazy, "torch-lazy: expected a lazy device, but got ", device);
  return {at::kLazy, std::max<c10::DeviceIndex>(device.index(), 0)};
}

void mark_step(const std::string& name, const Names&, bool wait) {
  const at::Device device = lazy_device(name);
  GraphExecutor& executor = GraphExecutor::get();
  executor.sync_live_tensors(device, wait);
  executor.mark_step(device);
}

void wait_device_ops(const Names& devices) {
  if (!devices.empty()) {
    LOG(ERROR) << "Non-empty devices are not supported.";
  }
  GraphExecutor::get().wait_device_ops();
}

void sync_multi(const Tensors& tensors, const Names&, bool wait, bool sync_ltc_data) {
  GraphExecutor::get().sync_tensors(tensors, wait, /*keep_graph=*/!sync_ltc_data);
}

py::bytes graph_hash(const Tensors& tensors) {
  return GraphExecutor::get().get_graph_hash(tensors).bytes();
}

py::tuple device_data(const Tensors& tensors) {
  GraphInputs inputs = GraphExecutor::get().get_graph_inputs(tensors);
  py::list values;
  for (c10::IValue& value : inputs.values) {
    values.append(torch::jit::toPyObject(std::move(value)));
  }
  return py::make_tuple(inputs.ids, values);
}

/// A tensor, a number or a list of numbers. (libtorch does not export its own conversion.)
c10::IValue graph_input(const py::handle& input) {
  if (THPVariable_Check(input.ptr())) {
    return THPVariable_Unpack(input.ptr());
  }
  if (PyList_Check(input.ptr()) || PyTuple_Check(input.ptr())) {
    c10::impl::GenericList list(c10::AnyType::get());
    for (const py::handle& item : input) {
      list.push_back(graph_input(item));
    }
    return list;
  }
  if (py::isinstance<py::bool_>(input)) {
    return py::cast<bool>(input);
  }
  if (py::isinstance<py::int_>(input)) {
    return py::cast<int64_t>(input);
  }
  if (py::isinstance<py::float_>(input)) {
    return py::cast<double>(input);
  }
  TORCH_CHECK_TYPE(PyComplex_Check(input.ptr()),
                   "torch-lazy: a graph's inputs are tensors and numbers, but one is ",
                   py::cast<std::string>(py::str(py::type::of(input))));
  return py::cast<c10::complex<double>>(input);
}

Tensors run_cached_graph(const std::string& bytes, const std::vector<py::object>& inputs) {
  const GraphHash hash = GraphHash::from_bytes(bytes);
  std::vector<c10::IValue> values;
  for (const py::object& input : inputs) {
    values.push_back(graph_input(input));
  }
  py::gil_scoped_release release;
  return GraphExecutor::get().run_cached_graph(hash, values);
}

std::string device_type() {
  return backend().device_type();
}

void dump_ir_cache(const std::string& path) {
  std::ofstream file(path);
  file << Trace::of_this_thread().dot();
  TORCH_CHECK(file.flush(), "torch-lazy: cannot write ", path);
}

void bind_core(py::module_& m) {
  using Release = py::call_guard<py::gil_scoped_release>;
  m.def("_mark_step", &mark_step, py::arg("device") = "", py::arg("devices"),
        py::arg("wait") = true, Release());
  m.def("_wait_device_ops", &wait_device_ops, py::arg("devices"), Release());
  m.def("_sync_multi", &sync_multi, py::arg("tensors"), py::arg("devices"), py::arg("wait") = true,
        py::arg("sync_ltc_data") = true, Release());

  m.def("_reset_metrics", &reset_metrics);
  m.def("_counter_names", &counter_names);
  m.def("_metrics_report", &metrics_report);
  m.def("_counter_value", &counter_value, py::arg("name"));

  m.def("_get_tensor_id", &tensor_id, py::arg("tensor"));
  m.def("_get_graph_hash", &graph_hash, py::arg("tensors"));
  m.def(
      "_get_tensors_text", [](const Tensors& tensors) { return graph_text(tensors); },
      py::arg("tensors"));
  m.def(
      "_get_tensors_dot", [](const Tensors& tensors) { return graph_dot(tensors); },
      py::arg("tensors"));
  m.def(
      "_get_tensors_backend",
      [](const Tensors& tensors) { return GraphExecutor::get().dump_backend_computation(tensors); },
      py::arg("tensors"));

  m.def("_get_force_fallback", [] { return get_setting("LTC_FORCE_FALLBACK"); });
  m.def(
      "_set_force_fallback",
      [](const std::string& name) { set_setting("LTC_FORCE_FALLBACK", name); }, py::arg("newval"));
  m.def("_clear_ir_cache", [] { Trace::of_this_thread().reset(); }, Release());
  m.def("_dump_ir_cache", &dump_ir_cache, py::arg("filename"), Release());
  m.def(
      "_set_reuse_ir", [](bool reuse) { set_setting("TORCH_LAZY_REUSE_IR", reuse ? "1" : "0"); },
      py::arg("val"));
  m.def(
      "_set_symbolic_shape_mode",
      [](bool on) { set_setting("LTC_ENABLE_SYMBOLIC_SHAPES", on ? "1" : "0"); }, py::arg("val"));
  m.def("_get_symbolic_shape_mode",
        [] { return get_setting("LTC_ENABLE_SYMBOLIC_SHAPES") == "1"; });
  m.def("_get_default_device_type", &device_type);
}

void bind_backend(py::module_& m) {
  m.def("_init", [] {});  // the kernels are registered when the library is loaded
  m.def("_get_tensors_ts_device_data_node", &device_data, py::arg("tensors"));
  m.def("_run_cached_graph", &run_cached_graph, py::arg("hash_str"), py::arg("graph_inputs"));
  m.def("_get_latest_computation_graph", [] { return GraphExecutor::get().latest_computation(); });
}

}  // namespace

void bind_lazy(py::module_& m) {
  py::module_ core =
      m.def_submodule("_lazy", "What torch._C._lazy has, for torch_lazy's own tensors.");
  bind_core(core);
  py::module_ backend = m.def_submodule(
      "_lazy_ts_backend", "What torch._C._lazy_ts_backend has, for torch_lazy's own tensors.");
  bind_backend(backend);
}

}  // namespace torch_lazy
