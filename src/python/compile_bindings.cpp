// Calls of compiled functions. Python (torch_lazy/compile.py) records a function and finds out what
// it depends on; here a call is recognised and replayed without Python.
#include "python/compile_bindings.h"

#include "base/metrics.h"
#include "python/call_key.h"
#include "python/guards.h"
#include "replay/recording.h"
#include "runtime/queue.h"
#include <torch_lazy/backend.h>
#include <torch_lazy/saved_graph.h>

#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

namespace py = pybind11;

namespace torch_lazy {
namespace {

/// A recording that can be replayed while its guards hold.
struct Variant {
  std::shared_ptr<Recording> recording;
  Guards guards;
  std::vector<py::object> slots;  // tensors besides the arguments, which the guards guard
  std::vector<py::object> slot_hosts;
  std::vector<py::object> results;  // by leaf: a value that is always the same, or none
  std::vector<bool> is_tensor;      // by leaf
  py::object rebuild;               // makes the tree of leaves; none: the one leaf is the result
  py::object numbers;               // changed numbers -> [(place, number)]; none: not known
  py::object attempt;               // what Python keeps of the recorded call
  uint64_t calls = 0;
  ReplayTensors tensors;  // of its last replay, while there is none

  Variant(std::shared_ptr<Recording> r, const py::list& guard_list)
      : recording(std::move(r)), guards(guard_list) {}

  void set_recording(std::shared_ptr<Recording> other) {
    recording = std::move(other);
    tensors = ReplayTensors();
  }
};

using VariantPtr = std::shared_ptr<Variant>;

struct Signature {
  CallKey key;
  std::vector<VariantPtr> variants;
  py::object record;     // what Python keeps of its attempts
  std::string obstacle;  // why calls with it are not recorded; empty: they are

  explicit Signature(CallKey k) : key(std::move(k)) {}
};

using SignaturePtr = std::shared_ptr<Signature>;

enum class Outcome : int { replayed, inline_call, traced, verified };

class CompiledCalls {
 public:
  explicit CompiledCalls(size_t limit) : limit_(limit) {}

  /// (outcome, result or signature, variant)
  py::tuple call(const py::tuple& args, const py::dict& kwargs) {
    if (is_recording() || in_special_mode()) {
      return outcome(Outcome::inline_call, py::none());
    }
    CallKey key(args, kwargs);
    SignaturePtr signature = find(key);
    for (size_t i = 0; i < signature->variants.size(); ++i) {
      VariantPtr variant = signature->variants[i];
      const Guards::Result held = variant->guards.check();
      if (held == Guards::Result::stale) {
        signature->variants.erase(signature->variants.begin() + static_cast<ptrdiff_t>(i--));
        continue;
      }
      if (held == Guards::Result::other) {
        continue;
      }
      if (!ready_to_replay()) {
        return outcome(Outcome::inline_call, py::none());
      }
      // Before it matches: who waits for it lets other threads free tensors.
      std::optional<ExecutionLock> execution(std::in_place);
      // Out of the variant: while kernels run, another thread may call the function.
      const std::shared_ptr<Recording> recording = variant->recording;
      ReplayTensors tensors = std::exchange(variant->tensors, {});
      tensors.clear();
      tensors.known.reserve(recording->known.size());
      for (const at::Tensor* tensor : key.tensors()) {
        (tensor->is_lazy() ? tensors.known : tensors.hosts).push_back(tensor);
      }
      append(variant->slots, tensors.known);
      append(variant->slot_hosts, tensors.hosts);
      if (!matches(*recording, tensors)) {
        continue;
      }
      std::vector<c10::IValue> numbers;
      if (variant->guards.numbers_changed() && !renumber(*variant, numbers)) {
        return outcome(Outcome::verified, py::cast(signature), py::cast(variant));
      }
      if (is_check(++variant->calls)) {
        return outcome(Outcome::verified, py::cast(signature), py::cast(variant));
      }
      if (i > 0) {
        std::swap(signature->variants[i], signature->variants[0]);
      }
      std::vector<at::Tensor> tensors_made = replay(*recording, tensors, std::move(numbers));
      execution.reset();
      py::object made = result(*variant, std::move(tensors_made));
      if (variant->recording == recording) {
        variant->tensors = std::move(tensors);
      }
      return outcome(Outcome::replayed, std::move(made));
    }
    return outcome(Outcome::traced, py::cast(signature));
  }

  VariantPtr variant(const py::tuple& args, const py::dict& kwargs) {
    CallKey key(args, kwargs);
    SignaturePtr signature = find(key);
    return signature->variants.empty() ? nullptr : signature->variants.front();
  }

  void clear() {
    signatures_.clear();
    new_objects_ = 0;
  }
  const std::vector<SignaturePtr>& signatures() const { return signatures_; }

 private:
  static py::tuple outcome(Outcome what, py::object value, py::object variant = py::none()) {
    if (what == Outcome::traced || what == Outcome::verified) {
      static metrics::Counter& recorded = metrics::counter("ReplayRecorded");
      recorded.add();
    }
    return py::make_tuple(static_cast<int>(what), std::move(value), std::move(variant));
  }

  static void append(const std::vector<py::object>& objects,
                     std::vector<const at::Tensor*>& tensors) {
    const size_t before = tensors.size();
    tensors.resize(before + objects.size());
    std::transform(objects.begin(), objects.end(), tensors.begin() + before,
                   [](const py::object& object) { return &THPVariable_Unpack(object.ptr()); });
  }

  SignaturePtr find(CallKey& key) {
    for (size_t i = 0; i < signatures_.size(); ++i) {
      if (signatures_[i]->key.is_of(key)) {
        SignaturePtr found = signatures_[i];
        if (i > 0) {  // the latest first
          signatures_.erase(signatures_.begin() + static_cast<ptrdiff_t>(i));
          signatures_.insert(signatures_.begin(), found);
        }
        new_objects_ = 0;
        return found;
      }
    }
    std::vector<SignaturePtr> dead;  // freed at the end: that may run Python
    for (SignaturePtr& signature : signatures_) {
      if (signature->key.is_dead()) {
        dead.push_back(std::move(signature));
      }
    }
    std::erase(signatures_, nullptr);
    auto made = std::make_shared<Signature>(key.kept());
    made->record = py::none();
    look_for_new_object(key, dead, *made);
    signatures_.insert(signatures_.begin(), made);
    if (signatures_.size() > limit_) {
      dead.push_back(std::move(signatures_.back()));
      signatures_.pop_back();
    }
    return made;
  }

  /// Calls that differ in nothing but an object, which is another one in each of them, are never
  /// replayed: that is said, and the objects are not kept.
  void look_for_new_object(const CallKey& key, std::vector<SignaturePtr>& dead, Signature& made) {
    PyObject* object = nullptr;
    for (const std::vector<SignaturePtr>* signatures : {&signatures_, &dead}) {
      for (size_t i = 0; i < signatures->size() && !object; ++i) {
        object = (*signatures)[i]->key.other_object(key);
      }
    }
    new_objects_ += object != nullptr;
    if (!object || new_objects_ < kMostNewObjects) {
      return;
    }
    made.obstacle =
        "an argument is a " + std::string(Py_TYPE(object)->tp_name) +
        " that is another one in each call; pass its tensors, make its class a dataclass, or "
        "register it with torch.utils._pytree.register_pytree_node";
    for (SignaturePtr& signature : signatures_) {
      if (signature->variants.empty() && signature->key.other_object(key)) {
        dead.push_back(std::move(signature));
      }
    }
    std::erase(signatures_, nullptr);
  }

  /// The numbers of this call where some that have slots changed. False: it is not known how.
  static bool renumber(const Variant& variant, std::vector<c10::IValue>& numbers) {
    if (variant.numbers.is_none()) {
      return false;
    }
    py::object changed = variant.numbers(variant.guards.numbers());
    if (changed.is_none()) {
      return false;
    }
    numbers = variant.recording->numbers;
    for (const py::handle& item : changed) {
      auto [place, number] = py::cast<std::pair<size_t, double>>(item);
      numbers.at(place) = number_like(numbers.at(place), number);
    }
    return true;
  }

  static py::object result(const Variant& variant, std::vector<at::Tensor> made) {
    size_t next = 0;
    auto leaf = [&](size_t i) {
      return variant.is_tensor[i]
                 ? py::reinterpret_steal<py::object>(THPVariable_Wrap(std::move(made[next++])))
                 : variant.results[i];
    };
    if (variant.rebuild.is_none()) {
      return leaf(0);
    }
    py::list leaves;
    for (size_t i = 0; i < variant.is_tensor.size(); ++i) {
      leaves.append(leaf(i));
    }
    return variant.rebuild(leaves);
  }

  /// Calls in a row with another object each that are taken for chance.
  static constexpr int kMostNewObjects = 4;

  size_t limit_;
  std::vector<SignaturePtr> signatures_;  // the latest first
  int new_objects_ = 0;
};

}  // namespace

void bind_compile(py::module_& m) {
  m.def("is_recording", &is_recording);

  py::class_<Recording, std::shared_ptr<Recording>>(m, "Recording")
      .def_readonly("obstacle", &Recording::obstacle)
      .def_readonly("untimely", &Recording::untimely)
      .def_property_readonly(
          "nodes", [](const Recording& r) { return r.plan ? r.plan->graph->nodes.size() : 0; })
      .def_property_readonly("numbers",
                             [](const Recording& r) {
                               py::list numbers;
                               for (const c10::IValue& number : r.numbers) {
                                 if (is_double(number)) {
                                   numbers.append(number_value(number).toDouble());
                                 } else {
                                   numbers.append(py::none());
                                 }
                               }
                               return numbers;
                             })
      .def("number_place", &Recording::number_place, py::arg("number"));
  m.def("recording_difference", &difference);
  m.def("different_numbers", &different_numbers);

  m.def("save_recording", &save_graph, py::arg("recording"), py::arg("arguments"), py::arg("known"),
        py::arg("hosts"), py::arg("names"), py::arg("path"),
        py::call_guard<py::gil_scoped_release>());
  py::class_<SavedGraph>(m, "SavedGraph")
      .def(
          "__call__",
          [](SavedGraph& graph, const std::vector<at::Tensor>& arguments) {
            return graph(arguments);
          },
          py::arg("arguments"), py::call_guard<py::gil_scoped_release>())
      .def_property_readonly("arguments", &SavedGraph::arguments)
      .def_property_readonly("state", &SavedGraph::state);
  m.def("load_graph", &load_graph, py::arg("path"), py::arg("namespaces"),
        py::call_guard<py::gil_scoped_release>());

  py::class_<Recorder>(m, "Recorder")
      .def(py::init([](std::vector<at::Tensor> known, std::vector<at::Tensor> hosts,
                       std::vector<uint32_t> donated) {
             py::gil_scoped_release release;
             return std::make_unique<Recorder>(std::move(known), std::move(hosts),
                                               std::move(donated));
           }),
           py::arg("known"), py::arg("hosts"), py::arg("donated"))
      .def("abandon", &Recorder::abandon, py::call_guard<py::gil_scoped_release>())
      .def(
          "finish",
          [](Recorder& recorder, const std::vector<at::Tensor>& results,
             const std::vector<int>& graphs) {
            std::vector<ResultGraph> kinds;
            for (int graph : graphs) {
              kinds.push_back(static_cast<ResultGraph>(graph));
            }
            py::gil_scoped_release release;
            return std::make_shared<Recording>(recorder.finish(results, kinds));
          },
          py::arg("results"), py::arg("graphs"));

  py::class_<Variant, VariantPtr>(m, "Variant")
      .def(py::init<std::shared_ptr<Recording>, const py::list&>(), py::arg("recording"),
           py::arg("guards"))
      .def_property(
          "recording", [](const Variant& v) { return v.recording; }, &Variant::set_recording)
      .def_readwrite("slots", &Variant::slots)
      .def_readwrite("slot_hosts", &Variant::slot_hosts)
      .def_readwrite("results", &Variant::results)
      .def_readwrite("is_tensor", &Variant::is_tensor)
      .def_readwrite("rebuild", &Variant::rebuild)
      .def_readwrite("numbers", &Variant::numbers)
      .def_readwrite("attempt", &Variant::attempt)
      .def_readwrite("calls", &Variant::calls)
      .def("set_guards", [](Variant& v, const py::list& guards) { v.guards = Guards(guards); });

  py::class_<Signature, SignaturePtr>(m, "Signature")
      .def_readwrite("variants", &Signature::variants)
      .def_readwrite("record", &Signature::record)
      .def_readonly("obstacle", &Signature::obstacle)
      .def("is_of",
           [](const Signature& signature, const py::tuple& args, const py::dict& kwargs) {
             return signature.key.is_of(CallKey(args, kwargs));
           })
      .def_property_readonly("text", [](const Signature& s) { return s.key.text(); });

  py::class_<CompiledCalls>(m, "CompiledCalls")
      .def(py::init<size_t>(), py::arg("limit"))
      .def("call", &CompiledCalls::call, py::arg("args"), py::arg("kwargs"))
      .def("variant", &CompiledCalls::variant, py::arg("args"), py::arg("kwargs"))
      .def("clear", &CompiledCalls::clear)
      .def_property_readonly("signatures", &CompiledCalls::signatures);
  m.def("call_objects", [](const py::tuple& args, const py::dict& kwargs) {
    CallKey key(args, kwargs);
    py::list objects;
    for (PyObject* object : key.objects()) {
      objects.append(py::handle(object));
    }
    return objects;
  });
  m.def("call_tensors", [](const py::tuple& args, const py::dict& kwargs) {
    CallKey key(args, kwargs);
    std::vector<at::Tensor> tensors;
    for (const at::Tensor* tensor : key.tensors()) {
      tensors.push_back(*tensor);
    }
    return tensors;
  });
}

}  // namespace torch_lazy
