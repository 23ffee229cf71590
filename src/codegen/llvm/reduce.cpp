// Accumulators.
#include "codegen/llvm/reduce.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace torch_lazy::codegen {
namespace {

/// No element has this position: of an accumulator without elements.
constexpr int64_t kNowhere = std::numeric_limits<int64_t>::max();

bool prefers_greater(Opcode op) {
  return op == Opcode::reduce_max || op == Opcode::reduce_fmax || op == Opcode::reduce_argmax;
}

}  // namespace

Reduction::Reduction(Code& code, Opcode op, Type type)
    : code_(code),
      builder_(code.builder),
      op_(op),
      type_(type),
      is_position_(op == Opcode::reduce_argmin || op == Opcode::reduce_argmax) {}

llvm::Constant* Reduction::identity() const {
  llvm::Type* element = code_.element(type_);
  const unsigned bits = element->getScalarSizeInBits();
  switch (op_) {
    case Opcode::reduce_sum:
    case Opcode::reduce_any:
      return llvm::Constant::getNullValue(element);
    case Opcode::reduce_prod:
    case Opcode::reduce_all:
      return is_float(type_) ? llvm::ConstantFP::get(element, 1.0)
                             : llvm::ConstantInt::get(element, 1);
    default:
      break;
  }
  const bool greater = prefers_greater(op_);
  if (is_float(type_)) {
    return llvm::ConstantFP::getInfinity(element, /*Negative=*/greater);
  }
  return llvm::ConstantInt::get(element, greater ? llvm::APInt::getSignedMinValue(bits)
                                                 : llvm::APInt::getSignedMaxValue(bits));
}

Values Reduction::start(int count) const {
  Values state{code_.splat(identity(), count)};
  if (is_position_) {
    state.push_back(code_.splat(builder_.getInt64(kNowhere), count));
  }
  return state;
}

llvm::Value* Reduction::combine(llvm::Value* a, llvm::Value* b) const {
  switch (op_) {
    case Opcode::reduce_sum:
      return emit_operation(code_, Opcode::add, type_, a, b, nullptr);
    case Opcode::reduce_prod:
      return emit_operation(code_, Opcode::mul, type_, a, b, nullptr);
    case Opcode::reduce_min:
      return emit_operation(code_, Opcode::min, type_, a, b, nullptr);
    case Opcode::reduce_max:
      return emit_operation(code_, Opcode::max, type_, a, b, nullptr);
    case Opcode::reduce_fmax:  // an accumulator is never NaN: one instruction
      return builder_.CreateSelect(builder_.CreateFCmpOGT(a, b), a, b);
    case Opcode::reduce_any:
      return builder_.CreateOr(a, b);
    default:
      return builder_.CreateAnd(a, b);
  }
}

llvm::Value* Reduction::is_nan(llvm::Value* a) const {
  return builder_.CreateFCmpUNO(a, a);
}

llvm::Value* Reduction::is_better(llvm::Value* a, llvm::Value* b) const {
  return emit_operation(code_, prefers_greater(op_) ? Opcode::gt : Opcode::lt, type_, a, b,
                        nullptr);
}

Values Reduction::enter(const Values& state, llvm::Value* value, llvm::Value* position,
                        llvm::Value* mask) const {
  if (!is_position_) {
    if (mask) {
      value = builder_.CreateSelect(mask, value, code_.splat(identity()));
    }
    return {combine(value, state[0])};  // in this order the test for NaN does not wait for the rest
  }
  // Elements come in order, so an equal one is never the first: only better ones enter. Where none
  // is better than the identity, all are equal to it, and `result` says 0.
  llvm::Value* enters = is_better(value, state[0]);
  if (is_float(type_)) {
    llvm::Value* first_nan =
        builder_.CreateAnd(is_nan(value), builder_.CreateNot(is_nan(state[0])));
    enters = builder_.CreateOr(enters, first_nan);
  }
  if (mask) {
    enters = builder_.CreateAnd(enters, mask);
  }
  return {builder_.CreateSelect(enters, value, state[0]),
          builder_.CreateSelect(enters, position, state[1])};
}

int Reduction::scan_lanes() const {
  return std::min(code_.lanes, code_.features.vector_bytes / size_of(type_));
}

llvm::Value* Reduction::scan(Values& state, llvm::Value* value, llvm::Value* mask) const {
  const int lanes = code_.lanes;
  llvm::Value* nothing = code_.splat(identity());
  if (mask) {
    value = builder_.CreateSelect(mask, value, nothing);
  }
  if (op_ == Opcode::reduce_prod && is_float(type_)) {
    // A product of some elements may be infinite where what comes before them is 0.
    llvm::Value* total = builder_.CreateExtractElement(state[0], uint64_t{0});
    llvm::Value* totals = llvm::PoisonValue::get(value->getType());
    for (int lane = 0; lane < lanes; ++lane) {
      total = combine(total, builder_.CreateExtractElement(value, lane));
      totals = builder_.CreateInsertElement(totals, total, lane);
    }
    state[0] = builder_.CreateVectorSplat(scan_lanes(), total);
    return totals;
  }
  // A register at a time: of neighbours, then of neighbouring pairs and so on, the upper half takes
  // the total of the lower one.
  const int width = scan_lanes();
  auto part = [&](llvm::Value* vector, int first) {
    std::vector<int> places(width);
    std::iota(places.begin(), places.end(), first);
    return builder_.CreateShuffleVector(vector, places);
  };
  nothing = part(nothing, 0);
  Values totals;
  for (int first = 0; first < lanes; first += width) {
    llvm::Value* total = part(value, first);
    std::vector<int> places(width);
    for (int half = 1; half < width; half *= 2) {
      for (int lane = 0; lane < width; ++lane) {
        places[lane] = lane & half ? (lane & -half) - 1 : width + lane;
      }
      total = combine(builder_.CreateShuffleVector(total, nothing, places), total);
    }
    totals.push_back(combine(state[0], total));
    std::fill(places.begin(), places.end(), width - 1);
    // The next register waits for one operation of this one only.
    state[0] = combine(state[0], builder_.CreateShuffleVector(total, places));
  }
  for (int count = width; totals.size() > 1; count *= 2) {
    std::vector<int> places(2 * count);
    std::iota(places.begin(), places.end(), 0);
    for (size_t i = 0; 2 * i < totals.size(); ++i) {
      totals[i] = builder_.CreateShuffleVector(totals[2 * i], totals[2 * i + 1], places);
    }
    totals.resize(totals.size() / 2);
  }
  return totals[0];
}

Values Reduction::join(const Values& a, const Values& b) const {
  if (!is_position_) {
    return {combine(a[0], b[0])};
  }
  // The better number; NaN before all; of equals the one that comes first.
  llvm::Value* first = builder_.CreateICmpSLT(a[1], b[1]);
  llvm::Value* better = is_better(a[0], b[0]);
  llvm::Value* equal = emit_operation(code_, Opcode::eq, type_, a[0], b[0], nullptr);
  llvm::Value* take = builder_.CreateOr(better, builder_.CreateAnd(equal, first));
  if (is_float(type_)) {
    llvm::Value* nan_a = is_nan(a[0]);
    llvm::Value* nan_b = is_nan(b[0]);
    llvm::Value* take_nan =
        builder_.CreateAnd(nan_a, builder_.CreateOr(builder_.CreateNot(nan_b), first));
    take = builder_.CreateOr(take, take_nan);
  }
  return {builder_.CreateSelect(take, a[0], b[0]), builder_.CreateSelect(take, a[1], b[1])};
}

Values Reduction::join_lanes(Values state) const {
  auto* type = llvm::dyn_cast<llvm::FixedVectorType>(state[0]->getType());
  for (int count = type ? static_cast<int>(type->getNumElements()) : 1; count > 1; count /= 2) {
    Values low, high;
    for (llvm::Value* part : state) {
      if (count == 2) {
        low.push_back(builder_.CreateExtractElement(part, uint64_t{0}));
        high.push_back(builder_.CreateExtractElement(part, uint64_t{1}));
        continue;
      }
      std::vector<int> places(count / 2);
      for (int i = 0; i < count / 2; ++i) {
        places[i] = i;
      }
      low.push_back(builder_.CreateShuffleVector(part, places));
      for (int& place : places) {
        place += count / 2;
      }
      high.push_back(builder_.CreateShuffleVector(part, places));
    }
    state = join(low, high);
  }
  return state;
}

llvm::Value* Reduction::result(const Values& state) const {
  if (!is_position_) {
    return state[0];
  }
  llvm::Value* none = builder_.CreateICmpEQ(state[1], code_.integer(state[1], kNowhere));
  return builder_.CreateSelect(none, code_.integer(state[1], 0), state[1]);
}

}  // namespace torch_lazy::codegen
