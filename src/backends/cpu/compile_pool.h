// Threads of low priority that compile graphs while PyTorch's kernels serve them: no more than
// there are cores to spare, with a queue of bounded length.
#pragma once

#include "base/ranked_mutex.h"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>

namespace torch_lazy {

/// Something to compile. Who wants it holds it; the pool leaves out what nobody wants any more.
struct CompileJob {
  enum class State : uint8_t {
    waiting,
    done,
    dropped,  // it never ran, or ended with the process that began it: may be asked for again
  };

  std::function<void()> work;  // throws nothing
  std::atomic<State> state{State::waiting};
};

class CompilePool {
 public:
  static CompilePool& instance();

  enum class Answer : uint8_t { accepted, full, no_thread };

  /// `threads`: the most there may be, at least 1.
  Answer add(const std::shared_ptr<CompileJob>& job, size_t threads);

  /// At the end of the process: drops what waits and returns when what is being compiled has ended.
  void finish();
  /// The process is about to end: what takes long on a thread of the pool should end early.
  bool is_finishing() const { return finishing_.load(std::memory_order_relaxed); }
  static bool is_own_thread();

  /// How many threads a compilation on the calling thread may use: one of the pool's takes those
  /// that its fellows leave, another all cores.
  size_t helpers() const;

  size_t threads();

  /// In a forked child, which has none of the threads.
  static void start_anew();

 private:
  CompilePool();
  void work();
  static void drop(const std::weak_ptr<CompileJob>& job);
  void forget_all();

  RankedMutex mutex_{Rank::compile_pool};
  std::condition_variable_any arrived_;
  std::condition_variable_any ended_;
  std::deque<std::weak_ptr<CompileJob>> waiting_;
  std::multimap<const CompileJob*, std::weak_ptr<CompileJob>> running_;
  size_t threads_ = 0;
  size_t idle_ = 0;
  std::atomic<size_t> busy_{0};
  std::atomic<size_t> most_{1};
  std::atomic<bool> finishing_{false};
};

/// Around every use of the code generator: a fork waits for its end, since the library has locks of
/// its own.
class UsesCodeGenerator {
 public:
  UsesCodeGenerator();
  ~UsesCodeGenerator();
  UsesCodeGenerator(const UsesCodeGenerator&) = delete;
  UsesCodeGenerator& operator=(const UsesCodeGenerator&) = delete;
};

}  // namespace torch_lazy
