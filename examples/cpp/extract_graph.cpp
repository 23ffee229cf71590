// Traces a small model once and keeps its compiled graph: afterwards new inputs go straight to the
// graph by its hash, and the model's own code does not run any more. With `cpu` the model runs
// eagerly instead; both print the same results.
#include <torch_lazy/graph_executor.h>
#include <torch_lazy/torch_lazy.h>

#include <torch/torch.h>

#include <cstdio>
#include <exception>
#include <functional>
#include <string>
#include <vector>

namespace {

using Function = std::function<torch::Tensor(const torch::Tensor&)>;

/// A compiled graph in place of the model that it was traced from.
class ExtractedGraph {
 public:
  ExtractedGraph(const Function& model, const torch::Tensor& example) {
    const torch::Tensor input = example.to(torch::kLazy);
    const torch::Tensor output = model(input);  // recorded, not computed
    auto& executor = torch_lazy::GraphExecutor::get();
    hash_ = executor.get_graph_hash({output});
    inputs_ = executor.get_graph_inputs({output});  // the example, the weights, numbers
    input_id_ = torch_lazy::tensor_id(input);
    executor.sync_tensors({output});  // compiles the graph and keeps it by its hash
  }

  torch::Tensor operator()(const torch::Tensor& input) const {
    std::vector<c10::IValue> values = inputs_.values;
    for (size_t i = 0; i < values.size(); ++i) {
      if (inputs_.ids[i] == input_id_) {
        values[i] = input;
      }
    }
    return torch_lazy::GraphExecutor::get().run_cached_graph(hash_, values).at(0);
  }

 private:
  torch_lazy::GraphHash hash_;
  torch_lazy::GraphInputs inputs_;
  int64_t input_id_ = 0;
};

void run(const std::string& device) {
  const torch::NoGradGuard no_grad;
  torch::manual_seed(0);
  torch::nn::Sequential model(torch::nn::Linear(8, 16), torch::nn::GELU(),
                              torch::nn::LayerNorm(torch::nn::LayerNormOptions({16})),
                              torch::nn::Linear(16, 4));
  model->eval();
  std::vector<torch::Tensor> batches;
  for (int i = 0; i < 5; ++i) {
    batches.push_back(torch::randn({3, 8}));
  }
  Function function = [&](const torch::Tensor& x) { return model->forward(x).softmax(1); };
  if (device == "lazy") {
    model->to(torch::kLazy);
    function = ExtractedGraph(function, torch::zeros({3, 8}));
  }
  torch_lazy::reset_metrics();
  for (const torch::Tensor& batch : batches) {
    const torch::Tensor result = function(batch).contiguous();
    for (int64_t i = 0; i < result.numel(); ++i) {
      std::printf("%.9g ", result.data_ptr<float>()[i]);
    }
    std::printf("\n");
  }
  // What was recorded or compiled while the batches ran: nothing.
  for (const std::string& name : torch_lazy::counter_names()) {
    std::fprintf(stderr, "%s\n", name.c_str());
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s cpu|lazy\n", argv[0]);
    return 2;
  }
  try {
    run(argv[1]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
