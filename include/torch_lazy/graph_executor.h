// The graph executor: what decides when recorded work runs, and knows the devices, their live
// tensors, their random seeds and the computations that are kept. A program or a vendor may put a
// class of its own in its place and override the virtual functions.
#pragma once

#include <torch_lazy/export.h>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>
#include <c10/core/Scalar.h>
#include <c10/util/ArrayRef.h>

#include <array>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace torch_lazy {

/// Identifies the graph behind a list of tensors: operators, attributes, layouts, the order of
/// roots and of parameters; not the values of data and numbers.
struct GraphHash {
  std::array<uint64_t, 2> words{};

  /// 16 bytes, as they lie in memory.
  TORCH_LAZY_API std::string bytes() const;
  /// Raises an error unless there are 16.
  TORCH_LAZY_API static GraphHash from_bytes(const std::string& bytes);
  bool operator==(const GraphHash& other) const { return words == other.words; }
};

/// The data and numbers that a graph reads, in the order in which run_cached_graph takes them.
struct GraphInputs {
  std::vector<int64_t> ids;         // tensor_id of the tensor that held the data; -1 for numbers
  std::vector<c10::IValue> values;  // tensors of the real device, numbers
};

class TORCH_LAZY_API GraphExecutor {
 public:
  GraphExecutor();
  virtual ~GraphExecutor();
  GraphExecutor(const GraphExecutor&) = delete;
  GraphExecutor& operator=(const GraphExecutor&) = delete;

  /// The executor in use. There is one from the start; an error if it was taken away.
  static GraphExecutor& get();
  /// Puts `executor` in place; the caller keeps it alive. Null: none. Returns the one before.
  static GraphExecutor* register_executor(GraphExecutor* executor);

  // ---- Running

  /// Runs what the given lazy tensors need. All are on one device; tensors that are not lazy and
  /// repetitions do not matter. `wait`: returns when the results are there. `keep_graph`: the graph
  /// behind the tensors stays available for dumps and hashes. The computation is kept by its hash.
  void sync_tensors(at::TensorList tensors, bool wait = true, bool keep_graph = false);

  /// Runs everything that is pending, on one device or on all.
  virtual void sync_live_tensors(std::optional<at::Device> device, bool wait);

  /// Ends a step: a new random seed, scopes and the trace start again. Runs nothing.
  virtual void mark_step(at::Device device);

  /// The values of lazy tensors as plain tensors of the real device, in one run. Tensors may be
  /// repeated; the graph behind them stays available for dumps and hashes.
  std::vector<at::Tensor> get_tensors(at::TensorList tensors);

  /// Waits until nothing runs on the devices (none given: on any). Raises what went wrong, once.
  void wait_device_ops(c10::ArrayRef<at::Device> devices = {});

  // ---- Graphs and computations

  /// The hash that sync_tensors of the same list would use. Runs nothing.
  GraphHash get_graph_hash(at::TensorList tensors);

  /// What the backend makes of the graph behind the tensors; empty when nothing is pending.
  std::string dump_backend_computation(at::TensorList tensors);

  /// The data and numbers that the tensors are computed from.
  GraphInputs get_graph_inputs(at::TensorList tensors);

  /// Runs a computation that a sync has left, on other inputs, which are never written. One plain
  /// tensor for each distinct tensor of the list that was synced.
  std::vector<at::Tensor> run_cached_graph(const GraphHash& hash,
                                           c10::ArrayRef<c10::IValue> inputs);

  /// Kept computations: the setting TORCH_LAZY_PLAN_CACHE bounds how many.
  void clear_computation_cache();
  bool remove_from_computation_cache(const GraphHash& hash);
  size_t computation_cache_size() const;
  /// The backend's text of the computation that was used last; an error if there is none.
  std::string latest_computation() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace torch_lazy
