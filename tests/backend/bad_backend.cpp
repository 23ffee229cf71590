// A backend for `neg` that makes the mistake that the environment variable TORCH_LAZY_BAD names.
// The variable is read at every step, so a program can go on without mistakes afterwards.
#include <torch_lazy/backend.h>

#include <ATen/ATen.h>

#include <cstdlib>
#include <stdexcept>

namespace {

using torch_lazy::Graph;
using torch_lazy::GraphNode;

bool bad(const std::string& mistake) {
  const char* value = std::getenv("TORCH_LAZY_BAD");
  return value && mistake == value;
}

class BadProgram : public torch_lazy::Executable {
 public:
  explicit BadProgram(std::shared_ptr<const Graph> graph) : graph_(std::move(graph)) {}

  void run(torch_lazy::Run& run) override {
    if (bad("run")) {
      throw std::runtime_error("bad run");
    }
    if (bad("run with IndexError")) {
      TORCH_CHECK_INDEX(false, "bad index");
    }
    if (bad("number of slots")) {
      run.slots.pop_back();
      return;
    }
    for (const GraphNode& node : graph_->nodes) {
      const torch_lazy::Description& d = *node.description;
      at::Tensor x = torch_lazy::make_strided(
          run.slots[node.operands[0]], c10::DispatchKeySet(c10::DispatchKey::CPU), d.operands[0]);
      c10::Storage& slot = run.slots[node.outputs[0]];
      if (bad("number of results")) {
        continue;
      }
      if (bad("size")) {
        slot = torch_lazy::allocate(d.fresh[0].nbytes + 4);
      } else if (bad("shape")) {
        slot = torch_lazy::storage_of_result(node, 0, x.neg().unsqueeze(0));
      } else if (bad("dtype")) {
        slot = torch_lazy::storage_of_result(node, 0, x.to(at::kInt));
      } else if (bad("alias")) {
        slot = run.slots[node.operands[0]];
      } else {
        slot = torch_lazy::storage_of_result(node, 0, x.neg());
      }
    }
  }

 private:
  std::shared_ptr<const Graph> graph_;
};

class BadBackend : public torch_lazy::Backend {
 public:
  std::string name() const override { return "bad"; }

  bool takes(const GraphNode& node) override {
    const bool mine = node.description->op->name == "aten::neg" && node.outputs[0] >= 0;
    if (mine && bad("takes")) {
      throw std::runtime_error("bad takes");
    }
    return mine;
  }

  std::shared_ptr<torch_lazy::Executable> compile(std::shared_ptr<const Graph> graph) override {
    if (bad("compile")) {
      throw std::runtime_error("bad compile");
    }
    if (bad("no executable")) {
      return nullptr;
    }
    return std::make_shared<BadProgram>(std::move(graph));
  }

  void wait() override {
    if (bad("wait")) {
      throw std::runtime_error("bad wait");
    }
  }
};

torch_lazy::Backend* create() {
  if (bad("creation")) {
    throw std::runtime_error("bad creation");
  }
  return bad("no backend") ? nullptr : new BadBackend();
}

}  // namespace

// Written out instead of TORCH_LAZY_BACKEND_PLUGIN, to lie about versions.
extern "C" const torch_lazy::BackendPlugin* torch_lazy_backend_v1() {
  static torch_lazy::BackendPlugin plugin;
  plugin = torch_lazy::BackendPlugin();
  plugin.create = &create;
  if (bad("interface")) {
    plugin.interface_version = 999;
  }
  if (bad("version")) {
    plugin.torch_lazy_version = "0.0.7";
  }
  if (bad("torch version")) {
    plugin.torch_version = "1.2.3";
  }
  if (bad("nothing")) {
    return nullptr;
  }
  return &plugin;
}
