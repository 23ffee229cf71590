// The executor in use, synchronisation and kept computations.
#include "api/computation.h"
#include "api/lru_cache.h"
#include "api/recipe.h"
#include "base/metrics.h"
#include "base/settings.h"
#include "capture/tensor.h"
#include "runtime/executor.h"
#include <torch_lazy/graph_executor.h>
#include <torch_lazy/torch_lazy.h>

#include <ATen/ATen.h>

#include <atomic>
#include <cstring>

namespace torch_lazy {
namespace {

struct HashWords {
  size_t operator()(const GraphHash& hash) const { return static_cast<size_t>(hash.words[0]); }
};

std::atomic<GraphExecutor*>& registered() {
  static std::atomic<GraphExecutor*> executor{new GraphExecutor()};  // never destroyed
  return executor;
}

std::vector<at::Tensor> lazy_ones(at::TensorList tensors) {
  std::vector<at::Tensor> lazy;
  for (const at::Tensor& tensor : tensors) {
    if (is_lazy(tensor)) {
      lazy.push_back(tensor);
    }
  }
  return lazy;
}

std::vector<Buffer*> buffers_of(at::TensorList tensors) {
  std::vector<Buffer*> buffers;
  for (const at::Tensor& tensor : tensors) {
    Buffer* buffer = &buffer_of(tensor);
    if (std::find(buffers.begin(), buffers.end(), buffer) == buffers.end()) {
      buffers.push_back(buffer);
    }
  }
  return buffers;
}

void count_synced(const Recipe& recipe) {
  static metrics::Counter& synced = metrics::counter("SyncedTensorsWithIR");
  synced.add(static_cast<int64_t>(recipe.pending));
}

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

GraphExecutor& GraphExecutor::get() {
  GraphExecutor* executor = registered().load(std::memory_order_acquire);
  TORCH_CHECK(executor, "Lazy graph executor not registered.");
  return *executor;
}

GraphExecutor* GraphExecutor::register_executor(GraphExecutor* executor) {
  return registered().exchange(executor);
}

void GraphExecutor::sync_tensors(at::TensorList tensors, bool wait, bool keep_graph) {
  std::vector<at::Tensor> lazy = lazy_ones(tensors);
  if (lazy.empty()) {
    return;
  }
  Recipe recipe = recipe_of(lazy, /*force=*/true);
  count_synced(recipe);
  state_->computations.add({recipe.graph->hash}, std::make_shared<Computation>(recipe));
  run_buffers(buffers_of(lazy));
  if (wait) {
    wait_for_device();
  }
}

void GraphExecutor::sync_live_tensors(std::optional<at::Device> device, bool wait) {
  run_all();
  if (wait) {
    wait_for_device();
  }
}

void GraphExecutor::mark_step(at::Device device) {
  static metrics::Counter& steps = metrics::counter("MarkStep");
  steps.add();
}

std::vector<at::Tensor> GraphExecutor::get_tensors(at::TensorList tensors) {
  std::vector<Buffer*> buffers = buffers_of(tensors);
  count_synced(recipe_of(tensors, /*force=*/false));
  run_buffers(buffers);
  std::vector<at::Tensor> values;
  ExecutionLock execution;
  for (const at::Tensor& tensor : tensors) {
    values.push_back(real_of(tensor).clone());
  }
  return values;
}

void GraphExecutor::wait_device_ops(c10::ArrayRef<at::Device> devices) {
  wait_for_device();
}

GraphHash GraphExecutor::get_graph_hash(at::TensorList tensors) {
  Recipe recipe = recipe_of(tensors, /*force=*/true);
  count_synced(recipe);
  return {recipe.graph->hash};
}

std::string GraphExecutor::dump_backend_computation(at::TensorList tensors) {
  std::vector<at::Tensor> lazy = lazy_ones(tensors);
  if (lazy.empty()) {
    return "";
  }
  Recipe recipe = recipe_of(lazy, /*force=*/true);
  return recipe.pending == 0 ? "" : recipe.graph->text();
}

GraphInputs GraphExecutor::get_graph_inputs(at::TensorList tensors) {
  GraphInputs inputs;
  leaf_values(recipe_of(tensors, /*force=*/true), inputs.ids, inputs.values);
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
}

bool GraphExecutor::remove_from_computation_cache(const GraphHash& hash) {
  return state_->computations.erase(hash);
}

size_t GraphExecutor::computation_cache_size() const {
  return state_->computations.size();
}

std::string GraphExecutor::latest_computation() const {
  std::shared_ptr<Computation> latest = state_->computations.latest();
  TORCH_CHECK(latest, "torch-lazy: no computation is kept yet");
  return latest->text();
}

}  // namespace torch_lazy
