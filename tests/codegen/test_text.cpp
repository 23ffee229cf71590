// Text, parser, verifier and units, without machine code.
#include "codegen/operations.h"
#include "problem.h"

#include <cmath>
#include <limits>
#include <stdexcept>

namespace torch_lazy::codegen {
namespace {

const std::string kAll = R"(kernel outer 2 inner 1 lanes inner
pointer 0 f32 read
pointer 1 bf16 write
pointer 2 i64 read_write
pointer 3 f32 scratch
argument 0 f32
argument 1 boolean
access 0 pointer 0 [*, 0, 1]
access 1 pointer 1 [*, *, 1] lookup %2 * lookup %3 1 mask %4
access 2 pointer 2 [0, 1, 0]
access 3 pointer 3 [0, 0, 1]
stage row
  %0 = constant f32 -0x1.8p+1
  %1 = constant f32 inf
  %2 = constant i64 -9223372036854775808
  %3 = index i64 1
  %4 = argument boolean 1
  check 3 %4
stage each
  %6 = load f32 access 0
  %7 = select f32 %4 %6 %0
  %8 = reduce_sum f32 %7
  %9 = reduce_argmax i64 %7
  store f32 access 3 %7
stage row
  store i64 access 2 %9
stage each
  %12 = lt boolean %8 %0
  %13 = convert bf16 %8
  store bf16 access 1 %13
)";

TEST(Text, ComesBackFromItsKernel) {
  const Kernel kernel = parse(kAll);
  EXPECT_NO_THROW(verify(kernel));
  EXPECT_EQ(text(kernel), kAll);
  EXPECT_EQ(kernel.outer, 2);
  EXPECT_EQ(kernel.inner, 1);
  EXPECT_EQ(kernel.lanes, Lanes::inner);
  EXPECT_EQ(kernel.pointers[2].use, Use::read_write);
  EXPECT_EQ(kernel.accesses[1].lookups[1].value, 3);
  EXPECT_EQ(kernel.accesses[1].lookups[1].stride, Stride::one);
  EXPECT_EQ(kernel.accesses[1].mask, 4);
  EXPECT_EQ(kernel.code[0].number, -3.0);
  EXPECT_EQ(kernel.code[2].integer, std::numeric_limits<int64_t>::min());
  EXPECT_EQ(kernel.stages.size(), 4u);
  EXPECT_EQ(kernel.stages[1].begin, 6);
  EXPECT_EQ(kernel.stages[1].end, 11);
}

TEST(Text, SpacesAndEmptyLinesDoNotMatter) {
  EXPECT_EQ(text(parse("\n kernel  outer 1\tinner 0 lanes outer \r\n\nstage row\n")),
            "kernel outer 1 inner 0 lanes outer\nstage row\n");
}

TEST(Text, FloatsAreExact) {
  for (double number : {0.1, -0.0, 5e-324, 1.7976931348623157e308, 1.0 / 3, -123456.789}) {
    Kernel kernel;
    Instruction constant;
    constant.type = Type::f64;
    constant.number = number;
    kernel.code = {constant};
    kernel.stages = {{Stage::Kind::row, 0, 1}};
    const double back = parse(text(kernel)).code[0].number;
    EXPECT_EQ(std::memcmp(&back, &number, sizeof number), 0) << text(kernel);
  }
  Kernel kernel = parse("kernel outer 0 inner 0 lanes inner\nstage row\n  %0 = constant f32 nan\n");
  EXPECT_TRUE(std::isnan(kernel.code[0].number));
}

TEST(Text, EveryOperationHasItsOwnName) {
  for (int i = 0; i < kOpcodes; ++i) {
    const auto op = static_cast<Opcode>(i);
    EXPECT_EQ(opcode_named(operation(op).name), op);
  }
  for (int i = 0; i < kTypes; ++i) {
    EXPECT_EQ(type_named(type_name(static_cast<Type>(i))), static_cast<Type>(i));
  }
}

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

TEST(Parser, NamesTheLine) {
  struct Row {
    const char* text;
    const char* message;
  };
  const std::string head = "kernel outer 1 inner 0 lanes outer\n";
  const Row rows[] = {
      {"", "line 1: expected 'kernel outer ...'"},
      {"kernel outer x", "line 1: expected the number of outer dimensions, found 'x'"},
      {"kernel outer 1 inner 1", "line 1: expected lanes before the end of the line"},
      {"kernel outer 1 inner 1 lanes up", "line 1: lanes are inner or outer, found 'up'"},
      {"HEAD\npointer 1 f32 read", "line 3: pointer 0 comes next"},
      {"HEADpointer 0 f31 read", "line 2: there is no type 'f31'"},
      {"HEADpointer 0 f32 reads", "line 2: expected read, write, read_write or scratch"},
      {"HEADpointer 0 f32 read x", "line 2: nothing may follow here, found 'x'"},
      {"HEADaccess 0 pointer 0 [2]", "line 2: a stride is 0, 1 or *, found '2'"},
      {"HEADaccess 0 pointer 0 [1 1]", "line 2: expected ',', found '1'"},
      {"HEADaccess 0 pointer 0 [1] lookup 3 *", "line 2: expected a value like %0, found '3'"},
      {"HEADstage all", "line 2: a stage is row or each, found 'all'"},
      {"HEAD%0 = add f32 %1 %2", "line 2: expected pointer, argument, access or stage, found '%0'"},
      {"HEADstage row\n%1 = index i64 0", "line 3: value %0 comes next"},
      {"HEADstage row\n%0 = inverse f32 %1", "line 3: there is no operation 'inverse'"},
      {"HEADstage row\n%0 = add f32 %1", "line 3: expected a value like %0 before the end"},
      {"HEADstage row\nadd f32 %1 %2", "line 3: 'add' gives a value"},
      {"HEADstage row\n%0 = store f32 access 0 %1", "line 3: 'store' gives no value"},
      {"HEADstage row\n%0 = constant f32 1.5", "line 3: expected a number like 0x1.8p+1"},
      {"HEADstage row\n%0 = constant i32 1.5", "line 3: expected an integer, found '1.5'"},
      {"HEADstage row\n%0 = constant i32 99999999999999999999", "line 3: expected an integer"},
      {"HEADstage row\n%0 = index i64 -1", "line 3: a place is out of range"},
  };
  for (const Row& row : rows) {
    std::string text = row.text;
    if (const size_t at = text.find("HEAD"); at == 0) {
      text = head + text.substr(4);
    }
    const std::string message = message_of([&] { parse(text); });
    EXPECT_NE(message.find(row.message), std::string::npos)
        << text << "\ngave: " << message << "\nexpected: " << row.message;
  }
}

TEST(Verifier, SaysWhatIsWrong) {
  struct Row {
    const char* from;
    const char* to;
    const char* message;
  };
  const Row rows[] = {
      {"access 2 pointer 2 [0, 1, 0]", "access 2 pointer 9 [0, 1, 0]", "access 2 has no pointer"},
      {"access 2 pointer 2 [0, 1, 0]", "access 2 pointer 2 [0, 1]",
       "access 2 has 2 strides for 3 dimensions"},
      {"access 2 pointer 2 [0, 1, 0]", "access 2 pointer 2 [0, 1, 1]",
       "instruction 11 (store): a row stage cannot move along an inner dimension"},
      {"kernel outer 2 inner 1 lanes inner", "kernel outer 2 inner 1 lanes outer",
       "access 3: scratch memory needs a stride along the lanes"},
      {"%3 = index i64 1", "%3 = index i64 2",
       "instruction 3 (index): a row has no position along an inner dimension"},
      {"%3 = index i64 1", "%3 = index i64 7", "instruction 3 (index): there is no dimension 7"},
      {"%3 = index i64 1", "%3 = index i32 1", "instruction 3 (index): does not exist for i32"},
      {"%4 = argument boolean 1", "%4 = argument boolean 0",
       "instruction 4 (argument): the result is boolean, not f32"},
      {"check 3 %4", "check 3 %3", "instruction 5 (check): does not exist for i64"},
      {"%6 = load f32 access 0", "%6 = load f32 access 1",
       "instruction 6 (load): what it moves is f32, not bf16"},
      {"store bf16 access 1 %13", "store f32 access 0 %8",
       "instruction 14 (store): pointer 0 is only to read"},
      {"store bf16 access 1 %13", "accumulate f32 access 0 %8",
       "instruction 14 (accumulate): pointer 0 is only to read"},
      {"store bf16 access 1 %13", "accumulate boolean access 1 %12",
       "instruction 14 (accumulate): does not exist for boolean"},
      {"%7 = select f32 %4 %6 %0", "%7 = select f32 %6 %6 %0",
       "instruction 7 (select): %6 is f32, not boolean"},
      {"%7 = select f32 %4 %6 %0", "%7 = add f32 %6 %2", "instruction 7 (add): %2 is i64, not f32"},
      {"%8 = reduce_sum f32 %7", "%8 = reduce_sum f64 %7",
       "instruction 8 (reduce_sum): the result is f64, not f32"},
      {"%12 = lt boolean %8 %0", "%12 = lt boolean %7 %0",
       "instruction 12 (lt): %7 belongs to the elements of an earlier stage"},
      {"%12 = lt boolean %8 %0", "%12 = lt f32 %8 %0",
       "instruction 12 (lt): the result is f32, not boolean"},
      {"%12 = lt boolean %8 %0", "%12 = lt boolean %12 %0",
       "instruction 12 (lt): %12 is not defined before it"},
      {"%12 = lt boolean %8 %0", "%12 = lt boolean %10 %0", "instruction 12 (lt): %10 is no value"},
      {"%9 = reduce_argmax i64 %7", "%9 = exp f32 %8",
       "instruction 9 (exp): %8, a reduction, has its result only after the stage"},
      {"store i64 access 2 %9", "%11 = scan_sum f32 %8",
       "instruction 11 (scan_sum): a row stage has no elements to scan"},
      {"%13 = convert bf16 %8", "%13 = reduce_any boolean %4\n%14 = exp bf16 %13",
       "instruction 14 (exp): %13, a reduction"},
      {"store bf16 access 1 %13", "%14 = neg bf16 %13",
       "instruction 14 (neg): does not exist for bf16"},
  };
  for (const Row& row : rows) {
    std::string text = kAll;
    const size_t at = text.find(row.from);
    ASSERT_NE(at, std::string::npos) << row.from;
    text.replace(at, std::strlen(row.from), row.to);
    const Kernel kernel = parse(text);
    const std::string message = message_of([&] { verify(kernel); });
    EXPECT_NE(message.find(row.message), std::string::npos)
        << row.to << "\ngave: " << message << "\nexpected: " << row.message;
  }
}

TEST(Verifier, StagesCoverTheCode) {
  Kernel kernel = parse(kAll);
  kernel.stages.pop_back();
  EXPECT_THROW(verify(kernel), std::invalid_argument);
  kernel = parse(kAll);
  ++kernel.stages[1].begin;
  EXPECT_THROW(verify(kernel), std::invalid_argument);
}

TEST(Units, RowsOrTiles) {
  Kernel kernel;
  kernel.outer = 2;
  kernel.lanes = Lanes::inner;
  const int64_t sizes[] = {3, 10};
  EXPECT_EQ(units(kernel, sizes, 0), 30);
  kernel.lanes = Lanes::outer;
  EXPECT_EQ(units(kernel, sizes, 4), 9);
  EXPECT_EQ(units(kernel, sizes, 100), 3);
  const int64_t empty[] = {3, 0};
  EXPECT_EQ(units(kernel, empty, 4), 0);
  kernel = Kernel();
  kernel.lanes = Lanes::inner;
  EXPECT_EQ(units(kernel, nullptr, 0), 1);
}

}  // namespace
}  // namespace torch_lazy::codegen
