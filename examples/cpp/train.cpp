// Trains a small network from C++ alone, on the device named on the command line (cpu or lazy),
// and prints the loss of every step, so that the output of two devices can be compared.
#include <torch_lazy/torch_lazy.h>

#include <torch/torch.h>

#include <cstdio>
#include <exception>
#include <string>
#include <vector>

namespace {

constexpr int64_t batch_size = 32;
constexpr int64_t classes = 10;
constexpr int steps = 20;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 8, 3).padding(1)));
    norm = register_module("norm", torch::nn::BatchNorm2d(8));
    dropout = register_module("dropout", torch::nn::Dropout(0.1));
    linear = register_module("linear", torch::nn::Linear(8 * 7 * 7, classes));
  }

  torch::Tensor forward(torch::Tensor x) {
    x = torch::relu(norm(conv(x)));
    x = torch::max_pool2d(x, 2);
    x = dropout(x.flatten(1));
    return linear(x);
  }

  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Dropout dropout{nullptr};
  torch::nn::Linear linear{nullptr};
};
TORCH_MODULE(Net);

std::vector<double> train(const torch::Device& device) {
  // Data and weights are made on the CPU, so that they are the same on every device.
  torch::manual_seed(0);
  const auto images = torch::randn({batch_size, 1, 14, 14}).to(device);
  const auto labels = torch::randint(classes, {batch_size}, torch::kLong).to(device);
  Net net;
  net->to(device);
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(1e-3));

  std::vector<torch::Tensor> losses;
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    auto loss = torch::nn::functional::cross_entropy(net(images), labels);
    loss.backward();
    optimizer.step();
    losses.push_back(loss.detach());
    // On the lazy device nothing has run yet: this starts the step's work and does not wait for it.
    torch_lazy::mark_step();
  }
  torch_lazy::wait_device_ops();

  std::vector<double> values;
  for (const auto& loss : losses) values.push_back(loss.item<double>());
  return values;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s cpu|lazy\n", argv[0]);
    return 2;
  }
  try {
    for (const double loss : train(torch::Device(std::string(argv[1])))) {
      std::printf("%.9g\n", loss);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
