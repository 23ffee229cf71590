// Synchronisation, and computations that are kept by their hash.
#include "api/computation.h"
#include "api/device_context.h"
#include "api/live.h"
#include "api/lru_cache.h"
#include "api/recipe.h"
#include "base/metrics.h"
#include "base/settings.h"
#include "capture/tensor.h"
#include "runtime/executor.h"
#include "runtime/plan_cache.h"
#include <torch_lazy/device.h>
#include <torch_lazy/graph_executor.h>
#include <torch_lazy/scope.h>

#include <ATen/ATen.h>

#include <atomic>
#include <cstring>
#include <typeinfo>
#include <unordered_set>

namespace torch_lazy {
namespace {

struct HashWords {
  size_t operator()(const GraphHash& hash) const { return static_cast<size_t>(hash.words[0]); }
};

std::vector<Buffer*> buffers_of(at::TensorList tensors) {
  std::vector<Buffer*> buffers;
  std::unordered_set<Buffer*> seen;
  for (const at::Tensor& tensor : tensors) {
    Buffer* buffer = &buffer_of(tensor);
    if (seen.insert(buffer).second) {
      buffers.push_back(buffer);
    }
  }
  return buffers;
}

std::vector<at::Tensor> distinct_lazy(at::TensorList tensors) {
  std::vector<at::Tensor> distinct;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const at::Tensor& tensor : tensors) {
    if (is_lazy(tensor) && seen.insert(tensor.unsafeGetTensorImpl()).second) {
      distinct.push_back(tensor);
    }
  }
  return distinct;
}

void count_synced(const Recipe& recipe) {
  static metrics::Counter& synced = metrics::counter("SyncedTensorsWithIR");
  synced.add(static_cast<int64_t>(recipe.pending));
}

/// Gives memory to tensors that were made and never written: after a sync every tensor has data.
void give_memory(c10::ArrayRef<Buffer*> buffers) {
  static metrics::Counter& given = metrics::counter("SyncTensorsToData");
  for (Buffer* buffer : buffers) {
    bool undefined = false;
    {
      GraphLock lock(*buffer);
      undefined = !buffer->current || buffer->current->undefined();
    }
    if (undefined) {
      Reading memory(*buffer);
      given.add();
    }
  }
}

std::optional<c10::DeviceIndex> index_of(std::optional<at::Device> device) {
  return device ? std::optional(checked_index(*device)) : std::nullopt;
}

thread_local size_t trim_counter = 0;

}  // namespace

std::string GraphHash::bytes() const {
  return std::string(reinterpret_cast<const char*>(words.data()), sizeof(words));
}

GraphHash GraphHash::from_bytes(const std::string& bytes) {
  GraphHash hash;
  TORCH_CHECK(bytes.size() == sizeof(hash.words), "torch-lazy: a graph's hash has ",
              sizeof(hash.words), " bytes, but ", bytes.size(), " were given");
  std::memcpy(hash.words.data(), bytes.data(), sizeof(hash.words));
  return hash;
}

struct GraphExecutor::State {
  LruCache<GraphHash, Computation, HashWords> computations{
      [] { return static_cast<size_t>(settings().plan_cache.load()); }};
};

GraphExecutor::GraphExecutor() : state_(std::make_unique<State>()) {}

GraphExecutor::~GraphExecutor() = default;

// ---- Collections
// ---------------------------------------------------------------------------------

bool GraphExecutor::should_sync_tensor(const LiveTensor&) const {
  return true;
}

bool GraphExecutor::may_refuse() const {
  return typeid(*this) != typeid(GraphExecutor);
}

GraphExecutor::SyncCollection GraphExecutor::collect_tensors(at::TensorList tensors, bool force,
                                                             bool keep_graph) const {
  SyncCollection collection;
  collection.force = force;
  collection.keep_graph = keep_graph;
  for (at::Tensor& tensor : distinct_lazy(tensors)) {
    const at::Device device = tensor.device();
    TORCH_CHECK(!collection.device || *collection.device == device,
                "torch-lazy: all tensors of a sync have to be on one device, but there are '",
                to_backend_device(device), "' vs '", to_backend_device(*collection.device), "'");
    collection.device = device;
    Buffer& buffer = buffer_of(tensor);
    bool wanted = true;
    if (may_refuse()) {
      GraphLock lock;
      wanted = should_sync_tensor(describe(buffer));
    }
    if (wanted) {
      collection.tensors.push_back(std::move(tensor));
    }
  }
  return collection;
}

void GraphExecutor::tensor_collection_barrier(SyncCollection& collection) {
  if (!collection.device || !collection.locks.empty() || inside_run()) {
    return;  // inside a run the sync that started it may still hold the lock
  }
  collection.locks = DeviceLocks::instance().lock({*collection.device});
}

GraphExecutor::PostOrder GraphExecutor::run_post_order(SyncCollection& collection) {
  Recipe recipe = recipe_of(collection.tensors, collection.force);
  count_synced(recipe);
  collection.hash = {recipe.graph->hash};
  collection.pending = recipe.pending;
  if (!recipe.past) {
    state_->computations.add(collection.hash, std::make_shared<Computation>(recipe));
  }
  PostOrder order;
  order.graph = recipe.graph;
  std::vector<size_t> index(recipe.graph->slots, SIZE_MAX);
  size_t leaf = 0;
  for (const Parameter& parameter : recipe.graph->parameters) {
    index[parameter.slot] = order.parameter_ids.size();
    order.parameter_ids.push_back(parameter.fresh ? -1 : recipe.leaves[leaf++].id);
  }
  for (const GraphNode& node : recipe.graph->nodes) {
    for (uint32_t slot : node.operands) {
      if (index[slot] != SIZE_MAX) {
        order.parameter_sequence.push_back(index[slot]);
      }
    }
  }
  return order;
}

/// Hands what a collection needs to the core. Where execution is synchronous, it has run then.
void GraphExecutor::schedule(SyncCollection& collection) {
  tensor_collection_barrier(collection);
  run_post_order(collection);
  std::vector<Buffer*> buffers = buffers_of(collection.tensors);
  run_buffers(buffers);
  std::shared_ptr<Computation> kept = state_->computations.find(collection.hash);
  if (kept && collection.pending > 0) {
    kept->set_sync_plan(PlanCache::instance().latest());
  }
  if (!collection.keep_graph) {
    GraphLock lock;
    for (Buffer* buffer : buffers) {
      Program::instance().forget_history(buffer->current);
    }
  }
  if (collection.force) {
    give_memory(buffers);
  }
  collection.locks.clear();
}

// ---- Running
// -------------------------------------------------------------------------------------

void GraphExecutor::sync_tensors(at::TensorList tensors, bool wait, bool keep_graph) {
  SyncCollection collection = collect_tensors(tensors, /*force=*/true, keep_graph);
  if (!collection.tensors.empty()) {
    schedule(collection);
  }
  if (wait) {
    wait_for_device();
  }
}

void GraphExecutor::sync_live_tensors(std::optional<at::Device> device, bool wait) {
  SyncCollection collection;
  collection.device = device;
  tensor_collection_barrier(collection);
  if (may_refuse()) {
    run_live(index_of(device),
             [this](const Buffer& buffer) { return should_sync_tensor(describe(buffer)); });
  } else {
    run_all(index_of(device));
  }
  collection.locks.clear();
  if (wait) {
    wait_for_device();
  }
}

void GraphExecutor::mark_step(std::optional<at::Device> device) {
  static metrics::Counter& steps = metrics::counter("MarkStep");
  reset_scopes();  // raises an error if one is open
  steps.add();
  DeviceContexts& contexts = DeviceContexts::instance();
  if (device) {
    contexts.context(*device).end_step();
  } else {
    for (at::Device each : get_active_devices()) {
      contexts.context(each).end_step();
    }
  }
  trim_counter = 0;
  GraphLock lock;
  Program::instance().forget_histories();
}

std::vector<at::Tensor> GraphExecutor::get_tensors(at::TensorList tensors) {
  SyncCollection collection = collect_tensors(tensors, /*force=*/false, /*keep_graph=*/true);
  bool pending = false;
  {
    GraphLock lock;
    for (const at::Tensor& tensor : collection.tensors) {
      const Value* value = buffer_of(tensor).current;
      pending |= value && value->pending();
    }
  }
  if (pending) {
    schedule(collection);
  }
  std::vector<at::Tensor> values;
  for (const at::Tensor& tensor : tensors) {
    RealCopySource source(tensor);
    values.push_back(source.tensor().to(at::kCPU, tensor.scalar_type(), /*non_blocking=*/false,
                                        /*copy=*/true));
  }
  return values;
}

void GraphExecutor::wait_device_ops(c10::ArrayRef<at::Device> devices) {
  DeviceSet wanted(devices.begin(), devices.end());
  if (wanted.empty()) {
    std::vector<at::Device> active = get_active_devices();
    wanted.insert(active.begin(), active.end());
  }
  if (!inside_run()) {
    DeviceLocks::instance().lock(wanted);
  }
  wait_for_device();
}

void GraphExecutor::device_barrier(at::Device device) {
  DeviceLocks::instance().barrier(device);
}

size_t GraphExecutor::increment_trim_counter() const {
  return ++trim_counter;
}

// ---- Graphs and computations
// ---------------------------------------------------------------------

GraphHash GraphExecutor::get_graph_hash(at::TensorList tensors) {
  Recipe recipe = recipe_of(tensors, /*force=*/true);
  count_synced(recipe);
  return {recipe.graph->hash};
}

std::string GraphExecutor::dump_backend_computation(at::TensorList tensors) {
  std::vector<at::Tensor> lazy = distinct_lazy(tensors);
  if (lazy.empty()) {
    return "";
  }
  Recipe recipe = recipe_of(lazy, /*force=*/true);
  return recipe.graph->nodes.empty() ? "" : backend().compile(recipe.graph)->text();
}

GraphInputs GraphExecutor::get_graph_inputs(at::TensorList tensors) {
  GraphInputs inputs;
  read_leaves(tensors, inputs.ids, inputs.values);
  return inputs;
}

std::vector<at::Tensor> GraphExecutor::run_cached_graph(const GraphHash& hash,
                                                        c10::ArrayRef<c10::IValue> inputs) {
  std::shared_ptr<Computation> computation = state_->computations.find(hash);
  TORCH_CHECK(computation,
              "Failed to get computation by hash. Maybe the entry get kicked out of the LRU cache");
  return computation->run(inputs);
}

void GraphExecutor::clear_computation_cache() {
  state_->computations.clear();
  PlanCache::instance().clear();
}

bool GraphExecutor::remove_from_computation_cache(const GraphHash& hash) {
  std::shared_ptr<Computation> computation = state_->computations.find(hash);
  if (!computation) {
    return false;
  }
  if (std::shared_ptr<Plan> plan = computation->sync_plan()) {
    PlanCache::instance().remove(*plan);
  }
  return state_->computations.erase(hash);
}

size_t GraphExecutor::computation_cache_size() const {
  return state_->computations.size();
}

std::string GraphExecutor::latest_computation() const {
  std::shared_ptr<Plan> latest = PlanCache::instance().latest();
  TORCH_CHECK(latest, "torch-lazy: no computation is kept yet");
  return latest->graph->text();
}

}  // namespace torch_lazy
