// The graph executor: what decides when recorded work runs, and knows the devices, their live
// tensors, their random seeds and the computations that are kept. A program or a vendor may put a
// class of its own in its place and override the virtual functions.
#pragma once

#include <torch_lazy/device_lock.h>
#include <torch_lazy/export.h>
#include <torch_lazy/graph.h>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>
#include <c10/core/Scalar.h>
#include <c10/util/ArrayRef.h>

#include <array>
#include <cstdint>
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

/// The memory of one or more tensors that are alive.
struct LiveTensor {
  int64_t id = 0;  // tensor_id
  at::Device device{at::kLazy, 0};
  int64_t nbytes = 0;
  bool pending = false;  // its value is recorded and not computed yet
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
  /// behind the tensors stays available for dumps and hashes until the step ends. The computation
  /// is kept by its hash.
  void sync_tensors(at::TensorList tensors, bool wait = true, bool keep_graph = false);

  /// Runs everything that is pending, on one device or on all.
  virtual void sync_live_tensors(std::optional<at::Device> device, bool wait);

  /// Ends a step of a device, or of all: another random seed; scopes and the trim counter start
  /// again; graphs of tensors that were read are forgotten. Runs nothing.
  virtual void mark_step(std::optional<at::Device> device);

  /// The values of lazy tensors as CPU tensors, computed in one run. Tensors may be repeated; the
  /// graph behind them stays available for dumps and hashes until the step ends.
  std::vector<at::Tensor> get_tensors(at::TensorList tensors);

  /// Waits until nothing runs on the devices (none given: on any). Raises what went wrong, once.
  void wait_device_ops(c10::ArrayRef<at::Device> devices = {});

  /// Waits until nobody holds the lock of the device. Raises what its last holder left.
  void device_barrier(at::Device device);

  // ---- Devices

  /// What is alive, of one device or of all, by device and by id.
  std::vector<LiveTensor> get_live_tensors(std::optional<at::Device> device = std::nullopt);

  /// The devices that had a tensor, or were asked for a seed, in order.
  std::vector<at::Device> get_active_devices();

  /// Called when memory for a tensor comes and goes. Under the graph's lock: must not touch
  /// tensors, nor wait. Only called on executors that are not of this very class.
  virtual void register_tensor(const LiveTensor& tensor);
  virtual void unregister_tensor(const LiveTensor& tensor);

  // ---- Random seeds, for backends that draw random numbers inside a graph

  /// A seed for one operation, as a value of the graph (a lazy tensor of one int64).
  virtual at::Tensor get_rng_seed(at::Device device);
  /// The same number as get_rng_seed's last, without a graph.
  virtual uint64_t get_running_seed(at::Device device);
  virtual void set_rng_seed(at::Device device, uint64_t seed);

  // ---- Constants

  /// A lazy tensor with the content of a CPU tensor or number. Small ones are kept: equal content
  /// (dtype, sizes, bytes) gives the same tensor, which is not to be written.
  at::Tensor get_device_data(const at::Tensor& tensor, at::Device device);
  at::Tensor get_device_data(const at::Scalar& value, at::ScalarType dtype, at::Device device);

  /// The same with the number's own type.
  at::Tensor get_value_for_scalar(const at::Scalar& value, at::Device device);
  /// The number as a tensor of these sizes: a view of one element, which takes no memory.
  at::Tensor get_value_for_expanded_scalar(const at::Scalar& value, at::ScalarType dtype,
                                           at::IntArrayRef sizes, at::Device device);

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
  /// How many can be run by their hash.
  size_t computation_cache_size() const;
  /// The backend's text of the computation that ran last; an error if none is kept.
  std::string latest_computation() const;

  /// How often this was called by this thread since the last step (for those who cut graphs that
  /// grow too long).
  size_t increment_trim_counter() const;

 protected:
  /// What a sync is about to run.
  struct SyncCollection {
    std::vector<at::Tensor> tensors;  // distinct lazy tensors of one device; empty: all that live
    std::optional<at::Device> device;
    bool force = true;  // the tensors are given data
    bool keep_graph = false;
    GraphHash hash;                     // of a list of tensors
    size_t pending = 0;                 // how many of its tensors are not computed
    std::vector<DeviceUnlocker> locks;  // given back when everything is scheduled
  };

  /// The graph of a collection, and which of its parameters each operand that is data is.
  struct PostOrder {
    std::shared_ptr<const Graph> graph;
    std::vector<int64_t> parameter_ids;      // tensor_id, -1 for memory that is made for the run
    std::vector<size_t> parameter_sequence;  // in the order of nodes and operands
  };

  /// Whether a sync runs what this tensor needs. Under the graph's lock: must not touch tensors,
  /// nor wait. Only called on executors that are not of this very class.
  virtual bool should_sync_tensor(const LiveTensor& tensor) const;

  /// Waits for the locks of the collection's devices and takes them. Nothing happens if the
  /// collection has no device or has its locks already.
  virtual void tensor_collection_barrier(SyncCollection& collection);

  /// The graph behind the collection's tensors and, in the collection, its hash.
  virtual PostOrder run_post_order(SyncCollection& collection);

  /// The leaf from which a step's seeds are computed.
  virtual at::Tensor value_from_scalar(const at::Scalar& value, at::ScalarType dtype,
                                       at::Device device);

 private:
  struct State;

  bool may_refuse() const;
  SyncCollection collect_tensors(at::TensorList tensors, bool force, bool keep_graph) const;
  void schedule(SyncCollection& collection);

  std::unique_ptr<State> state_;
};

}  // namespace torch_lazy
