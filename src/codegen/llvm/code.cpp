// Types, constants and loops.
#include "codegen/llvm/code.h"

#include "codegen/scalar.h"

#include <cstring>

namespace torch_lazy::codegen {

llvm::Type* Code::element(Type type) {
  switch (type) {
    case Type::f32:
      return builder.getFloatTy();
    case Type::f64:
      return builder.getDoubleTy();
    case Type::boolean:
      return builder.getInt1Ty();
    default:
      return builder.getIntNTy(size_of(type) * 8);
  }
}

llvm::Type* Code::in_memory(Type type) {
  return type == Type::boolean ? builder.getInt8Ty() : element(type);
}

llvm::Value* Code::splat(llvm::Value* value, int count) {
  return value->getType()->isVectorTy() || count == 1 ? value
                                                      : builder.CreateVectorSplat(count, value);
}

void Code::match(std::initializer_list<llvm::Value**> values) {
  int count = 1;
  for (llvm::Value** value : values) {
    if (auto* type = llvm::dyn_cast<llvm::FixedVectorType>((*value)->getType())) {
      count = static_cast<int>(type->getNumElements());
    }
  }
  for (llvm::Value** value : values) {
    *value = splat(*value, count);
  }
}

llvm::Constant* Code::integer(llvm::Value* like, int64_t value) {
  return llvm::ConstantInt::get(like->getType(), static_cast<uint64_t>(value), /*IsSigned=*/true);
}

llvm::Constant* Code::number(llvm::Value* like, double value) {
  return llvm::ConstantFP::get(like->getType(), value);
}

llvm::Type* Code::shaped(llvm::Value* like, llvm::Type* element) {
  return like->getType()->getWithNewType(element);
}

llvm::Constant* Code::constant(const Instruction& instruction) {
  const Type type = instruction.type;
  if (type == Type::f32 || type == Type::f64) {
    return llvm::ConstantFP::get(element(type), instruction.number);
  }
  int64_t bits = instruction.integer;
  if (is_float(type)) {
    uint16_t narrow;
    write_scalar(type, make_scalar(type, instruction.number, 0), &narrow);
    bits = narrow;
  }
  auto* element_type = llvm::cast<llvm::IntegerType>(element(type));
  return llvm::ConstantInt::get(
      element_type,
      llvm::APInt(64, static_cast<uint64_t>(bits)).trunc(element_type->getBitWidth()));
}

llvm::Constant* Code::iota(llvm::Type* element) {
  std::vector<llvm::Constant*> places;
  for (int i = 0; i < lanes; ++i) {
    places.push_back(llvm::ConstantInt::get(element, i));
  }
  return llvm::ConstantVector::get(places);
}

llvm::Value* Code::any(llvm::Value* mask) {
  return mask->getType()->isVectorTy() ? builder.CreateOrReduce(mask) : mask;
}

llvm::BasicBlock* Code::block(const char* name) {
  return llvm::BasicBlock::Create(builder.getContext(), name,
                                  builder.GetInsertBlock()->getParent());
}

static std::vector<llvm::PHINode*> make_phis(llvm::IRBuilder<>& builder, const Values& state) {
  std::vector<llvm::PHINode*> phis;
  for (llvm::Value* value : state) {
    phis.push_back(builder.CreatePHI(value->getType(), 2));
  }
  return phis;
}

static void add_incoming(const std::vector<llvm::PHINode*>& phis, const Values& values,
                         llvm::BasicBlock* from) {
  for (size_t i = 0; i < phis.size(); ++i) {
    phis[i]->addIncoming(values[i], from);
  }
}

Values Code::loop(llvm::Value* from, llvm::Value* to, llvm::Value* step, const Values& state,
                  const std::function<Values(llvm::Value*, const Values&)>& body) {
  // The test is at the end and once before: so what is in the body is known to run when the loop is
  // entered, and what does not change in it can be taken out.
  return when(builder.CreateICmpSLT(from, to), state,
              [&](const Values& entry) { return entered_loop(from, to, step, entry, body); });
}

Values Code::entered_loop(llvm::Value* from, llvm::Value* to, llvm::Value* step,
                          const Values& state,
                          const std::function<Values(llvm::Value*, const Values&)>& body) {
  Values extended = state;
  extended.push_back(from);
  Values last = repeat(extended, [&](const Values& now, llvm::Value*& go_on) {
    Values next = body(now.back(), Values(now.begin(), now.end() - 1));
    next.push_back(builder.CreateAdd(now.back(), step, "", /*HasNUW=*/false, /*HasNSW=*/true));
    go_on = builder.CreateICmpSLT(next.back(), to);
    return next;
  });
  last.pop_back();
  return last;
}

Values Code::repeat(const Values& state,
                    const std::function<Values(const Values&, llvm::Value*& go_on)>& body) {
  llvm::BasicBlock* before = builder.GetInsertBlock();
  llvm::BasicBlock* start = block("loop");
  builder.CreateBr(start);
  builder.SetInsertPoint(start);
  const auto phis = make_phis(builder, state);
  add_incoming(phis, state, before);
  llvm::Value* go_on = nullptr;
  Values next = body(Values(phis.begin(), phis.end()), go_on);
  llvm::BasicBlock* done = block("done");
  add_incoming(phis, next, builder.GetInsertBlock());
  builder.CreateCondBr(go_on, start, done);
  builder.SetInsertPoint(done);
  return next;
}

Values Code::when(llvm::Value* condition, const Values& state,
                  const std::function<Values(const Values&)>& body) {
  llvm::BasicBlock* before = builder.GetInsertBlock();
  llvm::BasicBlock* then = block("then");
  builder.SetInsertPoint(then);
  const Values next = body(state);
  llvm::BasicBlock* last = builder.GetInsertBlock();
  llvm::BasicBlock* after = block("after");
  builder.CreateBr(after);
  builder.SetInsertPoint(before);
  builder.CreateCondBr(condition, then, after);
  builder.SetInsertPoint(after);
  const auto phis = make_phis(builder, state);
  add_incoming(phis, state, before);
  add_incoming(phis, next, last);
  return Values(phis.begin(), phis.end());
}

}  // namespace torch_lazy::codegen
