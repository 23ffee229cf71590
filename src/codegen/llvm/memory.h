// Memory: the call's pointers, sizes and strides, and loads and stores through accesses.
#pragma once

#include "codegen/llvm/code.h"

#include <llvm/IR/Metadata.h>

namespace torch_lazy::codegen {

/// Where one vector of lanes stands.
struct Place {
  /// The number of its first lane, behind the lane dimension's index; null where there are no
  /// lanes: a row stage with lanes inner.
  llvm::Value* lane = nullptr;
  llvm::Value* mask = nullptr;     // the lanes that are there; null: all
  llvm::Value* count = nullptr;    // with a mask: how many, the first ones
  const Values* values = nullptr;  // of the instructions so far: for lookups and masks
};

class Memory {
 public:
  /// Reads the call: what it emits goes to the function's entry.
  Memory(Code& code, const Kernel& kernel, llvm::Value* call);

  llvm::Value* size(int32_t dimension) const { return sizes_[dimension]; }
  llvm::Value* argument(int32_t place) const { return arguments_[place]; }
  llvm::Value* begin() const { return begin_; }
  llvm::Value* end() const { return end_; }
  llvm::Value* tile() const { return tile_; }

  /// The dimension along which lanes lie; -1: none.
  int32_t lane_dimension() const { return lane_dimension_; }

  /// Accesses as far as indices have been given. Loops keep a copy and put it back.
  using Bases = Values;
  const Bases& start() const { return start_; }

  /// Goes to `index` along a dimension, with the accesses of a list.
  void advance(Bases& bases, const std::vector<int32_t>& accesses, int32_t dimension,
               llvm::Value* index) const;

  llvm::Value* load(const Bases& bases, int32_t access, const Place& place) const;
  void store(const Bases& bases, int32_t access, const Place& place, llvm::Value* value) const;
  /// Replaces what is there by what `combine` makes of it and the value, lane by lane in their
  /// order where lanes may meet in one element.
  using Combine = std::function<llvm::Value*(llvm::Value* old, llvm::Value* value)>;
  void update(const Bases& bases, int32_t access, const Place& place, llvm::Value* value,
              const Combine& combine) const;
  /// Asks for the memory of a store to come, so that it is there by then.
  void fetch(const Bases& bases, int32_t access, const Place& place) const;
  /// Asks for what the next row (lanes inner) will load here.
  void fetch_of_next(const Bases& bases, int32_t access, const Place& place) const;
  void report(int64_t status) const;

 private:
  /// A pointer, and how its lanes lie: all there, side by side, or at offsets (in elements).
  struct Address {
    llvm::Value* pointer;
    llvm::Value* offsets = nullptr;
    bool side_by_side = false;
  };

  llvm::Value* stride(int32_t access, size_t place) const { return strides_[access][place]; }
  llvm::Value* moved(llvm::Value* pointer, int32_t access, size_t place, llvm::Value* index) const;
  Address address(const Bases& bases, int32_t access, const Place& place) const;
  llvm::Value* vector_mask(const Access& access, const Place& place) const;
  llvm::Value* scalar_pointer(llvm::Value* pointer, const Access& access, const Place& place,
                              llvm::Value* otherwise) const;
  bool goes_one_by_one(const Access& access, const Place& place, llvm::Type* element) const;
  llvm::Value* load_one_by_one(llvm::Value* from, const Access& access, const Place& place) const;
  void store_one_by_one(llvm::Value* value, llvm::Value* to, const Access& access,
                        const Place& place) const;
  llvm::Value* buffer(llvm::Type* vector) const;
  llvm::Instruction* mark(llvm::Instruction* instruction, int32_t pointer) const;
  void prefetch(llvm::Value* pointer, bool to_write) const;
  llvm::Type* type(const Access& access) const;
  llvm::Align alignment(const Access& access) const;

  Code& code_;
  llvm::IRBuilder<>& builder_;
  const Kernel& kernel_;
  int32_t lane_dimension_;
  Values sizes_, arguments_, start_;
  std::vector<Values> strides_;  // by access, dimensions then lookups; null: zero
  llvm::Value* begin_;
  llvm::Value* end_;
  llvm::Value* tile_;
  llvm::Value* status_;
  llvm::Value* is_short_;                       // with lanes inner: a row stays in the cache
  llvm::Value* zero_;                           // what a masked load of one element reads instead
  llvm::Value* discard_;                        // where a masked store of one element goes instead
  std::vector<llvm::MDNode*> scopes_, others_;  // by pointer; then of the status
};

}  // namespace torch_lazy::codegen
