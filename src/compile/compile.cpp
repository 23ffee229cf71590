// The passes in order, and the program as text.
#include "compile/program.h"

#include <sstream>

namespace torch_lazy::compile {

Program drop_dead(Program program) {
  std::vector<Step> kept;
  for (Step& step : program.steps) {
    if (step.kind != Step::Kind::piece || !step.writes.empty()) {
      kept.push_back(std::move(step));
    }
  }
  program.steps = std::move(kept);
  return program;
}

Program compile(std::shared_ptr<const Graph> graph) {
  return drop_dead(split_reductions(fuse(inline_fills(lower(std::move(graph))))));
}

std::string text(const Program& program) {
  std::ostringstream out;
  for (size_t i = 0; i < program.steps.size(); ++i) {
    const Step& step = program.steps[i];
    out << "step " << i << ": ";
    if (step.kind == Step::Kind::call) {
      const GraphNode& node = program.graph->nodes[step.node];
      out << "call " << node.description->op->name << "(";
      for (size_t k = 0; k < node.operands.size(); ++k) {
        out << (k ? ", " : "") << "slot" << node.operands[k] << " "
            << node.description->operands[k].shape_text();
      }
      out << ") ->";
      for (uint32_t slot : step.writes) {
        out << " slot" << slot;
      }
      out << "\n";
    } else if (step.kind == Step::Kind::product) {
      const Product& p = step.product;
      out << "product slot" << p.a.slot << " " << p.a.layout.shape_text() << " slot" << p.b.slot
          << " " << p.b.layout.shape_text() << " -> slot" << p.out.slot << "\n";
    } else {
      out << text(step.piece);
    }
  }
  return out.str();
}

}  // namespace torch_lazy::compile
