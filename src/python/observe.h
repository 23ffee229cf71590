// Which Python functions and which C functions run on this thread while a call is recorded. What
// the call depends on follows from their code (torch_lazy/observe.py).
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace torch_lazy {

class CallObserver {
 public:
  CallObserver() = default;
  ~CallObserver();
  CallObserver(const CallObserver&) = delete;
  CallObserver& operator=(const CallObserver&) = delete;

  /// From here on calls are noted; a profiler that is active goes on seeing them.
  void start();
  void stop();

  /// [(code, globals)] of the Python functions that ran.
  pybind11::list functions() const;
  /// [(name, module or type, module that called it, the user's line)], once for each code that
  /// called it.
  pybind11::list c_functions() const;
  /// Plain tensors whose memory was read without an operator: [(tensor, method, the user's line)].
  pybind11::list host_reads() const;
  /// Tensors that were hashed: [(id, module that did it, the user's line)]. They are not held.
  pybind11::list hashed() const;

 private:
  struct PairHash {
    size_t operator()(const std::pair<const void*, const void*>& pair) const {
      return std::hash<const void*>()(pair.first) * 31 + std::hash<const void*>()(pair.second);
    }
  };
  using Pair = std::pair<const void*, const void*>;

  static int note(PyObject* self, PyFrameObject* frame, int what, PyObject* argument);
  bool is_own(const pybind11::object& globals);
  void note_hash(PyFrameObject* frame);
  void note_call(PyFrameObject* frame);
  void note_c_call(PyFrameObject* frame, PyObject* function);

  bool active_ = false;
  Py_tracefunc previous_ = nullptr;
  pybind11::object previous_argument_;
  std::unordered_set<Pair, PairHash> seen_;
  std::unordered_set<Pair, PairHash> seen_c_;
  PyFrameObject* import_ = nullptr;          // the import that is being made; null: none
  PyObject* import_code_ = nullptr;          // its code, held among the functions
  std::unordered_map<PyObject*, bool> own_;  // by the globals of a module
  std::vector<pybind11::object> globals_held_;
  std::vector<std::pair<pybind11::object, pybind11::object>> functions_;
  std::vector<pybind11::tuple> c_functions_;
  std::vector<pybind11::tuple> host_reads_;
  pybind11::object hash_code_;  // of Tensor.__hash__
  std::unordered_set<Pair, PairHash> hashed_;
  std::vector<pybind11::tuple> hashes_;
};

void bind_observe(pybind11::module_& m);

}  // namespace torch_lazy
