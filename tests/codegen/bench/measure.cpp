// How long kernels take to compile and to run, against a copy of as many bytes on the same machine.
// usage: torch_lazy_codegen_bench [target] [name of a kernel] [rows] [columns]
#include "codegen/codegen.h"
#include "codegen/kernel.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

using namespace torch_lazy::codegen;

namespace {

struct Row {
  const char* name;
  const char* text;
};

const char* const kGelu = R"(kernel outer 2 inner 0 lanes outer
pointer 0 f32 read
pointer 1 f32 read
pointer 2 f32 read
pointer 3 f32 read
pointer 4 f32 write
access 0 pointer 0 [*, 1]
access 1 pointer 1 [0, 1]
access 2 pointer 2 [0, 1]
access 3 pointer 3 [*, 1]
access 4 pointer 4 [*, 1]
stage row
  %0 = load f32 access 0
  %1 = load f32 access 1
  %2 = load f32 access 2
  %3 = load f32 access 3
  %4 = mul f32 %0 %1
  %5 = add f32 %4 %2
  %6 = constant f32 )";

const std::string kGeluTanh = std::string(kGelu) + R"(0x1.6e4e26p-5
  %7 = mul f32 %5 %5
  %8 = mul f32 %7 %5
  %9 = mul f32 %8 %6
  %10 = add f32 %5 %9
  %11 = constant f32 0x1.9884533p-1
  %12 = mul f32 %10 %11
  %13 = tanh f32 %12
  %14 = constant f32 0x1p+0
  %15 = add f32 %13 %14
  %16 = constant f32 0x1p-1
  %17 = mul f32 %5 %16
  %18 = mul f32 %17 %15
  %19 = mul f32 %18 %3
  store f32 access 4 %19
)";

const std::string kGeluErf = std::string(kGelu) + R"(0x1.6a09e6p-1
  %7 = mul f32 %5 %6
  %8 = erf f32 %7
  %9 = constant f32 0x1p+0
  %10 = add f32 %8 %9
  %11 = constant f32 0x1p-1
  %12 = mul f32 %5 %11
  %13 = mul f32 %12 %10
  %14 = mul f32 %13 %3
  store f32 access 4 %14
)";

const Row kRows[] = {
    {"copy", R"(kernel outer 2 inner 0 lanes outer
pointer 0 f32 read
pointer 1 f32 write
access 0 pointer 0 [*, 1]
access 1 pointer 1 [*, 1]
stage row
  %0 = load f32 access 0
  store f32 access 1 %0
)"},
    {"add", R"(kernel outer 2 inner 0 lanes outer
pointer 0 f32 read
pointer 1 f32 read
pointer 2 f32 write
access 0 pointer 0 [*, 1]
access 1 pointer 1 [*, 1]
access 2 pointer 2 [*, 1]
stage row
  %0 = load f32 access 0
  %1 = load f32 access 1
  %2 = add f32 %0 %1
  store f32 access 2 %2
)"},
    {"gelu_tanh", kGeluTanh.c_str()},
    {"gelu_erf", kGeluErf.c_str()},
    {"softmax", R"(kernel outer 1 inner 1 lanes inner
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
stage row
  %7 = constant f32 0x1p+0
  %8 = div f32 %7 %6
stage each
  %9 = load f32 access 2
  %10 = mul f32 %9 %8
  store f32 access 1 %10
)"},
    {"softmax_again", R"(kernel outer 1 inner 1 lanes inner
pointer 0 f32 read
pointer 1 f32 write
access 0 pointer 0 [*, 1]
access 1 pointer 1 [*, 1]
stage each
  %0 = load f32 access 0
  %1 = reduce_max f32 %0
stage each
  %2 = load f32 access 0
  %3 = sub f32 %2 %1
  %4 = exp f32 %3
  %5 = reduce_sum f32 %4
stage row
  %6 = constant f32 0x1p+0
  %7 = div f32 %6 %5
stage each
  %8 = load f32 access 0
  %9 = sub f32 %8 %1
  %10 = exp f32 %9
  %11 = mul f32 %10 %7
  store f32 access 1 %11
)"},
    {"layer_norm", R"(kernel outer 1 inner 1 lanes inner
pointer 0 f32 read
pointer 1 f32 read
pointer 2 f32 read
pointer 3 f32 write
access 0 pointer 0 [*, 1]
access 1 pointer 1 [0, 1]
access 2 pointer 2 [0, 1]
access 3 pointer 3 [*, 1]
stage each
  %0 = load f32 access 0
  %1 = reduce_sum f32 %0
stage row
  %2 = extent i64 1
  %3 = convert f32 %2
  %4 = div f32 %1 %3
stage each
  %5 = load f32 access 0
  %6 = sub f32 %5 %4
  %7 = mul f32 %6 %6
  %8 = reduce_sum f32 %7
stage row
  %9 = div f32 %8 %3
  %10 = constant f32 0x1.4f8b58p-17
  %11 = add f32 %9 %10
  %12 = rsqrt f32 %11
stage each
  %13 = load f32 access 0
  %14 = sub f32 %13 %4
  %15 = mul f32 %14 %12
  %16 = load f32 access 1
  %17 = mul f32 %15 %16
  %18 = load f32 access 2
  %19 = add f32 %17 %18
  store f32 access 3 %19
)"},
    {"sum_rows", R"(kernel outer 1 inner 1 lanes inner
pointer 0 f32 read
pointer 1 f32 write
access 0 pointer 0 [*, 1]
access 1 pointer 1 [1, 0]
stage each
  %0 = load f32 access 0
  %1 = reduce_sum f32 %0
stage row
  store f32 access 1 %1
)"},
    {"scan_rows", R"(kernel outer 1 inner 1 lanes inner
pointer 0 f32 read
pointer 1 f32 write
access 0 pointer 0 [*, 1]
access 1 pointer 1 [*, 1]
stage each
  %0 = load f32 access 0
  %1 = convert f64 %0
  %2 = scan_sum f64 %1
  %3 = convert f32 %2
  store f32 access 1 %3
)"},
    {"scan_columns", R"(kernel outer 1 inner 1 lanes outer
pointer 0 f32 read
pointer 1 f32 write
access 0 pointer 0 [1, *]
access 1 pointer 1 [1, *]
stage each
  %0 = load f32 access 0
  %1 = convert f64 %0
  %2 = scan_sum f64 %1
  %3 = convert f32 %2
  store f32 access 1 %3
)"},
    {"sum_columns", R"(kernel outer 1 inner 1 lanes outer
pointer 0 f32 read
pointer 1 f32 write
access 0 pointer 0 [1, *]
access 1 pointer 1 [1, 0]
stage each
  %0 = load f32 access 0
  %1 = reduce_sum f32 %0
stage row
  store f32 access 1 %1
)"},
    {"argmax_rows", R"(kernel outer 1 inner 1 lanes inner
pointer 0 f32 read
pointer 1 i64 write
access 0 pointer 0 [*, 1]
access 1 pointer 1 [1, 0]
stage each
  %0 = load f32 access 0
  %1 = reduce_argmax i64 %0
stage row
  store i64 access 1 %1
)"},
    {"bf16_scale", R"(kernel outer 2 inner 0 lanes outer
pointer 0 bf16 read
pointer 1 bf16 write
argument 0 f32
access 0 pointer 0 [*, 1]
access 1 pointer 1 [*, 1]
stage row
  %0 = load bf16 access 0
  %1 = convert f32 %0
  %2 = argument f32 0
  %3 = mul f32 %1 %2
  %4 = convert bf16 %3
  store bf16 access 1 %4
)"},
    {"not", R"(kernel outer 2 inner 0 lanes outer
pointer 0 boolean read
pointer 1 boolean write
access 0 pointer 0 [*, 1]
access 1 pointer 1 [*, 1]
stage row
  %0 = load boolean access 0
  %1 = bit_not boolean %0
  store boolean access 1 %1
)"},
    {"transpose", R"(kernel outer 2 inner 0 lanes outer
pointer 0 f32 read
pointer 1 f32 write
access 0 pointer 0 [1, *]
access 1 pointer 1 [*, 1]
stage row
  %0 = load f32 access 0
  store f32 access 1 %0
)"},
    {"transpose_each", R"(kernel outer 1 inner 1 lanes outer
pointer 0 f32 read
pointer 1 f32 write
access 0 pointer 0 [*, 1]
access 1 pointer 1 [1, *]
stage each
  %0 = load f32 access 0
  store f32 access 1 %0
)"},
    {"embedding", R"(kernel outer 1 inner 1 lanes inner
pointer 0 f32 read
pointer 1 i64 read
pointer 2 f32 write
access 0 pointer 0 [0, 1] lookup %0 *
access 1 pointer 1 [1, 0]
access 2 pointer 2 [*, 1]
stage row
  %0 = load i64 access 1
stage each
  %1 = load f32 access 0
  store f32 access 2 %1
)"},
};

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <class Body>
double fastest(const Body& body) {
  double best = 1e9;
  const double start = now();
  for (int i = 0; i < 200 && (i < 5 || now() - start < 0.4); ++i) {
    const double begin = now();
    body();
    best = std::min(best, now() - begin);
  }
  return best;
}

/// What is read and written, once each.
int64_t bytes_moved(const Kernel& kernel, const std::vector<int64_t>& sizes) {
  int64_t bytes = 0;
  std::vector<bool> seen(kernel.pointers.size());
  for (const Access& access : kernel.accesses) {
    const Pointer& pointer = kernel.pointers[access.pointer];
    if (pointer.use == Use::scratch || seen[access.pointer]) {
      continue;
    }
    seen[access.pointer] = true;
    int64_t count = access.lookups.empty() ? 1 : sizes[0];
    for (size_t d = 0; d < sizes.size(); ++d) {
      count *= access.strides[d] == Stride::zero ? 1 : sizes[d];
    }
    bytes += count * size_of(pointer.type);
  }
  return bytes;
}

void measure(const Row& row, tlc_target* target, int64_t rows, int64_t columns) {
  const Kernel kernel = parse(row.text);
  double seconds[3] = {1, 1, 1};
  tlc_result result = {};
  for (int i = 0; i < 7; ++i) {
    tlc_free(result.object);
    result = tlc_compile(target, row.text);
    if (!result.object) {
      std::printf("%-14s %s\n", row.name, result.error);
      return;
    }
    for (int j = 0; j < 3; ++j) {
      seconds[j] = std::min(seconds[j], result.seconds[j]);
    }
  }
  char* error = nullptr;
  const double before = now();
  tlc_code* code = tlc_load(target, result.object, result.size, &error);
  const double load = now() - before;
  if (!code) {
    std::printf("%-14s %s\n", row.name, error);
    return;
  }
  const auto function = reinterpret_cast<Function>(tlc_function(code));

  // Every dimension of this bench is rows, columns or both; a stride is that of a row of columns.
  const bool across = std::string(row.name).ends_with("_columns");
  const bool transpose = std::string(row.name).starts_with("transpose");
  const int32_t turned = std::string(row.name) == "transpose" ? 0 : 1;
  std::vector<int64_t> numbers =
      across ? std::vector<int64_t>{columns, rows} : std::vector<int64_t>{rows, columns};
  const std::vector<int64_t> sizes = numbers;
  for (const Access& access : kernel.accesses) {
    for (const Stride stride : access.strides) {
      if (stride == Stride::argument) {
        numbers.push_back(transpose && access.pointer == turned ? rows : columns);
      }
    }
    for (size_t i = 0; i < access.lookups.size(); ++i) {
      numbers.push_back(columns);
    }
  }
  numbers.push_back(0);  // scratch
  std::vector<std::vector<char>> memory;
  std::vector<void*> pointers;
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (const Pointer& pointer : kernel.pointers) {
    memory.emplace_back(rows * columns * 4 * 2 + 64);
    char* begin =
        memory.back().data() + 64 - reinterpret_cast<uintptr_t>(memory.back().data()) % 64;
    if (pointer.type == Type::f32) {
      for (int64_t i = 0; i < rows * columns; ++i) {
        reinterpret_cast<float*>(begin)[i] = normal(random);
      }
    } else if (pointer.type == Type::i64) {
      for (int64_t i = 0; i < rows; ++i) {
        reinterpret_cast<int64_t*>(begin)[i] = static_cast<int64_t>(random() % rows);
      }
    }
    pointers.push_back(begin);
  }
  float arguments[2] = {1.5f, 0};
  std::vector<char> scratch(columns * 4 + 64);
  Call call;
  call.pointers = pointers.data();
  call.numbers = numbers.data();
  call.arguments = arguments;
  call.scratch = scratch.data();
  call.tile = 4096;
  call.end = units(kernel, numbers.data(), call.tile);
  function(&call);
  const double time = fastest([&] { function(&call); });
  const int64_t bytes = bytes_moved(kernel, sizes);
  std::vector<char> from(bytes / 2), to(bytes / 2);
  std::memset(from.data(), 1, from.size());
  std::memset(to.data(), 2, to.size());
  const double copy = fastest([&] { std::memcpy(to.data(), from.data(), from.size()); });
  std::printf(
      "%-14s compile %6.2f ms (%.2f + %.2f + %.2f), load %.2f ms, %6zu bytes | run %8.3f ms  %6.1f "
      "GB/s  memcpy %6.1f GB/s\n",
      row.name, 1e3 * (seconds[0] + seconds[1] + seconds[2]), 1e3 * seconds[0], 1e3 * seconds[1],
      1e3 * seconds[2], 1e3 * load, result.size, 1e3 * time,
      1e-9 * static_cast<double>(bytes) / time, 1e-9 * static_cast<double>(bytes) / copy);
  tlc_free(result.object);
  tlc_unload(code);
}

}  // namespace

int main(int argc, char** argv) {
  char* error = nullptr;
  tlc_target* target = tlc_open(argc > 1 ? argv[1] : "host", &error);
  if (!target) {
    std::printf("%s\n", error);
    return 1;
  }
  const std::string wanted = argc > 2 ? argv[2] : "all";
  const int64_t rows = argc > 3 ? std::atoll(argv[3]) : 4096;
  const int64_t columns = argc > 4 ? std::atoll(argv[4]) : 1024;
  for (const Row& row : kRows) {
    if (wanted == "show" + std::string("_") + row.name) {
      std::printf("%s", tlc_show(target, row.text, "assembly", &error));
    }
    if (wanted == "all" || wanted == row.name) {
      measure(row, target, rows, columns);
    }
  }
  tlc_close(target);
  return 0;
}
