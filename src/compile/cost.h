// The cost rule: what is worth merging, and what is computed again rather than kept.
#pragma once

#include "compile/program.h"

namespace torch_lazy::compile {

/// A value that costs more (codegen::Operation::cost) is kept in scratch memory between the stages
/// of a row.
constexpr int kRecomputeLimit = 6;

/// A value that costs more for each element is stored rather than computed again by another kernel.
constexpr int kRecomputeCost = 10;

/// A value of fewer bytes, or that is needed again after fewer steps, is kept for the call that
/// needs it again.
constexpr int64_t kRemakeBytes = 256 << 10;
constexpr uint32_t kRemakeSteps = 16;

/// Whether two pieces that fit together should become one: `merged` is what they would be.
bool worth_merging(const Piece& first, const Piece& second, const Piece& merged);

/// Whether a scan is faster as a kernel than as a call of PyTorch's. `piece` does nothing else.
bool worth_scanning(const Piece& piece);

/// Whether attention should be products, with this many multiplications for each head, and kernels,
/// with this many bytes of scores between them. Little work is done before they begin, and more
/// scores do not stay in the caches.
constexpr bool worth_keeping_scores(int64_t bytes, int64_t multiplications) {
  return bytes <= int64_t{4} << 20 && multiplications >= int64_t{1} << 16;
}

/// Lanes that one unit of work covers along the last outer dimension.
int64_t tile_for(const Piece& piece, int64_t lanes);

/// Work below which a launch is not worth being shared among threads, in elements touched.
constexpr int64_t kParallelElements = 32768;

}  // namespace torch_lazy::compile
