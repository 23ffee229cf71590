// A graph as it is shown to people: named vertices with tags. Text and dot are those of PyTorch's
// Lazy Tensor Core, so that what reads its dumps reads ours.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace torch_lazy {

struct DumpVertex {
  struct Operand {
    std::optional<size_t> vertex;  // none: an absent element of a list
    size_t output = 0;
  };
  std::string name;
  std::vector<std::string> shapes;  // one per output
  std::vector<Operand> operands;
  std::vector<std::pair<std::string, std::string>> tags;
  std::optional<size_t> root;  // the last place among the roots that it has
};

class DumpGraph {
 public:
  size_t add(DumpVertex vertex);
  /// The next root.
  void add_root(size_t vertex);

  DumpVertex& operator[](size_t vertex) { return vertices_[vertex]; }

  std::string text() const;
  std::string dot() const;

 private:
  /// What the roots reach, operands before their users, the last operand first.
  std::vector<size_t> post_order() const;
  bool has_several_outputs(size_t vertex) const { return vertices_[vertex].shapes.size() > 1; }

  std::vector<DumpVertex> vertices_;
  std::vector<size_t> roots_;
};

}  // namespace torch_lazy
