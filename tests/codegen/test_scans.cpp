// Scans: sums and products up to each element, along lanes and across them, for sizes around a
// vector's.
#include "codegen/operations.h"
#include "codegen/scalar.h"
#include "problem.h"

#include <random>

namespace torch_lazy::codegen {
namespace {

/// out[row, ...] = scan(in[row, ...]), and beside it the row's sum, with `inner` dimensions.
Problem scan(Opcode op, Type type, Lanes lanes, int64_t rows, const std::vector<int64_t>& inner) {
  Problem problem;
  Kernel& kernel = problem.kernel;
  kernel.outer = 1;
  kernel.inner = static_cast<int32_t>(inner.size());
  kernel.lanes = lanes;
  kernel.pointers = {{type, Use::read}, {type, Use::write}, {type, Use::write}};
  kernel.accesses.resize(3);
  std::vector<int64_t> strides(kernel.rank());
  int64_t count = 1;
  int64_t step = lanes == Lanes::inner ? 1 : rows;
  for (size_t d = inner.size(); d-- > 0; step *= inner[d]) {
    strides[d + 1] = step;
    count *= inner[d];
  }
  // Rows lie one after the other, or side by side.
  const size_t dense = lanes == Lanes::inner ? inner.size() : 0;
  strides[0] = count;
  strides.erase(strides.begin() + static_cast<std::ptrdiff_t>(dense));
  for (int i = 0; i < 3; ++i) {
    kernel.accesses[i].pointer = i;
    kernel.accesses[i].strides.assign(kernel.rank(), i < 2 ? Stride::argument : Stride::zero);
    kernel.accesses[i].strides[i < 2 ? dense : 0] = Stride::one;
  }
  problem.strides = {strides, strides, {}};
  auto add = [&](Opcode made, int32_t place, int32_t operand) {
    Instruction instruction;
    instruction.op = made;
    instruction.type = type;
    instruction.place = place;
    instruction.operands[0] = operand;
    kernel.code.push_back(instruction);
  };
  add(Opcode::load, 0, -1);
  add(op, -1, 0);
  add(Opcode::reduce_sum, -1, 0);
  add(Opcode::store, 1, 1);
  add(Opcode::store, 2, 2);
  kernel.stages = {{Stage::Kind::each, 0, 4}, {Stage::Kind::row, 4, 5}};
  problem.sizes = inner;
  problem.sizes.insert(problem.sizes.begin(), rows);
  problem.tile = 96;

  std::mt19937_64 random(rows * 1000 + count);
  std::vector<char> values(rows * count * size_of(type));
  for (int64_t i = 0; i < rows * count; ++i) {
    // Small numbers: a product does not overflow, and sums are exact in any order.
    int64_t number = static_cast<int64_t>(random() % 9) - 4;
    if (op == Opcode::scan_prod) {
      number = random() % 32 == 0 ? 2 : random() % 2 ? 1 : -1;
    }
    write_scalar(type, make_scalar(type, static_cast<double>(number), number),
                 &values[i * size_of(type)]);
  }
  problem.memory = {values, std::vector<char>(values.size(), 0x55),
                    std::vector<char>(rows * size_of(type), 0x55)};
  return problem;
}

class Scans : public ::testing::TestWithParam<Opcode> {};

TEST_P(Scans, LikeTheInterpreter) {
  for (Type type : {Type::f32, Type::f64, Type::i32, Type::i64}) {
    for (Lanes lanes : {Lanes::inner, Lanes::outer}) {
      SCOPED_TRACE(std::string(type_name(type)) + (lanes == Lanes::inner ? " inner" : " outer"));
      for (int dimensions : {1, 2}) {
        std::vector<std::vector<int64_t>> shapes = {{5, 0}, {0, 5}, {7, 3}, {2, 130}, {3, 16}};
        if (dimensions == 1) {
          shapes = {{0}, {1}, {3}, {16}, {17}, {64}, {65}, {127}, {1000}};
        }
        // One kernel for all shapes: it is compiled once.
        const Kernel kernel = scan(GetParam(), type, lanes, 1, shapes[0]).kernel;
        verify(kernel);
        for (const std::string& target : runnable_targets()) {
          const Machine machine(target, kernel);
          for (const auto& shape : shapes) {
            for (int64_t rows : {0, 1, 5, 131}) {
              const Problem problem = scan(GetParam(), type, lanes, rows, shape);
              const Outcome expected = run_interpreter(problem);
              const Outcome found = run_function(problem, machine.function(), rows == 131 ? 2 : 0);
              for (int result : {1, 2}) {
                ASSERT_TRUE(same(type, expected.memory[result], found.memory[result]))
                    << target << ", " << rows << " rows of " << shape[0] << "\n"
                    << text(kernel);
              }
            }
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Scans, ::testing::Values(Opcode::scan_sum, Opcode::scan_prod),
                         [](const auto& info) { return operation(info.param).name; });

TEST(Scans, TheInterpreterAddsUp) {
  Problem problem = scan(Opcode::scan_sum, Type::i32, Lanes::inner, 2, {3});
  problem.memory[0] = bytes_of(std::vector<int32_t>{1, 2, 3, 10, -4, 0});
  EXPECT_EQ(values_of<int32_t>(run_interpreter(problem).memory[1]),
            (std::vector<int32_t>{1, 3, 6, 10, 6, 6}));
}

// What follows a 0 may be infinite when it is multiplied first.
TEST(Scans, ProductsComeInOrder) {
  for (Lanes lanes : {Lanes::inner, Lanes::outer}) {
    Problem problem = scan(Opcode::scan_prod, Type::f64, lanes, 1, {40});
    std::vector<double> values(40, 0x1p+660);
    values[0] = 0;
    problem.memory[0] = bytes_of(values);
    expect_same_everywhere(problem);
    EXPECT_EQ(values_of<double>(run_interpreter(problem).memory[1]), std::vector<double>(40, 0.0));
  }
}

}  // namespace
}  // namespace torch_lazy::codegen
