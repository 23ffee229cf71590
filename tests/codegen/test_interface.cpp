// The C interface: errors, threads, loading and unloading.
#include "codegen/codegen.h"
#include "problem.h"

#include <atomic>
#include <cstdio>
#include <thread>

namespace torch_lazy::codegen {
namespace {

/// out = in * factor + index
std::string kernel_text(int factor) {
  return "kernel outer 1 inner 0 lanes outer\npointer 0 f32 read\npointer 1 f32 write\n"
         "access 0 pointer 0 [1]\naccess 1 pointer 1 [1]\nstage row\n"
         "  %0 = load f32 access 0\n  %1 = constant f32 0x" +
         std::to_string(factor) +
         "p+0\n  %2 = mul f32 %0 %1\n  %3 = index i64 0\n  %4 = convert f32 %3\n"
         "  %5 = add f32 %2 %4\n  store f32 access 1 %5\n";
}

float last_result(Function function) {
  std::vector<float> in(50, 2), out(50);
  void* pointers[] = {in.data(), out.data()};
  const int64_t numbers[] = {50};
  Call call;
  call.pointers = pointers;
  call.numbers = numbers;
  call.end = 1;
  call.tile = 50;
  function(&call);
  return out[49];
}

std::string taken(char* error) {
  const std::string message = error ? error : "";
  tlc_free(error);
  return message;
}

TEST(Interface, UnknownTarget) {
  char* error = nullptr;
  EXPECT_EQ(tlc_open("pdp-11", &error), nullptr);
  EXPECT_NE(taken(error).find("no target 'pdp-11'"), std::string::npos);
  EXPECT_EQ(tlc_open("pdp-11", nullptr), nullptr);
}

TEST(Interface, WrongKernels) {
  tlc_result result = tlc_compile(opened("host"), "kernel outer 1 inner 0 lanes outer\nstage rows");
  EXPECT_EQ(result.object, nullptr);
  EXPECT_NE(taken(result.error).find("line 2: a stage is row or each"), std::string::npos);
  result = tlc_compile(opened("host"), "kernel outer 0 inner 0 lanes outer\n");
  EXPECT_EQ(result.object, nullptr);
  EXPECT_NE(taken(result.error).find("lanes outer needs an outer dimension"), std::string::npos);
}

TEST(Interface, SameTextSameBytes) {
  for (const char* target : {"host", "x86-64", "x86-64-v3", "x86-64-v4"}) {
    tlc_result a = tlc_compile(opened(target), kernel_text(3).c_str());
    tlc_result b = tlc_compile(opened(target), kernel_text(3).c_str());
    ASSERT_NE(a.object, nullptr);
    EXPECT_EQ(std::string(a.object, a.size), std::string(b.object, b.size));
    EXPECT_GT(a.seconds[2], 0);
    tlc_free(a.object);
    tlc_free(b.object);
  }
  EXPECT_NE(std::string(tlc_features(opened("x86-64"))), tlc_features(opened("x86-64-v3")));
  EXPECT_EQ(tlc_version(), TORCH_LAZY_CODEGEN_VERSION);
}

TEST(Interface, Shows) {
  char* error = nullptr;
  for (const char* what : {"ir", "optimized", "assembly"}) {
    const std::string shown = taken(tlc_show(opened("host"), kernel_text(3).c_str(), what, &error));
    EXPECT_NE(shown.find("kernel"), std::string::npos) << what << taken(error);
  }
  EXPECT_EQ(tlc_show(opened("host"), kernel_text(3).c_str(), "dreams", &error), nullptr);
  EXPECT_NE(taken(error).find("cannot show 'dreams'"), std::string::npos);
}

TEST(Interface, SeveralLoadedAtOnce) {
  const Machine two("host", kernel_text(2)), three("host", kernel_text(3));
  const Machine again("host", kernel_text(2));
  EXPECT_EQ(last_result(two.function()), 4 + 49);
  EXPECT_EQ(last_result(three.function()), 6 + 49);
  EXPECT_EQ(last_result(again.function()), 4 + 49);
  EXPECT_NE(two.function(), again.function());
}

TEST(Interface, ForeignBytesAreRefused) {
  tlc_target* host = opened("host");
  tlc_result good = tlc_compile(host, kernel_text(2).c_str());
  ASSERT_NE(good.object, nullptr);
  const std::string bytes(good.object, good.size);
  tlc_free(good.object);
  std::vector<std::string> bad = {"",
                                  "x",
                                  std::string(5000, 'x'),
                                  bytes.substr(0, 20),
                                  bytes.substr(0, bytes.size() - 1),
                                  bytes + "x",
                                  bytes.substr(40)};
  for (size_t place = 0; place < bytes.size(); place += 97) {
    bad.push_back(bytes);
    bad.back()[place] ^= 4;
  }
  for (const std::string& object : bad) {
    char* error = nullptr;
    EXPECT_EQ(tlc_load(host, object.data(), object.size(), &error), nullptr);
    EXPECT_FALSE(taken(error).empty());
  }
  char* error = nullptr;
  EXPECT_EQ(tlc_load(opened("x86-64"), bytes.data(), bytes.size(), &error), nullptr);
  EXPECT_NE(taken(error).find("another processor"), std::string::npos);
  tlc_code* code = tlc_load(host, bytes.data(), bytes.size(), &error);
  ASSERT_NE(code, nullptr) << error;
  EXPECT_EQ(last_result(reinterpret_cast<Function>(tlc_function(code))), 4 + 49);
  tlc_unload(code);
}

TEST(Interface, ManyThreadsAtOnce) {
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&wrong, t] {
      for (int i = 0; i < 12; ++i) {
        const int factor = 1 + (t + i) % 9;
        const Machine machine("host", kernel_text(factor));
        wrong += last_result(machine.function()) != static_cast<float>(2 * factor + 49);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(wrong, 0);
}

int64_t resident_bytes() {
  long pages = 0, resident = 0;
  if (FILE* file = std::fopen("/proc/self/statm", "r")) {
    if (std::fscanf(file, "%ld %ld", &pages, &resident) != 2) {
      resident = 0;
    }
    std::fclose(file);
  }
  return resident * 4096;
}

TEST(Interface, LoadingAndUnloadingDoesNotGrow) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer keeps freed memory";
#endif
  tlc_target* host = opened("host");
  tlc_result result = tlc_compile(host, kernel_text(2).c_str());
  ASSERT_NE(result.object, nullptr);
  auto load_and_unload = [&] {
    char* error = nullptr;
    tlc_code* code = tlc_load(host, result.object, result.size, &error);
    ASSERT_NE(code, nullptr) << error;
    tlc_unload(code);
  };
  for (int i = 0; i < 200; ++i) {
    load_and_unload();
  }
  const int64_t before = resident_bytes();
  for (int i = 0; i < 1000; ++i) {
    load_and_unload();
  }
  EXPECT_LT(resident_bytes() - before, 500 << 10);  // less than half of a page's code each
  tlc_free(result.object);
}

}  // namespace
}  // namespace torch_lazy::codegen
