// Loads a graph that torch_lazy.save_graph wrote and runs it, without Python: once if it is
// inference, and often if it is a training step. Arguments are made of random numbers.
//   run_graph FILE [CALLS]
#include <torch_lazy/saved_graph.h>

#include <torch/torch.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

namespace {

/// A tensor like "Float[4,16]" or "Long[4]"; integers are 0 or 1, so that they can be labels.
torch::Tensor make_argument(const std::string& text) {
  std::vector<int64_t> sizes;
  for (size_t at = text.find('[') + 1; at < text.size() && text[at] != ']';) {
    size_t used = 0;
    sizes.push_back(std::stoll(text.substr(at), &used));
    at += used + 1;
  }
  return text.compare(0, 4, "Long") == 0 ? torch::randint(2, sizes, torch::kLong)
                                         : torch::randn(sizes);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: run_graph FILE [CALLS]\n");
    return 2;
  }
  try {
    const auto start = std::chrono::steady_clock::now();
    const int calls = argc > 2 ? std::stoi(argv[2]) : 1;
    torch::manual_seed(0);
    torch_lazy::SavedGraph graph = torch_lazy::load_graph(argv[1]);
    std::vector<torch::Tensor> arguments;
    for (const std::string& text : graph.arguments()) {
      arguments.push_back(make_argument(text));
    }
    for (int call = 0; call < calls; ++call) {
      const std::vector<torch::Tensor> results = graph(arguments);
      std::printf("%.9g\n", results.at(0).to(torch::kCPU, torch::kDouble).sum().item<double>());
      if (call == 0) {
        const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
        std::fprintf(stderr, "first result after %.3f s\n", passed.count());
      }
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
