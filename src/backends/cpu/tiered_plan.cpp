#include "backends/cpu/tiered_plan.h"

#include "backends/aten/aten_plan.h"
#include "backends/cpu/cpu_plan.h"

#include <ATen/Parallel.h>

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <thread>

namespace torch_lazy {
namespace {

/// Compilations that threads of their own are busy with. The process does not end before they do:
/// they use libraries that it takes down.
class Background {
 public:
  static Background& instance() {
    static auto* background = new Background();
    return *background;
  }

  template <typename Work>
  void start(Work work) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      ++running_;
    }
    std::thread([this, work = std::move(work)]() mutable {
      // Whatever else there is to do comes first.
      setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), 10);
      work();
      work = nullptr;
      std::lock_guard<std::mutex> lock(mutex_);
      --running_;
      idle_.notify_all();
    }).detach();
  }

 private:
  Background() : process_(getpid()) {
    std::atexit([] { instance().finish(); });
  }

  void finish() {
    if (getpid() == process_) {  // a forked child has none of the threads
      std::unique_lock<std::mutex> lock(mutex_);
      idle_.wait(lock, [&] { return running_ == 0; });
    }
  }

  pid_t process_;
  std::mutex mutex_;
  std::condition_variable idle_;
  int running_ = 0;
};

/// What a compilation in the background leaves.
struct Job {
  std::atomic<bool> done{false};
  std::shared_ptr<Executable> plan;  // null: it failed
};

/// Null when the graph cannot be compiled; then PyTorch's kernels go on serving it.
std::shared_ptr<Executable> try_compile(const std::shared_ptr<const Graph>& graph) {
  try {
    return make_cpu_plan(graph);
  } catch (const std::exception& error) {
    TORCH_WARN_ONCE("torch-lazy: a graph is left to PyTorch's kernels: ", error.what());
    return nullptr;
  }
}

bool has_spare_core() {
  return static_cast<int>(std::thread::hardware_concurrency()) > at::get_num_threads();
}

class TieredPlan : public Executable {
 public:
  explicit TieredPlan(const std::shared_ptr<const Graph>& graph)
      : graph_(graph), plan_(std::make_shared<AtenPlan>(graph)) {}

  void run(Run& run) override {
    if (!settled_) {
      ++runs_;
      consider();
    }
    plan_->run(run);
  }

  std::string text() const override { return plan_->text(); }

 private:
  /// Compiling costs milliseconds: a graph of a few operators has to come often to earn it.
  int runs_before_compiling() const { return graph_->nodes.size() >= 8 ? 1 : 16; }

  void consider() {
    if (job_) {
      if (job_->done.load(std::memory_order_acquire)) {
        settle(std::move(job_->plan));
        job_.reset();
      }
    } else if (has_spare_core()) {
      if (runs_ >= runs_before_compiling()) {
        job_ = std::make_shared<Job>();
        Background::instance().start(std::function<void()>([job = job_, graph = graph_] {
          job->plan = try_compile(graph);
          job->done.store(true, std::memory_order_release);
        }));
      }
    } else if (runs_ > runs_before_compiling()) {
      settle(try_compile(graph_));
    }
  }

  void settle(std::shared_ptr<Executable> plan) {
    settled_ = true;
    if (plan) {
      plan_ = std::move(plan);
    }
  }

  std::shared_ptr<const Graph> graph_;
  std::shared_ptr<Executable> plan_;
  std::shared_ptr<Job> job_;
  int runs_ = 0;
  bool settled_ = false;
};

}  // namespace

std::shared_ptr<Executable> make_tiered_plan(const std::shared_ptr<const Graph>& graph) {
  return std::make_shared<TieredPlan>(graph);
}

}  // namespace torch_lazy
