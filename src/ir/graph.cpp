// A graph as text, and the sizes of its values.
#include <torch_lazy/graph.h>

#include <numeric>
#include <sstream>

namespace torch_lazy {

std::string Graph::text() const {
  std::ostringstream out;
  out << "graph(";
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& p = parameters[i];
    out << (i ? ", " : "") << "%" << p.slot << ": " << p.nbytes << " bytes"
        << (p.fresh ? " fresh" : "") << (p.donated ? " donated" : "");
  }
  out << ") {\n";
  for (const GraphNode& node : nodes) {
    const Description& d = *node.description;
    out << " ";
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      out << " ";
      if (node.outputs[i] < 0) {
        out << "_";
      } else {
        out << "%" << node.outputs[i];
      }
      out << ": "
          << (i < d.fresh.size()
                  ? d.fresh[i].layout.shape_text()
                  : "write " + std::to_string(node.operands[d.writes[i - d.fresh.size()].operand]));
    }
    out << " = " << d.op->name << "(";
    for (size_t i = 0; i < node.operands.size(); ++i) {
      out << (i ? ", " : "") << "%" << node.operands[i] << " " << d.operands[i].shape_text();
    }
    out << ")\n";
  }
  out << "  return";
  for (uint32_t root : roots) {
    out << " %" << root;
  }
  out << "\n}\n";
  return out.str();
}

std::string Description::call_text() const {
  std::string text = op->name + "(";
  for (size_t i = 0; i < operands.size(); ++i) {
    text += (i ? ", " : "") + operands[i].shape_text();
  }
  return text + ")";
}

std::vector<uint32_t> Graph::last_versions() const {
  std::vector<uint32_t> last(slots);
  std::iota(last.begin(), last.end(), 0);
  // Backwards: what a write makes has its own last version already.
  for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) {
    const Description& d = *node->description;
    for (size_t k = d.writes.size(); k-- > 0;) {
      const int32_t output = node->outputs[d.fresh.size() + k];
      if (output >= 0) {
        last[node->operands[d.writes[k].operand]] = last[static_cast<size_t>(output)];
      }
    }
  }
  return last;
}

std::vector<int64_t> Graph::slot_bytes() const {
  std::vector<int64_t> bytes(slots, 0);
  for (const Parameter& parameter : parameters) {
    bytes[parameter.slot] = parameter.nbytes;
  }
  for (const GraphNode& node : nodes) {
    const Description& d = *node.description;
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      if (node.outputs[i] >= 0) {
        bytes[static_cast<size_t>(node.outputs[i])] =
            i < d.fresh.size() ? d.fresh[i].nbytes
                               : bytes[node.operands[d.writes[i - d.fresh.size()].operand]];
      }
    }
  }
  return bytes;
}

}  // namespace torch_lazy
