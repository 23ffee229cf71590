// Training steps with optimizers of libtorch in torch_lazy::compile: beside the same steps of
// PyTorch on the CPU, equal to the bit where PyTorch's kernels run.
#include "eager_bits.h"
#include <torch_lazy/compile.h>
#include <torch_lazy/torch_lazy.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <sstream>
#include <string>

namespace torch_lazy {
namespace {

namespace optim = torch::optim;
using Tensors = std::vector<at::Tensor>;
using MakeOptimizer =
    std::function<std::unique_ptr<optim::Optimizer>(const torch::nn::Sequential& net)>;

int64_t counter(const char* name) {
  return counter_value(name).value_or(0);
}

void expect_same(const at::Tensor& actual, const at::Tensor& expected, const std::string& what) {
  const at::Tensor x = actual.detach().cpu();
  const at::Tensor y = expected.detach().cpu();
  EXPECT_TRUE(torch_lazy_tests::same_values(x, y, 1e-3, 1e-5))
      << what << ": " << x << " instead of " << y;
}

std::vector<int64_t> steps_of(const optim::Optimizer& optimizer) {
  std::vector<int64_t> steps;
  for (const optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
      if (found == optimizer.state().end()) {
        steps.push_back(-1);
      } else if (auto* adam = dynamic_cast<optim::AdamParamState*>(found->second.get())) {
        steps.push_back(adam->step());
      } else if (auto* adamw = dynamic_cast<optim::AdamWParamState*>(found->second.get())) {
        steps.push_back(adamw->step());
      } else if (auto* rms = dynamic_cast<optim::RMSpropParamState*>(found->second.get())) {
        steps.push_back(rms->step());
      } else if (auto* adagrad = dynamic_cast<optim::AdagradParamState*>(found->second.get())) {
        steps.push_back(adagrad->step());
      }
    }
  }
  return steps;
}

void set_rate(optim::Optimizer& optimizer, size_t group, double rate) {
  optimizer.param_groups()[group].options().set_lr(rate);
}

/// One model with its optimizer, on one device.
struct Training {
  at::Device device;
  torch::nn::Sequential net{torch::nn::Linear(5, 7), torch::nn::Tanh(), torch::nn::Linear(7, 3)};
  std::unique_ptr<optim::Optimizer> optimizer;
  std::function<Tensors(const Tensors&)> step;
  CompileOptions options;

  Training(at::Device where, const MakeOptimizer& make) : device(where) {
    torch::manual_seed(3);
    for (at::Tensor& parameter : net->parameters()) {
      torch::NoGradGuard no_grad;
      parameter.copy_(torch::randn_like(parameter) * 0.3);
    }
    net->to(device);
    optimizer = make(net);
    step = [this](const Tensors& batch) -> Tensors {
      optimizer->zero_grad();
      at::Tensor loss = (net->forward(batch[0]) - batch[1]).square().mean();
      loss.backward();
      optimizer->step();
      return {loss.detach()};
    };
    options.state = [this] { return state_of(*net); };
    options.optimizers = {optimizer.get()};
  }
  Training(const Training&) = delete;
  Training& operator=(const Training&) = delete;

  Tensors batch(int call) const {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(call));
    return {torch::randn({4, 5}, generator).to(device), torch::randn({4, 3}, generator).to(device)};
  }
};

/// Steps on the CPU, and the same ones compiled.
struct Pair {
  Training eager;
  Training lazy;
  CompiledFunction fast;
  int64_t replayed = counter("Replayed");
  int64_t recorded = counter("ReplayRecorded");
  int calls = 0;

  explicit Pair(const MakeOptimizer& make)
      : eager(at::kCPU, make), lazy(at::kLazy, make), fast(compile(lazy.step, lazy.options)) {}

  void run(int count) {
    for (int i = 0; i < count; ++i, ++calls) {
      const at::Tensor expected = eager.step(eager.batch(calls))[0];
      expect_same(fast(lazy.batch(calls))[0], expected, "loss " + std::to_string(calls));
    }
    compare();
  }

  void both(const std::function<void(optim::Optimizer&)>& change) {
    change(*eager.optimizer);
    change(*lazy.optimizer);
  }

  void compare() {
    EXPECT_EQ(steps_of(*lazy.optimizer), steps_of(*eager.optimizer));
    const Tensors expected = eager.net->parameters();
    const Tensors actual = lazy.net->parameters();
    for (size_t i = 0; i < expected.size(); ++i) {
      expect_same(actual[i], expected[i], "parameter " + std::to_string(i));
      ASSERT_EQ(actual[i].grad().defined(), expected[i].grad().defined());
      if (expected[i].grad().defined()) {
        expect_same(actual[i].grad(), expected[i].grad(), "gradient " + std::to_string(i));
      }
    }
    const Tensors kept = state_of(*eager.optimizer);
    const Tensors ours = state_of(*lazy.optimizer);
    ASSERT_EQ(ours.size(), kept.size());
    for (size_t i = 0; i < kept.size(); ++i) {
      expect_same(ours[i], kept[i], "state " + std::to_string(i));
    }
  }

  /// Recorded calls since the last time this was asked.
  int64_t recordings() {
    const int64_t before = std::exchange(recorded, counter("ReplayRecorded"));
    return recorded - before;
  }
};

template <typename Optimizer, typename Options>
MakeOptimizer maker(Options options) {
  return [options](const torch::nn::Sequential& net) {
    return std::make_unique<Optimizer>(net->parameters(), options);
  };
}

struct Case {
  const char* name;
  MakeOptimizer make;
};

class CompiledOptimizers : public ::testing::TestWithParam<Case> {};

TEST_P(CompiledOptimizers, replay_their_steps) {
  Pair pair(GetParam().make);
  pair.run(45);
  EXPECT_EQ(pair.fast.reason(), "");
  // The first calls, and those at 8, 16 and 32.
  EXPECT_EQ(counter("Replayed") - pair.replayed, 45 - pair.recordings());
  EXPECT_GE(counter("Replayed") - pair.replayed, 39);
}

TEST_P(CompiledOptimizers, follow_learning_rates) {
  Pair pair(GetParam().make);
  pair.run(5);
  pair.recordings();
  optim::StepLR eager(*pair.eager.optimizer, 3, 0.7);
  optim::StepLR lazy(*pair.lazy.optimizer, 3, 0.7);
  for (int i = 0; i < 40; ++i) {
    pair.run(1);
    eager.step();
    lazy.step();
  }
  EXPECT_EQ(pair.fast.reason(), "");
  EXPECT_LE(pair.recordings(), 4);  // once for another rate, and at 8, 16 and 32
}

INSTANTIATE_TEST_SUITE_P(
    Replay, CompiledOptimizers,
    ::testing::Values(
        Case{"sgd", maker<optim::SGD>(optim::SGDOptions(0.1))},
        Case{"sgd_momentum",
             maker<optim::SGD>(optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01))},
        Case{"sgd_dampening",
             maker<optim::SGD>(optim::SGDOptions(0.1).momentum(0.9).dampening(0.2))},
        Case{"sgd_nesterov",
             maker<optim::SGD>(optim::SGDOptions(0.05).momentum(0.8).nesterov(true))},
        Case{"adam", maker<optim::Adam>(optim::AdamOptions(0.01))},
        Case{"adam_weight_decay",
             maker<optim::Adam>(optim::AdamOptions(0.02).betas({0.8, 0.95}).weight_decay(0.1))},
        Case{"adam_amsgrad", maker<optim::Adam>(optim::AdamOptions(0.01).amsgrad(true))},
        Case{"adamw", maker<optim::AdamW>(optim::AdamWOptions(0.01).weight_decay(0.05))},
        Case{"adamw_no_decay", maker<optim::AdamW>(optim::AdamWOptions(0.01).weight_decay(0))},
        Case{"adamw_amsgrad", maker<optim::AdamW>(optim::AdamWOptions(0.03).amsgrad(true))},
        Case{"rmsprop", maker<optim::RMSprop>(optim::RMSpropOptions(0.01))},
        Case{"rmsprop_all",
             maker<optim::RMSprop>(
                 optim::RMSpropOptions(0.01).momentum(0.5).centered(true).weight_decay(0.02))},
        Case{"adagrad", maker<optim::Adagrad>(optim::AdagradOptions(0.05))},
        Case{"adagrad_lr_decay",
             maker<optim::Adagrad>(optim::AdagradOptions(0.05).lr_decay(0.1).weight_decay(0.01))}),
    [](const auto& info) { return info.param.name; });

std::unique_ptr<optim::Optimizer> two_groups(const torch::nn::Sequential& net) {
  const Tensors all = net->parameters();
  std::vector<optim::OptimizerParamGroup> groups;
  groups.emplace_back(Tensors{all[0], all[1]},
                      std::make_unique<optim::AdamWOptions>(
                          optim::AdamWOptions(0.01).betas({0.8, 0.9}).weight_decay(0.1)));
  groups.emplace_back(Tensors{all[2], all[3]}, std::make_unique<optim::AdamWOptions>(
                                                   optim::AdamWOptions(0.01).betas({0.8, 0.9})));
  return std::make_unique<optim::AdamW>(groups, optim::AdamWOptions(0.02).betas({0.8, 0.9}));
}

TEST(CompiledOptimizer, has_groups_of_its_own_rates) {
  Pair pair(two_groups);
  pair.run(12);
  pair.both([](optim::Optimizer& o) { set_rate(o, 1, 0.004); });
  pair.run(6);
  pair.both([](optim::Optimizer& o) { set_rate(o, 0, 0.03); });
  pair.run(6);
  pair.recordings();
  for (int i = 1; i < 6; ++i) {
    pair.both([&](optim::Optimizer& o) {
      set_rate(o, 0, 0.01 * i);
      set_rate(o, 1, 0.05 / i);
    });
    pair.run(1);
  }
  EXPECT_EQ(pair.recordings(), 0);
  EXPECT_EQ(pair.fast.reason(), "");
}

TEST(CompiledOptimizer, with_other_options_is_recorded_anew) {
  Pair pair(maker<optim::Adam>(optim::AdamOptions(0.01)));
  pair.run(10);
  auto set_betas = [&](double beta1) {
    pair.both([&](optim::Optimizer& o) {
      static_cast<optim::AdamOptions&>(o.param_groups()[0].options()).betas({beta1, 0.99});
    });
  };
  set_betas(0.7);
  pair.recordings();
  pair.run(6);
  EXPECT_EQ(pair.recordings(), 2);
  EXPECT_EQ(pair.fast.reason(), "");
  set_betas(0.6);
  pair.run(6);
  set_betas(0.7);
  pair.recordings();
  pair.run(2);
  EXPECT_EQ(pair.recordings(), 0);  // known from before
}

/// A number of the function that is the learning rate by accident stays what it is.
TEST(CompiledOptimizer, leaves_numbers_that_only_look_like_its_own) {
  const MakeOptimizer make = maker<optim::AdamW>(optim::AdamWOptions(0.01));
  Training eager(at::kCPU, make);
  Training lazy(at::kLazy, make);
  auto scaled = [](Training& training) {
    return [&training](const Tensors& batch) -> Tensors {
      return {training.step(batch)[0] * 0.01 + batch[0].sum() * -0.01};
    };
  };
  CompiledFunction fast = compile(scaled(lazy), lazy.options);
  const auto slow = scaled(eager);
  for (int i = 0; i < 14; ++i) {
    if (i > 5) {
      set_rate(*eager.optimizer, 0, 0.02 / i);
      set_rate(*lazy.optimizer, 0, 0.02 / i);
    }
    const at::Tensor expected = slow(eager.batch(i))[0];
    expect_same(fast(lazy.batch(i))[0], expected, "call " + std::to_string(i));
  }
  EXPECT_EQ(fast.reason(), "");
}

/// What the function makes of the rate by a formula of its own is recorded for each rate.
TEST(CompiledOptimizer, whose_rate_is_used_otherwise_is_recorded_anew) {
  const MakeOptimizer make = maker<optim::Adam>(optim::AdamOptions(0.01));
  Training eager(at::kCPU, make);
  Training lazy(at::kLazy, make);
  auto scaled = [](Training& training) {
    return [&training](const Tensors& batch) -> Tensors {
      const double rate = training.optimizer->param_groups()[0].options().get_lr();
      return {training.step(batch)[0] * (rate * rate + 3)};
    };
  };
  CompiledFunction fast = compile(scaled(lazy), lazy.options);
  const auto slow = scaled(eager);
  const int64_t before = counter("Replayed");
  for (int i = 0; i < 18; ++i) {
    if (i % 6 == 5) {
      set_rate(*eager.optimizer, 0, 0.5 / i);
      set_rate(*lazy.optimizer, 0, 0.5 / i);
    }
    const at::Tensor expected = slow(eager.batch(i))[0];
    expect_same(fast(lazy.batch(i))[0], expected, "call " + std::to_string(i));
  }
  EXPECT_GE(counter("Replayed") - before, 9);
}

TEST(CompiledOptimizer, counts_from_the_count_that_it_finds) {
  Pair pair(maker<optim::Adam>(optim::AdamOptions(0.01)));
  pair.run(12);
  pair.recordings();
  auto set_step = [](optim::Optimizer& o, size_t parameter, int64_t step) {
    const at::Tensor& p = o.param_groups()[0].params()[parameter];
    static_cast<optim::AdamParamState&>(*o.state().at(p.unsafeGetTensorImpl())).step(step);
  };
  pair.both([&](optim::Optimizer& o) {
    for (size_t i = 0; i < 4; ++i) {
      set_step(o, i, 1);
    }
  });
  pair.run(3);
  EXPECT_EQ(pair.recordings(), 0);
  // One count apart from the others is another kind of call, and replayed as one.
  pair.both([&](optim::Optimizer& o) { set_step(o, 2, 100); });
  pair.run(10);
  EXPECT_LE(pair.recordings(), 3);
  EXPECT_EQ(pair.fast.reason(), "");
  EXPECT_EQ(steps_of(*pair.lazy.optimizer), (std::vector<int64_t>{14, 14, 110, 14}));
  // So far on that beta1 has no influence left: rates and counts look alike, and are not.
  pair.both([&](optim::Optimizer& o) {
    for (size_t i = 0; i < 4; ++i) {
      set_step(o, i, 4000);
    }
  });
  pair.run(6);
  pair.both([&](optim::Optimizer& o) { set_step(o, 1, 0); });
  pair.run(6);
  EXPECT_EQ(pair.fast.reason(), "");
}

/// Where a recording begins with counts at which corrections are 1, it cannot yet know them.
TEST(CompiledOptimizer, whose_corrections_were_one_learns_them) {
  Pair pair(maker<optim::Adam>(optim::AdamOptions(0.01).betas({0.5, 0.5})));
  auto set_steps = [&](int64_t step) {
    pair.both([&](optim::Optimizer& o) {
      for (const at::Tensor& p : o.param_groups()[0].params()) {
        static_cast<optim::AdamParamState&>(*o.state().at(p.unsafeGetTensorImpl())).step(step);
      }
    });
  };
  pair.run(1);
  set_steps(1000);
  pair.run(6);
  pair.recordings();
  set_steps(0);
  pair.run(4);
  EXPECT_EQ(pair.recordings(), 1);
  EXPECT_EQ(pair.fast.reason(), "");
  set_steps(2);
  pair.both([](optim::Optimizer& o) { set_rate(o, 0, 0.02); });
  pair.run(4);
}

TEST(CompiledOptimizer, skips_parameters_without_gradients) {
  Pair pair(maker<optim::AdamW>(optim::AdamWOptions(0.01)));
  for (Training* training : {&pair.eager, &pair.lazy}) {
    training->net->parameters()[1].set_requires_grad(false);
  }
  pair.run(12);
  EXPECT_EQ(pair.fast.reason(), "");
  EXPECT_EQ(steps_of(*pair.lazy.optimizer), (std::vector<int64_t>{12, -1, 12, 12}));
  for (Training* training : {&pair.eager, &pair.lazy}) {
    training->net->parameters()[1].set_requires_grad(true);
  }
  pair.run(12);
  EXPECT_EQ(pair.fast.reason(), "");
  EXPECT_EQ(steps_of(*pair.lazy.optimizer), (std::vector<int64_t>{24, 12, 24, 24}));
}

TEST(CompiledOptimizer, may_step_several_times_in_a_call) {
  const MakeOptimizer make = maker<optim::Adam>(optim::AdamOptions(0.01));
  Training eager(at::kCPU, make);
  Training lazy(at::kLazy, make);
  auto thrice = [](Training& training) {
    return [&training](const Tensors& batch) -> Tensors {
      training.step(batch);
      training.step(batch);
      return training.step(batch);
    };
  };
  CompiledFunction fast = compile(thrice(lazy), lazy.options);
  const auto slow = thrice(eager);
  for (int i = 0; i < 12; ++i) {
    const at::Tensor expected = slow(eager.batch(i))[0];
    expect_same(fast(lazy.batch(i))[0], expected, "loss");
  }
  EXPECT_EQ(fast.reason(), "");
  EXPECT_EQ(steps_of(*lazy.optimizer), std::vector<int64_t>(4, 36));
}

TEST(CompiledOptimizer, saves_and_loads_what_replays_left) {
  const MakeOptimizer make = maker<optim::AdamW>(optim::AdamWOptions(0.01).amsgrad(true));
  Pair pair(make);
  pair.run(14);
  auto contents = [](const Training& training) {
    std::ostringstream out;
    torch::save(*training.optimizer, out);
    return out.str();
  };
  // What the file says, read by an optimizer on the CPU.
  auto load = [&](const Training& from, optim::Optimizer& optimizer) {
    std::istringstream in(contents(from));
    torch::load(optimizer, in, at::Device(at::kCPU));
  };
  Training third(at::kCPU, make);
  load(pair.lazy, *third.optimizer);
  EXPECT_EQ(steps_of(*third.optimizer), steps_of(*pair.eager.optimizer));
  const Tensors loaded = state_of(*third.optimizer);
  const Tensors kept = state_of(*pair.eager.optimizer);
  ASSERT_EQ(loaded.size(), 12U);
  for (size_t i = 0; i < kept.size(); ++i) {
    expect_same(loaded[i], kept[i], "loaded state");
  }
  // Other state objects with other tensors.
  load(pair.eager, *pair.eager.optimizer);
  load(pair.lazy, *pair.lazy.optimizer);
  for (auto& [key, state] : pair.lazy.optimizer->state()) {
    auto& adam = static_cast<optim::AdamWParamState&>(*state);
    adam.exp_avg(adam.exp_avg().to(at::kLazy));
    adam.exp_avg_sq(adam.exp_avg_sq().to(at::kLazy));
    adam.max_exp_avg_sq(adam.max_exp_avg_sq().to(at::kLazy));
  }
  pair.run(8);
  EXPECT_EQ(pair.fast.reason(), "");
}

TEST(CompiledOptimizer, may_be_named_with_its_tensors_too) {
  const MakeOptimizer make = maker<optim::Adam>(optim::AdamOptions(0.01));
  Training eager(at::kCPU, make);
  Training lazy(at::kLazy, make);
  lazy.options.state = [&] {
    Tensors state = state_of(*lazy.net);
    for (const at::Tensor& tensor : state_of(*lazy.optimizer)) {
      state.push_back(tensor);
    }
    return state;
  };
  lazy.options.optimizers.push_back(lazy.optimizer.get());
  CompiledFunction fast = compile(lazy.step, lazy.options);
  for (int i = 0; i < 12; ++i) {
    const at::Tensor expected = eager.step(eager.batch(i))[0];
    expect_same(fast(lazy.batch(i))[0], expected, "loss");
  }
  EXPECT_EQ(fast.reason(), "");
  EXPECT_EQ(steps_of(*lazy.optimizer), steps_of(*eager.optimizer));
}

// ---- What is not replayed
// ------------------------------------------------------------------------

/// Warnings while it lives.
class Warnings : public c10::WarningHandler {
 public:
  Warnings() : before_(c10::WarningUtils::get_warning_handler()) {
    c10::WarningUtils::set_warning_handler(this);
  }
  ~Warnings() override { c10::WarningUtils::set_warning_handler(before_); }
  void process(const c10::Warning& warning) override { texts.push_back(warning.msg()); }

  std::vector<std::string> texts;

 private:
  c10::WarningHandler* before_;
};

void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(CompiledOptimizer, beside_a_number_that_nothing_explains) {
  const MakeOptimizer make = maker<optim::Adam>(optim::AdamOptions(0.01));
  Training eager(at::kCPU, make);
  Training lazy(at::kLazy, make);
  auto counting = [](Training& training) {
    return [&training, calls = 0](const Tensors& batch) mutable -> Tensors {
      return {training.step(batch)[0] * (1.5 + ++calls)};
    };
  };
  Warnings warnings;
  CompiledFunction fast = compile(counting(lazy), lazy.options);
  auto slow = counting(eager);
  for (int i = 0; i < 12; ++i) {
    const at::Tensor expected = slow(eager.batch(i))[0];
    expect_same(fast(lazy.batch(i))[0], expected, "loss");
  }
  EXPECT_EQ(steps_of(*lazy.optimizer), steps_of(*eager.optimizer));
  ASSERT_EQ(warnings.texts.size(), 1U);
  // Of the sixth call: the first one, in which the optimizer makes its state, is of another kind.
  expect_contains(warnings.texts[0], "the number 7.5 given to aten::mul");
  expect_contains(warnings.texts[0], "CompileOptions::numbers");
}

TEST(CompiledOptimizer, that_is_not_named_is_found_out) {
  Training lazy(at::kLazy, maker<optim::Adam>(optim::AdamOptions(0.01)));
  lazy.options.optimizers.clear();
  lazy.options.state = [&] {
    Tensors state = state_of(*lazy.net);
    for (const at::Tensor& tensor : state_of(*lazy.optimizer)) {
      state.push_back(tensor);
    }
    return state;
  };
  Warnings warnings;
  CompiledFunction fast = compile(lazy.step, lazy.options);
  for (int i = 0; i < 8; ++i) {
    fast(lazy.batch(i));
  }
  ASSERT_EQ(warnings.texts.size(), 1U);
  expect_contains(warnings.texts[0], "CompileOptions::optimizers");
  EXPECT_EQ(steps_of(*lazy.optimizer), std::vector<int64_t>(4, 8));
}

TEST(CompiledOptimizer, whose_scheduler_steps_inside_is_not_replayed) {
  Pair pair(maker<optim::Adam>(optim::AdamOptions(0.01)));
  optim::StepLR eager(*pair.eager.optimizer, 1, 0.9);
  optim::StepLR lazy(*pair.lazy.optimizer, 1, 0.9);
  Warnings warnings;
  CompiledFunction fast = compile(
      [&](const Tensors& batch) {
        Tensors results = pair.lazy.step(batch);
        lazy.step();
        return results;
      },
      pair.lazy.options);
  for (int i = 0; i < 8; ++i) {
    const at::Tensor expected = pair.eager.step(pair.eager.batch(i))[0];
    eager.step();
    expect_same(fast(pair.lazy.batch(i))[0], expected, "loss");
  }
  pair.compare();
  ASSERT_EQ(warnings.texts.size(), 1U);
  expect_contains(warnings.texts[0], "step the scheduler, outside");
}

TEST(CompiledOptimizer, lbfgs_says_why) {
  Training lazy(at::kLazy, maker<optim::LBFGS>(optim::LBFGSOptions(0.1).max_iter(3)));
  Warnings warnings;
  CompiledFunction fast = compile(
      [&](const Tensors& batch) -> Tensors {
        auto closure = [&] {
          lazy.optimizer->zero_grad();
          at::Tensor loss = (lazy.net->forward(batch[0]) - batch[1]).square().mean();
          loss.backward();
          return loss;
        };
        return {lazy.optimizer->step(closure).detach()};
      },
      lazy.options);
  const double first = fast(lazy.batch(0))[0].item<double>();
  EXPECT_LT(fast(lazy.batch(0))[0].item<double>(), first);
  ASSERT_EQ(warnings.texts.size(), 1U);
  expect_contains(warnings.texts[0], "LBFGS reads values");
  expect_contains(fast.reason(), "closure");
}

TEST(CompiledOptimizer, on_the_cpu_is_not_replayed) {
  Training plain(at::kCPU, maker<optim::Adagrad>(optim::AdagradOptions(0.1)));
  Warnings warnings;
  CompileOptions options;
  options.optimizers = {plain.optimizer.get()};
  auto next = [](const Tensors& x) -> Tensors { return {x[0] + 1}; };
  CompiledFunction fast = compile(next, options);
  EXPECT_EQ(fast({at::ones({1}).to(at::kLazy)})[0].item<double>(), 2);
  expect_contains(fast.reason(), "an optimizer keeps a tensor that is not on the device lazy");

  options = {};
  options.state = [&] { return state_of(*plain.net); };
  CompiledFunction with_state = compile(next, options);
  EXPECT_EQ(with_state({at::ones({1}).to(at::kLazy)})[0].item<double>(), 2);
  expect_contains(with_state.reason(), "CompileOptions::state is not on the device lazy");
  EXPECT_EQ(warnings.texts.size(), 2U);
}

/// An error between two optimizers' steps: the first has stepped, the second has not.
TEST(CompiledOptimizer, counts_the_steps_that_an_error_left) {
  struct Model {
    at::Tensor table;
    at::Tensor scale;
    std::unique_ptr<optim::Adam> first;
    std::unique_ptr<optim::Adam> second;

    explicit Model(at::Device device)
        : table(torch::ones({3, 2}).to(device).set_requires_grad(true)),
          scale(torch::ones({2}).to(device).set_requires_grad(true)),
          first(std::make_unique<optim::Adam>(Tensors{table}, optim::AdamOptions(0.1))),
          second(std::make_unique<optim::Adam>(Tensors{scale}, optim::AdamOptions(0.2))) {}

    Tensors operator()(const Tensors& x) const {
      first->zero_grad();
      second->zero_grad();
      (table.square().sum() * x[1]).sum().backward();
      first->step();
      (table.detach().index_select(0, x[0]) * scale).square().sum().backward();
      second->step();
      return {scale.detach().clone()};
    }
  };
  Model eager(at::kCPU);
  Model lazy(at::kLazy);
  CompileOptions options;
  options.state = [&] { return Tensors{lazy.table, lazy.scale}; };
  options.optimizers = {lazy.first.get(), lazy.second.get()};
  CompiledFunction fast = compile([&](const Tensors& x) { return lazy(x); }, options);
  auto arguments = [](int64_t index) {
    return Tensors{torch::full({2}, index, at::kLong), torch::full({1}, 0.5)};
  };
  auto moved = [](const Tensors& x) { return Tensors{x[0].to(at::kLazy), x[1].to(at::kLazy)}; };
  auto compare = [&] {
    EXPECT_EQ(steps_of(*lazy.first), steps_of(*eager.first));
    EXPECT_EQ(steps_of(*lazy.second), steps_of(*eager.second));
    expect_same(lazy.table, eager.table, "table");
    expect_same(lazy.scale, eager.scale, "scale");
  };
  for (int i = 0; i < 6; ++i) {
    eager(arguments(1));
    fast(moved(arguments(1)));
  }
  ASSERT_EQ(fast.reason(), "");
  compare();
  const int64_t before = counter("Replayed");
  EXPECT_ANY_THROW(eager(arguments(7)));
  EXPECT_ANY_THROW(fast(moved(arguments(7))));
  EXPECT_EQ(counter("Replayed") - before, 1);
  EXPECT_EQ(steps_of(*eager.first), std::vector<int64_t>{7});
  EXPECT_EQ(steps_of(*eager.second), std::vector<int64_t>{6});
  compare();
  for (int i = 0; i < 6; ++i) {
    eager(arguments(2));
    fast(moved(arguments(2)));
  }
  compare();
  EXPECT_EQ(fast.reason(), "");
}

/// Three steps in a call, and an error before the last one.
TEST(CompiledOptimizer, counts_each_of_its_steps_before_an_error) {
  auto model = [](const at::Tensor& table, optim::Adam& optimizer, const Tensors& x) -> Tensors {
    for (int i = 0; i < 3; ++i) {
      optimizer.zero_grad();
      table.index_select(0, x[i]).square().sum().backward();
      optimizer.step();
    }
    return {table.detach().clone()};
  };
  const at::Tensor eager = torch::ones({3, 2}).set_requires_grad(true);
  const at::Tensor lazy = torch::ones({3, 2}).to(at::kLazy).set_requires_grad(true);
  optim::Adam slow(Tensors{eager}, optim::AdamOptions(0.1));
  optim::Adam quick(Tensors{lazy}, optim::AdamOptions(0.1));
  CompileOptions options;
  options.state = [&] { return Tensors{lazy}; };
  options.optimizers = {&quick};
  CompiledFunction fast = compile([&](const Tensors& x) { return model(lazy, quick, x); }, options);
  auto run = [&](int64_t last) {
    const Tensors x{torch::tensor({0, 1}), torch::tensor({1, 2}),
                    torch::tensor({int64_t{0}, last})};
    bool failed = false;
    try {
      model(eager, slow, x);
    } catch (const c10::Error&) {
      failed = true;
    }
    const Tensors moved{x[0].to(at::kLazy), x[1].to(at::kLazy), x[2].to(at::kLazy)};
    if (failed) {
      const int64_t before = counter("Replayed");
      EXPECT_ANY_THROW(fast(moved));
      EXPECT_EQ(counter("Replayed") - before, 1);
    } else {
      fast(moved);
    }
    EXPECT_EQ(steps_of(quick), steps_of(slow));
    expect_same(lazy, eager, "table");
  };
  // After an error there is no gradient, which is another kind of call: recorded again.
  for (int64_t last : {1, 1, 1, 1, 2, 9, 1, 1, 1, 1, 9, 0}) {
    run(last);
  }
  EXPECT_EQ(steps_of(quick), std::vector<int64_t>{10 * 3 + 2 * 2});
}

/// A group for each parameter: all that is equal in them is found to be so, and told apart later.
TEST(CompiledOptimizer, may_have_a_group_for_each_parameter) {
  Pair pair([](const torch::nn::Sequential& net) {
    std::vector<optim::OptimizerParamGroup> groups;
    for (const at::Tensor& parameter : net->parameters()) {
      groups.emplace_back(Tensors{parameter});
    }
    return std::make_unique<optim::AdamW>(groups, optim::AdamWOptions(0.01));
  });
  pair.run(6);
  pair.both([](optim::Optimizer& o) { set_rate(o, 2, 0.03); });
  pair.run(6);
  for (int i = 1; i < 8; ++i) {
    pair.both([&](optim::Optimizer& o) {
      for (size_t group = 0; group < 4; ++group) {
        set_rate(o, group, 0.01 / static_cast<double>(group + i));
      }
    });
    pair.run(1);
  }
  EXPECT_EQ(pair.fast.reason(), "");
  EXPECT_LE(pair.recordings(), 3 + 2 + 2);  // at first, for rates that vary, and at 8 and 16
}

}  // namespace
}  // namespace torch_lazy
