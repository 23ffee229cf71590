// Loads and stores. Which instruction it is follows from how an access lies along the lanes: one
// element for all, elements side by side, or elements apart (gathered and scattered).
#include "codegen/llvm/memory.h"

#include <llvm/IR/MDBuilder.h>

#include <cstddef>

namespace torch_lazy::codegen {
namespace {

/// Elements of a row that stays in the cache until the next one has been computed.
constexpr int64_t kShortRow = 1 << 15;

class CallReader {
 public:
  CallReader(Code& code, llvm::Value* call) : builder_(code.builder), call_(call) {}

  llvm::Value* field(llvm::Type* type, size_t offset) {
    return read(type, call_, static_cast<int64_t>(offset));
  }

  llvm::Value* read(llvm::Type* type, llvm::Value* base, int64_t offset) {
    llvm::Value* address = builder_.CreateConstInBoundsGEP1_64(builder_.getInt8Ty(), base, offset);
    return builder_.CreateLoad(type, address);
  }

 private:
  llvm::IRBuilder<>& builder_;
  llvm::Value* call_;
};

int32_t find_lane_dimension(const Kernel& kernel) {
  if (kernel.lanes == Lanes::outer) {
    return kernel.outer - 1;
  }
  return kernel.inner > 0 ? kernel.rank() - 1 : -1;
}

}  // namespace

Memory::Memory(Code& code, const Kernel& kernel, llvm::Value* call)
    : code_(code),
      builder_(code.builder),
      kernel_(kernel),
      lane_dimension_(find_lane_dimension(kernel)) {
  CallReader reader(code, call);
  llvm::Type* pointer_type = builder_.getPtrTy();
  llvm::Type* integer = builder_.getInt64Ty();
  begin_ = reader.field(integer, offsetof(Call, begin));
  end_ = reader.field(integer, offsetof(Call, end));
  tile_ = reader.field(integer, offsetof(Call, tile));
  status_ = reader.field(pointer_type, offsetof(Call, status));

  llvm::Value* numbers = reader.field(pointer_type, offsetof(Call, numbers));
  int64_t next = 0;
  auto next_number = [&] { return reader.read(integer, numbers, 8 * next++); };
  for (int32_t d = 0; d < kernel.rank(); ++d) {
    sizes_.push_back(next_number());
  }
  for (const Access& access : kernel.accesses) {
    Values& strides = strides_.emplace_back();
    auto add = [&](Stride stride) {
      strides.push_back(stride == Stride::argument ? next_number()
                        : stride == Stride::one    ? builder_.getInt64(1)
                                                   : nullptr);
    };
    for (Stride stride : access.strides) {
      add(stride);
    }
    for (const Lookup& lookup : access.lookups) {
      add(lookup.stride);
    }
  }

  Values pointers;
  llvm::Value* table = reader.field(pointer_type, offsetof(Call, pointers));
  llvm::Value* scratch = reader.field(pointer_type, offsetof(Call, scratch));
  for (size_t i = 0; i < kernel.pointers.size(); ++i) {
    pointers.push_back(
        kernel.pointers[i].use == Use::scratch
            ? builder_.CreateInBoundsGEP(builder_.getInt8Ty(), scratch, next_number())
            : reader.read(pointer_type, table, static_cast<int64_t>(8 * i)));
  }
  for (const Access& access : kernel.accesses) {
    start_.push_back(pointers[access.pointer]);
  }

  llvm::Value* arguments = reader.field(pointer_type, offsetof(Call, arguments));
  for (size_t i = 0; i < kernel.arguments.size(); ++i) {
    const Type type = kernel.arguments[i];
    llvm::Value* value = reader.read(code.in_memory(type), arguments, static_cast<int64_t>(8 * i));
    arguments_.push_back(
        type == Type::boolean ? builder_.CreateICmpNE(value, code.integer(value, 0)) : value);
  }

  llvm::Value* row = builder_.getInt64(1);
  for (int32_t d = kernel.outer; d < kernel.rank(); ++d) {
    row = builder_.CreateMul(row, sizes_[d]);
  }
  is_short_ = builder_.CreateICmpULE(row, builder_.getInt64(kShortRow));

  zero_ = builder_.CreateAlloca(integer);
  discard_ = builder_.CreateAlloca(integer);
  builder_.CreateStore(builder_.getInt64(0), zero_);

  // Memory behind different pointers is different memory.
  llvm::MDBuilder metadata(builder_.getContext());
  llvm::MDNode* domain = metadata.createAnonymousAliasScopeDomain();
  std::vector<llvm::Metadata*> scopes;
  for (size_t i = 0; i <= kernel.pointers.size(); ++i) {
    scopes.push_back(metadata.createAnonymousAliasScope(domain));
  }
  for (size_t i = 0; i < scopes.size(); ++i) {
    std::vector<llvm::Metadata*> others = scopes;
    others.erase(others.begin() + static_cast<std::ptrdiff_t>(i));
    scopes_.push_back(llvm::MDNode::get(builder_.getContext(), {scopes[i]}));
    others_.push_back(llvm::MDNode::get(builder_.getContext(), others));
  }
}

llvm::Instruction* Memory::mark(llvm::Instruction* instruction, int32_t pointer) const {
  instruction->setMetadata(llvm::LLVMContext::MD_alias_scope, scopes_[pointer]);
  instruction->setMetadata(llvm::LLVMContext::MD_noalias, others_[pointer]);
  return instruction;
}

llvm::Type* Memory::type(const Access& access) const {
  return code_.in_memory(kernel_.pointers[access.pointer].type);
}

llvm::Align Memory::alignment(const Access& access) const {
  return llvm::Align(size_of(kernel_.pointers[access.pointer].type));
}

llvm::Value* Memory::moved(llvm::Value* pointer, int32_t access, size_t place,
                           llvm::Value* index) const {
  llvm::Value* step = stride(access, place);
  if (!step) {
    return pointer;
  }
  if (!llvm::isa<llvm::Constant>(step)) {  // one is the only constant
    index = builder_.CreateMul(index, step, "", false, /*HasNSW=*/true);
  }
  return builder_.CreateInBoundsGEP(type(kernel_.accesses[access]), pointer, index);
}

void Memory::advance(Bases& bases, const std::vector<int32_t>& accesses, int32_t dimension,
                     llvm::Value* index) const {
  for (int32_t access : accesses) {
    bases[access] = moved(bases[access], access, dimension, index);
  }
}

Memory::Address Memory::address(const Bases& bases, int32_t number, const Place& place) const {
  const Access& access = kernel_.accesses[number];
  Address address{bases[number]};
  for (size_t i = 0; i < access.lookups.size(); ++i) {
    const size_t where = access.strides.size() + i;
    llvm::Value* value = (*place.values)[access.lookups[i].value];
    if (!value->getType()->isVectorTy()) {
      address.pointer = moved(address.pointer, number, where, value);
    } else if (llvm::Value* step = stride(number, where)) {
      llvm::Value* offsets = builder_.CreateMul(value, code_.splat(step));
      address.offsets = address.offsets ? builder_.CreateAdd(address.offsets, offsets) : offsets;
    }
  }
  llvm::Value* step = place.lane ? stride(number, lane_dimension_) : nullptr;
  if (step) {
    address.pointer = moved(address.pointer, number, lane_dimension_, place.lane);
    address.side_by_side = access.strides[lane_dimension_] == Stride::one && !address.offsets;
    if (!address.side_by_side) {
      llvm::Value* offsets =
          builder_.CreateMul(code_.iota(builder_.getInt64Ty()), code_.splat(step));
      address.offsets = address.offsets ? builder_.CreateAdd(address.offsets, offsets) : offsets;
    }
  }
  return address;
}

llvm::Value* Memory::vector_mask(const Access& access, const Place& place) const {
  if (access.mask < 0) {
    return place.mask;
  }
  llvm::Value* mask = code_.splat((*place.values)[access.mask]);
  return place.mask ? builder_.CreateAnd(mask, place.mask) : mask;
}

/// Of one element for all lanes: `otherwise` when none of them wants it.
llvm::Value* Memory::scalar_pointer(llvm::Value* pointer, const Access& access, const Place& place,
                                    llvm::Value* otherwise) const {
  if (access.mask < 0) {
    return pointer;  // at least one lane is there
  }
  llvm::Value* mask = (*place.values)[access.mask];
  if (mask->getType()->isVectorTy() && place.mask) {
    mask = builder_.CreateAnd(mask, place.mask);
  }
  return builder_.CreateSelect(code_.any(mask), pointer, otherwise);
}

/// Where the target has no masks for such elements LLVM would test and branch for each lane.
bool Memory::goes_one_by_one(const Access& access, const Place& place, llvm::Type* element) const {
  const int bytes = static_cast<int>(element->getScalarSizeInBits()) / 8;
  return place.mask && access.mask < 0 && bytes < code_.features.masked_bytes;
}

/// Memory on the stack for one vector.
llvm::Value* Memory::buffer(llvm::Type* vector) const {
  llvm::BasicBlock& entry = builder_.GetInsertBlock()->getParent()->getEntryBlock();
  llvm::IRBuilder<> at_entry(&entry, entry.begin());
  return at_entry.CreateAlloca(vector);
}

llvm::Value* Memory::load_one_by_one(llvm::Value* from, const Access& access,
                                     const Place& place) const {
  llvm::Type* element = type(access);
  llvm::Type* vector = llvm::FixedVectorType::get(element, code_.lanes);
  llvm::Value* copy = buffer(vector);
  builder_.CreateStore(llvm::Constant::getNullValue(vector), copy);
  code_.entered_loop(
      code_.index(0), place.count, code_.index(1), {}, [&](llvm::Value* i, const Values&) {
        auto* value = builder_.CreateAlignedLoad(
            element, builder_.CreateInBoundsGEP(element, from, i), alignment(access));
        mark(value, access.pointer);
        builder_.CreateStore(value, builder_.CreateInBoundsGEP(element, copy, i));
        return Values();
      });
  return builder_.CreateLoad(vector, copy);
}

void Memory::store_one_by_one(llvm::Value* value, llvm::Value* to, const Access& access,
                              const Place& place) const {
  llvm::Type* element = type(access);
  llvm::Value* copy = buffer(value->getType());
  builder_.CreateStore(value, copy);
  code_.entered_loop(
      code_.index(0), place.count, code_.index(1), {}, [&](llvm::Value* i, const Values&) {
        auto* one = builder_.CreateLoad(element, builder_.CreateInBoundsGEP(element, copy, i));
        mark(builder_.CreateAlignedStore(one, builder_.CreateInBoundsGEP(element, to, i),
                                         alignment(access)),
             access.pointer);
        return Values();
      });
}

llvm::Value* Memory::load(const Bases& bases, int32_t number, const Place& place) const {
  const Access& access = kernel_.accesses[number];
  const Address from = address(bases, number, place);
  llvm::Type* element = type(access);
  llvm::Value* result;
  if (from.side_by_side && goes_one_by_one(access, place, element)) {
    result = load_one_by_one(from.pointer, access, place);
  } else if (from.side_by_side || from.offsets) {
    llvm::Type* vector = llvm::FixedVectorType::get(element, code_.lanes);
    llvm::Value* mask = vector_mask(access, place);
    llvm::Constant* zero = llvm::Constant::getNullValue(vector);
    llvm::Instruction* load;
    if (from.offsets) {
      llvm::Value* pointers = builder_.CreateInBoundsGEP(element, from.pointer, from.offsets);
      load = builder_.CreateMaskedGather(vector, pointers, alignment(access), mask,
                                         mask ? zero : nullptr);
    } else if (mask) {
      load = builder_.CreateMaskedLoad(vector, from.pointer, alignment(access), mask, zero);
    } else {
      load = builder_.CreateAlignedLoad(vector, from.pointer, alignment(access));
    }
    result = mark(load, access.pointer);
  } else {
    llvm::Value* pointer = scalar_pointer(from.pointer, access, place, zero_);
    result = mark(builder_.CreateAlignedLoad(element, pointer, alignment(access)), access.pointer);
    llvm::Value* mask = access.mask < 0 ? nullptr : (*place.values)[access.mask];
    if (mask && mask->getType()->isVectorTy()) {
      result = code_.splat(result);
      result = builder_.CreateSelect(mask, result, llvm::Constant::getNullValue(result->getType()));
    }
  }
  if (kernel_.pointers[access.pointer].type == Type::boolean) {
    result = builder_.CreateICmpNE(result, code_.integer(result, 0));
  }
  return result;
}

void Memory::store(const Bases& bases, int32_t number, const Place& place,
                   llvm::Value* value) const {
  const Access& access = kernel_.accesses[number];
  Address to = address(bases, number, place);
  llvm::Type* element = type(access);
  if (kernel_.pointers[access.pointer].type == Type::boolean) {
    value = builder_.CreateZExt(value, Code::shaped(value, element));
  }
  if (!to.side_by_side && !to.offsets && value->getType()->isVectorTy()) {
    // Many lanes into one element: scattered in their order, so the last one stays.
    to.offsets = code_.splat(builder_.getInt64(0));
  }
  if (!to.side_by_side && !to.offsets) {
    llvm::Value* pointer = scalar_pointer(to.pointer, access, place, discard_);
    mark(builder_.CreateAlignedStore(value, pointer, alignment(access)), access.pointer);
    return;
  }
  value = code_.splat(value);
  if (to.side_by_side && goes_one_by_one(access, place, element)) {
    store_one_by_one(value, to.pointer, access, place);
    return;
  }
  llvm::Value* mask = vector_mask(access, place);
  llvm::Instruction* store;
  if (to.offsets) {
    llvm::Value* pointers = builder_.CreateInBoundsGEP(element, to.pointer, to.offsets);
    store = builder_.CreateMaskedScatter(value, pointers, alignment(access), mask);
  } else if (mask) {
    store = builder_.CreateMaskedStore(value, to.pointer, alignment(access), mask);
  } else {
    store = builder_.CreateAlignedStore(value, to.pointer, alignment(access));
  }
  mark(store, access.pointer);
}

void Memory::update(const Bases& bases, int32_t number, const Place& place, llvm::Value* value,
                    const Combine& combine) const {
  const Access& access = kernel_.accesses[number];
  llvm::Value* mask = access.mask < 0 ? nullptr : (*place.values)[access.mask];
  if (mask && !mask->getType()->isVectorTy() && mask != builder_.getTrue()) {
    Values values = *place.values;  // all lanes or none: a branch, and inside it no mask
    values[access.mask] = builder_.getTrue();
    Place inside = place;
    inside.values = &values;
    code_.when(mask, {}, [&](const Values&) {
      update(bases, number, inside, value, combine);
      return Values();
    });
    return;
  }
  if (kernel_.lanes == Lanes::outer || !place.lane) {  // a lane is a row: no other has its elements
    store(bases, number, place, combine(load(bases, number, place), value));
    return;
  }
  const Address to = address(bases, number, place);
  llvm::Type* element = type(access);
  llvm::Type* integer = builder_.getInt64Ty();
  auto kept = [&](llvm::Value* vector) {
    llvm::Value* copy = buffer(vector->getType());
    builder_.CreateStore(vector, copy);
    return copy;
  };
  auto one_of = [&](llvm::Type* type, llvm::Value* copy, llvm::Value* lane) {
    return builder_.CreateLoad(type, builder_.CreateInBoundsGEP(type, copy, lane));
  };
  llvm::Value* values = kept(code_.splat(value));
  llvm::Value* offsets = to.offsets        ? kept(to.offsets)
                         : to.side_by_side ? kept(code_.iota(integer))
                                           : nullptr;
  llvm::Value* active = nullptr;
  if (mask && mask->getType()->isVectorTy()) {
    llvm::Type* bytes = llvm::FixedVectorType::get(builder_.getInt8Ty(), code_.lanes);
    active = kept(builder_.CreateZExt(mask, bytes));
  }
  auto update_one = [&](llvm::Value* lane) {
    llvm::Value* pointer = to.pointer;
    if (offsets) {
      pointer = builder_.CreateInBoundsGEP(element, pointer, one_of(integer, offsets, lane));
    }
    auto* old = builder_.CreateAlignedLoad(element, pointer, alignment(access));
    mark(old, access.pointer);
    llvm::Value* made = combine(old, one_of(element, values, lane));
    mark(builder_.CreateAlignedStore(made, pointer, alignment(access)), access.pointer);
    return Values();
  };
  llvm::Value* count = place.count ? place.count : code_.index(code_.lanes);
  code_.entered_loop(code_.index(0), count, code_.index(1), {},
                     [&](llvm::Value* lane, const Values&) {
                       if (!active) {
                         return update_one(lane);
                       }
                       llvm::Value* here = one_of(builder_.getInt8Ty(), active, lane);
                       return code_.when(builder_.CreateICmpNE(here, builder_.getInt8(0)), {},
                                         [&](const Values&) { return update_one(lane); });
                     });
}

void Memory::prefetch(llvm::Value* pointer, bool to_write) const {
  const int keep = 3, data = 1;
  builder_.CreateIntrinsic(llvm::Intrinsic::prefetch, {builder_.getPtrTy()},
                           {pointer, builder_.getInt32(to_write ? 1 : 0), builder_.getInt32(keep),
                            builder_.getInt32(data)});
}

void Memory::fetch(const Bases& bases, int32_t number, const Place& place) const {
  prefetch(address(bases, number, place).pointer, /*to_write=*/true);
}

void Memory::fetch_of_next(const Bases& bases, int32_t number, const Place& place) const {
  // Behind the last row there may be other memory: an address only, nothing is read.
  llvm::Value* next =
      builder_.CreateGEP(type(kernel_.accesses[number]), address(bases, number, place).pointer,
                         stride(number, kernel_.outer - 1));
  prefetch(builder_.CreateSelect(is_short_, next, bases[number]), /*to_write=*/false);
}

void Memory::report(int64_t status) const {
  // Threads may report at once; any of their reports will do.
  auto* store = builder_.CreateAlignedStore(builder_.getInt64(status), status_, llvm::Align(8));
  store->setAtomic(llvm::AtomicOrdering::Monotonic);
  mark(store, static_cast<int32_t>(kernel_.pointers.size()));
}

}  // namespace torch_lazy::codegen
