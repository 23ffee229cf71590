// Pass: every node as pieces where the table of operators knows it, else as a call.
#include "compile/lowering.h"
#include "compile/program.h"

#include <algorithm>

namespace torch_lazy::compile {

uint32_t read_slot(const Program& program, const Step& call, size_t operand) {
  for (const auto& [index, slot] : call.instead) {
    if (index == operand) {
      return slot;
    }
  }
  return program.graph->nodes[call.node].operands[operand];
}

void find_uses(const Program& program, Step& step) {
  step.reads.clear();
  step.writes.clear();
  if (step.kind == Step::Kind::product) {
    put(step.reads, step.product.a.slot);
    put(step.reads, step.product.b.slot);
    put(step.writes, step.product.out.slot);
    return;
  }
  if (step.kind == Step::Kind::call) {
    const GraphNode& node = program.graph->nodes[step.node];
    for (size_t k = 0; k < node.operands.size(); ++k) {
      put(step.reads, read_slot(program, step, k));
    }
    for (int32_t slot : node.outputs) {
      if (slot >= 0) {
        put(step.writes, static_cast<uint32_t>(slot));
      }
    }
    return;
  }
  for (const Term& term : step.piece.terms) {
    if (term.op == Opcode::load) {
      put(step.reads, step.piece.accesses[term.place].slot);
    } else if (is_write(term.op)) {
      put(step.writes, step.piece.accesses[term.place].slot);
    }
  }
}

Program lower(std::shared_ptr<const Graph> graph, const Target& target) {
  Program program;
  program.target = target;
  program.graph = std::move(graph);
  const Graph& g = *program.graph;
  program.slots.resize(g.slots);
  const std::vector<int64_t> bytes = g.slot_bytes();
  for (size_t i = 0; i < bytes.size(); ++i) {
    program.slots[i].nbytes = bytes[i];
  }
  for (const Parameter& parameter : g.parameters) {
    Slot& slot = program.slots[parameter.slot];
    slot.parameter = true;
    slot.fresh = parameter.fresh;
    slot.survives = !parameter.donated;
  }
  for (uint32_t root : g.roots) {
    program.slots[root].survives = true;
  }
  for (const GraphNode& node : g.nodes) {
    const Description& d = *node.description;
    for (size_t k = 0; k < d.writes.size(); ++k) {
      const int32_t output = node.outputs[d.fresh.size() + k];
      if (output >= 0) {
        program.slots[output].base = static_cast<int32_t>(node.operands[d.writes[k].operand]);
      }
    }
  }
  for (uint32_t i = 0; i < g.nodes.size(); ++i) {
    const size_t slots = program.slots.size();
    Lowering lowering(program, i);
    std::vector<Step> steps;
    if (lower_node(lowering)) {
      for (auto [slot, base] : lowering.versions()) {
        program.slots[slot].base = static_cast<int32_t>(base);
      }
      for (Step& step : lowering.take_steps()) {
        if (step.kind == Step::Kind::piece) {
          simplify(step.piece);
          if (step.piece.terms.empty()) {
            continue;
          }
        }
        steps.push_back(std::move(step));
      }
    } else {
      program.slots.resize(slots);
      Step step;
      step.node = i;
      steps.push_back(std::move(step));
    }
    for (Step& step : steps) {
      step.position = static_cast<uint32_t>(program.steps.size());
      find_uses(program, step);
      program.steps.push_back(std::move(step));
    }
  }
  return program;
}

}  // namespace torch_lazy::compile
