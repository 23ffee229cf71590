// Kernels as the compiler makes them, against plain C++: what the text means, apart from the
// interpreter.
#include "problem.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace torch_lazy::codegen {
namespace {

std::vector<float> random_floats(size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) {
    value = normal(random);
  }
  return values;
}

/// What the machine code of every target leaves in `pointer`, for `check` to look at.
template <class T>
void for_each_target(const Problem& problem, size_t pointer,
                     const std::function<void(const std::vector<T>&, int64_t status)>& check) {
  verify(problem.kernel);
  for (const std::string& target : runnable_targets()) {
    SCOPED_TRACE(target);
    const Machine machine(target, problem.kernel);
    const Outcome outcome = run_function(problem, machine.function());
    check(values_of<T>(outcome.memory[pointer]), outcome.status);
  }
  SCOPED_TRACE("interpreter");
  const Outcome outcome = run_interpreter(problem);
  check(values_of<T>(outcome.memory[pointer]), outcome.status);
}

TEST(Kernels, Softmax) {
  constexpr int64_t kRows = 19, kColumns = 77;
  Problem problem;
  problem.kernel = parse(R"(kernel outer 1 inner 1 lanes inner
pointer 0 f32 read
pointer 1 f32 write
pointer 2 f32 scratch
access 0 pointer 0 [*, 1]
access 1 pointer 1 [*, 1]
access 2 pointer 2 [0, 1]
stage each
  %0 = load f32 access 0
  %1 = reduce_max f32 %0
stage each
  %2 = load f32 access 0
  %3 = sub f32 %2 %1
  %4 = exp f32 %3
  store f32 access 2 %4
  %6 = reduce_sum f32 %4
stage each
  %7 = load f32 access 2
  %8 = div f32 %7 %6
  store f32 access 1 %8
)");
  const auto in = random_floats(kRows * kColumns, 1);
  problem.sizes = {kRows, kColumns};
  problem.strides = {{kColumns}, {kColumns}};
  problem.memory = {bytes_of(in), std::vector<char>(in.size() * 4),
                    std::vector<char>(kColumns * 4)};
  for_each_target<float>(problem, 1, [&](const std::vector<float>& out, int64_t) {
    for (int64_t row = 0; row < kRows; ++row) {
      double sum = 0;
      for (int64_t i = 0; i < kColumns; ++i) {
        sum += std::exp(static_cast<double>(in[row * kColumns + i]));
      }
      for (int64_t i = 0; i < kColumns; ++i) {
        const double expected = std::exp(static_cast<double>(in[row * kColumns + i])) / sum;
        ASSERT_NEAR(out[row * kColumns + i], expected, 4e-7 * expected);
      }
    }
  });
}

// Rows of two dimensions that are read in both stages: the second one also asks for the next row.
TEST(Kernels, RowsOfPlanesReadTwice) {
  constexpr int64_t kRows = 5, kPlanes = 3, kColumns = 37, kStride = 50;
  Problem problem;
  problem.kernel = parse(R"(kernel outer 1 inner 2 lanes inner
pointer 0 f32 read
pointer 1 f32 write
access 0 pointer 0 [*, *, 1]
access 1 pointer 1 [*, *, 1]
stage each
  %0 = load f32 access 0
  %1 = reduce_fmax f32 %0
stage each
  %2 = load f32 access 0
  %3 = sub f32 %2 %1
  store f32 access 1 %3
)");
  auto in = random_floats(kRows * kPlanes * kStride, 7);
  in[kStride + 3] = std::numeric_limits<float>::quiet_NaN();
  problem.sizes = {kRows, kPlanes, kColumns};
  problem.strides = {{kPlanes * kStride, kStride}, {kPlanes * kColumns, kColumns}};
  problem.memory = {bytes_of(in), std::vector<char>(kRows * kPlanes * kColumns * 4)};
  for_each_target<float>(problem, 1, [&](const std::vector<float>& out, int64_t) {
    for (int64_t row = 0; row < kRows; ++row) {
      float greatest = -std::numeric_limits<float>::infinity();
      for (int64_t i = 0; i < kPlanes * kColumns; ++i) {
        const float value = in[(row * kPlanes + i / kColumns) * kStride + i % kColumns];
        greatest = std::fmax(greatest, value);
      }
      for (int64_t i = 0; i < kPlanes * kColumns; ++i) {
        const float value = in[(row * kPlanes + i / kColumns) * kStride + i % kColumns];
        const float found = out[row * kPlanes * kColumns + i];
        ASSERT_TRUE(std::isnan(value) ? std::isnan(found) : found == value - greatest)
            << row << " " << i;
      }
    }
  });
}

// Rows of a table by index, with a check that every index is one.
TEST(Kernels, Embedding) {
  constexpr int64_t kColumns = 21;
  Problem problem;
  problem.kernel = parse(R"(kernel outer 1 inner 1 lanes inner
pointer 0 f32 read
pointer 1 i64 read
pointer 2 f32 write
argument 0 i64
access 0 pointer 0 [0, 1] lookup %0 * mask %5
access 1 pointer 1 [1, 0]
access 2 pointer 2 [*, 1]
stage row
  %0 = load i64 access 1
  %1 = constant i64 0
  %2 = argument i64 0
  %3 = le boolean %1 %0
  %4 = lt boolean %0 %2
  %5 = bit_and boolean %3 %4
  check 6 %5
stage each
  %7 = load f32 access 0
  store f32 access 2 %7
)");
  const auto table = random_floats(5 * kColumns, 2);
  std::vector<int64_t> rows = {3, 0, 4, 4};
  problem.sizes = {4, kColumns};
  problem.strides = {{kColumns}, {}, {kColumns}};
  problem.add_argument(int64_t{5});
  problem.memory = {bytes_of(table), bytes_of(rows), std::vector<char>(4 * kColumns * 4)};
  auto check = [&](const std::vector<float>& out, int64_t status) {
    EXPECT_EQ(status, *std::max_element(rows.begin(), rows.end()) > 4 ? 7 : 0);
    for (int64_t row = 0; row < 4; ++row) {
      for (int64_t i = 0; i < kColumns; ++i) {
        const bool inside = rows[row] < 5;
        ASSERT_EQ(out[row * kColumns + i], inside ? table[rows[row] * kColumns + i] : 0);
      }
    }
  };
  for_each_target<float>(problem, 2, check);
  rows[2] = 1'000'000'000'000;  // not read
  problem.memory[1] = bytes_of(rows);
  for_each_target<float>(problem, 2, check);
}

// Rows added to those of a table, many to one of them, some to none: in the order of the rows.
TEST(Kernels, GradientOfAnEmbedding) {
  for (int64_t columns : {1, 16, 21, 70, 257}) {
    Problem problem;
    problem.kernel = parse(R"(kernel outer 1 inner 1 lanes outer
pointer 0 f32 read
pointer 1 i64 read
pointer 2 f32 read_write
access 0 pointer 0 [1, *]
access 1 pointer 1 [0, 1]
access 2 pointer 2 [1, 0] lookup %0 * mask %2
stage each
  %0 = load i64 access 1
  %1 = constant i64 2
  %2 = ne boolean %0 %1
  %3 = load f32 access 0
  accumulate f32 access 2 %3
)");
    const std::vector<int64_t> rows = {3, 0, 3, 2, 3, 4, 0};
    const auto gradient = random_floats(rows.size() * columns, 7);
    problem.sizes = {columns, static_cast<int64_t>(rows.size())};
    problem.strides = {{columns}, {}, {columns}};
    problem.tile = 64;
    problem.memory = {bytes_of(gradient), bytes_of(rows),
                      bytes_of(std::vector<float>(5 * columns, 1.0f))};
    std::vector<float> expected(5 * columns, 1.0f);
    for (size_t i = 0; i < rows.size(); ++i) {
      for (int64_t c = 0; c < columns && rows[i] != 2; ++c) {
        expected[rows[i] * columns + c] += gradient[i * columns + c];
      }
    }
    for_each_target<float>(problem, 2, [&](const std::vector<float>& sums, int64_t) {
      EXPECT_EQ(sums, expected) << columns << " columns";
    });
  }
}

// Lanes that meet in one element add one after the other, and bf16 is rounded each time: 256 and
// one more is 256.
TEST(Kernels, SumsByIndex) {
  Problem problem;
  problem.kernel = parse(R"(kernel outer 0 inner 1 lanes inner
pointer 0 bf16 read
pointer 1 i64 read
pointer 2 bf16 read_write
access 0 pointer 0 [1]
access 1 pointer 1 [1]
access 2 pointer 2 [0] lookup %0 1
stage each
  %0 = load i64 access 1
  %1 = load bf16 access 0
  accumulate bf16 access 2 %1
)");
  constexpr int64_t kCount = 299;
  std::vector<int64_t> places(kCount, 1);
  places[0] = places[kCount - 1] = 0;
  problem.sizes = {kCount};
  problem.strides = {{}, {}, {}};
  problem.memory = {bytes_of(std::vector<uint16_t>(kCount, 0x3f80)), bytes_of(places),
                    bytes_of(std::vector<uint16_t>(2, 0))};
  for_each_target<uint16_t>(problem, 2, [&](const std::vector<uint16_t>& sums, int64_t) {
    EXPECT_EQ(sums, (std::vector<uint16_t>{0x4000, 0x4380}));  // 2, 256
  });
}

// What is masked for all lanes, as a constant even, is not added.
TEST(Kernels, SumsOfNothing) {
  for (const char* lanes : {"outer 1 inner 1 lanes inner", "outer 1 inner 1 lanes outer"}) {
    Problem problem;
    problem.kernel = parse(std::string("kernel ") + lanes + R"(
pointer 0 i32 read_write
access 0 pointer 0 [1, 0] mask %0
access 1 pointer 0 [1, 0] mask %1
stage each
  %0 = constant boolean 0
  %1 = constant boolean 1
  %2 = constant i32 5
  accumulate i32 access 0 %2
  accumulate i32 access 1 %2
)");
    problem.sizes = {20, 30};
    problem.strides = {{}, {}};
    problem.tile = 20;
    problem.memory = {bytes_of(std::vector<int32_t>(20, 1))};
    for_each_target<int32_t>(problem, 0, [&](const std::vector<int32_t>& sums, int64_t) {
      EXPECT_EQ(sums, std::vector<int32_t>(20, 151)) << lanes;
    });
  }
}

// In place: every element exactly once, whatever the vectors.
TEST(Kernels, UpdateInPlace) {
  Problem problem;
  problem.kernel = parse(R"(kernel outer 1 inner 0 lanes outer
pointer 0 bf16 read_write
pointer 1 f32 read
argument 0 f32
access 0 pointer 0 [1]
access 1 pointer 1 [*]
stage row
  %0 = load bf16 access 0
  %1 = convert f32 %0
  %2 = load f32 access 1
  %3 = argument f32 0
  %4 = mul f32 %2 %3
  %5 = add f32 %1 %4
  %6 = convert bf16 %5
  store bf16 access 0 %6
)");
  constexpr int64_t kCount = 83;
  problem.sizes = {kCount};
  problem.strides = {{}, {2}};
  problem.add_argument(0.5f);
  problem.tile = 50;
  problem.memory = {bytes_of(std::vector<uint16_t>(kCount, 0x3f80)),  // 1
                    bytes_of(std::vector<float>(2 * kCount, 4.0f))};
  for_each_target<uint16_t>(problem, 0, [&](const std::vector<uint16_t>& out, int64_t) {
    EXPECT_EQ(out, std::vector<uint16_t>(kCount, 0x4040));  // 3
  });
}

// The sum of each column of a matrix, for numbers of columns that need all widths.
TEST(Kernels, SumsOfColumns) {
  for (int64_t columns : {1, 15, 16, 70, 257, 700}) {
    constexpr int64_t kRows = 1000;
    Problem problem;
    problem.kernel = parse(R"(kernel outer 1 inner 1 lanes outer
pointer 0 f32 read
pointer 1 f32 write
access 0 pointer 0 [1, *]
access 1 pointer 1 [1, 0]
stage each
  %0 = load f32 access 0
  %1 = reduce_sum f32 %0
stage row
  store f32 access 1 %1
)");
    const auto in = random_floats(kRows * columns, 3);
    problem.sizes = {columns, kRows};
    problem.strides = {{columns}, {}};
    problem.tile = 512;
    problem.memory = {bytes_of(in), std::vector<char>(columns * 4)};
    for_each_target<float>(problem, 1, [&](const std::vector<float>& out, int64_t) {
      for (int64_t column = 0; column < columns; ++column) {
        double sum = 0;
        for (int64_t row = 0; row < kRows; ++row) {
          sum += in[row * columns + column];
        }
        ASSERT_NEAR(out[column], sum, 1e-4);
      }
    });
  }
}

// The error of a long sum does not grow with its length.
TEST(Kernels, LongSumsAreAccurate) {
  constexpr int64_t kCount = 5'000'000;
  for (const char* lanes : {"inner", "outer"}) {
    Problem problem;
    problem.kernel = parse(std::string("kernel outer 1 inner 1 lanes ") + lanes + R"(
pointer 0 f32 read
pointer 1 f32 write
access 0 pointer 0 [0, *]
access 1 pointer 1 [1, 0]
stage each
  %0 = load f32 access 0
  %1 = reduce_sum f32 %0
stage row
  store f32 access 1 %1
)");
    std::vector<float> in(kCount);
    double sum = 0;
    std::mt19937 random(4);
    for (float& value : in) {
      value = std::uniform_real_distribution<float>()(random);
      sum += value;
    }
    problem.sizes = {1, kCount};
    problem.strides = {{1}, {}};
    problem.memory = {bytes_of(in), std::vector<char>(4)};
    for_each_target<float>(problem, 1, [&](const std::vector<float>& out, int64_t) {
      EXPECT_NEAR(out[0] / sum, 1, std::string(lanes) == "inner" ? 5e-6 : 3e-4);
    });
  }
}

// Padding: a mask keeps loads inside of their memory.
TEST(Kernels, Padding) {
  Problem problem;
  problem.kernel = parse(R"(kernel outer 1 inner 0 lanes outer
pointer 0 f32 read
pointer 1 f32 write
argument 0 i64
access 0 pointer 0 [1] lookup %1 1 mask %6
access 1 pointer 1 [1]
stage row
  %0 = index i64 0
  %1 = constant i64 -3
  %2 = constant i64 3
  %3 = le boolean %2 %0
  %4 = argument i64 0
  %5 = lt boolean %0 %4
  %6 = bit_and boolean %3 %5
  %7 = load f32 access 0
  store f32 access 1 %7
)");
  constexpr int64_t kCount = 40;
  const auto in = random_floats(kCount, 5);
  problem.sizes = {kCount + 6};
  problem.tile = 100;
  problem.strides = {{}, {}};
  problem.add_argument(kCount + 3);
  problem.memory = {bytes_of(in), std::vector<char>((kCount + 6) * 4, 1)};
  for_each_target<float>(problem, 1, [&](const std::vector<float>& out, int64_t) {
    for (int64_t i = 0; i < kCount + 6; ++i) {
      ASSERT_EQ(out[i], i < 3 || i >= kCount + 3 ? 0 : in[i - 3]);
    }
  });
}

}  // namespace
}  // namespace torch_lazy::codegen
