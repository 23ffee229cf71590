// Reductions: all of them, for all types, along lanes and across them, for sizes around a vector's.
#include "codegen/operations.h"
#include "codegen/scalar.h"
#include "problem.h"

#include <limits>
#include <random>

namespace torch_lazy::codegen {
namespace {

/// out[row] = reduce(in[row, ...]) with `inner` dimensions.
Problem reduction(Opcode op, Type type, Lanes lanes, int64_t rows, std::vector<int64_t> inner,
                  bool with_nan) {
  const Type result = operation(op).result == Operation::Result::i64 ? Type::i64 : type;
  Problem problem;
  Kernel& kernel = problem.kernel;
  kernel.outer = 1;
  kernel.inner = static_cast<int32_t>(inner.size());
  kernel.lanes = lanes;
  kernel.pointers = {{type, Use::read}, {result, Use::write}};
  kernel.accesses.resize(2);
  kernel.accesses[0].pointer = 0;
  kernel.accesses[0].strides.assign(kernel.rank(), Stride::argument);
  kernel.accesses[1].pointer = 1;
  kernel.accesses[1].strides.assign(kernel.rank(), Stride::zero);
  kernel.accesses[1].strides[0] = Stride::one;
  int64_t count = 1;
  for (int64_t size : inner) {
    count *= size;
  }
  std::vector<int64_t> strides(kernel.rank());
  if (lanes == Lanes::inner) {  // rows lie one after the other
    strides[0] = count;
    int64_t step = 1;
    for (size_t d = inner.size(); d-- > 0; step *= inner[d]) {
      strides[d + 1] = step;
    }
    kernel.accesses[0].strides.back() = Stride::one;
    strides.pop_back();
  } else {  // they lie side by side
    int64_t step = rows;
    for (size_t d = inner.size(); d-- > 0; step *= inner[d]) {
      strides[d + 1] = step;
    }
    kernel.accesses[0].strides[0] = Stride::one;
    strides.erase(strides.begin());
  }
  problem.strides = {strides, {}};
  Instruction load;
  load.op = Opcode::load;
  load.type = type;
  load.place = 0;
  Instruction reduce;
  reduce.op = op;
  reduce.type = result;
  reduce.operands[0] = 0;
  Instruction store;
  store.op = Opcode::store;
  store.type = result;
  store.place = 1;
  store.operands[0] = 1;
  kernel.code = {load, reduce, store};
  kernel.stages = {{Stage::Kind::each, 0, 2}, {Stage::Kind::row, 2, 3}};
  problem.sizes = inner;
  problem.sizes.insert(problem.sizes.begin(), rows);
  problem.tile = rows > 500 ? 1000 : 96;

  std::mt19937_64 random(rows * 1000 + count);
  std::vector<char> values(rows * count * size_of(type));
  for (int64_t i = 0; i < rows * count; ++i) {
    // Small numbers: a product does not overflow, and sums are exact in any order.
    int64_t number = static_cast<int64_t>(random() % 9) - 4;
    if (op == Opcode::reduce_prod) {
      number = random() % 8 == 0 ? 2 : random() % 2 ? 1 : -1;
    }
    if (type == Type::boolean) {
      number = random() % static_cast<uint64_t>(count) == 0;
      number ^= op == Opcode::reduce_all;
    }
    double value = static_cast<double>(number);
    if (with_nan && random() % static_cast<uint64_t>(2 * count) == 0) {
      value = std::numeric_limits<double>::quiet_NaN();
    }
    write_scalar(type, make_scalar(type, value, number), &values[i * size_of(type)]);
  }
  problem.memory = {values, std::vector<char>(rows * size_of(result), 0x55)};
  return problem;
}

class Reductions : public ::testing::TestWithParam<Opcode> {};

TEST_P(Reductions, LikeTheInterpreter) {
  for (int t = 0; t < kTypes; ++t) {
    const Type type = static_cast<Type>(t);
    if (!supports(GetParam(), type)) {
      continue;
    }
    for (Lanes lanes : {Lanes::inner, Lanes::outer}) {
      SCOPED_TRACE(std::string(type_name(type)) + (lanes == Lanes::inner ? " inner" : " outer"));
      for (int dimensions : {1, 2}) {
        std::vector<std::vector<int64_t>> shapes = {{5, 0}, {0, 5}, {7, 3}, {2, 130}, {3, 16}};
        if (dimensions == 1) {
          shapes = {{0}, {1}, {3}, {16}, {17}, {64}, {65}, {127}, {1000}};
        }
        // One kernel for all shapes: it is compiled once.
        const Kernel kernel = reduction(GetParam(), type, lanes, 1, shapes[0], false).kernel;
        for (const std::string& target : runnable_targets()) {
          const Machine machine(target, kernel);
          for (const auto& shape : shapes) {
            for (int64_t rows : {0, 1, 5, 131, 603}) {
              if (rows > 500 && shape[0] > 100) {
                continue;
              }
              const Problem problem =
                  reduction(GetParam(), type, lanes, rows, shape, is_float(type) && rows > 1);
              const Outcome expected = run_interpreter(problem);
              const Outcome found = run_function(problem, machine.function(), rows == 131 ? 2 : 0);
              ASSERT_TRUE(
                  same(problem.kernel.pointers[1].type, expected.memory[1], found.memory[1]))
                  << target << ", " << rows << " rows of " << shape[0] << "\n"
                  << text(kernel);
            }
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Reductions,
                         ::testing::Values(Opcode::reduce_sum, Opcode::reduce_prod,
                                           Opcode::reduce_min, Opcode::reduce_max,
                                           Opcode::reduce_fmax, Opcode::reduce_any,
                                           Opcode::reduce_all, Opcode::reduce_argmin,
                                           Opcode::reduce_argmax),
                         [](const auto& info) { return operation(info.param).name; });

// Rows full of what an accumulator starts with.
TEST(Reductions, ArgmaxOfInfinities) {
  Problem problem = reduction(Opcode::reduce_argmax, Type::f32, Lanes::inner, 3, {100}, false);
  std::vector<float> values(300, -std::numeric_limits<float>::infinity());
  values[200 + 57] = -1e30f;
  problem.memory[0] = bytes_of(values);
  expect_same_everywhere(problem);
  EXPECT_EQ(values_of<int64_t>(run_interpreter(problem).memory[1]),
            (std::vector<int64_t>{0, 0, 57}));
}

// A sum is computed in the same order every time, however the rows are dealt out.
TEST(Reductions, SumsAreReproducible) {
  Problem problem = reduction(Opcode::reduce_sum, Type::f32, Lanes::inner, 40, {1003}, false);
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> values(40 * 1003);
  for (float& value : values) {
    value = normal(random);
  }
  problem.memory[0] = bytes_of(values);
  for (const std::string& target : runnable_targets()) {
    const Machine machine(target, problem.kernel);
    const auto all = run_function(problem, machine.function()).memory[1];
    EXPECT_EQ(all, run_function(problem, machine.function(), 7).memory[1]);
    EXPECT_TRUE(same(Type::f32, run_interpreter(problem).memory[1], all, {64, 1e-5}));
  }
}

// A kernel without outer dimensions is one unit; without any it is one element.
TEST(Reductions, WithoutOuterDimensions) {
  Problem problem;
  problem.kernel = parse(R"(kernel outer 0 inner 1 lanes inner
pointer 0 f32 read
pointer 1 f32 write
access 0 pointer 0 [*]
access 1 pointer 1 [0]
stage each
  %0 = load f32 access 0
  %1 = reduce_sum f32 %0
stage row
  store f32 access 1 %1
)");
  problem.sizes = {45};
  problem.strides = {{2}, {}};
  problem.memory = {bytes_of(std::vector<float>(90, 3)), std::vector<char>(4)};
  expect_same_everywhere(problem);

  problem.kernel = parse(R"(kernel outer 0 inner 0 lanes inner
pointer 0 f32 read
pointer 1 i64 write
pointer 2 f32 write
access 0 pointer 0 []
access 1 pointer 1 []
access 2 pointer 2 []
stage each
  %0 = load f32 access 0
  %1 = reduce_argmax i64 %0
  %2 = reduce_sum f32 %0
stage row
  store i64 access 1 %1
  store f32 access 2 %2
)");
  problem.sizes = {};
  problem.strides = {};
  problem.memory = {bytes_of(std::vector<float>{4}), std::vector<char>(8, 1), std::vector<char>(4)};
  expect_same_everywhere(problem);
}

}  // namespace
}  // namespace torch_lazy::codegen
