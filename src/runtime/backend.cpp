// The backend in use: which one it is, and how it changes.
#include "base/hooks.h"
#include "base/ranked_mutex.h"
#include "base/settings.h"
#include "ir/node.h"
#include "runtime/backend_choice.h"
#include "runtime/executor.h"
#include "runtime/partitioned_plan.h"
#include "runtime/real_tensor.h"
#include <torch_lazy/backend.h>

#include <ATen/ATen.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <atomic>
#include <mutex>

namespace torch_lazy {
namespace {

Backend& (*base_factory)() = nullptr;

/// The plug-in, if there is one, and how often it was changed. Changes happen while nothing runs.
struct Choice {
  RankedMutex mutex{Rank::backend};           // of `all` and of the first use
  std::vector<std::shared_ptr<Backend>> all;  // for ever: data and plans may be theirs
  std::atomic<Backend*> plugin{nullptr};
  std::atomic<uint64_t> generation{1};
  std::atomic<bool> settled{false};  // the setting was looked at, or somebody chose
};

Choice& choice() {
  static auto* instance = new Choice();
  return *instance;
}

/// An executable that follows a change of the backend, wherever it is kept until it runs again.
class CompiledGraph : public Executable {
 public:
  explicit CompiledGraph(std::shared_ptr<const Graph> graph) : graph_(std::move(graph)) {
    current();
  }

  void run(Run& run) override {
    std::shared_ptr<Executable> executable = current();
    if (failed_) {
      generation_ = 0;  // this attempt raises what went wrong; the next compiles anew
    }
    executable->run(run);
  }

  std::string text() const override {
    const auto lock = lock_patiently(compiling());
    return executable_->text();
  }

  int64_t bytes() const override {
    std::shared_ptr<Executable> executable;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      executable = executable_;
    }
    return executable->bytes();
  }

 private:
  /// A plug-in compiles one graph at a time: on a thread that schedules, or on the one that runs.
  static RankedMutex& compiling() {
    static auto* mutex = new RankedMutex(Rank::plugin);
    return *mutex;
  }

  std::shared_ptr<Executable> current() {
    const uint64_t generation = choice().generation.load(std::memory_order_acquire);
    if (generation_ == generation) {
      return executable_;
    }
    hooks::AllowOtherThreads allow;
    std::lock_guard<RankedMutex> lock(compiling());
    Backend* plugin = choice().plugin.load(std::memory_order_acquire);
    Compilation compilation = plugin ? compile_parts(graph_, *plugin, base_backend())
                                     : Compilation{base_backend().compile(graph_)};
    {
      std::lock_guard<std::mutex> pointer(mutex_);
      executable_.swap(compilation.executable);  // the one before is freed after the lock
    }
    failed_ = compilation.failed;
    generation_ = generation;
    return executable_;
  }

  const std::shared_ptr<const Graph> graph_;
  mutable std::mutex mutex_;  // of the pointer that comes next, where it changes or does not run
  std::shared_ptr<Executable> executable_;
  bool failed_ = false;
  uint64_t generation_ = 0;  // of the choice for which it was compiled
};

/// What the runtime talks to.
class ChosenBackend : public Backend {
 public:
  std::string name() const override { return chosen().name(); }
  std::string device_type() const override { return chosen().device_type(); }
  at::Device memory() const override { return chosen().memory(); }
  c10::Storage upload(const c10::Storage& real) override { return chosen().upload(real); }
  c10::Storage download(const c10::Storage& own) override { return chosen().download(own); }

  std::shared_ptr<Executable> compile(std::shared_ptr<const Graph> graph) override {
    return std::make_shared<CompiledGraph>(std::move(graph));
  }

  void wait() override {
    if (Backend* plugin = choice().plugin) {
      try {
        plugin->wait();
      } catch (...) {
        raise_from(plugin->name(), "wait()");
      }
    }
    base_backend().wait();
  }

  void seed(uint64_t seed) override { chosen().seed(seed); }
  std::string metrics() const override { return chosen().metrics(); }

 private:
  static Backend& chosen() {
    Backend* plugin = choice().plugin;
    return plugin ? *plugin : base_backend();
  }
};

/// The mutex is held.
void choose(std::shared_ptr<Backend> plugin) {
  Choice& c = choice();
  c.plugin.store(plugin.get(), std::memory_order_release);
  c.generation.fetch_add(1, std::memory_order_acq_rel);
  c.settled = true;
  if (plugin) {
    c.all.push_back(std::move(plugin));
  }
}

}  // namespace

Executable::~Executable() = default;

std::string Executable::text() const {
  return "";
}

Backend::~Backend() = default;

int64_t Executable::bytes() const {
  return 0;
}

std::string Backend::device_type() const {
  return c10::DeviceTypeName(real_device().type());
}

at::Device Backend::memory() const {
  return real_device();
}

c10::Storage Backend::upload(const c10::Storage& real) {
  return real;
}

c10::Storage Backend::download(const c10::Storage& own) {
  return own;
}

bool Backend::takes(const GraphNode& /*node*/) {
  return true;
}

void Backend::wait() {}

void Backend::seed(uint64_t /*seed*/) {}

std::string Backend::metrics() const {
  return "";
}

at::Device real_device() {
  static const at::Device device = [] {
    if (!settings().cuda) {
      return at::Device(at::kCPU);
    }
    TORCH_CHECK(c10::impl::hasDeviceGuardImpl(at::kCUDA) &&
                    c10::impl::getDeviceGuardImpl(at::kCUDA)->deviceCount() > 0,
                "torch-lazy: TORCH_LAZY_DEVICE is cuda, but this PyTorch sees no CUDA device");
    return at::Device(at::kCUDA, 0);
  }();
  return device;
}

c10::DispatchKey real_key() {
  return real_device().is_cuda() ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU;
}

Backend& base_backend() {
  TORCH_CHECK(base_factory, "torch-lazy: no backend is registered");
  static Backend& instance = base_factory();
  return instance;
}

void register_base_backend(Backend& (*factory)()) {
  base_factory = factory;
}

Backend& backend() {
  static auto* instance = new ChosenBackend();
  Choice& c = choice();
  if (!c.settled.load(std::memory_order_acquire)) {
    hooks::AllowOtherThreads allow;  // opening a library may take long, and may ask Python for it
    std::lock_guard<RankedMutex> lock(c.mutex);
    if (!c.settled) {
      const std::string path = settings().backend.get();
      choose(path.empty() ? nullptr : open_plugin(path));
    }
  }
  return *instance;
}

void use_backend(std::shared_ptr<Backend> plugin) {
  backend();  // whatever the setting says comes first
  wait_for_device();
  ExecutionLock execution;
  size_t pending = 0;
  {
    GraphLock lock;
    pending = Program::instance().pending();
  }
  TORCH_CHECK(pending == 0, "torch-lazy: the backend cannot be changed while ", pending,
              " recorded operations have not run; run them first (torch_lazy.sync()), or choose "
              "the backend at the start of the program");
  Choice& c = choice();
  const auto lock = lock_patiently(c.mutex);
  Backend* before = c.plugin;
  TORCH_CHECK(!before || before->memory() == real_device(), "torch-lazy: the backend '",
              before->name(), "' keeps data in memory of its own (", before->memory(),
              ") and cannot be replaced");
  choose(std::move(plugin));
}

void load_backend(const std::string& path) {
  hooks::AllowOtherThreads allow;
  use_backend(open_plugin(path));
}

c10::Storage to_real_memory(const c10::Storage& data) {
  return data.device_type() == real_device().type() ? data : backend().download(data);
}

c10::Scalar number_value(const c10::IValue& number) {
  if (!number.isTensor()) {
    return number.toScalar();
  }
  BelowEverything below;
  return number.toTensor().item();
}

c10::Storage storage_of_result(const GraphNode& node, size_t output, const at::Tensor& result) {
  const Description& d = *node.description;
  const Layout& promised = d.fresh[output].layout;
  TORCH_CHECK(result.defined(), "torch-lazy: ", d.op->name, " gave no result where ",
              promised.shape_text(), " was promised");
  TORCH_CHECK(result.layout() == at::kStrided && result.scalar_type() == promised.dtype &&
                  result.sizes() == at::IntArrayRef(promised.sizes),
              "torch-lazy: ", d.op->name, " gave ", c10::toString(result.scalar_type()),
              result.sizes(), " where ", promised.shape_text(), " was promised");
  // Shared memory means the kernel returned an argument without saying so: values must not alias.
  const bool shared = result.storage().use_count() > 1;
  if (!shared && promised.matches(result)) {
    return result.storage();
  }
  c10::Storage storage = allocate(d.fresh[output].nbytes);
  real_tensor(storage, promised).copy_(result);
  return storage;
}

}  // namespace torch_lazy
