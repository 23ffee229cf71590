// A kernel with data to run it on, by the interpreter and by machine code.
#pragma once

#include "codegen/codegen.h"
#include "codegen/kernel.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace torch_lazy::codegen {

struct Problem {
  Kernel kernel;
  std::vector<int64_t> sizes;                 // of all dimensions
  std::vector<std::vector<int64_t>> strides;  // by access: those that are arguments
  std::vector<std::vector<char>> memory;      // by pointer; of scratch: what is needed
  std::vector<uint64_t> arguments;
  int64_t tile = 1;

  template <class T>
  void add_argument(T value) {
    arguments.push_back(0);
    std::memcpy(&arguments.back(), &value, sizeof value);
  }
};

/// Bytes of some values.
template <class T>
std::vector<char> bytes_of(const std::vector<T>& values) {
  std::vector<char> bytes(values.size() * sizeof(T));
  if (!values.empty()) {
    std::memcpy(bytes.data(), values.data(), bytes.size());
  }
  return bytes;
}

template <class T>
std::vector<T> values_of(const std::vector<char>& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) {
    std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  }
  return values;
}

/// What a run leaves behind: the memory of every pointer, and the status.
struct Outcome {
  std::vector<std::vector<char>> memory;
  int64_t status = 0;
};

/// All units in one call, or in several of `chunk` units. What lies outside of the problem's memory
/// cannot be touched: behind it, with chunks of 1 also before it.
Outcome run_interpreter(const Problem& problem);
Outcome run_function(const Problem& problem, Function function, int64_t chunk = 0);

/// Targets of the tests that this machine can run.
const std::vector<std::string>& runnable_targets();
tlc_target* opened(const std::string& target);

/// Machine code of a kernel, for as long as this lives.
class Machine {
 public:
  Machine(const std::string& target, const Kernel& kernel) : Machine(target, text(kernel)) {}
  Machine(const std::string& target, const std::string& kernel_text);
  ~Machine() { tlc_unload(code_); }
  Machine(const Machine&) = delete;

  Function function() const { return reinterpret_cast<Function>(tlc_function(code_)); }

 private:
  tlc_code* code_ = nullptr;
};

/// How far a result may be from the interpreter's: units in the last place of its own type.
struct Tolerance {
  double ulps = 0;
  double absolute = 0;
};

/// Compares values one by one: NaN equals NaN, 0 equals -0.
::testing::AssertionResult same(Type type, const std::vector<char>& expected,
                                const std::vector<char>& found, Tolerance tolerance = {});

/// Runs on every target and compares all that is written.
void expect_same_everywhere(const Problem& problem, Tolerance tolerance = {}, int64_t chunk = 0);

}  // namespace torch_lazy::codegen
