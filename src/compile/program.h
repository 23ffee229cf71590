// What the compiler makes of a graph: pieces that become kernels, and calls of PyTorch's kernels,
// in the order in which they run, over slots with planned memory.
#pragma once

#include "compile/piece.h"
#include <torch_lazy/graph.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace torch_lazy::compile {

/// A slot seen as a tensor.
struct View {
  uint32_t slot = 0;
  Layout layout;
};

/// A convolution of images (a) with a weight (b), or a gradient of one: of the input, from the
/// output's (a) and the weight (b), or of the weight, from the output's (a) and the input (b).
struct Convolution {
  enum class Kind : uint8_t { forward, input_gradient, weight_gradient } kind = Kind::forward;
  std::array<int64_t, 2> stride{1, 1};  // of height and width
  std::array<int64_t, 2> padding{0, 0};
  std::array<int64_t, 2> dilation{1, 1};
  int64_t groups = 1;
};

/// A matrix product, a batch of them or a convolution, into memory that is planned.
struct Product {
  View a;
  View b;
  View out;
  std::optional<Convolution> convolution;
};

/// What the target can compute as a step of its own, besides plain products.
struct Target {
  bool (*has)(const Product&) = nullptr;  // a convolution, or a batch with several dimensions
};

struct Step {
  enum class Kind : uint8_t { piece, product, call } kind = Kind::call;
  Piece piece;            // piece
  Product product;        // product
  uint32_t node = 0;      // call: the graph's node
  uint32_t position = 0;  // in the program that was recorded
  /// call: operands that are read from another slot than the node's, and which
  c10::SmallVector<std::pair<uint32_t, uint32_t>, 1> instead;

  c10::SmallVector<uint32_t, 6> reads;   // slots
  c10::SmallVector<uint32_t, 3> writes;  // slots that it makes
};

struct Slot {
  int64_t nbytes = 0;
  int32_t base = -1;       // a write: the slot whose next version this is
  bool parameter = false;  // its data is there before the run
  bool fresh = false;      // a parameter without content: memory to be made
  bool cleared = false;    // its memory is zeroed before the step that adds to it
  bool survives = false;   // needed after the run: a root, or a parameter that is not donated
};

struct Program {
  std::shared_ptr<const Graph> graph;
  Target target;
  std::vector<Slot> slots;  // the graph's, then the compiler's own
  std::vector<Step> steps;

  uint32_t new_slot(int64_t nbytes) {
    Slot slot;
    slot.nbytes = nbytes;
    slots.push_back(slot);
    return static_cast<uint32_t>(slots.size() - 1);
  }
};

/// Adds what is not in the list yet.
template <typename List>
void put(List& list, uint32_t value) {
  if (std::find(list.begin(), list.end(), value) == list.end()) {
    list.push_back(value);
  }
}

/// The slot that a call reads for an operand of its node.
uint32_t read_slot(const Program& program, const Step& call, size_t operand);

/// Fills in `reads` and `writes` from the piece or the node.
void find_uses(const Program& program, Step& step);

std::string text(const Program& program);

// ---- The passes, in order; each is a file
// --------------------------------------------------------

/// Every node as pieces where the table of operators knows it, else as a call.
Program lower(std::shared_ptr<const Graph> graph, const Target& target = {});

/// Steps that compute the same become one.
Program share(Program program);

/// Reads of slots that hold one number everywhere become that number; sums that begin with zeros
/// need memory that is cleared, no kernel that fills it.
Program inline_fills(Program program);

/// Merges pieces where that saves memory traffic.
Program fuse(Program program);

/// Products read what was copied only to lie otherwise, and write where their results are copied
/// to.
Program skip_copies(Program program);

/// Values that are cheap to compute again are not stored, or not until a call needs them again.
Program recompute(Program program);

/// A reduction to few results becomes one to more of them, and a second one over those.
Program split_reductions(Program program);

/// Of a reduction over long rows: whether threads can share it, as it is or when it is split.
bool runs_in_parts(const Piece& piece);

/// Takes away what nothing needs.
Program drop_dead(Program program);

/// Of products that do not need each other, what frees memory goes first.
Program order_products(Program program);

/// What a kernel makes takes the place of what it reads for the last time.
Program reuse(Program program);

/// All passes. With TORCH_LAZY_COMPILE_LOG each is logged: its time, and the program after it.
Program compile(std::shared_ptr<const Graph> graph, const Target& target = {});

/// Appends to the log, if there is one.
void log(const std::string& text);

}  // namespace torch_lazy::compile
