// The interface between the runtime and what executes graphs. A backend is given a graph once and
// makes an executable of it; the executable is run with data and numbers as often as it is needed.
#pragma once

#include <torch_lazy/export.h>
#include <torch_lazy/graph.h>

#include <c10/core/Storage.h>

#include <exception>
#include <memory>
#include <string>
#include <vector>

namespace torch_lazy {

/// The state of one run, by slot. The runtime fills in the parameters; the executable leaves the
/// data of every slot that is still needed. A slot's storage is dropped after its last use.
struct Run {
  std::vector<c10::Storage> slots;
  std::vector<c10::IValue> numbers;
  size_t completed = 0;  // nodes that were executed, in order
};

class Executable {
 public:
  virtual ~Executable() = default;

  /// Executes the graph. When a node fails it throws; `completed` then says which one, and the
  /// slots hold what was computed before it.
  virtual void run(Run& run) = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string name() const = 0;
  virtual std::shared_ptr<Executable> compile(std::shared_ptr<const Graph> graph) = 0;
  /// Waits until everything that was run has finished on the device.
  virtual void wait() = 0;
};

/// The device that does the work.
TORCH_LAZY_API at::Device real_device();

/// The dispatch key of the real device's kernels.
c10::DispatchKey real_key();

/// The backend in use.
Backend& backend();

/// Called once, by a concrete backend, when the library is loaded.
void register_backend(Backend& (*factory)());

}  // namespace torch_lazy
