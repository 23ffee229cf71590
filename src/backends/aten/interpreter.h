// Executes nodes of a graph one by one with PyTorch's own kernels, and so gives eager's bits. What
// does not need data is decided once.
#pragma once

#include <torch_lazy/backend.h>

#include <c10/util/SmallVector.h>

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

namespace torch_lazy {

/// When nodes are executed and slots are used for the last time: the order need not be the graph's,
/// and there may be more slots than the graph has.
struct Schedule {
  std::vector<size_t> time;      // by node
  std::vector<size_t> last_use;  // by slot
  std::vector<char> outlives;    // by slot: its data must be there, unchanged, after the run
  std::vector<char> called;      // by node: whether it is executed here at all
  std::map<std::pair<size_t, size_t>, uint32_t> instead;  // by node and operand: another slot

  /// Every node, in the graph's order.
  static Schedule in_order(const Graph& graph);
};

class Interpreter {
 public:
  Interpreter(std::shared_ptr<const Graph> graph, const Schedule& schedule);

  /// What is made during a run.
  struct State {
    std::vector<at::Tensor> tensors;
    torch::jit::Stack stack;
  };
  State begin() const;

  /// Executes a node with what the run's slots hold. An error leaves them as they were.
  void execute(size_t node, Run& run, State& state) const;

  /// Lets go of a slot that nothing needs any more.
  void drop(uint32_t slot, Run& run, State& state) const;

  /// Whether tensors are made over a slot.
  bool has_views(uint32_t slot) const { return !views_of_slot_[slot].empty(); }

  /// Slots that nothing needs after this node.
  c10::ArrayRef<uint32_t> done(size_t node) const { return instructions_[node].done; }

 private:
  /// A tensor over a slot, as some operand wants to see it. Equal ones are made once per run.
  struct View {
    uint32_t slot;
    const Layout* layout;
  };

  struct Instruction {
    const GraphNode* node = nullptr;
    c10::SmallVector<uint32_t, 4> operands;     // views
    c10::SmallVector<uint32_t, 1> copy_before;  // slots whose memory must survive the write
    c10::SmallVector<uint32_t, 1> back_up;      // slots to be put right if a custom operator fails
    c10::SmallVector<uint32_t, 4> done;         // slots that nobody needs after this
    c10::SmallVector<int32_t, 3> result_views;  // the view that each fresh result is, or -1
  };

  void push_arguments(const Instruction& instruction, Run& run, State& state) const;
  void adopt(const Instruction& instruction, Run& run, State& state) const;
  const at::Tensor& tensor(uint32_t view, Run& run, State& state) const;
  class Views;
  void forget(uint32_t slot, State& state) const;

  std::shared_ptr<const Graph> graph_;
  std::vector<View> views_;
  std::vector<c10::SmallVector<uint32_t, 2>> views_of_slot_;
  std::vector<int64_t> fresh_bytes_;  // by slot; -1: not fresh
  std::vector<Instruction> instructions_;
};

}  // namespace torch_lazy
