// A backend for torch-lazy: takes about a dozen operators on float32, compiles them to the
// instructions of program.h and executes those. Everything else stays with PyTorch.
#include "lower.h"
#include "program.h"
#include <torch_lazy/backend.h>

#include <atomic>
#include <cstring>

namespace loops {
namespace {

using torch_lazy::Graph;
using torch_lazy::GraphNode;

/// One node, compiled.
struct Step {
  std::vector<Instruction> instructions;
  uint32_t first_number = 0;
  int numbers = 0;
  int64_t nbytes = 0;           // of the new result; 0 when an operand is written
  int written = -1;             // the slot whose memory the result takes over
  bool keep_old = false;        // but somebody still needs its old content
  std::vector<uint32_t> dying;  // slots that are not needed afterwards
};

class LoopsProgram : public torch_lazy::Executable {
 public:
  LoopsProgram(const Graph& graph, std::atomic<int64_t>& executed);
  void run(torch_lazy::Run& run) override;
  std::string text() const override;

 private:
  std::vector<torch_lazy::Parameter> fresh_;
  std::vector<Step> steps_;
  std::atomic<int64_t>& executed_;
};

LoopsProgram::LoopsProgram(const Graph& graph, std::atomic<int64_t>& executed)
    : executed_(executed) {
  std::vector<char> survives(graph.slots, 0);
  std::vector<size_t> last_use(graph.slots, 0);
  for (const torch_lazy::Parameter& parameter : graph.parameters) {
    survives[parameter.slot] = !parameter.donated;
    if (parameter.fresh) {
      fresh_.push_back(parameter);
    }
  }
  for (uint32_t root : graph.roots) {
    survives[root] = 1;
  }
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    for (uint32_t slot : graph.nodes[i].operands) {
      last_use[slot] = i;
    }
  }
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const GraphNode& node = graph.nodes[i];
    const torch_lazy::Description& d = *node.description;
    Step step;
    step.instructions = lower(node);
    step.first_number = node.first_number;
    step.numbers = d.numbers;
    if (d.writes.empty()) {
      step.nbytes = d.fresh[0].nbytes;
    } else {
      const uint32_t base = node.operands[d.writes[0].operand];
      step.written = static_cast<int>(base);
      step.keep_old = survives[base] || last_use[base] > i;
    }
    for (uint32_t slot : node.operands) {
      if (last_use[slot] == i && !survives[slot]) {
        step.dying.push_back(slot);
      }
    }
    steps_.push_back(std::move(step));
  }
}

void LoopsProgram::run(torch_lazy::Run& run) {
  Memory memory;
  memory.slots.resize(run.slots.size());
  for (const torch_lazy::Parameter& parameter : fresh_) {
    run.slots[parameter.slot] = torch_lazy::allocate(parameter.nbytes);
  }
  for (size_t slot = 0; slot < run.slots.size(); ++slot) {
    memory.slots[slot] = run.slots[slot] ? run.slots[slot].mutable_data() : nullptr;
  }
  // Nodes are executed one by one: if one fails, only that one does.
  run.failed = 1;
  for (run.completed = 0; run.completed < steps_.size(); ++run.completed) {
    const Step& step = steps_[run.completed];
    memory.numbers.clear();
    for (int i = 0; i < step.numbers; ++i) {
      memory.numbers.push_back(
          torch_lazy::number_value(run.numbers[step.first_number + i]).to<float>());
    }
    c10::Storage result;
    if (step.written < 0) {
      result = torch_lazy::allocate(step.nbytes);
    } else if (step.keep_old) {
      const c10::Storage& old = run.slots[step.written];
      result = torch_lazy::allocate(static_cast<int64_t>(old.nbytes()));
      std::memcpy(result.mutable_data(), old.data(), old.nbytes());
    } else {
      result = run.slots[step.written];
    }
    const int slot = step.instructions[0].result.slot;
    memory.slots[slot] = result.mutable_data();
    for (const Instruction& instruction : step.instructions) {
      execute(instruction, memory);
      ++executed_;
    }
    run.slots[slot] = std::move(result);
    for (uint32_t dead : step.dying) {
      run.slots[dead] = c10::Storage();
    }
  }
}

std::string LoopsProgram::text() const {
  std::string text;
  for (const Step& step : steps_) {
    for (const Instruction& instruction : step.instructions) {
      text += to_string(instruction) + "\n";
    }
  }
  return text;
}

class LoopsBackend : public torch_lazy::Backend {
 public:
  LoopsBackend() {
    TORCH_CHECK(torch_lazy::real_device().is_cpu(), "the loops backend computes on the CPU");
  }

  std::string name() const override { return "loops"; }

  bool takes(const GraphNode& node) override { return !lower(node).empty(); }

  std::shared_ptr<torch_lazy::Executable> compile(std::shared_ptr<const Graph> graph) override {
    return std::make_shared<LoopsProgram>(*graph, executed_);
  }

  std::string metrics() const override {
    return "LoopsBackend: " + std::to_string(executed_) + " instructions executed";
  }

 private:
  std::atomic<int64_t> executed_{0};
};

}  // namespace
}  // namespace loops

TORCH_LAZY_BACKEND_PLUGIN(loops::LoopsBackend)
