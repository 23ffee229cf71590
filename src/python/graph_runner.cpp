#include "python/graph_runner.h"

#include "replay/plain_call.h"

#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <bit>
#include <memory>
#include <optional>
#include <utility>

namespace py = pybind11;

namespace torch_lazy {
namespace {

/// The arguments of a call: tensors, and numbers as words.
struct Arguments {
  std::vector<at::Tensor> tensors;
  std::vector<int64_t> numbers;
  std::vector<char> is_float;      // by number
  std::vector<uint32_t> given_up;  // tensors that only the list holds
  bool any_lazy = false;

  /// `use_up`: by argument, whether it may be given up. False: there is one that no graph runs on
  /// as it is.
  bool read(const py::list& args, const std::vector<bool>& use_up) {
    tensors.reserve(args.size());
    for (size_t i = 0; i < args.size(); ++i) {
      PyObject* object = PyList_GET_ITEM(args.ptr(), i);
      if (THPVariable_Check(object)) {
        const at::Tensor& tensor = THPVariable_Unpack(object);
        if (!has_plain_memory(tensor)) {
          return false;
        }
        if (i < use_up.size() && use_up[i] && Py_REFCNT(object) == 1 && tensor.use_count() == 1 &&
            owns_memory(tensor)) {
          given_up.push_back(static_cast<uint32_t>(tensors.size()));
        }
        any_lazy = any_lazy || tensor.is_lazy();
        tensors.push_back(tensor);
      } else if (PyFloat_CheckExact(object)) {
        numbers.push_back(std::bit_cast<int64_t>(PyFloat_AS_DOUBLE(object)));
        is_float.push_back(true);
      } else if (PyLong_Check(object)) {
        int overflow = 0;
        numbers.push_back(PyLong_AsLongLongAndOverflow(object, &overflow));
        is_float.push_back(false);
        if (overflow) {
          return false;
        }
      } else {
        return false;
      }
    }
    return true;
  }
};

/// What was recorded for one kind of arguments.
struct Recorded {
  std::vector<int64_t> numbers;
  std::vector<char> is_float;
  std::vector<uint32_t> given_up;
  Recording recording;
  std::vector<py::object> results;  // by result: what is no tensor
  std::vector<bool> is_tensor;
};

using RecordedPtr = std::shared_ptr<Recorded>;

class GraphRunner {
 public:
  /// `to_lazy`: by result of the graph that is a tensor, whether it is on the device lazy.
  /// `use_up`: by argument, whether the graph may use it up where only the list of them holds it.
  GraphRunner(std::vector<bool> to_lazy, std::vector<bool> use_up, size_t limit)
      : to_lazy_(std::move(to_lazy)), use_up_(std::move(use_up)), limit_(limit) {}

  /// The results; none: it is to be recorded first. Lets go of the arguments.
  py::object call(const py::list& args) {
    Arguments arguments;
    if (!arguments.read(args, use_up_) || (arguments.any_lazy && is_recording())) {
      return py::none();
    }
    RecordedPtr found = find(arguments);
    if (!found) {
      return py::none();
    }
    PyList_SetSlice(args.ptr(), 0, PyList_GET_SIZE(args.ptr()), nullptr);
    std::vector<at::Tensor> results;
    {
      py::gil_scoped_release release;
      results = replay_plain(found->recording, std::move(arguments.tensors), to_lazy_);
    }
    return as_list(*found, std::move(results));
  }

  /// Begins to record: what the graph is given instead of its arguments. None: it cannot be.
  py::object begin(const py::list& args) {
    begun_.emplace();
    if (is_recording() || !begun_->read(args, use_up_)) {
      begun_.reset();
      return py::none();
    }
    {
      py::gil_scoped_release release;
      recorder_ = std::make_unique<PlainRecorder>(begun_->tensors, begun_->given_up);
    }
    begun_->tensors.clear();
    py::list given;
    size_t next = 0;
    for (const py::handle& item : args) {
      if (THPVariable_Check(item.ptr())) {
        given.append(py::reinterpret_steal<py::object>(
            THPVariable_Wrap(recorder_->lazy_arguments()[next++])));
      } else {
        given.append(item);
      }
    }
    return given;
  }

  /// Ends it: (the results for the caller, why it cannot be run as recorded).
  py::tuple finish(const py::list& results) {
    auto recorded = std::make_shared<Recorded>();
    std::vector<at::Tensor> tensors;
    for (const py::handle& item : results) {
      const bool tensor = THPVariable_Check(item.ptr());
      recorded->is_tensor.push_back(tensor);
      recorded->results.push_back(tensor ? py::none() : py::reinterpret_borrow<py::object>(item));
      if (tensor) {
        tensors.push_back(THPVariable_Unpack(item.ptr()));
      }
    }
    TORCH_CHECK(tensors.size() == to_lazy_.size(), "torch-lazy: a graph of torch.compile gave ",
                tensors.size(), " tensors where ", to_lazy_.size(), " were promised");
    {
      py::gil_scoped_release release;
      recorded->recording = recorder_->finish(tensors, to_lazy_);
      recorder_.reset();
    }
    recorded->numbers = std::move(begun_->numbers);
    recorded->is_float = std::move(begun_->is_float);
    recorded->given_up = std::move(begun_->given_up);
    begun_.reset();
    const std::string obstacle = recorded->recording.obstacle;
    if (obstacle.empty()) {
      recorded_.insert(recorded_.begin(), recorded);
      if (recorded_.size() > limit_) {
        recorded_.pop_back();
      }
    }
    return py::make_tuple(as_list(*recorded, std::move(tensors)), obstacle);
  }

  /// Ends it when the graph raised an error.
  void abandon() {
    py::gil_scoped_release release;
    recorder_.reset();
    begun_.reset();
  }

  size_t size() const { return recorded_.size(); }

 private:
  RecordedPtr find(const Arguments& arguments) {
    for (size_t i = 0; i < recorded_.size(); ++i) {
      Recorded& candidate = *recorded_[i];
      if (candidate.numbers == arguments.numbers && candidate.is_float == arguments.is_float &&
          candidate.given_up == arguments.given_up &&
          matches_plain(candidate.recording, arguments.tensors)) {
        std::rotate(recorded_.begin(), recorded_.begin() + static_cast<ptrdiff_t>(i),
                    recorded_.begin() + static_cast<ptrdiff_t>(i) + 1);
        return recorded_.front();
      }
    }
    return nullptr;
  }

  static py::list as_list(const Recorded& recorded, std::vector<at::Tensor> tensors) {
    py::list list(recorded.is_tensor.size());
    size_t next = 0;
    for (size_t i = 0; i < recorded.is_tensor.size(); ++i) {
      list[i] =
          recorded.is_tensor[i]
              ? py::reinterpret_steal<py::object>(THPVariable_Wrap(std::move(tensors[next++])))
              : recorded.results[i];
    }
    return list;
  }

  std::vector<bool> to_lazy_;
  std::vector<bool> use_up_;
  size_t limit_;
  std::vector<RecordedPtr> recorded_;  // the latest first
  std::optional<Arguments> begun_;
  std::unique_ptr<PlainRecorder> recorder_;
};

}  // namespace

void bind_graph_runner(py::module_& m) {
  py::class_<GraphRunner>(m, "GraphRunner")
      .def(py::init<std::vector<bool>, std::vector<bool>, size_t>(), py::arg("to_lazy"),
           py::arg("use_up"), py::arg("limit"))
      .def("call", &GraphRunner::call, py::arg("args"))
      .def("begin", &GraphRunner::begin, py::arg("args"))
      .def("finish", &GraphRunner::finish, py::arg("results"))
      .def("abandon", &GraphRunner::abandon)
      .def_property_readonly("size", &GraphRunner::size);
}

}  // namespace torch_lazy
