// Calls of compiled functions. Python (torch_lazy/compile.py) records a function and finds out what
// it depends on; here a call is recognised and replayed without Python.
#include "python/compile_bindings.h"

#include "python/call_key.h"
#include "python/guards.h"
#include "replay/history.h"
#include <torch_lazy/backend.h>
#include <torch_lazy/saved_graph.h>

#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace py = pybind11;

namespace torch_lazy {
namespace {

/// What Python keeps of a recorded call, and what it depends on.
class CallOfPython : public RecordedCall {
 public:
  py::list guards;
  std::vector<py::object> slots;  // tensors besides the arguments, which the guards guard
  std::vector<py::object> slot_hosts;
  std::vector<py::object> results;  // by leaf: a value that is always the same, or none
  std::vector<bool> is_tensor;      // by leaf
  std::vector<py::object> parts;    // by object in the arguments: one that the program also finds
                                    // elsewhere; null: it is found nowhere else
  py::object rebuild;               // makes the tree of leaves; none: the one leaf is the result
  py::object attempt;               // has `difference`

  std::string difference(const RecordedCall& before) const override {
    const auto& other = static_cast<const CallOfPython&>(before);
    return py::cast<std::string>(attempt.attr("difference")(other.attempt));
  }

  std::string advice_about_numbers() const override {
    return "; make it a tensor that the function changes, or pass it as an argument";
  }

  Fit fit() override {
    if (!checked_) {
      auto made = std::make_unique<Guards>(guards);  // which may let another thread in here
      if (!checked_) {
        checked_ = std::move(made);
      }
    }
    switch (checked_->check()) {
      case Guards::Result::hold:
        return Fit::fits;
      case Guards::Result::other:
        return Fit::other;
      case Guards::Result::stale:
        return Fit::never;
    }
    return Fit::never;
  }

  std::string why_unfit() const override {
    const int64_t guard = checked_ ? checked_->failed() : -1;
    return guard < 0 ? "its tensors" : py::cast<std::string>(attempt.attr("path_of")(guard));
  }

  std::string what_is_gone() const override {
    const int64_t guard = checked_ ? checked_->failed() : -1;
    return guard < 0 ? "an object is replaced"
                     : py::cast<std::string>(attempt.attr("what_is_gone")(guard));
  }

  /// Whether the objects that the arguments are made of are found elsewhere as they were recorded.
  bool has_parts(const std::vector<PyObject*>& of_call) const {
    for (size_t i = 0; i < of_call.size() && i < parts.size(); ++i) {
      PyObject* part = of_call[i];
      if (PyTuple_Check(part) || THPVariable_Check(part)) {
        continue;  // cannot be changed; and tensors are matched
      }
      if (parts[i] ? parts[i].ptr() != part : checked_->guards(part)) {
        return false;
      }
    }
    return true;
  }

  const std::vector<double>& inputs() const override { return checked_->numbers(); }

  void add_tensors(ReplayTensors& tensors) const override {
    append(slots, tensors.known);
    append(slot_hosts, tensors.hosts);
  }

  py::object result(std::vector<at::Tensor> made) const {
    size_t next = 0;
    auto leaf = [&](size_t i) {
      return is_tensor[i]
                 ? py::reinterpret_steal<py::object>(THPVariable_Wrap(std::move(made[next++])))
                 : results[i];
    };
    if (rebuild.is_none()) {
      return leaf(0);
    }
    py::list leaves;
    for (size_t i = 0; i < is_tensor.size(); ++i) {
      leaves.append(leaf(i));
    }
    return rebuild(leaves);
  }

 private:
  static void append(const std::vector<py::object>& objects,
                     std::vector<const at::Tensor*>& tensors) {
    const size_t before = tensors.size();
    tensors.resize(before + objects.size());
    std::transform(objects.begin(), objects.end(), tensors.begin() + before,
                   [](const py::object& object) { return &THPVariable_Unpack(object.ptr()); });
  }

  std::unique_ptr<Guards> checked_;  // null: they have not been asked for
};

using CallPtr = std::shared_ptr<CallOfPython>;

struct Signature {
  CallKey key;
  CallHistory history;
  uint64_t calls = 0;
  bool is_new_object = false;  // its history says what another object in each call means

  explicit Signature(CallKey k) : key(std::move(k)) {}
};

using SignaturePtr = std::shared_ptr<Signature>;

/// A call that is not replayed: what is to be done with it.
struct Task {
  SignaturePtr signature;  // null: it is called where no function is recorded
  bool records = false;
  bool many_kinds = false;  // it is not recorded because calls are of ever new kinds
  Purpose purpose = Purpose::learn;
  TrustedCallPtr trusted;

  std::string judge(const CallPtr& call) const {
    return signature->history.judge(call, purpose, trusted);
  }
};

class CompiledCalls {
 public:
  explicit CompiledCalls(size_t limit) : limit_(limit) { all().push_back(this); }
  ~CompiledCalls() { std::erase(all(), this); }
  CompiledCalls(const CompiledCalls&) = delete;
  CompiledCalls& operator=(const CompiledCalls&) = delete;

  /// (the result of a replay, None), or (None, what is to be done).
  py::tuple call(const py::tuple& args, const py::dict& kwargs) {
    if (is_recording() || in_special_mode()) {
      return py::make_tuple(py::none(), Task());
    }
    CallKey key(args, kwargs);
    const SignaturePtr signature = find(key);
    if (signature->calls++ == 0 && !can_afford_recording()) {
      return py::make_tuple(py::none(), Task{signature, false, true, Purpose::learn, nullptr});
    }
    Decision decision;
    const auto add_arguments = [&](const RecordedCall& recorded, ReplayTensors& tensors) {
      for (const at::Tensor* tensor : key.tensors()) {
        (tensor->is_lazy() ? tensors.known : tensors.hosts).push_back(tensor);
      }
      return static_cast<const CallOfPython&>(recorded).has_parts(key.parts());
    };
    signature->history.decide(add_arguments, decision);
    if (decision.kind == Decision::Kind::record) {
      release_gone();
    }
    if (decision.kind != Decision::Kind::replay) {
      return py::make_tuple(
          py::none(), Task{signature, decision.kind == Decision::Kind::record,
                           /*many_kinds=*/false, decision.purpose, std::move(decision.trusted)});
    }
    const auto call = std::static_pointer_cast<CallOfPython>(decision.trusted->call);
    std::vector<at::Tensor> made =
        replay(*call->recording, decision.tensors, std::move(decision.numbers));
    decision.execution.reset();
    credit_ = std::min(credit_ + 1, kMostCredit);
    py::object result = call->result(std::move(made));
    decision.trusted->tensors = std::move(decision.tensors);
    return py::make_tuple(std::move(result), py::none());
  }

  /// What a call with these arguments would replay; null: nothing.
  CallPtr trusted_call(const py::tuple& args, const py::dict& kwargs) {
    CallKey key(args, kwargs);
    const std::vector<TrustedCallPtr>& trusted = find(key)->history.trusted();
    return trusted.empty() ? nullptr : std::static_pointer_cast<CallOfPython>(trusted[0]->call);
  }

  void clear() {
    signatures_.clear();
    new_objects_ = 0;
    credit_ = kMostCredit;
  }
  const std::vector<SignaturePtr>& signatures() const { return signatures_; }

 private:
  /// Of all functions; Python's lock guards the list.
  static std::vector<CompiledCalls*>& all() {
    static auto* calls = new std::vector<CompiledCalls*>();
    return *calls;
  }

  /// Before a function runs: what it may ask for is as it would be without recordings.
  static void release_gone() {
    std::vector<SignaturePtr> signatures;  // comparing objects may run any code
    for (const CompiledCalls* calls : all()) {
      signatures.insert(signatures.end(), calls->signatures_.begin(), calls->signatures_.end());
    }
    for (const SignaturePtr& signature : signatures) {
      signature->history.release_gone();
    }
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
    made.is_new_object = true;
    made.history.give_up(
        "an argument is a " + std::string(Py_TYPE(object)->tp_name) +
        " that is another one in each call; pass its tensors, make its class a dataclass, or "
        "register it with torch.utils._pytree.register_pytree_node");
    for (SignaturePtr& signature : signatures_) {
      if (signature->history.trusted().empty() && signature->key.other_object(key)) {
        dead.push_back(std::move(signature));
      }
    }
    std::erase(signatures_, nullptr);
  }

  /// A recording costs as much as many replays save. Where calls are of ever new kinds, only those
  /// that come again are recorded.
  bool can_afford_recording() {
    const bool can = credit_ >= kRecordingCosts;
    credit_ -= can ? kRecordingCosts : 0;
    return can;
  }

  /// Calls in a row with another object each that are taken for chance.
  static constexpr int kMostNewObjects = 4;

  static constexpr int kRecordingCosts = 16;  // replays
  static constexpr int kMostCredit = 32 * kRecordingCosts;

  size_t limit_;
  std::vector<SignaturePtr> signatures_;  // the latest first
  int new_objects_ = 0;
  int credit_ = kMostCredit;
};

}  // namespace

void bind_compile(py::module_& m) {
  m.def("is_recording", &is_recording);
  m.def("accumulator_has_hooks", [](const at::Tensor& tensor) {
    const auto* autograd = torch::autograd::impl::get_autograd_meta(tensor);
    return autograd && accumulator_has_hooks(*autograd);
  });

  py::class_<Recording, std::shared_ptr<Recording>>(m, "Recording")
      .def_readonly("obstacle", &Recording::obstacle)
      .def_readonly("backward", &Recording::backward)
      .def_readonly("untimely", &Recording::untimely)
      .def_property_readonly("draws", [](const Recording& r) { return r.draws.size(); })
      .def_property_readonly(
          "nodes", [](const Recording& r) { return r.plan ? r.plan->graph->nodes.size() : 0; });

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
      .def("leaves_others", &Recorder::leaves_others, py::arg("results"),
           py::call_guard<py::gil_scoped_release>())
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

  py::enum_<FormulaStep::Operation>(m, "FormulaOperation")
      .value("input", FormulaStep::Operation::input)
      .value("constant", FormulaStep::Operation::constant)
      .value("negate", FormulaStep::Operation::negate)
      .value("add", FormulaStep::Operation::add)
      .value("subtract", FormulaStep::Operation::subtract)
      .value("multiply", FormulaStep::Operation::multiply)
      .value("divide", FormulaStep::Operation::divide)
      .value("power", FormulaStep::Operation::power);

  py::class_<CallOfPython, CallPtr>(m, "RecordedCall")
      .def(py::init([](std::shared_ptr<Recording> recording, py::object attempt) {
             auto call = std::make_shared<CallOfPython>();
             call->recording = std::move(recording);
             call->attempt = std::move(attempt);
             return call;
           }),
           py::arg("recording"), py::arg("attempt"))
      .def_property_readonly("recording", [](const CallOfPython& c) { return c.recording; })
      .def_readonly("attempt", &CallOfPython::attempt)
      .def_property(
          "obstacle", [](const CallOfPython& c) { return c.obstacle; },
          [](CallOfPython& c, std::string obstacle) { c.obstacle = std::move(obstacle); })
      .def_readwrite("guards", &CallOfPython::guards)
      .def_readwrite("slots", &CallOfPython::slots)
      .def_readwrite("slot_hosts", &CallOfPython::slot_hosts)
      .def_readwrite("results", &CallOfPython::results)
      .def_readwrite("is_tensor", &CallOfPython::is_tensor)
      .def_readwrite("rebuild", &CallOfPython::rebuild)
      .def(
          "set_parts",
          [](CallOfPython& call, const py::list& parts) {
            for (const py::handle& part : parts) {
              call.parts.push_back(part.is_none() ? py::object()
                                                  : py::reinterpret_borrow<py::object>(part));
            }
          },
          py::arg("parts"))
      .def(
          "set_sources",
          [](CallOfPython& call, std::vector<double> inputs,
             const std::vector<std::vector<std::pair<FormulaStep::Operation, double>>>& formulas) {
            call.sources.inputs = std::move(inputs);
            for (const auto& steps : formulas) {
              Formula& formula = call.sources.formulas.emplace_back();
              for (const auto& [operation, operand] : steps) {
                formula.push_back({operation, operand});
              }
            }
          },
          py::arg("inputs"), py::arg("formulas"));

  py::class_<Signature, SignaturePtr>(m, "Signature")
      .def("is_of",
           [](const Signature& signature, const py::tuple& args, const py::dict& kwargs) {
             return signature.key.is_of(CallKey(args, kwargs));
           })
      .def("give_up",
           [](Signature& s, std::string reason) { s.history.give_up(std::move(reason)); })
      .def_property_readonly("text", [](const Signature& s) { return s.key.text(); })
      .def_property_readonly("is_new_object", [](const Signature& s) { return s.is_new_object; })
      .def_property_readonly("recorded", [](const Signature& s) { return s.history.recorded(); })
      .def_property_readonly("reason", [](const Signature& s) { return s.history.reason(); })
      .def_property_readonly("changed", [](const Signature& s) { return s.history.changed(); })
      .def_property_readonly("calls",
                             [](const Signature& s) {
                               uint64_t calls = 0;
                               for (const TrustedCallPtr& trusted : s.history.trusted()) {
                                 calls += trusted->calls;
                               }
                               return calls;
                             })
      .def_property_readonly("recordings", [](const Signature& s) {
        std::vector<std::shared_ptr<Recording>> recordings;
        for (const TrustedCallPtr& trusted : s.history.trusted()) {
          recordings.push_back(trusted->call->recording);
        }
        return recordings;
      });

  py::class_<Task>(m, "Task")
      .def_readonly("signature", &Task::signature)
      .def_readonly("records", &Task::records)
      .def_readonly("many_kinds", &Task::many_kinds)
      .def("judge", &Task::judge, py::arg("call"));

  py::class_<CompiledCalls>(m, "CompiledCalls")
      .def(py::init<size_t>(), py::arg("limit"))
      .def("call", &CompiledCalls::call, py::arg("args"), py::arg("kwargs"))
      .def("trusted_call", &CompiledCalls::trusted_call, py::arg("args"), py::arg("kwargs"))
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
  m.def("call_parts", [](const py::tuple& args, const py::dict& kwargs) {
    CallKey key(args, kwargs);
    py::list parts;
    for (PyObject* part : key.parts()) {
      parts.append(py::handle(part));
    }
    return parts;
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
