// The Python module torch_lazy._C: the public functions, and what Python lends to the core (source
// lines, the GIL).
#include "backends/cpu/blocked_convolution.h"
#include "base/fork.h"
#include "base/hooks.h"
#include "base/metrics.h"
#include "base/scopes.h"
#include "base/settings.h"
#include "capture/autocast.h"
#include "ir/node.h"
#include "python/backends.h"
#include "python/compile_bindings.h"
#include "python/graph_runner.h"
#include "python/guards.h"
#include "python/lazy_bindings.h"
#include "python/observe.h"
#include "runtime/executor.h"
#include <torch_lazy/torch_lazy.h>

#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/utils/pybind.h>

#include <frameobject.h>

namespace py = pybind11;

namespace torch_lazy {
namespace {

bool is_users(const std::string& file) {
  return file.find("/torch/") == std::string::npos &&
         file.find("/torch_lazy/") == std::string::npos && file.find("<frozen") != 0;
}

/// Calls `see` with the frames of this thread, innermost first, until it returns false. Called from
/// any thread, with the GIL or without.
template <typename See>
void walk_frames(See see) {
  if (!Py_IsInitialized()) {
    return;
  }
  py::gil_scoped_acquire gil;
  PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
  while (frame) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    const bool more = see(SourceLocation{py::cast<std::string>(py::handle(code->co_name)),
                                         py::cast<std::string>(py::handle(code->co_filename)),
                                         PyFrame_GetLineNumber(frame)});
    Py_DECREF(code);
    PyFrameObject* outer = more ? PyFrame_GetBack(frame) : nullptr;
    Py_DECREF(frame);
    frame = outer;
  }
}

/// The innermost frame outside torch and torch_lazy.
std::string python_source_line() {
  std::string line;
  walk_frames([&](const SourceLocation& frame) {
    if (is_users(frame.file)) {
      line = frame.file + ":" + std::to_string(frame.line) + " " + frame.function;
    }
    return line.empty();
  });
  return line;
}

std::vector<SourceLocation> python_frames() {
  std::vector<SourceLocation> frames;
  walk_frames([&](const SourceLocation& frame) {
    frames.push_back(frame);
    return true;
  });
  return frames;
}

void* release_gil() {
  return Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr;
}

void reacquire_gil(void* state) {
  PyEval_RestoreThread(static_cast<PyThreadState*>(state));
}

/// One stored exception may be raised often, in any thread; pybind11's can be restored only once.
void raise_python_error_again(const std::exception_ptr& error, const std::string& note) {
  if (!Py_IsInitialized()) {
    return;
  }
  py::gil_scoped_acquire gil;
  try {
    std::rethrow_exception(error);
  } catch (const py::error_already_set& original) {
    if (!py::hasattr(original.value(), "__notes__")) {
      original.value().attr("add_note")(note);
    }
    PyErr_SetObject(original.type().ptr(), original.value().ptr());
  } catch (...) {
    return;
  }
  throw py::error_already_set();
}

void check_python_interrupt() {
  if (!Py_IsInitialized()) {
    return;
  }
  py::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) {
    throw py::error_already_set();
  }
}

PYBIND11_MODULE(_C, m) {
  hooks::Table table;
  table.source_line = &python_source_line;
  table.frames = &python_frames;
  table.release = &release_gil;
  table.reacquire = &reacquire_gil;
  table.backend_path = &python_backend_path;
  table.raise_again = &raise_python_error_again;
  table.check_interrupt = &check_python_interrupt;
  hooks::install(table);
  bind_backends(m);

  // Python takes locks of its own for a fork: what has to wait for Python is done before.
  py::module_::import("os").attr("register_at_fork")(
      py::arg("before") = py::cpp_function(&prepare_fork),
      py::arg("after_in_parent") = py::cpp_function(&end_fork));

  using Release = py::call_guard<py::gil_scoped_release>;
  m.def(
      "mark_step",
      [](const std::string& device, bool wait) {
        at::Device parsed(device.empty() ? "lazy" : device);
        TORCH_CHECK(parsed.type() == at::kLazy, "mark_step: expected the device lazy, but got ",
                    device);
        mark_step(wait);
      },
      py::arg("device") = "", py::arg("wait") = false, Release());
  m.def(
      "sync_tensors",
      [](const std::vector<at::Tensor>& tensors, bool wait) { sync(tensors, wait); },
      py::arg("tensors"), py::arg("wait") = true, Release());
  m.def("sync_all", [](bool wait) { sync(wait); }, py::arg("wait") = true, Release());
  m.def("finish", &finish);
  m.def("wait_device_ops", &wait_device_ops, Release());
  m.def("counter_names", &counter_names);
  m.def("counter_value", &counter_value, py::arg("name"));
  m.def("metric_names", &metrics::metric_names);
  m.def(
      "metric_data",
      [](const std::string& name) {
        using Samples = std::vector<std::pair<int64_t, double>>;
        std::optional<std::tuple<int64_t, double, Samples>> result;
        if (std::optional<metrics::MetricData> data = metrics::metric_data(name)) {
          Samples samples;
          for (const metrics::Sample& sample : data->samples) {
            samples.emplace_back(sample.timestamp_ns, sample.value);
          }
          result.emplace(data->total_samples, data->accumulator, std::move(samples));
        }
        return result;
      },
      py::arg("name"));
  m.def("metrics_report", [] { return metrics::report(); });
  m.def(
      "metrics_report",
      [](const std::vector<std::string>& counters, const std::vector<std::string>& names) {
        return metrics::report(counters, names);
      },
      py::arg("counter_names"), py::arg("metric_names"));
  m.def("reset_metrics", &reset_metrics);
  m.def("fallbacks", [] {
    std::vector<std::tuple<std::string, int64_t, std::string>> rows;
    for (const metrics::Fallback& fallback : metrics::fallbacks()) {
      rows.emplace_back(fallback.name, fallback.count, fallback.source);
    }
    return rows;
  });
  m.def("graph_text", [](const std::vector<at::Tensor>& tensors) { return graph_text(tensors); });
  m.def("graph_dot", [](const std::vector<at::Tensor>& tensors) { return graph_dot(tensors); });
  m.def("get_setting", &get_setting, py::arg("name"));
  m.def("set_setting", &set_setting, py::arg("name"), py::arg("value"));
  m.def("settings", [] {
    std::vector<std::tuple<std::string, std::string, std::string, std::string>> rows;
    for (const SettingRow& row : settings_table()) {
      rows.emplace_back(row.name, row.value, row.default_value, row.meaning);
    }
    return rows;
  });
  m.def(
      "experiment_enabled", [](const std::string& name) { return experiment_enabled(name); },
      py::arg("name"));
  m.def("push_scope", &push_scope, py::arg("name"));
  m.def("pop_scope", &pop_scope);
  m.def("current_scope", &current_scope);
  m.def("reset_scopes", &reset_scopes);
  m.def("source_frames", [] {
    std::vector<std::tuple<std::string, std::string, int>> frames;
    for (const SourceLocation& frame : source_frames()) {
      frames.emplace_back(frame.function, frame.file, frame.line);
    }
    return frames;
  });
  m.def("first_user_frame", &first_user_frame);
  m.def("source_line", &hooks::source_line);
  m.def("device_count", [] { return 1; });
  m.def("real_device", [] { return real_device().str(); });
  m.def("memory_allocated", [] {
    GraphLock lock;
    return Program::instance().bytes_allocated();
  });
  m.def("max_memory_allocated", [] {
    GraphLock lock;
    return Program::instance().peak_bytes();
  });
  m.def("reset_peak_memory", [] {
    GraphLock lock;
    Program::instance().reset_peak();
  });
  m.def("has_onednn", &has_onednn);
  m.def("to_real", &to_real, py::arg("tensor"), Release());
  m.def("from_real", &from_real, py::arg("tensor"), Release());
  m.def(
      "data_pointer",
      [](const at::Tensor& tensor) {
        // A stand-in for a lazy tensor says lazy, and its storage another device.
        const bool ours = tensor.has_storage() && tensor.storage().device_type() == at::kLazy;
        return reinterpret_cast<uintptr_t>(ours ? tensor.const_data_ptr() : tensor.data_ptr());
      },
      py::arg("tensor"));
  m.def(
      "storage_pointer",
      [](const py::object& storage) {
        return reinterpret_cast<uintptr_t>(torch::createStorage(storage.ptr()).data_ptr().get());
      },
      py::arg("storage"));
  m.def("tensor_id", &tensor_id, py::arg("tensor"));
  m.def("is_pending", &is_pending, py::arg("tensor"));
  m.def("pending_nodes", &pending_nodes);
  m.def("discard_pending", &discard_pending, Release());
  m.def("clear_autocast_cache", &clear_autocast_cache);
  m.def("add_autocast_key", &add_autocast_key, py::arg("tensor"));
  bind_guards(m);
  bind_observe(m);
  bind_compile(m);
  bind_graph_runner(m);
  bind_lazy(m);
}

}  // namespace
}  // namespace torch_lazy
