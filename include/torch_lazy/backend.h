// The interface between the runtime and what executes graphs. A backend is given a graph once and
// makes an executable of it; the executable is run with data and numbers as often as it is needed.
// docs/backends.md explains how to write one, examples/backend is one.
#pragma once

#include <torch_lazy/export.h>
#include <torch_lazy/graph.h>
#include <torch_lazy/version.h>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/DispatchKey.h>
#include <c10/core/Scalar.h>
#include <c10/core/Storage.h>
#include <torch/version.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace torch_lazy {

/// What an executable has to say about a node of its graph; the user sees it as a warning with the
/// line that called the operator.
struct Remark {
  size_t node = 0;
  std::string text;
};

/// The state of one run, by slot. The runtime fills in the parameters; the executable leaves the
/// data of every slot that is still needed. A slot's storage is dropped after its last use.
struct Run {
  std::vector<c10::Storage> slots;
  std::vector<c10::IValue> numbers;
  size_t completed = 0;  // nodes that were executed, in order
  size_t failed = 0;     // after an error: nodes, from `completed` on, that failed; 0: all the rest
  bool spoiled = false;  // after an error: they may have written a part of what they write in place
  bool only_attempt = false;  // nobody tries again after an error: donated data may be freed early
  std::vector<Remark> remarks;

  /// What is kept beside the data of the graph's parameter of this number. Null: nothing can be, as
  /// the data may change. The function is empty where that is so for all.
  std::function<std::shared_ptr<Beside>(size_t)> beside;
};

class TORCH_LAZY_API Executable {
 public:
  virtual ~Executable();

  /// Executes the graph. When a node fails it throws; `completed` and `failed` then say which one,
  /// and the slots hold what was computed before it.
  virtual void run(Run& run) = 0;

  /// What was compiled, for people to read.
  virtual std::string text() const;

  /// About how many bytes it holds besides its graph: plans are forgotten when they hold too much.
  /// Asked often, by any thread; may grow from run to run.
  virtual int64_t bytes() const;
};

/// What a vendor implements. `run` is called by one thread at a time, and so are `takes` and
/// `compile`, but a graph may be compiled while another one runs.
class TORCH_LAZY_API Backend {
 public:
  virtual ~Backend();

  virtual std::string name() const = 0;

  /// The kind of device, as programs see it: "CPU", "CUDA", ...
  virtual std::string device_type() const;

  /// Where the backend's storages are. If that is not the real device, data is moved by `upload`
  /// and `download`; otherwise they are never called.
  virtual at::Device memory() const;
  virtual c10::Storage upload(const c10::Storage& real);
  virtual c10::Storage download(const c10::Storage& own);

  /// Whether the backend executes this node. What it leaves is executed by PyTorch's kernels.
  virtual bool takes(const GraphNode& node);

  /// Every node of `graph` was taken.
  virtual std::shared_ptr<Executable> compile(std::shared_ptr<const Graph> graph) = 0;

  /// Waits until everything that was run has finished on the device.
  virtual void wait();

  /// The seed of the backend's random numbers, when it is set and at every step. Any thread.
  virtual void seed(uint64_t seed);

  /// The backend's own part of the metrics report. Any thread.
  virtual std::string metrics() const;
};

// ---- For those who write a backend --------------------------------------------------------------

/// The value of one of a node's numbers: a scalar, or a tensor without dimensions on the CPU.
TORCH_LAZY_API c10::Scalar number_value(const c10::IValue& number);

/// The storage for new result `output` of `node`, made from a tensor that holds the result. Checks
/// dtype and sizes; copies if the tensor lies otherwise than promised or shares its memory.
TORCH_LAZY_API c10::Storage storage_of_result(const GraphNode& node, size_t output,
                                              const at::Tensor& result);

/// New memory on the real device.
TORCH_LAZY_API c10::Storage allocate(int64_t nbytes);

/// The version of everything a plug-in sees: this file and the headers it includes.
inline constexpr uint32_t kBackendInterface = 2;

/// What the one exported function of a plug-in returns. Plain data: it is looked at before anything
/// else of the plug-in is used.
struct BackendPlugin {
  uint32_t interface_version = kBackendInterface;
  const char* torch_lazy_version = TORCH_LAZY_VERSION;
  const char* torch_version = TORCH_VERSION;
  Backend* (*create)() = nullptr;
};

/// Stands once in a plug-in: `TORCH_LAZY_BACKEND_PLUGIN(MyBackend)`.
#define TORCH_LAZY_BACKEND_PLUGIN(BackendClass)                                      \
  extern "C" __attribute__((visibility("default"))) const torch_lazy::BackendPlugin* \
  torch_lazy_backend_v1() {                                                          \
    static const torch_lazy::BackendPlugin plugin = [] {                             \
      torch_lazy::BackendPlugin result;                                              \
      result.create = []() -> torch_lazy::Backend* { return new BackendClass(); };   \
      return result;                                                                 \
    }();                                                                             \
    return &plugin;                                                                  \
  }

// ---- For those who use one ----------------------------------------------------------------------

/// Loads a plug-in and uses it for every graph from now on. Nothing may be pending.
TORCH_LAZY_API void load_backend(const std::string& path);

/// Likewise for a backend that is part of the program. Null: PyTorch's kernels alone, as at first.
TORCH_LAZY_API void use_backend(std::shared_ptr<Backend> backend);

/// The backend in use: a plug-in in front of PyTorch's kernels, or those alone ("aten").
TORCH_LAZY_API Backend& backend();

/// The device that does the work.
TORCH_LAZY_API at::Device real_device();

/// The dispatch key of the real device's kernels.
TORCH_LAZY_API c10::DispatchKey real_key();

}  // namespace torch_lazy
