// torch_lazy::compile, recordings and saved graphs from C++.
#include "base/hash.h"
#include "replay/recording.h"
#include "replay/saved_form.h"
#include <torch_lazy/compile.h>
#include <torch_lazy/saved_graph.h>
#include <torch_lazy/torch_lazy.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <functional>

namespace torch_lazy {
namespace {

using Tensors = std::vector<at::Tensor>;

int64_t replayed() {
  return counter_value("Replayed").value_or(0);
}

void expect_close(const at::Tensor& actual, const at::Tensor& expected) {
  EXPECT_TRUE(at::allclose(actual.cpu(), expected, 1e-4, 1e-5))
      << actual.cpu() << " instead of " << expected;
}

TEST(Compile, replays_a_function) {
  CompiledFunction f = compile([](const Tensors& x) -> Tensors { return {at::tanh(x[0]) * 2}; });
  const int64_t before = replayed();
  for (int i = 0; i < 10; ++i) {
    const at::Tensor x = at::full({3}, 0.1 * i);
    expect_close(f({x.to(at::kLazy)})[0], at::tanh(x) * 2);
  }
  EXPECT_GE(replayed() - before, 6);
  EXPECT_EQ(f.reason(), "");
}

TEST(Compile, trains) {
  auto train = [](at::Device device, bool compiled) {
    torch::manual_seed(0);
    torch::nn::Linear layer(4, 2);
    layer->to(device);
    torch::optim::SGD optimizer(layer->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    auto step = [&](const Tensors& batch) -> Tensors {
      optimizer.zero_grad();
      at::Tensor loss = (layer(batch[0]) - batch[1]).square().mean();
      loss.backward();
      optimizer.step();
      return {loss};
    };
    CompileOptions options;
    options.state = [&] {
      Tensors state = state_of(*layer);
      for (const at::Tensor& tensor : state_of(optimizer)) {
        state.push_back(tensor);
      }
      return state;
    };
    options.numbers = [&] { return rates_of(optimizer); };
    CompiledFunction fast = compile(step, options);
    Tensors losses;
    for (int i = 0; i < 14; ++i) {
      if (i == 8) {
        optimizer.param_groups()[0].options().set_lr(0.01);
      }
      const Tensors batch{torch::randn({3, 4}).to(device), torch::randn({3, 2}).to(device)};
      losses.push_back((compiled ? fast(batch) : step(batch))[0].detach().cpu());
    }
    losses.push_back(layer->weight.detach().cpu());
    losses.push_back(layer->weight.grad().cpu());
    return losses;
  };
  const int64_t before = replayed();
  const Tensors lazy = train(at::kLazy, true);
  EXPECT_GE(replayed() - before, 6);
  const Tensors eager = train(at::kCPU, false);
  for (size_t i = 0; i < eager.size(); ++i) {
    expect_close(lazy[i], eager[i]);
  }
}

TEST(Compile, says_why_it_does_not_replay) {
  const at::Tensor hidden = at::ones({2}).to(at::kLazy);
  CompiledFunction f = compile([&](const Tensors& x) -> Tensors { return {x[0] + hidden}; });
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(f({at::full({2}, i).to(at::kLazy)})[0].sum().item<double>(), 2 * (i + 1));
  }
  EXPECT_NE(f.reason().find("no argument of it"), std::string::npos) << f.reason();

  int calls = 0;
  CompiledFunction counting =
      compile([&](const Tensors& x) -> Tensors { return {x[0] * (++calls + 1.5)}; });
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(counting({at::ones({1}).to(at::kLazy)})[0].item<double>(), i + 2.5);
  }
  EXPECT_NE(counting.reason().find("CompileOptions::numbers"), std::string::npos)
      << counting.reason();

  EXPECT_THROW(f({at::ones({2})}), c10::Error);  // not on the device
}

// ---- Saved graphs
// --------------------------------------------------------------------------------

class SavedGraphs : public ::testing::Test {
 protected:
  std::string path = ::testing::TempDir() + "saved_" + std::to_string(getpid()) + ".graph";

  void TearDown() override { std::remove(path.c_str()); }

  /// y = dropout-like mask of random numbers, a sum over written state, and constants.
  void save() {
    at::Tensor state = at::ones({2, 3}).to(at::kLazy);
    at::Tensor x = at::arange(6, at::kFloat).view({2, 3}).to(at::kLazy);
    sync();
    Recorder recorder({x, state}, {});
    state.add_(x, 0.5);
    at::Tensor y = at::softmax(state.t(), -1).mul(3.25);
    Tensors results{y, state[0], x * at::tensor({1.0F, 2.0F, 3.0F}).to(at::kLazy)};
    const Recording recording = recorder.finish(results, std::vector<ResultGraph>(results.size()));
    ASSERT_EQ(recording.obstacle, "");
    state.fill_(1);
    save_graph(recording, 1, {x, state}, {}, {"state"}, path);
  }

  std::string contents() const {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }

  void write(const std::string& bytes) const {
    std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<long>(bytes.size()));
  }

  ~SavedGraphs() override { std::remove(path.c_str()); }
};

TEST_F(SavedGraphs, run_and_keep_their_state) {
  save();
  SavedGraph graph = load_graph(path);
  EXPECT_EQ(graph.arguments(), std::vector<std::string>{"Float[2,3]"});
  ASSERT_EQ(graph.state().size(), 1U);
  EXPECT_EQ(graph.state()[0].first, "state");
  at::Tensor state = at::ones({2, 3});
  for (int i = 0; i < 4; ++i) {
    const at::Tensor x = at::arange(6, at::kFloat).view({2, 3}) * i;
    state.add_(x, 0.5);
    const Tensors results = graph({i % 2 == 0 ? x : x.to(at::kLazy)});
    expect_close(results[0], at::softmax(state.t(), -1).mul(3.25));
    expect_close(results[1], state[0]);
    expect_close(results[2], x * at::tensor({1.0F, 2.0F, 3.0F}));
    expect_close(graph.state()[0].second, state);
  }
}

TEST_F(SavedGraphs, have_plain_tensors_as_constants) {
  const at::Tensor held = at::arange(12, at::kFloat).view({3, 4});
  at::Tensor x = at::ones({4, 2}).to(at::kLazy);
  sync();
  Recorder recorder({x}, {held});
  const Tensors results{x + held.t().slice(1, 0, 2).to(at::kLazy)};
  const Recording recording = recorder.finish(results, {ResultGraph::none});
  ASSERT_EQ(recording.obstacle, "");
  EXPECT_THROW(save_graph(recording, 1, {x}, {}, {}, path), c10::Error);
  save_graph(recording, 1, {x}, {held}, {}, path);
  const at::Tensor saved = held.clone();
  held.zero_();  // later than the file
  SavedGraph graph = load_graph(path);
  EXPECT_EQ(graph.state().size(), 0U);
  for (int i = 0; i < 3; ++i) {
    const at::Tensor y = at::full({4, 2}, i);
    expect_close(graph({y.to(at::kFloat)})[0], y + saved.t().slice(1, 0, 2));
  }
}

TEST_F(SavedGraphs, refuse_wrong_arguments) {
  save();
  SavedGraph graph = load_graph(path);
  auto error = [&](const Tensors& arguments) -> std::string {
    try {
      graph(arguments);
    } catch (const c10::Error& e) {
      return e.what_without_backtrace();
    }
    return "";
  };
  EXPECT_NE(error({}).find("takes 1 tensors, but got 0"), std::string::npos);
  EXPECT_NE(error({at::ones({3, 2})}).find("Float[2,3], but got Float[3,2]"), std::string::npos);
  EXPECT_NE(error({at::ones({2, 3}, at::kLong)}).find("but got Long[2,3]"), std::string::npos);
  EXPECT_NE(error({graph.state()[0].second}).find("share memory"), std::string::npos);
}

TEST_F(SavedGraphs, that_are_damaged_raise_errors) {
  save();
  const std::string good = contents();
  auto error = [&](const std::string& bytes) -> std::string {
    write(bytes);
    try {
      load_graph(path);
    } catch (const c10::Error& e) {
      return e.what_without_backtrace();
    }
    return "";
  };
  EXPECT_EQ(error(good), "");
  EXPECT_NE(error("").find("no graph saved"), std::string::npos);
  EXPECT_NE(error("PK\x03\x04 something else").find("no graph saved"), std::string::npos);
  EXPECT_NE(error(good.substr(0, 20)).find("too early"), std::string::npos);
  std::string other = good;
  other[8] = 9;
  EXPECT_NE(error(other).find("form 9"), std::string::npos);
  for (size_t at = 16; at < good.size(); at += good.size() / 97) {
    std::string damaged = good;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x41);
    EXPECT_NE(error(damaged).find("checksum"), std::string::npos);
    EXPECT_NE(error(good.substr(0, at)), "");
  }
}

/// Files whose checksum is right and whose contents are not: no crash, an error or a graph.
TEST_F(SavedGraphs, that_lie_do_no_harm) {
  save();
  const std::string good = contents();
  const size_t end = good.size() - sizeof(Hash);
  // What asks for gigabytes gets an error, not the machine's memory.
  rlimit before{};
  getrlimit(RLIMIT_DATA, &before);
#if !defined(__SANITIZE_THREAD__)  // the sanitizer's own memory counts, too
  const rlimit limit{rlim_t{3} << 30, before.rlim_max};
  setrlimit(RLIMIT_DATA, &limit);
#endif
  uint64_t random = 12345;
  int loaded = 0;
  int refused = 0;
  for (int trial = 0; trial < 300; ++trial) {
    std::string bytes = good.substr(0, end);
    for (int change = 0; change < 1 + trial % 3; ++change) {
      random = random * 6364136223846793005ull + 1442695040888963407ull;
      const size_t at = 16 + (random >> 33) % (end - 16);
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << (random >> 20) % 8));
    }
    const Hash sum = hash_bytes(bytes, kGraphForm);
    bytes.append(reinterpret_cast<const char*>(sum.data()), sizeof(sum));
    write(bytes);
    try {
      SavedGraph graph = load_graph(path);
      if (graph.arguments() == std::vector<std::string>{"Float[2,3]"}) {
        graph({at::ones({2, 3})});
      }
      ++loaded;
    } catch (const std::exception&) {
      ++refused;
    }
  }
  setrlimit(RLIMIT_DATA, &before);
  EXPECT_GT(loaded, 0);
  EXPECT_GT(refused, 50);
}

}  // namespace
}  // namespace torch_lazy
