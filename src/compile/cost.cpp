#include "compile/cost.h"

#include <algorithm>

namespace torch_lazy::compile {

bool worth_merging(const Piece& first, const Piece& second, const Piece& merged) {
  constexpr size_t kMaxTerms = 256;
  constexpr size_t kMaxAccesses = 48;
  constexpr int64_t kMaxRow = int64_t{1} << 16;  // elements of a row that scratch memory may hold
  if (merged.terms.size() > kMaxTerms || merged.accesses.size() > kMaxAccesses) {
    return false;
  }
  // What threads share, such as a map, must not become what they cannot: several passes over rows
  // that scratch memory cannot hold either.
  auto is_shared = [](const Piece& piece) { return !piece.reduces() || runs_in_parts(piece); };
  return merged.inner_elements() <= kMaxRow || is_shared(merged) ||
         !(is_shared(first) || is_shared(second));
}

bool worth_scanning(const Piece& piece) {
  constexpr int64_t kEnoughRows = 4;  // side by side
  constexpr int64_t kLongRow = 32;    // elements
  bool one_by_one = false;
  for (const Term& term : piece.terms) {
    one_by_one |= term.op == Opcode::scan_prod && codegen::is_float(term.type);
    for (int k = 0; term.op == Opcode::store && k < piece.outer; ++k) {
      if (piece.accesses[term.place].strides[k] == 1) {  // a lane has a row
        return piece.sizes[k] >= kEnoughRows;
      }
    }
  }
  // Along a row a product of floats goes from lane to lane, no faster than PyTorch's.
  return !one_by_one && piece.inner_elements() >= kLongRow;
}

int64_t tile_for(const Piece& piece, int64_t lanes) {
  if (piece.reduces()) {
    return std::min<int64_t>(lanes, 64);
  }
  return std::min<int64_t>(lanes, 4096);
}

}  // namespace torch_lazy::compile
