// Rows with their elements in lanes (lanes inner), or lanes with a row each (lanes outer); both use
// the same code for a stage.
#include "codegen/llvm/stages.h"

#include "codegen/operations.h"

#include <algorithm>

namespace torch_lazy::codegen {

using llvm::Value;

namespace {

/// So many additions one after the other, then their sum is set aside: or the error of a long sum
/// would grow with its length.
constexpr int64_t kSumLength = 128;

}  // namespace

Stages::Stages(Code& code, const Kernel& kernel, const Plan& plan, const Memory& memory)
    : code_(code), builder_(code.builder), kernel_(kernel), plan_(plan), memory_(memory) {}

Values Stages::flatten(const Copies& copies) {
  Values all;
  for (const Copy& copy : copies) {
    for (const Values& accumulator : copy.accumulators) {
      all.insert(all.end(), accumulator.begin(), accumulator.end());
    }
  }
  return all;
}

void Stages::unflatten(Copies& copies, const Values& all) {
  size_t next = 0;
  for (Copy& copy : copies) {
    for (Values& accumulator : copy.accumulators) {
      for (Value*& part : accumulator) {
        part = all[next++];
      }
    }
  }
}

// ---- Lanes --------------------------------------------------------------------------------------

Value* Stages::add(Value* a, Value* b) const {
  return builder_.CreateAdd(a, b, "", /*HasNUW=*/false, /*HasNSW=*/true);
}

Value* Stages::sub(Value* a, Value* b) const {
  return builder_.CreateSub(a, b, "", /*HasNUW=*/false, /*HasNSW=*/true);
}

Value* Stages::least(Value* a, Value* b) const {
  return builder_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, a, b);
}

Value* Stages::next_lane(Value* start, int count) const {
  return count == 0 ? start : add(start, code_.index(int64_t{count} * code_.lanes));
}

/// The first `count` copies stand at `start`. With an `end` (one copy only) it may come before the
/// last lane.
void Stages::set_lanes(Copies& copies, Value* start, Value* end, int count) const {
  for (int i = 0; i < count; ++i) {
    copies[i].lane = next_lane(start, i);
    copies[i].mask = copies[i].count = nullptr;
  }
  if (end) {
    llvm::Type* small = builder_.getIntNTy(code_.features.vector_bytes * 8 / code_.lanes);
    copies[0].count = least(sub(end, start), code_.index(code_.lanes));
    Value* left = builder_.CreateTrunc(copies[0].count, small);
    copies[0].mask = builder_.CreateICmpULT(code_.iota(small), code_.splat(left));
  }
}

// ---- Lanes inner --------------------------------------------------------------------------------

void Stages::run_row(const Values& index, const Memory::Bases& bases) {
  index_ = index;
  row_bases_ = bases;
  Copy row;  // without lanes: what belongs to the row is the same in all of them
  row.values.resize(kernel_.code.size());
  for (size_t stage = 0; stage < kernel_.stages.size(); ++stage) {
    if (kernel_.stages[stage].kind == Stage::Kind::row) {
      run_code(stage, row, row_bases_, nullptr);
    } else {
      each_in_row(stage, row);
    }
  }
}

void Stages::each_in_row(size_t stage, Copy& row) {
  const StagePlan& plan = plan_.stages[stage];
  const bool in_lanes = memory_.lane_dimension() >= 0;
  const int unroll = in_lanes ? std::max(plan.unroll_in_row, 1) : 1;
  Copies copies(unroll);
  for (Copy& copy : copies) {
    copy.values = row.values;
    start(stage, copy);
  }
  Value* position = plan.needs_position ? code_.index(0) : nullptr;
  const int32_t last = in_lanes ? kernel_.rank() - 1 : kernel_.rank();
  nest(stage, kernel_.outer, last, copies, row_bases_, position,
       [&](const Memory::Bases& bases, Value* before) {
         if (in_lanes) {
           elements_of_row(stage, copies, bases, before);
         } else {  // a row of one element
           run_code(stage, copies[0], bases, before);
         }
       });
  for (size_t r = 0; r < plan.carried.size(); ++r) {
    if (is_scan(kernel_.code[plan.carried[r]].op)) {
      continue;  // nothing is left of it after the stage
    }
    const Reduction reduction = this->reduction(plan.carried[r]);
    for (int half = unroll / 2; half > 0; half /= 2) {
      for (int i = 0; i < half; ++i) {
        copies[i].accumulators[r] =
            reduction.join(copies[i].accumulators[r], copies[i + half].accumulators[r]);
      }
    }
    row.values[plan.carried[r]] = reduction.result(reduction.join_lanes(copies[0].accumulators[r]));
  }
}

/// Along the last dimension: several vectors at a time, then one, then what is left of one.
void Stages::elements_of_row(size_t stage, Copies& copies, const Memory::Bases& bases,
                             Value* position) {
  Value* size = memory_.size(kernel_.rank() - 1);
  Value* first = position ? builder_.CreateMul(position, size) : nullptr;
  auto run = [&](Value* start, Value* end, int count) {
    set_lanes(copies, start, end, count);
    for (int i = 0; i < count; ++i) {
      run_code(stage, copies[i], bases, first ? add(first, copies[i].lane) : nullptr);
    }
  };
  auto whole = [&](Value* from, int count, bool is_long) {
    const int64_t lanes = int64_t{count} * code_.lanes;
    Value* end = builder_.CreateAnd(size, code_.index(-lanes));
    accumulate(stage, from, end, code_.index(lanes), copies, is_long,
               [&](Value* start) { run(start, nullptr, count); });
    return end;
  };
  const int unroll = plan_.stages[stage].unroll_in_row;
  Value* from = code_.index(0);
  if (unroll > 0) {
    from = whole(from, unroll, /*is_long=*/true);
  }
  if (unroll > 1 && !code_.features.masks) {
    from = whole(from, 1, /*is_long=*/false);
  }
  auto rest = [&](Value* start) { run(start, size, 1); };
  if (unroll != 1 && code_.features.masks) {  // one loop for all that is left
    accumulate(stage, from, size, code_.index(code_.lanes), copies, /*is_long=*/unroll == 0, rest);
    return;
  }
  unflatten(copies,
            code_.when(builder_.CreateICmpSLT(from, size), flatten(copies), [&](const Values& now) {
              unflatten(copies, now);
              rest(from);
              return flatten(copies);
            }));
}

// ---- Lanes outer --------------------------------------------------------------------------------

/// As many vectors at a time as there are lanes for. Where elements may be computed twice the last
/// ones overlap those before; else what is left goes in smaller steps.
void Stages::run_lanes(const Values& index, const Memory::Bases& bases, Value* from, Value* to) {
  index_ = index;
  row_bases_ = bases;
  Value* length = sub(to, from);
  Value* done = nullptr;
  for (int count : plan_.vectors) {
    const int64_t lanes = int64_t{count} * code_.lanes;
    Value* step = code_.index(lanes);
    auto run = [&](Value* start, const Values&) {
      run_vectors(plan_.can_repeat ? least(start, sub(to, step)) : start, nullptr, count);
      return Values();
    };
    if (plan_.can_repeat) {
      Value* enough = builder_.CreateICmpSGE(length, step);
      Value* here = done ? builder_.CreateAnd(enough, builder_.CreateNot(done)) : enough;
      code_.when(here, {},
                 [&](const Values&) { return code_.entered_loop(from, to, step, {}, run); });
      done = enough;
    } else {
      Value* end = add(from, builder_.CreateAnd(length, code_.index(-lanes)));
      code_.loop(from, end, step, {}, run);
      from = end;
      length = sub(to, from);
      done = builder_.CreateICmpEQ(length, code_.index(0));
    }
  }
  auto rest = [&](Value* start, const Values&) {
    run_vectors(start, to, 1);
    return Values();
  };
  auto all_rest = [&](const Values&) {
    return code_.entered_loop(from, to, code_.index(code_.lanes), {}, rest);
  };
  if (plan_.vectors.empty()) {
    all_rest({});
  } else if (plan_.vectors.back() > 1) {
    code_.when(builder_.CreateNot(done), {}, all_rest);
  } else {  // less than a vector is left
    code_.when(builder_.CreateNot(done), {}, [&](const Values&) { return rest(from, {}); });
  }
}

/// All stages for the rows of some vectors.
void Stages::run_vectors(Value* start, Value* end, int count) {
  Copies copies(count);
  set_lanes(copies, start, end, count);
  for (Copy& copy : copies) {
    copy.values.resize(kernel_.code.size());
  }
  for (size_t stage = 0; stage < kernel_.stages.size(); ++stage) {
    if (kernel_.stages[stage].kind == Stage::Kind::each) {
      each_in_lanes(stage, copies);
      continue;
    }
    for (Copy& copy : copies) {
      run_code(stage, copy, row_bases_, nullptr);
    }
  }
}

void Stages::each_in_lanes(size_t stage, Copies& copies) {
  const StagePlan& plan = plan_.stages[stage];
  for (Copy& copy : copies) {
    start(stage, copy);
  }
  nest(stage, kernel_.outer, kernel_.rank(), copies, row_bases_,
       plan.needs_position ? code_.index(0) : nullptr,
       [&](const Memory::Bases& bases, Value* position) {
         for (Copy& copy : copies) {
           run_code(stage, copy, bases, position);
         }
       });
  for (Copy& copy : copies) {
    for (size_t r = 0; r < plan.carried.size(); ++r) {
      const int32_t place = plan.carried[r];
      if (is_reduction(kernel_.code[place].op)) {
        copy.values[place] = reduction(place).result(copy.accumulators[r]);
      }
    }
    copy.accumulators.clear();
  }
}

// ---- Loops --------------------------------------------------------------------------------------

/// Loops over the dimensions from `dimension` to `end`, one index after the other.
void Stages::nest(size_t stage, int32_t dimension, int32_t end, Copies& copies,
                  const Memory::Bases& bases, Value* position, const Leaf& leaf) {
  if (dimension == end) {
    leaf(bases, position);
    return;
  }
  Value* size = memory_.size(dimension);
  accumulate(stage, code_.index(0), size, code_.index(1), copies, /*is_long=*/true, [&](Value* i) {
    index_[dimension] = i;
    Memory::Bases inside = bases;
    memory_.advance(inside, plan_.stages[stage].accesses, dimension, i);
    Value* next = position ? add(builder_.CreateMul(position, size), i) : nullptr;
    nest(stage, dimension + 1, end, copies, inside, next, leaf);
  });
}

/// A loop that carries the accumulators of the copies.
void Stages::accumulate(size_t stage, Value* from, Value* to, Value* step, Copies& copies,
                        bool is_long, const std::function<void(Value*)>& body) {
  auto one = [&](Value* i, const Values& now) {
    unflatten(copies, now);
    body(i);
    return flatten(copies);
  };
  const StagePlan& plan = plan_.stages[stage];
  if (!plan.sums_floats || !is_long) {
    unflatten(copies, code_.loop(from, to, step, flatten(copies), one));
    return;
  }
  Value* length = builder_.CreateMul(step, code_.index(kSumLength));
  auto some = [&](Value* i, const Values& now) {
    unflatten(copies, now);
    const Copies before = copies;
    for (Copy& copy : copies) {
      start(stage, copy, /*sums_only=*/true);
    }
    Value* end = least(add(i, length), to);
    unflatten(copies, code_.entered_loop(i, end, step, flatten(copies), one));
    for (size_t r = 0; r < plan.carried.size(); ++r) {
      if (is_float_sum(plan.carried[r])) {
        for (size_t c = 0; c < copies.size(); ++c) {
          Values& sum = copies[c].accumulators[r];
          sum = reduction(plan.carried[r]).join(before[c].accumulators[r], sum);
        }
      }
    }
    return flatten(copies);
  };
  unflatten(copies, code_.loop(from, to, length, flatten(copies), some));
}

// ---- Accumulators -------------------------------------------------------------------------------

/// Of a scan: what it would be as a reduction.
Reduction Stages::reduction(int32_t place) const {
  const Instruction& instruction = kernel_.code[place];
  const Opcode op = instruction.op == Opcode::scan_sum    ? Opcode::reduce_sum
                    : instruction.op == Opcode::scan_prod ? Opcode::reduce_prod
                                                          : instruction.op;
  return Reduction(code_, op, kernel_.code[instruction.operands[0]].type);
}

bool Stages::is_float_sum(int32_t place) const {
  return kernel_.code[place].op == Opcode::reduce_sum && is_float(kernel_.code[place].type);
}

/// A scan that goes from lane to lane.
bool Stages::is_along_lanes(int32_t place) const {
  return is_scan(kernel_.code[place].op) && kernel_.lanes == Lanes::inner;
}

/// Empties the accumulators, all or those of float sums.
void Stages::start(size_t stage, Copy& copy, bool sums_only) {
  const std::vector<int32_t>& carried = plan_.stages[stage].carried;
  copy.accumulators.resize(carried.size());
  for (size_t r = 0; r < carried.size(); ++r) {
    if (sums_only && !is_float_sum(carried[r])) {
      continue;
    }
    const Reduction reduction = this->reduction(carried[r]);
    const int lanes = memory_.lane_dimension() < 0 ? 1
                      : is_along_lanes(carried[r]) ? reduction.scan_lanes()
                                                   : code_.lanes;
    copy.accumulators[r] = reduction.start(lanes);
  }
}

// ---- Instructions -------------------------------------------------------------------------------

void Stages::run_code(size_t stage, Copy& copy, const Memory::Bases& bases, Value* position) {
  for (int32_t access : plan_.stages[stage].fetched) {
    memory_.fetch(bases, access, {copy.lane, copy.mask, copy.count, &copy.values});
  }
  for (int32_t access : plan_.stages[stage].fetched_of_next) {
    memory_.fetch_of_next(bases, access, {copy.lane, copy.mask, copy.count, &copy.values});
  }
  size_t next = 0;
  for (int32_t i = kernel_.stages[stage].begin; i < kernel_.stages[stage].end; ++i) {
    const Instruction& instruction = kernel_.code[i];
    if (!is_reduction(instruction.op) && !is_scan(instruction.op)) {
      copy.values[i] = emit_instruction(instruction, copy, bases);
      continue;
    }
    Values& accumulator = copy.accumulators[next++];
    Value* value = copy.values[instruction.operands[0]];
    Value* at = position;
    if (copy.lane) {
      value = code_.splat(value);
      at = at ? code_.splat(at) : nullptr;
      if (at && kernel_.lanes == Lanes::inner) {
        at = builder_.CreateAdd(at, code_.iota(builder_.getInt64Ty()));
      }
    }
    // With lanes outer a lane that is not there has an accumulator of its own, which nobody reads.
    Value* mask = kernel_.lanes == Lanes::inner ? copy.mask : nullptr;
    if (copy.lane && is_along_lanes(i)) {
      copy.values[i] = reduction(i).scan(accumulator, value, mask);
      continue;
    }
    accumulator = reduction(i).enter(accumulator, value, at, mask);
    if (is_scan(instruction.op)) {
      copy.values[i] = accumulator[0];
    }
  }
}

Value* Stages::emit_instruction(const Instruction& instruction, Copy& copy,
                                const Memory::Bases& bases) {
  const Place place{copy.lane, copy.mask, copy.count, &copy.values};
  Value* operands[3] = {};
  Type type = instruction.type;
  for (int i = 0; i < operation(instruction.op).operands; ++i) {
    operands[i] = copy.values[instruction.operands[i]];
    type = kernel_.code[instruction.operands[i]].type;  // of select: that of the last
  }
  switch (instruction.op) {
    case Opcode::constant:
      return code_.constant(instruction);
    case Opcode::argument:
      return memory_.argument(instruction.place);
    case Opcode::extent:
      return memory_.size(instruction.place);
    case Opcode::index:
      if (instruction.place == memory_.lane_dimension()) {
        return builder_.CreateAdd(code_.splat(copy.lane), code_.iota(builder_.getInt64Ty()));
      }
      return index_[instruction.place];
    case Opcode::load:
      return memory_.load(bases, instruction.place, place);
    case Opcode::store:
      memory_.store(bases, instruction.place, place, operands[0]);
      return nullptr;
    case Opcode::accumulate: {
      const Type wide = compute_type(type);
      memory_.update(bases, instruction.place, place, operands[0], [&](Value* old, Value* value) {
        Value* sum = emit_operation(code_, Opcode::add, wide, emit_convert(code_, old, type, wide),
                                    emit_convert(code_, value, type, wide), nullptr);
        return emit_convert(code_, sum, wide, type);
      });
      return nullptr;
    }
    case Opcode::check: {
      Value* wrong = builder_.CreateNot(operands[0]);
      if (copy.mask && wrong->getType()->isVectorTy()) {
        wrong = builder_.CreateAnd(wrong, copy.mask);
      }
      code_.when(code_.any(wrong), {}, [&](const Values&) {
        memory_.report(instruction.place + 1);
        return Values();
      });
      return nullptr;
    }
    case Opcode::convert:
      return emit_convert(code_, operands[0], type, instruction.type);
    default:
      return emit_operation(code_, instruction.op, type, operands[0], operands[1], operands[2]);
  }
}

}  // namespace torch_lazy::codegen
