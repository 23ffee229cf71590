// Recording, reading, writing, replaying and forking from several threads at once.
#include "runtime/executor.h"
#include <torch_lazy/compile.h>
#include <torch_lazy/torch_lazy.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace torch_lazy {
namespace {

using Tensors = std::vector<at::Tensor>;

at::TensorOptions lazy() {
  return at::TensorOptions().device(at::kLazy);
}

/// OpenMP's threads are not ours to test, and a child cannot use the parent's.
class Threads : public ::testing::Test {
 protected:
  Threads() : threads_(at::get_num_threads()) { at::set_num_threads(1); }
  ~Threads() override { at::set_num_threads(threads_); }

  /// What a thread throws is a failure of the test.
  static void run(const std::vector<std::function<void()>>& functions) {
    std::vector<std::thread> threads;
    std::mutex mutex;
    std::vector<std::string> errors;
    for (const std::function<void()>& function : functions) {
      threads.emplace_back([&] {
        at::set_num_threads(1);
        try {
          function();
        } catch (const std::exception& error) {
          std::lock_guard<std::mutex> lock(mutex);
          errors.emplace_back(error.what());
        }
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    for (const std::string& error : errors) {
      ADD_FAILURE() << error;
    }
  }

 private:
  int threads_;
};

TEST_F(Threads, RecordReadAndWrite) {
  at::Tensor shared = at::zeros({4, 8}, lazy().dtype(at::kLong));
  std::vector<std::function<void()>> functions;
  for (int thread = 0; thread < 4; ++thread) {
    functions.emplace_back([&, thread] {
      at::Tensor row = shared[thread];
      at::Tensor own = at::full({8}, thread, lazy());
      for (int i = 0; i < 40; ++i) {
        row.add_(1);
        own = own * 2 - own;
        if (i % 5 == thread) {
          EXPECT_EQ(row[0].item<int64_t>(), i + 1);
        }
        if (i % 7 == thread) {
          mark_step();
        }
        if (i % 11 == thread) {
          EXPECT_EQ(own.nonzero().size(0), thread == 0 ? 0 : 8);  // executed at once
        }
      }
      EXPECT_EQ(own.sum().item<float>(), 8.0F * static_cast<float>(thread));
    });
  }
  run(functions);
  EXPECT_TRUE(at::equal(shared.cpu(), at::full({4, 8}, 40, at::kLong)));
}

/// Additions commute: whatever the order, none may be lost.
TEST_F(Threads, AReplayAndOtherThreadsWrites) {
  constexpr int kWrites = 60;
  at::Tensor w = at::zeros({1 << 14}, lazy().dtype(at::kLong));
  CompileOptions options;
  options.state = [&] { return Tensors{w}; };
  CompiledFunction step = compile(
      [&](const Tensors& x) -> Tensors {
        w.mul_(1).add_(x[0]);
        return {w.sum()};
      },
      options);
  const at::Tensor one = at::ones({1 << 14}, lazy().dtype(at::kLong));
  for (int i = 0; i < 10; ++i) {
    step({one});
  }
  std::atomic<bool> done{false};
  int calls = 10;
  run({[&] {
         for (int i = 0; i < kWrites; ++i) {
           w.add_(1);
           if (i % 3 == 0) {
             w[0].item<int64_t>();
           }
         }
         done = true;
       },
       [&] {
         while (!done) {
           step({one});
           ++calls;
         }
       }});
  EXPECT_TRUE(at::equal(w.cpu(), at::full({1 << 14}, calls + kWrites, at::kLong)));
}

TEST_F(Threads, Fork) {
  std::atomic<bool> stop{false};
  at::Tensor x = at::ones({4}, lazy());
  auto compute = [&] {
    at::Tensor y = at::ones({8, 8}, lazy());
    for (int i = 0; !stop; ++i) {
      at::Tensor z = at::relu(at::mm(y, y) + i % 5);
      z.nonzero();
      z.sum().item<float>();
      mark_step();
    }
  };
  run({compute, compute, [&] {
         for (int i = 0; i < 50; ++i) {
           const pid_t child = fork();
           if (child == 0) {
             const bool same = at::equal((x + 1).cpu(), at::full({4}, 2.0F));
             mark_step();
             _exit(same && x.nonzero().size(0) == 4 ? 0 : 1);
           }
           int status = -1;
           waitpid(child, &status, 0);
           EXPECT_EQ(status, 0);
         }
         stop = true;
       }});
}

}  // namespace
}  // namespace torch_lazy
