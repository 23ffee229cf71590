// Order and writing of dumps.
#include "ir/dump_graph.h"

#include <sstream>

namespace torch_lazy {
namespace {

constexpr size_t kLongestTagInDot = 64;

/// A tag's value for dot: shortened, and safe inside quotation marks.
std::string in_dot(const std::string& value) {
  const bool cut = value.size() >= kLongestTagInDot;
  std::string escaped;
  for (char c : value.substr(0, kLongestTagInDot)) {
    if (c == '"' || c == '\\') {
      escaped += '\\';
    }
    escaped += c;
  }
  return cut ? escaped + "..." : escaped;
}

}  // namespace

size_t DumpGraph::add(DumpVertex vertex) {
  vertices_.push_back(std::move(vertex));
  return vertices_.size() - 1;
}

void DumpGraph::add_root(size_t vertex) {
  vertices_[vertex].root = roots_.size();
  roots_.push_back(vertex);
}

std::vector<size_t> DumpGraph::post_order() const {
  enum class State : char { unseen, open, done };
  std::vector<State> states(vertices_.size(), State::unseen);
  std::vector<size_t> order;
  std::vector<size_t> stack;
  for (size_t root : roots_) {
    stack.push_back(root);
    while (!stack.empty()) {
      const size_t vertex = stack.back();
      if (states[vertex] != State::unseen) {
        stack.pop_back();
        if (states[vertex] == State::open) {
          states[vertex] = State::done;
          order.push_back(vertex);
        }
        continue;
      }
      states[vertex] = State::open;
      for (const DumpVertex::Operand& operand : vertices_[vertex].operands) {
        if (operand.vertex && states[*operand.vertex] == State::unseen) {
          stack.push_back(*operand.vertex);
        }
      }
    }
  }
  return order;
}

std::string DumpGraph::text() const {
  const std::vector<size_t> order = post_order();
  std::vector<size_t> ids(vertices_.size());
  std::ostringstream out;
  out << "IR {\n";
  for (size_t id = 0; id < order.size(); ++id) {
    const DumpVertex& vertex = vertices_[order[id]];
    ids[order[id]] = id;
    out << "  %" << id << " = [";
    for (size_t i = 0; i < vertex.shapes.size(); ++i) {
      out << (i ? ", " : "") << vertex.shapes[i];
    }
    out << "] " << vertex.name << "(";
    for (size_t i = 0; i < vertex.operands.size(); ++i) {
      const DumpVertex::Operand& operand = vertex.operands[i];
      out << (i ? ", " : "");
      if (!operand.vertex) {
        out << "null";
        continue;
      }
      out << "%" << ids[*operand.vertex];
      if (has_several_outputs(*operand.vertex)) {
        out << "." << operand.output;
      }
    }
    out << ")";
    for (const auto& [name, value] : vertex.tags) {
      out << ", " << name << "=" << value;
    }
    if (vertex.root) {
      out << ", ROOT=" << *vertex.root;
    }
    out << "\n";
  }
  out << "}\n";
  return out.str();
}

std::string DumpGraph::dot() const {
  const std::vector<size_t> order = post_order();
  std::vector<size_t> ids(vertices_.size());
  std::ostringstream out;
  out << "digraph G {\n";
  for (size_t id = 0; id < order.size(); ++id) {
    const DumpVertex& vertex = vertices_[order[id]];
    ids[order[id]] = id;
    out << "  node" << id << " [label=\"" << vertex.name;
    if (!vertex.shapes.empty()) {
      out << "\\n" << vertex.shapes[0];
    }
    for (const auto& [name, value] : vertex.tags) {
      out << "\\n" << name << "=" << in_dot(value);
    }
    if (vertex.root) {
      out << "\\nROOT=" << *vertex.root;
    }
    out << "\"]\n";
  }
  for (size_t id = order.size(); id-- > 0;) {
    const std::vector<DumpVertex::Operand>& operands = vertices_[order[id]].operands;
    for (size_t i = 0; i < operands.size(); ++i) {
      if (!operands[i].vertex) {
        continue;
      }
      std::string label = operands.size() > 1 ? "i=" + std::to_string(i) : "";
      if (has_several_outputs(*operands[i].vertex)) {
        label += (label.empty() ? "o=" : ",o=") + std::to_string(operands[i].output);
      }
      out << "  node" << ids[*operands[i].vertex] << " -> node" << id;
      if (!label.empty()) {
        out << " [label=\"" << label << "\"]";
      }
      out << "\n";
    }
  }
  out << "}\n";
  return out.str();
}

}  // namespace torch_lazy
