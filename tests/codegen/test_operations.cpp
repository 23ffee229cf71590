// Every operation for every type it exists for, on vectors and on scalars, against the interpreter.
#include "codegen/llvm/math.h"
#include "codegen/operations.h"
#include "codegen/scalar.h"
#include "problem.h"

#include <cmath>
#include <limits>
#include <random>

namespace torch_lazy::codegen {
namespace {

constexpr int64_t kCount = 1003;  // full vectors and a rest on all targets

/// Values that go wrong easily, and random ones of all sizes.
std::vector<char> values_for(Type type, unsigned seed) {
  std::mt19937_64 random(seed);
  std::vector<char> bytes(kCount * size_of(type));
  const double numbers[] = {0.0,
                            -0.0,
                            1.0,
                            -1.0,
                            0.5,
                            2.0,
                            -2.0,
                            1.5,
                            2.5,
                            -3.5,
                            100.0,
                            -0.0625,
                            1e-10,
                            1e10,
                            -1e30,
                            0x1p31,
                            -0x1p31,
                            0x1p63,
                            -0x1p63,
                            255.5,
                            -129.0,
                            65519.0,
                            65520.0,
                            0x1p-14,
                            0x1p-24,
                            0x1p-25,
                            0x1p-126,
                            0x1p-140,
                            std::numeric_limits<double>::infinity(),
                            -std::numeric_limits<double>::infinity(),
                            std::numeric_limits<double>::quiet_NaN()};
  const int64_t integers[] = {0,  1,   -1,  2,         -2,        3,         7,
                              -8, 127, 128, 255,       -128,      32767,     INT32_MAX,
                              31, 32,  63,  INT32_MIN, INT64_MAX, INT64_MIN, 65};
  for (int64_t i = 0; i < kCount; ++i) {
    const bool special = random() % 4 == 0;
    const int scale = static_cast<int>(random() % 5);
    std::normal_distribution<double> normal(0, std::pow(8.0, scale - 2));
    double number = normal(random);
    int64_t integer = static_cast<int64_t>(random()) >> (random() % 64);
    if (special) {
      number = numbers[random() % std::size(numbers)];
      integer = integers[random() % std::size(integers)];
    }
    if (type == Type::boolean) {
      integer &= 1;
    }
    write_scalar(type, make_scalar(type, number, integer), &bytes[i * size_of(type)]);
  }
  return bytes;
}

/// out = op(in...), element by element: vectors with lanes outer, scalars in a row stage.
Problem element_wise(Opcode op, const std::vector<Type>& inputs, Type output, bool scalars) {
  Problem problem;
  Kernel& kernel = problem.kernel;
  kernel.outer = 1;
  kernel.lanes = scalars ? Lanes::inner : Lanes::outer;
  Instruction operation;
  operation.op = op;
  operation.type = output;
  for (size_t i = 0; i < inputs.size(); ++i) {
    kernel.pointers.push_back({inputs[i], Use::read});
    kernel.accesses.push_back({static_cast<int32_t>(i), {Stride::one}, {}, -1});
    Instruction load;
    load.op = Opcode::load;
    load.type = inputs[i];
    load.place = static_cast<int32_t>(i);
    operation.operands[i] = static_cast<int32_t>(i);
    kernel.code.push_back(load);
    problem.memory.push_back(values_for(inputs[i], static_cast<unsigned>(7 * i + 1)));
  }
  kernel.code.push_back(operation);
  const auto last = static_cast<int32_t>(inputs.size());
  kernel.pointers.push_back({output, Use::write});
  kernel.accesses.push_back({last, {Stride::one}, {}, -1});
  Instruction store;
  store.op = Opcode::store;
  store.type = output;
  store.place = last;
  store.operands[0] = last;
  kernel.code.push_back(store);
  kernel.stages.push_back({Stage::Kind::row, 0, static_cast<int32_t>(kernel.code.size())});
  problem.memory.emplace_back(kCount * size_of(output));
  problem.sizes = {kCount};
  problem.tile = 320;
  return problem;
}

/// The divisor is never 0.
void avoid_zero(Type type, std::vector<char>& bytes) {
  for (size_t i = 0; i < bytes.size(); i += size_of(type)) {
    if (read_scalar(type, &bytes[i]).integer == 0) {
      write_scalar(type, make_scalar(type, 1, 1), &bytes[i]);
    }
  }
}

struct Case {
  Opcode op;
  Type type;
};

class Operations : public ::testing::TestWithParam<Case> {};

TEST_P(Operations, LikeTheInterpreter) {
  const auto [op, type] = GetParam();
  const Operation& row = operation(op);
  std::vector<Type> inputs(row.operands, type);
  if (op == Opcode::select) {
    inputs[0] = Type::boolean;
  }
  const Type output = row.result == Operation::Result::boolean ? Type::boolean : type;
  Tolerance tolerance;
  if (is_mathematics(op)) {
    tolerance.ulps = 16;  // test_math.cpp has the exact figures
  }
  if (op == Opcode::lgamma || op == Opcode::digamma) {  // near their zeros
    tolerance.absolute = type == Type::f64 ? 1e-13 : 1e-6;
  }
  if (op == Opcode::fma) {
    tolerance.ulps = 0x1p20;  // two roundings where the target has no other way
    tolerance.absolute = 1e3;
  }
  for (bool scalars : {false, true}) {
    Problem problem = element_wise(op, inputs, output, scalars);
    if (is_integer(type) && op >= Opcode::div_trunc && op <= Opcode::rem_floor) {
      avoid_zero(type, problem.memory[1]);
    }
    expect_same_everywhere(problem, tolerance);
  }
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (int op = static_cast<int>(Opcode::add); op <= static_cast<int>(Opcode::round); ++op) {
    for (int type = 0; type < kTypes; ++type) {
      const Case one{static_cast<Opcode>(op), static_cast<Type>(type)};
      if (one.op != Opcode::convert && supports(one.op, one.type)) {
        cases.push_back(one);
      }
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, Operations, ::testing::ValuesIn(all_cases()), [](const auto& info) {
  return std::string(operation(info.param.op).name) + "_" + type_name(info.param.type);
});

class Conversions : public ::testing::TestWithParam<Case> {};

TEST_P(Conversions, LikeTheInterpreter) {
  for (int to = 0; to < kTypes; ++to) {
    SCOPED_TRACE(type_name(static_cast<Type>(to)));
    for (bool scalars : {false, true}) {
      expect_same_everywhere(
          element_wise(Opcode::convert, {GetParam().type}, static_cast<Type>(to), scalars));
    }
  }
}

std::vector<Case> all_types() {
  std::vector<Case> cases;
  for (int type = 0; type < kTypes; ++type) {
    cases.push_back({Opcode::convert, static_cast<Type>(type)});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(From, Conversions, ::testing::ValuesIn(all_types()),
                         [](const auto& info) { return type_name(info.param.type); });

// Constants, arguments, indices and extents of all types, stored.
TEST(Leaves, LikeTheInterpreter) {
  for (int t = 0; t < kTypes; ++t) {
    const Type type = static_cast<Type>(t);
    const std::string name = type_name(type);
    const std::string value = is_float(type) ? "0x1.921fb6p+1" : type == Type::boolean ? "1" : "77";
    Problem problem;
    problem.kernel =
        parse("kernel outer 1 inner 0 lanes outer\npointer 0 " + name + " write\npointer 1 " +
              name + " write\nargument 0 i8\nargument 1 " + name +
              "\naccess 0 pointer 0 [1]\naccess 1 pointer 1 [1]\nstage row\n" + "  %0 = constant " +
              name + " " + value + "\n  store " + name + " access 0 %0\n  %2 = argument " + name +
              " 1\n  store " + name + " access 1 %2\n");
    problem.sizes = {37};
    problem.tile = 100;
    problem.memory.resize(2, std::vector<char>(37 * size_of(type)));
    problem.add_argument(int8_t{1});
    problem.arguments.push_back(0);
    write_scalar(type, make_scalar(type, -2.5, 1), &problem.arguments.back());
    expect_same_everywhere(problem);
  }
}

TEST(Leaves, IndicesAndExtents) {
  Problem problem;
  problem.kernel = parse(R"(kernel outer 2 inner 1 lanes outer
pointer 0 i64 write
access 0 pointer 0 [*, 1, *]
stage each
  %0 = index i64 0
  %1 = index i64 1
  %2 = index i64 2
  %3 = extent i64 1
  %4 = extent i64 2
  %5 = mul i64 %0 %3
  %6 = add i64 %5 %1
  %7 = mul i64 %6 %4
  %8 = add i64 %7 %2
  store i64 access 0 %8
)");
  problem.sizes = {3, 21, 5};
  problem.strides = {{21 * 5, 21}};
  problem.tile = 8;
  problem.memory = {std::vector<char>(3 * 21 * 5 * 8)};
  expect_same_everywhere(problem);
}

// The table of operations promises what the emitter has.
TEST(Operations, TableAgreesWithMathematics) {
  for (int op = static_cast<int>(Opcode::exp); op <= static_cast<int>(Opcode::round); ++op) {
    const auto opcode = static_cast<Opcode>(op);
    EXPECT_EQ(supports(opcode, Type::f32), Math::has(opcode, false)) << operation(opcode).name;
    EXPECT_EQ(supports(opcode, Type::f64), Math::has(opcode, true)) << operation(opcode).name;
  }
}

}  // namespace
}  // namespace torch_lazy::codegen
