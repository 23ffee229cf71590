// Exact and guessed layouts of leaves.
#include "api/leaf_layout.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>

namespace torch_lazy {
namespace {

bool covers(const Layout& layout, int64_t nbytes) {
  int64_t elements = 1;
  for (int64_t size : layout.sizes) {
    elements *= size;
  }
  const auto itemsize = static_cast<int64_t>(c10::elementSize(layout.dtype));
  return layout.offset == 0 && elements * itemsize == nbytes &&
         bytes_spanned(layout.sizes, layout.strides, 0, layout.dtype) == nbytes;
}

Layout contiguous(at::DimVector sizes, at::ScalarType dtype) {
  Layout layout;
  layout.dtype = dtype;
  layout.sizes = std::move(sizes);
  layout.strides.resize(layout.sizes.size());
  int64_t stride = 1;
  for (size_t i = layout.sizes.size(); i-- > 0;) {
    layout.strides[i] = stride;
    stride *= std::max<int64_t>(layout.sizes[i], 1);
  }
  return layout;
}

/// The contiguous layout of which `layout`, which covers its memory, is a permutation.
Layout in_memory_order(const Layout& layout) {
  std::vector<size_t> order(layout.sizes.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return layout.strides[a] > layout.strides[b]; });
  at::DimVector sizes;
  for (size_t dimension : order) {
    sizes.push_back(layout.sizes[dimension]);
  }
  return contiguous(std::move(sizes), layout.dtype);
}

/// A contiguous reader shows the tensor's shape, another one that reads all of it the order of its
/// memory, any other its type.
class Guess {
 public:
  explicit Guess(std::vector<Leaf>& leaves) {
    for (Leaf& leaf : leaves) {
      by_slot_[leaf.slot] = &leaf;
    }
  }

  void see(uint32_t slot, const Layout& read) {
    auto it = by_slot_.find(slot);
    if (it == by_slot_.end() || it->second->exact) {
      return;
    }
    Leaf& leaf = *it->second;
    if (!covers(read, leaf.nbytes)) {
      const auto itemsize = static_cast<int64_t>(c10::elementSize(read.dtype));
      learn(leaf, Known::type, contiguous({leaf.nbytes / itemsize}, read.dtype));
      return;
    }
    Layout sorted = in_memory_order(read);
    const Known what = sorted == read ? Known::shape : Known::order;
    learn(leaf, what, std::move(sorted));
  }

 private:
  enum class Known : uint8_t { nothing, type, order, shape };

  void learn(Leaf& leaf, Known what, Layout layout) {
    if (what > known_[&leaf]) {
      known_[&leaf] = what;
      leaf.layout = std::move(layout);
    }
  }

  std::unordered_map<uint32_t, Leaf*> by_slot_;
  std::unordered_map<const Leaf*, Known> known_;
};

}  // namespace

void describe_leaves(const Graph& graph, const std::vector<RecipeOutput>& outputs,
                     const std::vector<int64_t>& ids, std::vector<Leaf>& leaves) {
  std::unordered_map<int64_t, const Layout*> by_id;
  for (size_t i = outputs.size(); i-- > 0;) {
    by_id[ids[i]] = &outputs[i].layout;
  }
  for (Leaf& leaf : leaves) {
    auto it = by_id.find(leaf.id);
    if (it != by_id.end() && covers(*it->second, leaf.nbytes)) {
      leaf.layout = *it->second;
      leaf.exact = true;
    }
  }
  Guess guess(leaves);
  for (const GraphNode& node : graph.nodes) {
    for (size_t k = 0; k < node.operands.size(); ++k) {
      guess.see(node.operands[k], node.description->operands[k]);
    }
  }
  for (const RecipeOutput& output : outputs) {
    guess.see(output.slot, output.layout);
  }
}

}  // namespace torch_lazy
