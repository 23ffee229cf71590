#include "backends/cpu/index_error.h"

#include "backends/aten/interpreter.h"
#include "runtime/real_tensor.h"

#include <ATen/ops/zeros.h>

#include <algorithm>

namespace torch_lazy {
namespace {

class Question {
 public:
  Question(const compile::Program& program, std::vector<c10::Storage> slots,
           const std::vector<c10::IValue>& numbers)
      : program_(program), graph_(*program.graph), made_up_(graph_.slots, 0) {
    Schedule schedule = Schedule::in_order(graph_);
    schedule.outlives.assign(graph_.slots, 1);  // nothing of the caller's is written
    interpreter_ = std::make_unique<Interpreter>(program.graph, schedule);
    state_ = interpreter_->begin();
    run_.slots = std::move(slots);
    run_.slots.resize(graph_.slots);
    run_.numbers = numbers;
  }

  /// Raises the node's error, unless it may be due to numbers that were made up.
  void ask(uint32_t index) {
    const GraphNode& node = graph_.nodes[index];
    bool trusted = true;
    bool made_up = false;
    for (size_t k = 0; k < node.operands.size(); ++k) {
      const uint32_t slot = node.operands[k];
      if (!run_.slots[slot]) {
        run_.slots[slot] = at::zeros({program_.slots[slot].nbytes}, at::kByte).storage();
        made_up_[slot] = 1;
      }
      made_up = made_up || made_up_[slot];
      trusted = trusted && (!made_up_[slot] ||
                            !c10::isIntegralType(node.description->operands[k].dtype, true));
    }
    try {
      interpreter_->execute(index, run_, state_);
    } catch (...) {
      if (trusted) {
        throw;
      }
    }
    for (int32_t slot : node.outputs) {
      if (slot >= 0) {
        made_up_[slot] = made_up;
      }
    }
  }

 private:
  const compile::Program& program_;
  const Graph& graph_;
  std::unique_ptr<Interpreter> interpreter_;
  Interpreter::State state_;
  Run run_;
  std::vector<char> made_up_;  // by slot
};

}  // namespace

void raise_index_error(const compile::Program& program, std::vector<uint32_t> nodes,
                       std::vector<c10::Storage> slots, Run& run) {
  std::sort(nodes.begin(), nodes.end());
  nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
  Question question(program, std::move(slots), run.numbers);
  for (uint32_t node : nodes) {
    run.completed = node;
    question.ask(node);
  }
}

}  // namespace torch_lazy
