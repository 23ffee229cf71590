// A training step in C++ that is recorded a few times and then replayed: no autograd, no
// dispatcher, none of its own code. Prints the losses, those of the plain step beside those of the
// compiled one.
#include <torch_lazy/compile.h>
#include <torch_lazy/torch_lazy.h>

#include <torch/torch.h>

#include <cstdio>
#include <exception>
#include <string>
#include <vector>

namespace {

constexpr int steps = 20;

std::vector<double> train(const torch::Device& device, bool compiled) {
  torch::manual_seed(0);
  torch::nn::Sequential net(torch::nn::Linear(16, 32), torch::nn::ReLU(), torch::nn::Linear(32, 4));
  net->to(device);
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(0.01));
  torch::optim::StepLR schedule(optimizer, /*step_size=*/5, /*gamma=*/0.5);

  auto step = [&](const std::vector<torch::Tensor>& batch) -> std::vector<torch::Tensor> {
    optimizer.zero_grad();
    auto loss = torch::nn::functional::cross_entropy(net->forward(batch[0]), batch[1]);
    loss.backward();
    optimizer.step();
    return {loss.detach()};
  };

  torch_lazy::CompileOptions options;
  options.state = [&] { return torch_lazy::state_of(*net); };
  options.optimizers = {&optimizer};
  torch_lazy::CompiledFunction fast = torch_lazy::compile(step, options);

  std::vector<double> losses;
  for (int i = 0; i < steps; ++i) {
    const auto x = torch::randn({8, 16}).to(device);
    const auto y = torch::randint(4, {8}, torch::kLong).to(device);
    const std::vector<torch::Tensor> results = compiled ? fast({x, y}) : step({x, y});
    losses.push_back(results[0].item<double>());
    schedule.step();
  }
  return losses;
}

}  // namespace

int main() {
  try {
    const std::vector<double> plain = train(torch::kCPU, false);
    const std::vector<double> compiled = train(torch::kLazy, true);
    for (int i = 0; i < steps; ++i) {
      std::printf("%.6f %.6f\n", plain[i], compiled[i]);
    }
    std::fprintf(stderr, "%ld of %d steps replayed\n",
                 static_cast<long>(torch_lazy::counter_value("Replayed").value_or(0)), steps);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
