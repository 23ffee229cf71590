#include "backends/cpu/tiered_plan.h"

#include "backends/aten/aten_plan.h"
#include "backends/cpu/compile_pool.h"
#include "backends/cpu/cpu_plan.h"
#include "runtime/plan_cache.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <thread>

namespace torch_lazy {
namespace {

/// Null when the graph cannot be compiled; then PyTorch's kernels go on serving it.
std::shared_ptr<Executable> try_compile(const std::shared_ptr<const Graph>& graph) {
  try {
    return make_cpu_plan(graph);
  } catch (const std::exception& error) {
    if (!CompilePool::instance().is_finishing()) {
      TORCH_WARN_ONCE("torch-lazy: a graph is left to PyTorch's kernels: ", error.what());
    }
    return nullptr;
  }
}

/// Cores that kernels leave.
int spare_cores() {
  return static_cast<int>(std::thread::hardware_concurrency()) - at::get_num_threads();
}

/// A compilation in the background and what it leaves.
struct Job : CompileJob {
  std::shared_ptr<Executable> plan;  // null: it failed
  std::atomic<int64_t> bytes{0};     // of the plan
};

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

  /// Asked by any thread; plans change where they run.
  std::string text() const override {
    std::shared_ptr<Executable> plan;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      plan = plan_;
    }
    return plan->text();
  }

  /// Also of what was compiled and has not run yet.
  int64_t bytes() const override {
    std::lock_guard<std::mutex> lock(mutex_);
    return plan_->bytes() + (job_ ? job_->bytes.load(std::memory_order_relaxed) : 0);
  }

 private:
  /// Compiling costs milliseconds: a graph of a few operators has to come often to earn it.
  int runs_before_compiling() const { return graph_->nodes.size() >= 8 ? 1 : 16; }

  void consider() {
    if (job_) {
      const CompileJob::State state = job_->state.load(std::memory_order_acquire);
      if (state == CompileJob::State::done) {
        settle(std::move(job_->plan));
      }
      if (state != CompileJob::State::waiting) {
        set_job(nullptr);
      }
      return;
    }
    bool in_background = spare_cores() > 0;
    if (in_background && runs_ >= runs_before_compiling()) {
      in_background = start_job();
    }
    if (!in_background && runs_ > runs_before_compiling()) {
      settle(try_compile(graph_));
    }
  }

  /// Where the queue is full, a later run asks again. False: there is no thread to be had.
  bool start_job() {
    auto job = std::make_shared<Job>();
    job->work = [job = job.get(), graph = graph_] {
      job->plan = try_compile(graph);
      job->bytes = job->plan ? job->plan->bytes() : 0;
      PlanCache::instance().note_growth();
    };
    const auto answer =
        CompilePool::instance().add(job, static_cast<size_t>(std::max(spare_cores(), 1)));
    if (answer == CompilePool::Answer::accepted) {
      set_job(std::move(job));
    }
    return answer != CompilePool::Answer::no_thread;
  }

  void set_job(std::shared_ptr<Job> job) {
    std::lock_guard<std::mutex> lock(mutex_);
    job_.swap(job);  // the one before is freed after the lock
  }

  void settle(std::shared_ptr<Executable> plan) {
    settled_ = true;
    if (plan) {
      std::lock_guard<std::mutex> lock(mutex_);
      plan_.swap(plan);  // the one before is freed after the lock
    }
  }

  std::shared_ptr<const Graph> graph_;
  mutable std::mutex mutex_;  // of the pointers that come next, where they change or do not run
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
