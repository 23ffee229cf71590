// A backend that takes every other node, whatever it is, and executes it with PyTorch's kernels.
// Its results have eager's bits, so that whole test files can run through it: they test the
// borders.
#include <torch_lazy/backend.h>

#include <ATen/ATen.h>
#include <c10/core/DefaultDtype.h>

#include <algorithm>

namespace {

using torch_lazy::ArgumentSource;
using torch_lazy::Description;
using torch_lazy::Graph;
using torch_lazy::GraphNode;

constexpr c10::DispatchKeySet kCpu(c10::DispatchKey::CPU);

class HalfProgram : public torch_lazy::Executable {
 public:
  explicit HalfProgram(std::shared_ptr<const Graph> graph)
      : graph_(std::move(graph)), survives_(graph_->slots, 0), last_use_(graph_->slots, 0) {
    for (const torch_lazy::Parameter& parameter : graph_->parameters) {
      survives_[parameter.slot] = !parameter.donated;
    }
    for (uint32_t root : graph_->roots) {
      survives_[root] = 1;
    }
    for (size_t i = 0; i < graph_->nodes.size(); ++i) {
      for (uint32_t slot : graph_->nodes[i].operands) {
        last_use_[slot] = i;
      }
    }
  }

  void run(torch_lazy::Run& run) override {
    for (const torch_lazy::Parameter& parameter : graph_->parameters) {
      if (parameter.fresh) {
        run.slots[parameter.slot] = torch_lazy::allocate(parameter.nbytes);
      }
    }
    run.failed = 1;
    for (run.completed = 0; run.completed < graph_->nodes.size(); ++run.completed) {
      execute(graph_->nodes[run.completed], run.completed, run);
    }
  }

  std::string text() const override { return graph_->text(); }

 private:
  void execute(const GraphNode& node, size_t index, torch_lazy::Run& run) {
    const Description& d = *node.description;
    // Memory by operand: of what is written and still needed, a copy.
    std::vector<c10::Storage> memory;
    for (uint32_t slot : node.operands) {
      memory.push_back(run.slots[slot]);
    }
    for (const torch_lazy::Write& write : d.writes) {
      const uint32_t base = node.operands[write.operand];
      if (!survives_[base] && last_use_[base] <= index) {
        continue;
      }
      c10::Storage copy = torch_lazy::allocate(static_cast<int64_t>(run.slots[base].nbytes()));
      std::copy_n(static_cast<const char*>(run.slots[base].data()), copy.nbytes(),
                  static_cast<char*>(copy.mutable_data()));
      for (size_t i = 0; i < memory.size(); ++i) {
        if (node.operands[i] == base) {
          memory[i] = copy;
        }
      }
    }
    std::vector<at::Tensor> tensors;
    for (size_t i = 0; i < memory.size(); ++i) {
      // One tensor for equal views, as in eager: kernels compare identities.
      at::Tensor tensor;
      for (size_t k = 0; k < i && d.operands[i].sizes != at::DimVector{0}; ++k) {
        if (node.operands[k] == node.operands[i] && d.operands[k] == d.operands[i]) {
          tensor = tensors[k];
        }
      }
      tensors.push_back(
          tensor.defined() ? tensor : torch_lazy::make_strided(memory[i], kCpu, d.operands[i]));
    }
    torch::jit::Stack stack = arguments(d, tensors, run.numbers.data() + node.first_number);
    tensors.clear();
    call(d, stack);
    for (size_t i = 0; i < d.returns.size(); ++i) {
      const torch_lazy::ReturnSource& source = d.returns[i];
      if (source.kind == torch_lazy::ReturnSource::Kind::fresh) {
        take(node, static_cast<size_t>(source.index), stack[i].toTensor(), run);
      } else if (source.kind == torch_lazy::ReturnSource::Kind::fresh_list) {
        for (int k = 0; k < source.count; ++k) {
          take(node, static_cast<size_t>(source.index + k), stack[i].toListRef()[k].toTensor(),
               run);
        }
      }
    }
    for (size_t k = 0; k < d.writes.size(); ++k) {
      if (node.outputs[d.fresh.size() + k] >= 0) {
        run.slots[node.outputs[d.fresh.size() + k]] = memory[d.writes[k].operand];
      }
    }
    for (uint32_t slot : node.operands) {
      if (!survives_[slot] && last_use_[slot] == index) {
        run.slots[slot] = c10::Storage();
      }
    }
  }

  static torch::jit::Stack arguments(const Description& d, const std::vector<at::Tensor>& tensors,
                                     const c10::IValue* numbers) {
    torch::jit::Stack stack;
    auto element = [&](int i) {
      return i >= 0 ? tensors[i] : i == -1 ? at::Tensor() : numbers[-2 - i].toTensor();
    };
    for (const ArgumentSource& argument : d.arguments) {
      switch (argument.kind) {
        case ArgumentSource::Kind::constant:
          stack.push_back(argument.value);
          break;
        case ArgumentSource::Kind::operand:
          stack.emplace_back(tensors[argument.index]);
          break;
        case ArgumentSource::Kind::number:
          stack.push_back(numbers[argument.index]);
          break;
        case ArgumentSource::Kind::operand_list: {
          c10::List<at::Tensor> list;
          for (int i : argument.elements) {
            list.push_back(element(i));
          }
          stack.emplace_back(std::move(list));
          break;
        }
        case ArgumentSource::Kind::optional_list: {
          c10::List<std::optional<at::Tensor>> list;
          for (int i : argument.elements) {
            list.push_back(i == -1 ? std::nullopt : std::optional<at::Tensor>(element(i)));
          }
          stack.emplace_back(std::move(list));
          break;
        }
      }
    }
    return stack;
  }

  static void call(const Description& d, torch::jit::Stack& stack) {
    const caffe2::TypeMeta before = c10::get_default_dtype();
    c10::set_default_dtype(c10::scalarTypeToTypeMeta(d.default_dtype));
    try {
      d.op->check_registered();
      d.op->handle.redispatchBoxed(kCpu, &stack);
    } catch (...) {
      c10::set_default_dtype(before);
      throw;
    }
    c10::set_default_dtype(before);
  }

  static void take(const GraphNode& node, size_t output, const at::Tensor& result,
                   torch_lazy::Run& run) {
    if (node.outputs[output] >= 0) {
      run.slots[node.outputs[output]] = torch_lazy::storage_of_result(node, output, result);
    }
  }

  std::shared_ptr<const Graph> graph_;
  std::vector<char> survives_;
  std::vector<size_t> last_use_;
};

class HalfBackend : public torch_lazy::Backend {
 public:
  std::string name() const override { return "half"; }

  // Runs of one, two and three nodes, taken and left.
  bool takes(const GraphNode&) override {
    constexpr bool kPattern[] = {true, false, true, true, false, false, true, true, true, false};
    return kPattern[asked_++ % std::size(kPattern)];
  }

  std::shared_ptr<torch_lazy::Executable> compile(std::shared_ptr<const Graph> graph) override {
    return std::make_shared<HalfProgram>(std::move(graph));
  }

 private:
  size_t asked_ = 0;
};

}  // namespace

TORCH_LAZY_BACKEND_PLUGIN(HalfBackend)
